"""On a GPU: the comparison of whole training steps, made small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import training_step
from step_parts import Work

pytestmark = pytest.mark.gpu

SMALL = (
    "graph.nodes.hidden.resolution=2", "graph.edges.data2hidden.cutoff_factor=0.8", "model.num_channels=128",
    "model.encoder.num_heads=4", "model.processor.num_heads=4", "model.processor.num_layers=2",
    "model.decoder.num_heads=4",
)  # fmt: skip


@pytest.mark.parametrize("options", [["--only", "o96"], ["--only", "o96", "--inference"], ["--processor-only"]])
def test_every_variant_runs_and_computes_the_same(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    for name in ("o96", "processor"):
        work = training_step.WORKS[name]
        changes = [line for line in SMALL if name == "o96" or "num_layers" not in line]
        small = Work(name, work.config, ("--grid", "o16", "--dates", "12"), (*work.overrides, *changes))
        monkeypatch.setitem(training_step.WORKS, name, small)
    quick = ["--repeats", "2", "--min-time", "0.01", "--output", "results.json"]
    monkeypatch.setattr("sys.argv", ["training_step.py", *options, *quick])
    assert training_step.main() == 0
    (part,) = json.loads(Path("results.json").read_text())["parts"].values()
    for variant in part["variants"]:
        if variant["own"]:
            assert variant["reason"] is None
            assert variant["peak_bytes"] > 0
        if variant["reason"] is None:
            assert variant["agrees"]
            assert 0 < variant["share_of_ceiling"] < 1
        else:
            assert "anemoi-models can't be imported" in variant["reason"]
    named = {variant["name"]: variant for variant in part["variants"]}
    assert named["triton+blocks"]["graphs"] > 0
