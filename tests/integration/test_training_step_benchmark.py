"""``benchmarks/training_step.py`` where the peer is not installed, and the operations that it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_model import make_fields, make_graph, make_model, make_settings
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.data import HeteroData

import step_report
import training_step
from etesian.data.grids import named_grid
from etesian.graph.build import HIDDEN_TO_HIDDEN, build_graph
from etesian.kernels.bench.timing import Ceilings, Spread
from etesian.kernels.resolve import resolve_kernels
from etesian.schema.graph import GraphSettings
from etesian.training.step_times import StepsResult
from step_flops import Shapes, model_flops, processor_flops, step_flops
from step_models import OwnProcessor, mesh_graph


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["training_step.py", *arguments])
    return training_step.main()


PYG = {"GraphAttention": {"_target_": "etesian.kernels.pyg.PygGraphAttention"}}
LEARNT = {"data2hidden": 2, "hidden2hidden": 1, "hidden2data": 3}


def counted(model: torch.nn.Module, *inputs: object) -> tuple[int, int]:
    """Return the operations of all products, forward, and forward and backward."""
    found = []
    for backward in (False, True):
        with FlopCounterMode(display=False) as counter:
            out = model(*inputs)
            if backward:
                out.sum().backward()
        found.append(counter.get_total_flops())
    return found[0], found[1]


def of_edges(graph: HeteroData, *edges: str) -> int:
    """Return the operations of the projections of edge features to 16 channels, the only products of `PYG`."""
    return sum(2 * 16 * (3 + LEARNT[name]) * graph[tuple(name.replace("2", " to ").split())].num_edges
               for name in edges)  # fmt: skip


def test_the_operations_are_those_that_torch_counts() -> None:
    wide = {"num_heads": 2, "mlp_hidden_ratio": 3.0}
    settings = make_settings(encoder=wide, latent_skip=False, layer_kernels=PYG, edge_trainable_parameters=LEARNT)
    graph, fields = make_graph(), make_fields()
    model = make_model(settings, graph)
    inputs = fields.num_steps * len(fields.input_names)
    shapes = Shapes(6 * 14, 6 * 5, inputs + 4 + 2, 4 + 3, len(fields.output_names))
    edges = 6 * of_edges(graph, "data2hidden", "hidden2hidden", "hidden2hidden", "hidden2data")
    forward, both = counted(model, torch.randn(2, 2, 3, 14, 3))
    assert model_flops(settings, shapes) == forward - edges
    assert step_flops(forward - edges) == both - 3 * edges


def test_the_operations_of_the_processor() -> None:
    settings, graph = make_settings(layer_kernels=PYG, edge_trainable_parameters=LEARNT), make_graph()
    model = OwnProcessor(settings, graph, resolve_kernels(settings, preset=None, overrides=[]))
    edges = 2 * of_edges(graph, "hidden2hidden", "hidden2hidden")
    forward, both = counted(model, torch.randn(10, 16, requires_grad=True), 2)
    assert processor_flops(settings, 10) == forward - edges
    assert step_flops(forward - edges) == both - 3 * edges


def test_the_mesh_by_itself_is_that_of_a_whole_graph() -> None:
    settings = GraphSettings.model_validate(
        {"nodes": {"hidden": {"resolution": 2}}, "edges": {"data2hidden": {"cutoff_factor": 0.7}}}
    )
    grid = named_grid("o16")
    whole, mesh = build_graph(grid.latitudes, grid.longitudes, settings), mesh_graph(settings)
    assert torch.equal(whole["hidden"].x, mesh["hidden"].x)
    for name in ("edge_index", "edge_length", "edge_dirs"):
        assert torch.equal(whole[HIDDEN_TO_HIDDEN][name], mesh[HIDDEN_TO_HIDDEN][name])


@pytest.mark.slow
def test_without_the_peer_the_own_variants_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"format": 1, "parts": {"o96": "as it was"}}))
    assert run(monkeypatch, "--quick", "--output", str(file), "--variants", "as shipped,peer") == 0
    content = json.loads(file.read_text())
    assert content["parts"].pop("o96") == "as it was"
    assert list(content["parts"]) == ["quick", "quick inference", "quick processor"]
    for part in content["parts"].values():
        own, peer = part["variants"]
        assert own["step_ms"]["median"] > 0
        assert own["speed"] is None
        assert own["how"]["kernels"]
        assert peer["step_ms"] is None
        assert "anemoi-models can't be imported" in peer["reason"]
        assert part["environment"]["versions"]["anemoi-models"] is None
    quick = content["parts"]["quick"]
    assert (quick["work"]["inputs"], quick["work"]["outputs"], quick["work"]["samples"]) == (26, 8, 1)
    assert quick["work"]["flops"] == 3 * content["parts"]["quick inference"]["work"]["flops"]
    printed = capsys.readouterr().out
    assert printed.count("peer not timed: fails: ImportError: anemoi-models can't be imported") == 3


@pytest.mark.parametrize("text", ["not JSON", '{"runs": {}}'])
def test_a_file_of_something_else_is_not_replaced(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    assert run(monkeypatch, "--quick", "--output", str(file)) == 2
    assert "holds no results of this script" in capsys.readouterr().err
    assert file.read_text() == text


def test_a_variant_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--quick", "--variants", "as shiped") == 2
    said = capsys.readouterr().err
    assert "quick has no variant 'as shiped'" in said
    assert "as shipped, pyg, peer, peer recomputed" in said
    assert "did you mean 'as shipped'" in said


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model/layer_kernels=tritn"], "the group 'model/layer_kernels' has no such option"),
        (["model.processor.num_layers=3"], "it has another model.processor.num_layers"),
        (["training.precision=bf16-mixed"], "it has another training.precision"),
    ],
)
def test_overrides_that_do_not_fit_stop_before_any_work(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(training_step.OWN, "quick", {"as shipped": [], "wrong": overrides})
    assert run(monkeypatch, "--quick") == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "first step" not in printed.out


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert run(monkeypatch, "--output", "unused.json") == 2
    assert "this machine has 0 CUDA device(s)" in capsys.readouterr().err


@pytest.mark.parametrize("work", [name for name in training_step.WORKS if name != "quick"])
def test_every_variant_composes(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("step_parts.resolve_kernels", lambda *args, **kwargs: None)  # Triton is not there
    monkeypatch.setattr("sys.argv", ["x", *(["--processor-only"] if work == "processor" else ["--only", work])])
    (part,) = training_step.plan(training_step.parse())
    assert list(part.own) == list(training_step.OWN[work])
    assert part.name == work


def test_ratios_and_disagreement() -> None:
    def result(name: str, milliseconds: float, loss: float, gradient: float) -> StepsResult:
        step = Spread(milliseconds, milliseconds, milliseconds)
        return StepsResult(name, step=step, samples_per_second=1.0, first_step_seconds=1.0, first_loss=loss,
                           first_gradient=gradient)  # fmt: skip

    found = [result("own", 50.0, 1.0, 2.0), result("peer", 100.0, 1.005, 2.0), result("slow peer", 200.0, 1.0, 2.2)]
    missing = StepsResult("lost", reason="no memory")
    ceilings = Ceilings(1e12, 8e14, "bfloat16")
    variants = [step_report.entry(r, 2 * 10**13, ceilings, own=r.name == "own") for r in (*found, missing)]
    step_report.compare(variants, (1e-2, 5e-2))
    own, peer, slow, lost = variants
    assert own["flops_per_second"] == pytest.approx(4e14)
    assert own["share_of_ceiling"] == pytest.approx(0.5)
    assert [own["speed"], peer["speed"], slow["speed"], lost["speed"]] == [2.0, 1.0, 0.5, None]
    assert [own["agrees"], peer["agrees"], slow["agrees"], lost["agrees"]] == [True, True, False, None]
    assert slow["difference"]["gradient"] == pytest.approx(0.1)


def test_a_loss_that_is_lost_does_not_agree() -> None:
    variants = [
        {"own": True, "step_ms": None, "first_loss": loss, "first_gradient": None} for loss in (1.0, float("nan"))
    ]
    step_report.compare(variants, (1e-2, 5e-2))
    assert [variant["agrees"] for variant in variants] == [True, False]
