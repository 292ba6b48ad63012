"""The flow of the stores: from rest to a statistically steady, active circulation, for as long as asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from etesian.data.forcings import OF_PLACE, OF_SEASON, of_place, of_season
from etesian.data.grids import Grid
from etesian.data.shallow_water.grids import Evaluator, make_grid
from etesian.data.shallow_water.harmonics import Real, SphericalTransform
from etesian.data.shallow_water.initial import MEAN_DEPTH, Climate, Stirring, mountains, random_pattern
from etesian.data.shallow_water.options import Simulation
from etesian.data.shallow_water.solver import GRAVITY, Forcing, Hyperdiffusion, ShallowWater, State
from etesian.data.store import check_target, write_store

HOUR = 3600.0
DAY = 86400.0
ZONAL_TIME = 3.0 * DAY
EDDY_TIME = 20.0 * DAY
STIRRING_STRENGTH = 4.0e-11
STIRRING_MEMORY = 3.0 * DAY
HYPERDIFFUSION = Hyperdiffusion(time=12.0 * HOUR, order=4)

FIELDS = {"u": "m s-1", "v": "m s-1", "height": "m", "vorticity": "s-1"}
"""What is forecast, with units: wind, height of the free surface, relative vorticity."""
PLACE = ("orography", *OF_PLACE)
SEASON = OF_SEASON


def simulate(simulation: Simulation) -> Iterator[tuple[ShallowWater, State]]:
    """Yield the equations and the state at each date, in order.

    The zonal mean is relaxed to a jet in each hemisphere (:class:`~etesian.data.shallow_water.initial.Climate`) within
    3 days and the eddies are damped within 20, so that the jets keep breaking up into waves and vortices; weak
    stirring (:class:`~etesian.data.shallow_water.initial.Stirring`) and mountains keep them from repeating
    themselves, and the smallest scales are damped. The flow neither settles nor grows, whatever its length. Climate
    and stirring are held for three hours, or for the largest part of that which divides the spacing of the dates.

    Raises
    ------
    UserError
        See :meth:`Simulation.dates`.
    """
    dates, hours = simulation.dates(), simulation.step_hours()
    transform = SphericalTransform(simulation.truncation)
    ground, first, stirred = (np.random.default_rng([simulation.seed, part]) for part in range(3))
    model = ShallowWater(transform, ground=mountains(transform, ground), hyperdiffusion=HYPERDIFFUSION)
    climate = Climate(model)
    stirring = Stirring(transform, stirred, STIRRING_STRENGTH, STIRRING_MEMORY)

    held = np.timedelta64(math.gcd(hours, 3) * 3600, "s")
    date = dates[0] - math.ceil(simulation.spinup_days * DAY / held.astype(float)) * held
    vorticity = climate.at(date).vorticity + 1e-5 * random_pattern(transform, first)
    state = State(vorticity, np.zeros_like(vorticity), model.balanced_geopotential(vorticity, GRAVITY * MEAN_DEPTH))
    for wanted in dates:
        while date < wanted:
            model.forcing = Forcing(climate.at(date), ZONAL_TIME, EDDY_TIME, stirring.pattern)
            state = model.advance(state, held.astype(float))
            stirring.advance(held.astype(float))
            date += held
        yield model, state


def make_store(
    path: Path,
    simulation: Simulation,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Simulate and write a store.

    Parameters
    ----------
    path : Path
        Ends in ``.zarr``.
    simulation : Simulation
        What to simulate.
    overwrite : bool
        Replace the store that is there.
    progress : callable, optional
        Called with the number of dates written so far.

    Raises
    ------
    UserError
        Nothing can be written there, or the settings make no sense.
    """
    check_target(path, overwrite=overwrite)
    dates = simulation.dates()
    transform = SphericalTransform(simulation.truncation)
    grid = make_grid(simulation.grid, transform, simulation.degrees)
    return write_store(
        path,
        _states(simulation, dates, grid),
        dates,
        grid.latitudes,
        grid.longitudes,
        [*FIELDS, *PLACE, *SEASON],
        _metadata(),
        simulation.frequency,
        {
            "resolution": grid.name,
            "field_shape": grid.field_shape,
            "description": "Forced shallow-water flow on the rotating sphere: jets, eddies, mountains.",
            "shallow_water": {
                "truncation": simulation.truncation,
                "seed": simulation.seed,
                "spinup_days": simulation.spinup_days,
                "mean_depth": MEAN_DEPTH,
            },
        },
        overwrite=overwrite,
        progress=progress,
    )


def _states(simulation: Simulation, dates: np.ndarray, grid: Grid) -> Iterator[Real]:
    """Everything that the store holds of each date: (V, G)."""
    evaluator = Evaluator(grid, simulation.truncation)
    latitudes, longitudes = grid.latitudes, grid.longitudes
    place: Real | None = None
    for date, (model, state) in zip(dates, simulate(simulation), strict=True):
        if place is None:
            orography = evaluator.scalar(model.ground) / GRAVITY
            place = np.stack([orography, *of_place(latitudes, longitudes).values()])
        season = np.array([[value] for value in of_season(date).values()]) + np.zeros(len(latitudes))
        yield np.concatenate([evaluator.fields(model, state), place, season])


def _metadata() -> dict[str, dict[str, Any]]:
    metadata: dict[str, dict[str, Any]] = {
        name: {"mars": {"param": name, "levtype": "sfc"}, "units": unit} for name, unit in FIELDS.items()
    }
    for name in (*PLACE, *SEASON):
        metadata[name] = {"units": "1", "computed_forcing": True, "constant_in_time": name in PLACE}
    metadata["orography"] = {
        "mars": {"param": "orography", "levtype": "sfc"},
        "units": "m",
        "constant_in_time": True,
    }
    return metadata
