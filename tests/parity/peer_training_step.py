"""The quick form of ``benchmarks/training_step.py``, with the peer.

Run by ``test_peers.py``, in a process that has the peer.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import training_step

PARTS = ["quick", "quick inference", "quick processor"]


def test_steps_beside_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["training_step.py", "--quick", "--output", str(file)])
    assert training_step.main() == 0
    parts = json.loads(file.read_text())["parts"]
    assert list(parts) == PARTS
    for part in parts.values():
        variants = {variant["name"]: variant for variant in part["variants"]}
        assert list(variants) == ["as shipped", "pyg", "peer", "peer recomputed"]
        assert part["environment"]["versions"]["anemoi-models"] == "0.19.0"
        fastest = min(variants[name]["step_ms"]["median"] for name in ("peer", "peer recomputed"))
        for variant in variants.values():
            assert variant["reason"] is None
            assert variant["agrees"] is True
            assert variant["difference"]["loss"] < 1e-6
            assert variant["speed"] == pytest.approx(fastest / variant["step_ms"]["median"])
        assert variants["peer"]["first_loss"] > 0
        assert variants["peer"]["how"]["backend"] == "pyg"
    assert parts["quick"]["variants"][2]["difference"]["gradient"] < 1e-5
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "peer recomputed" in printed
    filler = runpy.run_path(str(Path(training_step.__file__).parents[1] / "docs" / "fill_figures.py"))
    text = filler["training_step"](json.loads(file.read_text()))
    assert text.count("\n| `as shipped` | ") == 3
    assert "anemoi-models 0.19.0" in text


def test_what_computes_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(training_step.OWN, "quick", {"as shipped": [], "rmsnorm": ["model/layer_kernels=rmsnorm"]})
    file = tmp_path / "results.json"
    monkeypatch.setattr(
        "sys.argv",
        ["training_step.py", "--quick", "--inference", "--variants", "as shipped,rmsnorm", "--output", str(file)],
    )
    assert training_step.main() == 1
    agrees = {v["name"]: v["agrees"] for v in json.loads(file.read_text())["parts"]["quick inference"]["variants"]}
    assert agrees == {"as shipped": True, "rmsnorm": False}
    assert "rmsnorm computes something else than the first variant: loss " in capsys.readouterr().out
