"""What a run settles by itself: page-locked memory, its word on worker processes, and how many pictures it draws."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.schema.config import Config
from etesian.schema.diagnostics import DRAWN
from etesian.training import fit, report


def config(*overrides: str) -> Config:
    return check_tree(compose("debug", None, overrides))


@pytest.mark.parametrize(
    ("overrides", "pinned"),
    [
        ([], False),
        (["system=gpu"], True),
        (["system=gpu", "dataloader.pin_memory=false"], False),
        (["system=gpu", "dataloader.pin_memory=true"], True),
        (["dataloader.pin_memory=false"], False),
    ],
)
def test_memory_is_page_locked_with_a_gpu_only(overrides: list[str], pinned: bool) -> None:
    experiment: Any = SimpleNamespace(splits=None, step=1, config=config(*overrides))
    assert fit.build_datamodule(experiment).settings.pin_memory is pinned


def test_more_workers_than_cores_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    workers = "dataloader.num_workers.training"
    assert fit._too_many_workers(config(f"{workers}=2")) == ""
    assert fit._too_many_workers(config(f"{workers}=3")).startswith(f"{workers}=3 on 2 processor cores")
    both = config(f"{workers}=2", "system.hardware.num_gpus_per_node=2")
    assert fit._too_many_workers(both).startswith(f"{workers}=2 for each of 2 processes on 2 processor cores")


@pytest.mark.parametrize(
    ("parameters", "drawn", "said"),
    [
        ("null", DRAWN, "Pictures show the first 8 of 9 outputs; diagnostics.plot.parameters=[...]"),
        ("all", 9, ""),
        ("[v8,v1]", 2, ""),
    ],
)
def test_so_many_outputs_are_drawn(
    parameters: str,
    drawn: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names, maps = [f"v{i}" for i in range(9)], []
    fields = np.zeros((1, 4, 9))
    sample: Any = SimpleNamespace(
        dates=np.array(["2000"], "datetime64[D]"), truth=fields, forecast=fields, initial=fields[0]
    )
    for name, value in {
        "plot_losses": None, "read_history": None, "make_frame": None, "units_of": {}, "lead_labels": ["6 h"],
    }.items():  # fmt: skip
        monkeypatch.setattr(report, name, lambda *_, value=value: value)
    monkeypatch.setattr(report, "plot_maps", lambda fields, path, frame: maps.append(fields.variable))
    data = SimpleNamespace(latitudes=np.zeros(4), longitudes=np.zeros(4), dates=None)
    experiment: Any = SimpleNamespace(
        config=config(f"diagnostics.plot.parameters={parameters}"),
        variables=SimpleNamespace(output=tuple(names)),
        splits=SimpleNamespace(test=data, training=None),
        step=1,
    )
    trained: Any = SimpleNamespace(graph={"data": SimpleNamespace(area_weight=torch.ones(4, 1))})
    run: Any = SimpleNamespace(path=tmp_path, plots=tmp_path)
    report.draw(experiment, run, trained, None, sample)
    assert len(maps) == drawn
    printed = capsys.readouterr().out
    assert printed.startswith(said)
    assert bool(printed) == bool(said)
