"""The configs of the size of real models: their sizes, and two steps of each, made small, on a store made for them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from runs import curve, train

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.data.grids import named_grid
from etesian.data.synthetic.options import SyntheticStore
from etesian.data.synthetic.store import plan_store
from etesian.schema.config import Config

SIZES = {"o96": (40_320, 5), "n320": (542_080, 6)}
SMALL = [
    "system=cpu", "graph.nodes.hidden.resolution=1", "graph.edges.data2hidden.cutoff_factor=0.8",
    "model.num_channels=16", "model.encoder.num_heads=2",
    "model.processor.num_heads=2", "model.processor.num_layers=1", "model.decoder.num_heads=2",
    "dataloader.num_workers={training: 0, validation: 0, test: 0}",
    "diagnostics.plot.enabled=false", "training.max_steps=2", "training.run_id=run", "diagnostics.log.interval=1",
]  # fmt: skip


def composed(name: str, *overrides: str) -> Config:
    return check_tree(compose(name, None, ["system.input.dataset=any.zarr", *overrides]))


@pytest.mark.parametrize("name", SIZES)
def test_a_dataset_is_all_it_takes(name: str) -> None:
    config = composed(name)
    assert config.system.hardware.accelerator == "cuda"
    assert config.training.precision == "bf16-mixed"
    assert (config.model.num_channels, config.model.processor.num_layers) == (1024, 16)
    assert {part.num_heads for part in (config.model.encoder, config.model.processor, config.model.decoder)} == {16}
    assert config.graph.nodes.hidden.resolution == SIZES[name][1]
    recomputed = [part.gradient_checkpointing for part in (config.model.encoder, config.model.processor)]
    assert recomputed == ["full" if name == "n320" else "none"] * 2
    assert config.model.decoder.gradient_checkpointing == recomputed[0]
    assert named_grid(name).latitudes.size == SIZES[name][0]


@pytest.mark.parametrize("name", SIZES)
def test_the_store_that_goes_with_it_gives_216_inputs_and_85_outputs(name: str) -> None:
    config, fields = composed(name), SyntheticStore().fields()
    inputs = [field.name for field in fields if field.role != "diagnostic"]
    outputs = [field.name for field in fields if field.role != "forcing"]
    assert config.task.multistep_input * len(inputs) == 216
    assert len(outputs) == 85
    assert config.data.forcing == "computed"
    assert config.data.diagnostic == [field.name for field in fields if field.role == "diagnostic"]


@pytest.mark.parametrize("name", SIZES)
def test_made_small_it_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    store = plan_store(tmp_path / "store.zarr", SyntheticStore(grid="o8", prognostic=3, forcing=10)).write()
    assert train("--config-name", name, f"system.input.dataset={store}", *SMALL) == 0
    losses = curve(tmp_path / "outputs" / "run")
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)


def test_own_data_trains_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    options = SyntheticStore(grid="o8", prognostic=2, forcing=4, diagnostic=1)
    store = plan_store(tmp_path / "store.zarr", options).write()
    small = [option for option in SMALL if not option.startswith("system")]
    assert train("--config-name", "own_data", f"system.input.dataset={store}", *small) == 0
