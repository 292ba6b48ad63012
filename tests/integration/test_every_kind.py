"""Every kind of model on two stores: it trains, goes on as if it had not stopped, is exported and forecasts.

The kinds are those of the group ``model`` as it is shipped; mixtures of encoders and decoders with them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from runs import assert_same_run, curve, train

from etesian import cli
from etesian.commands.common import register_kinds
from etesian.places import package_config_dir

register_kinds()

GROUP = package_config_dir() / "model"
KINDS = sorted(file.stem for file in GROUP.glob("*.yaml"))
MIXED = [
    ["model=transformer", "model/encoder=gnn"],
    ["model=gnn", "model/decoder=graphtransformer", "model.encoder.num_chunks=3", "model.decoder.num_chunks=2",
     "model.encoder.gradient_checkpointing=full", "model.decoder.gradient_checkpointing=selective"],
    ["model/processor=pointwise", "model/encoder=gnn", "model/decoder=gnn"],
    ["model=hierarchical", "model/decoder=gnn", "model.processor.gradient_checkpointing=full"],
]  # fmt: skip
STORES = ("reanalysis", "shallow water")
CASES = [(store, [f"model={kind}"]) for store in STORES for kind in KINDS] + [("shallow water", kind) for kind in MIXED]
SMALL = ["model.num_channels=8", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false",
         "training.deterministic=true",
         "training.optimization.lr_scheduler={kind: constant, warmup_t: 2}", "diagnostics.log.interval=1",
         "dataloader.batch_size={training: 2, validation: 2, test: 2}",
         "dataloader.limit_batches={training: 5, validation: 1, test: 1}"]  # fmt: skip


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flow") / "flow.zarr"
    size = ["--truncation", "10", "--grid", "regular", "--degrees", "20", "--days", "20", "--spinup-days", "2"]
    assert cli.main(["dataset", "make", "shallow-water", str(path), *size]) == 0
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def config_of(store: str, flow: Path, kind: list[str]) -> list[str]:
    """Return the options of a tiny experiment on the embedded reanalysis, or on a shallow-water flow."""
    levels = "model=hierarchical" in kind
    graph = ["graph=hierarchical"] if levels else []
    resolution = f"graph.nodes.hidden.resolution={2 if levels else 1}"
    if store == "reanalysis":
        return ["--config-name", "train", *kind, *graph, resolution, "task.multistep_input=1", *SMALL]
    return ["--config-name", "shallow_water", f"system.input.dataset={flow}", *kind, *graph, resolution, *SMALL]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_composes(kind: str, store: str, flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = config_of(store, flow, [f"model={kind}"])
    assert cli.main(["config", "show", *words]) == 0
    assert f"kind: {kind}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("store", "kind"), CASES, ids=[f"{store}: {' '.join(kind[:3])}" for store, kind in CASES])
def test_it_trains_goes_on_and_forecasts(
    store: str, kind: list[str], flow: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = config_of(store, flow, kind)
    assert train(*words, "training.run_id=whole", "training.max_epochs=2") == 0
    losses = curve(folder / "whole")
    assert len(losses) == 10
    assert np.isfinite(losses).all()
    if kind not in MIXED:
        for epochs in (1, 2):
            assert train(*words, "training.run_id=parts", f"training.max_epochs={epochs}") == 0
        assert_same_run(folder / "whole", folder / "parts")

    checkpoints = folder / "whole" / "checkpoints"
    assert cli.main(["checkpoint", "export", str(checkpoints / "last.ckpt"), "-o", "exported.ckpt"]) == 0
    date, lead = ("2016-01-01", "2mo") if store == "reanalysis" else ("2000-01-18", "12h")
    fields = []
    for file in (checkpoints / "last.ckpt", checkpoints / "inference-last"):
        assert cli.main(["forecast", str(file), "--date", date, "--lead-time", lead, "-o", f"{file.stem}.nc"]) == 0
        with xr.open_dataset(f"{file.stem}.nc") as forecast:
            fields.append(forecast.load())
    xr.testing.assert_allclose(*fields, rtol=1e-5)
