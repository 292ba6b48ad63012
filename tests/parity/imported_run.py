"""From a checkpoint of anemoi-training to a run that goes on from it.

Run by ``test_peers.py``, in a process that has the peers.
"""

from __future__ import annotations

from pathlib import Path

import peer_checkpoints as peer
import pytest
from runs import train

from etesian import cli
from etesian.checkpoint.open import open_forecaster
from etesian.checkpoint.peer.verify import can_verify
from etesian.data.open import open_whole
from small_stores import write_store


def test_from_a_checkpoint_to_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "small.zarr")
    data = open_whole({"dataset": "small.zarr"}, tmp_path, "here")
    config = peer.make_config()
    section = config["data"]["datasets"]["data"]
    section |= {"forcing": ["forcing"], "diagnostic": []}
    section["processors"]["normalizer"]["config"] = {"default": "mean-std"}
    config["model"]["bounding"]["datasets"]["data"] = []
    model, held = peer.make_model(config, peer.make_graph(data.latitudes, data.longitudes), tuple(data.variables))
    peer.write(tmp_path / "theirs.ckpt", model, held)
    assert can_verify()
    assert cli.main(["checkpoint", "import", "theirs.ckpt", "-o", "mine.ckpt"]) == 0
    out = capsys.readouterr().out
    assert "apart from anemoi-models on random numbers, 1e-05 allowed" in out
    (command,) = [line.split() for line in out.splitlines() if line.startswith("  anemoi-training train")]
    assert cli.main(["checkpoint", "describe", "mine.ckpt"]) == 0
    assert "7 steps, epoch 1" in capsys.readouterr().out
    quick = ["training.max_epochs=1", "training.optimization.lr_scheduler.warmup_t=1", "training.run_id=on",
             "diagnostics.plot.enabled=false", "diagnostics.scores.lead_times=1"]  # fmt: skip
    assert train(*command[2:-1], *quick) == 2
    assert "no state of an optimiser to go on from" in capsys.readouterr().err
    assert train(*command[2:], *quick) == 0
    assert "with the weights of mine.ckpt" in capsys.readouterr().out
    lead = ["--date", str(data.dates[3]).partition(".")[0], "--lead-time", "6h"]
    assert cli.main(["forecast", "mine.ckpt", *lead, "-o", "out.nc"]) == 0
    assert open_forecaster(Path("mine.ckpt")).about["run"]["id"] == "mine"
    assert cli.main(["checkpoint", "import", "theirs.ckpt", "-o", "mine.ckpt"]) == 2
    assert "is there already" in capsys.readouterr().err
