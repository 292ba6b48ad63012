"""The figures in README and docs/ are those of benchmarks/results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def filler():
    spec = importlib.util.spec_from_file_location("fill_figures", REPOSITORY / "docs" / "fill_figures.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def test_the_pages_hold_the_results(filler) -> None:
    for page in filler.pages():
        text = page.read_text()
        assert filler.fill(text) == text, f"{page.name}: run `python docs/fill_figures.py`"


def test_every_block_is_found_and_closed(filler) -> None:
    for page in filler.pages():
        text = page.read_text()
        if page.name != "contributing.md":  # which tells how a block is written
            assert text.count("<!-- figures: ") == len(filler.BLOCK.findall(text)), page.name


def test_scores_are_rounded_not_cut(filler) -> None:
    lead = {"rmse": {"model": 1.0496, "persistence": 2.0}, "ratio_to_persistence": 0.5248}
    entry = {
        "variables": {"t": {"units": "K", "lead_times": {"1 month": lead}}},
        "wall_seconds": 119.7, "seconds_to_first_step": 5.2, "steps": 860, "threads": 1, "cpu": "a processor",
        "versions": {"torch": "2.0"}, "date": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    text = filler.ncep_monthly({"configs": {"train": entry}})
    assert "| `train` | `t`, K | 1 month | 1.050 | 2.000 |  |  | 0.525 |" in text
    assert "120 s for the whole command, first optimiser step after 5 s, 860 steps; 1 thread of a processor" in text


def test_kernels_and_steps_are_laid_out(filler) -> None:
    times = {"median": 0.5, "min": 0.45, "max": 0.55, "device": 0.25, "host": 0.4}
    kernel = {
        "kernel": "torch.nn.LayerNorm(eps=1e-05)", "compiled": True, "forward_ms": times, "forward_backward_ms": times,
        "relative_error": {"output": 2e-3, "gradients": {"input": 1e-3, "weight": 4e-3}}, "peak_bytes": 2.5e9,
        "reason": None,
    }  # fmt: skip
    missing = kernel | {
        "kernel": "some.Norm",
        "compiled": False,
        "forward_backward_ms": None,
        "reason": "it is missing",
    }
    slot = {"slot": "LayerNorm", "rows": 40962, "shape": "rows", "inputs": {"input": "40,962 x 1,024 bfloat16"},
            "floor_ms": {"forward_backward": 0.1}, "kernels": [kernel, missing]}  # fmt: skip
    step = {"preset": "torch", "step_ms": times, "samples_per_second": 2.0, "first_step_seconds": 9.0,
            "peak_bytes": 4e9, "graphs": 3}  # fmt: skip
    run = {
        "slots": [slot],
        "end_to_end": {"presets": [step], "batch": {"batch": 2, "grid_points": 2592}, "memory": "all stay"},
        "environment": {"accelerator": {"names": ["A CARD"]}, "versions": {"torch": "2.0", "triton": None},
                        "date": "2026-01-02T03:04:05+00:00"},
        "settings": {"device": "cuda", "precision": "bf16-mixed", "channels": 1024, "repeats": 9,
                     "rows": None, "config_name": "o96", "overrides": ["model=transformer", "training.seed=1"]},
        "measured_on_the_device": {"copy_bytes_per_second": 4.25e12},
    }  # fmt: skip
    text = filler.layer_kernels({"runs": {"norms": run}})
    row = "| `LayerNorm(eps=1e-05)`, compiled | 0.5 | 0.5 | 10% | 0.25 | 2.50 | 2.50 | 2.0e-03 | 4.0e-03 |"
    assert row in text
    assert "**Config o96 model=transformer**" in text
    assert "`LayerNorm` on 40,962 rows (input 40,962 x 1,024 bfloat16); floor 0.1 ms:" in text
    assert "Not timed: `some.Norm`: it is missing." in text
    assert "| `torch` | 0.5 | 0.5 to 0.6 | 2 | 9.0 | 4.0 | 3 |" in text
    assert "A CARD, `bf16-mixed`, 1,024 channels, median of 9 rounds, torch 2.0, 2026-01-02" in text


def attention_kernel(name: str, forward: float, both: float, **beside_peer: float) -> dict:
    return {
        "name": name, "forward_ms": {"median": forward}, "forward_backward_ms": {"median": both, "device": both / 2},
        "peak_bytes": 1e9 * both, "relative_error": {"output": 2e-3, "gradients": {"query": 3e-3, "key": 1e-3}},
        "reason": None, "beside_peer": beside_peer or None,
    }  # fmt: skip


def test_graph_attention_is_laid_out_beside_the_peer(filler) -> None:
    peer = attention_kernel("peer triton", 1.0, 4.0)
    ratios = {"speed": 4.0, "forward_speed": 2.0, "memory": 0.25, "worst_error": 1.5}
    own = attention_kernel("triton", 0.5, 1.0, **ratios)
    lacking = attention_kernel("pyg", 1.0, 1.0) | {"forward_backward_ms": None, "reason": "no memory"}
    mesh = {
        "group": "graphs", "name": "mesh", "num_src": 40962, "num_dst": 40962, "num_edges": 327660, "heads": 16,
        "head_channels": 64, "floor_ms": {"forward": 0.1, "forward_backward": 0.25}, "kernels": [peer, own, lacking],
    }  # fmt: skip
    sweep = mesh | {"group": "degree", "name": "3", "kernels": [peer, lacking]}
    results = {
        "works": [mesh | {"group": "small"}, mesh, sweep],
        "environment": {"versions": {"torch": "2.0", "triton": None, "anemoi-models": "0.19.0"},
                        "date": "2026-01-02T03:04:05+00:00"},
        "settings": {"device_name": "A CARD", "precision": "bf16-true", "edge_features": 11, "repeats": 15},
        "measured_on_the_device": {"copy_bytes_per_second": 4.25e12},
    }  # fmt: skip
    text = filler.graph_attention(results)
    assert text.count("Mesh to mesh, 40,962 to 40,962 nodes, 327,660 edges, 16 heads x 64 channels:") == 1
    assert "| `peer triton` | 1 | 4 |  | 2 | 8.0 | 4.00 | 2.0e-03 | 3.0e-03 |  |" in text
    row = (
        "| `triton` | 0.5 (2.00x) | 1 (4.00x) |  | 0.5 (4.00x) | 2.0 | 1.00 (0.25 of the peer's) | 2.0e-03 | 3.0e-03 |"
    )
    assert f"{row} 1.50 |" in text
    assert "Not timed: `pyg`: no memory." in text
    assert "| edges into each node | `peer triton` | `peer triton`, on the device alone | floor |" in text
    assert "| 3 | 4 | 2 | 0.25 |" in text
    assert "A CARD, `bf16-true`, 11 edge features, median of 15 rounds, torch 2.0, anemoi-models 0.19.0" in text


def test_what_the_benchmark_writes_is_laid_out(filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etesian import cli

    monkeypatch.chdir(tmp_path)
    quick = ["--slots", "Activation", "--repeats", "2", "--min-time", "0.001", "--no-compiled"]
    assert cli.main(["kernels", "bench", "--rows", "30", *quick, "--output", "results.json"]) == 0
    run = json.loads((tmp_path / "results.json").read_text())
    text = filler.layer_kernels({"runs": {"quick": run}})
    assert "`Activation` on 30 rows (input 30 x 128 float32)" in text
    assert "| `ReLU` | " in text


def test_loss_bands_are_laid_out(filler) -> None:
    inside = {"inside": True, "steps_outside": 1, "furthest": 0.0123, "apart": 0.2}
    outside = inside | {"inside": False}
    exact = {"differences": [0.0, 2e-7], "largest": 2e-7, "equal": True}
    results = {
        "settings": {"device_name": "A CARD", "steps": 100, "exact_steps": 10, "seed": 3, "seconds": 150.2},
        "environment": {"versions": {"torch": "2.0", "triton": None}, "date": "2026-01-02T03:04:05+00:00"},
        "seeds": {"0": [1.0], "1": [2.0]},
        "eager in 32 bits": {"losses": [1.0], "band": inside},
        "fast": [
            {"name": "good", "overrides": ["a=b", "c=d"], "band": inside, "exact": exact, "same": True},
            {"name": "bad", "overrides": ["e=f"], "band": outside, "exact": exact, "same": False},
        ],
    }  # fmt: skip
    text = filler.loss_bands(results)
    assert "| eager in 32 bits |  | yes | 0.012 | 0.200 |  |  |" in text
    assert "| good | `a=b` `c=d` | yes | 0.012 | 0.200 | 2.0e-07 | yes |" in text
    assert "| bad | `e=f` | **no** | 0.012 | 0.200 | 2.0e-07 | **no** |" in text
    assert "A CARD, 100 steps, 10 steps in 32 bits, seed 3 of 2, 150 s in all, torch 2.0, 2026-01-02." in text
    assert text.startswith("![")
