"""Accuracy and speed of the shallow-water solver behind ``dataset make shallow-water``.

Run: ``python benchmarks/shallow_water.py [--output benchmarks/results/shallow_water.json] [--picture day10.png]``

Measures Williamson's test case 2 over five days (the largest error of the depth, relative), the order of the time
stepping on Galewsky's perturbed jet, the drift of the mass and the activity of the stores' forced flow over up
to a year, and the processor time that stores take.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from anemoi.datasets import open_dataset

from etesian.data.shallow_water.harmonics import SphericalTransform
from etesian.data.shallow_water.initial import galewsky, solid_rotation
from etesian.data.shallow_water.options import Simulation
from etesian.data.shallow_water.simulation import make_store, simulate
from etesian.data.shallow_water.solver import State

DAY = 86400.0


def depth_error(transform: SphericalTransform, state: State, exact: State) -> float:
    difference = transform.synthesis((state.geopotential - exact.geopotential)[..., None])
    return float(np.abs(difference).max() / np.abs(transform.synthesis(exact.geopotential[..., None])).max())


def steady_rotation() -> list[dict[str, Any]]:
    rows = []
    for truncation in (21, 42):
        transform = SphericalTransform(truncation)
        for degrees in (0.0, 45.0, 90.0):
            model, start = solid_rotation(transform, np.radians(degrees))
            step = model.stable_step(start)
            end = model.advance(start, 5.0 * DAY, step)
            error = depth_error(transform, end, start)
            rows.append({"truncation": truncation, "angle": degrees, "step_s": round(step), "depth_error": error})
    return rows


def time_order() -> list[dict[str, Any]]:
    transform = SphericalTransform(42)
    model, start = galewsky(transform, perturbed=True)
    reference = model.advance(start, 0.25 * DAY, 37.5)
    rows: list[dict[str, Any]] = []
    for step in (600.0, 300.0, 150.0):
        error = depth_error(transform, model.advance(start, 0.25 * DAY, step), reference)
        order = float(np.log2(rows[-1]["depth_error"] / error)) if rows else None
        rows.append({"step_s": step, "depth_error": error, "order": order})
    return rows


def long_flow(truncation: int, days: float) -> dict[str, Any]:
    began = time.process_time()
    mass, vorticity = [], []
    for _, state in simulate(Simulation(truncation=truncation, days=days)):
        mass.append(state.mean_geopotential)
        vorticity.append(state.vorticity)
    fields = np.stack(vorticity)  # T M N
    fields[:, 1:] *= np.sqrt(2.0)  # m and -m

    def size(part: np.ndarray) -> float:
        return float(np.sqrt((np.abs(part) ** 2).sum(axis=(1, 2)).mean()))

    eddies = fields - fields.mean(axis=0)
    quarters = [size(quarter) for quarter in np.array_split(eddies, 4)]
    return {
        "truncation": truncation,
        "days": days,
        "cpu_seconds": round(time.process_time() - began, 1),
        "mass_drift": float(np.abs(np.array(mass) / mass[0] - 1.0).max()),
        "eddy_vorticity_by_quarter": quarters,
        "six_hour_change_over_eddies": size(np.diff(fields, axis=0)) / size(eddies),
    }


def store_time() -> list[dict[str, Any]]:
    rows = []
    for truncation, grid in ((21, "gaussian"), (42, "gaussian"), (42, "octahedral")):
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            path = make_store(Path(folder) / "flow.zarr", Simulation(truncation=truncation, grid=grid, days=30.0))
            seconds = round(time.process_time() - began, 1)
            shape = list(open_dataset(str(path)).shape)
        rows.append({"truncation": truncation, "grid": grid, "days": 30, "shape": shape, "cpu_seconds": seconds})
    return rows


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    *_, (model, state) = simulate(Simulation(days=10.25, spinup_days=20.0))
    field = model.transform.synthesis(state.vorticity[..., None])[..., 0].T  # J I
    figure, axes = plt.subplots(figsize=(10, 5))
    image = axes.pcolormesh(model.transform.longitudes, model.transform.latitudes, field, cmap="RdBu_r",
                            vmin=-1e-4, vmax=1e-4)  # fmt: skip
    figure.colorbar(image, label="relative vorticity, s-1")
    axes.set(title="Day 10, T42", xlabel="longitude", ylabel="latitude")
    figure.savefig(path, dpi=80, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy and speed of the shallow-water solver.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "shallow_water.json")
    parser.add_argument("--picture", type=Path, help="also draw the vorticity of day 10")
    args = parser.parse_args()
    if args.picture:
        draw(args.picture)
    results = {
        "machine": {
            "processor": platform.machine(), "cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS"),
            "python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
        },
        "williamson_2_after_5_days": steady_rotation(),
        "galewsky_jet_time_order": time_order(),
        "forced_flow": [long_flow(21, 365.0), long_flow(42, 60.0)],
        "stores": store_time(),
    }  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
