"""``benchmarks/activation_checkpointing.py`` in its quick form: what it times, refuses, prints and writes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import activation_checkpointing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_policy_is_timed_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["activation_checkpointing.py", "--quick", "--output", str(file)])
    assert activation_checkpointing.main() == 0
    printed = capsys.readouterr().out
    results = json.loads(file.read_text())
    models = results["steps"]["models"]
    asked = [(way, policy) for way in ("none", "blocks") for policy in ("none", "selective", "full", "offload")]
    assert [(model["compile"], model["policy"]) for model in models] == asked
    for model in models:
        if model["policy"] == "offload":
            assert model["step_ms"] is None
            assert "does nothing with system.hardware.accelerator='cpu'" in model["reason"]
        else:
            assert model["step_ms"]["median"] > 0
            assert model["first_loss"] == pytest.approx(models[0]["first_loss"], rel=1e-5)
            assert (model["graphs"] > 0) == (model["compile"] == "blocks")
    assert "selective" in printed
    assert printed.count("not timed") == 2
    path = Path(__file__).resolve().parents[2] / "docs" / "fill_figures.py"
    text = runpy.run_path(str(path))["activation_checkpointing"](results)
    assert text.count("\n| `selective` | ") == 2
    assert "Not timed: `offload` with `model/compile=none`: " in text


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("sys.argv", ["activation_checkpointing.py", "--output", str(tmp_path / "none.json")])
    assert activation_checkpointing.main() == 2
    assert "--quick" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
