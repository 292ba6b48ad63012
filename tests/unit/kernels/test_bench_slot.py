"""Kernels of a slot: whether they are right, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_model import make_settings

from etesian.kernels import families
from etesian.kernels.bench import accuracy
from etesian.kernels.bench import slot as bench_slot
from etesian.kernels.bench.candidates import Candidate, candidates
from etesian.kernels.bench.cases import Case, make_case, returned_dtypes
from etesian.kernels.bench.results import KernelResult, ShapeResult
from etesian.kernels.bench.shapes import Sizes, made_up_edges, shapes_of_experiment, shapes_of_rows
from etesian.kernels.bench.slot import Plan, bench_case
from etesian.kernels.bench.timing import Ceilings
from etesian.kernels.machine import Machine
from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.device import DeviceClock

CPU = torch.device("cpu")
CLOCK = DeviceClock(CPU)
CEILINGS = Ceilings(1e10, 1e10, "float32")
QUICK = Plan(repeats=2, min_seconds=1e-4, compiled=False)


def prepare(
    slot: str, rows: int = 50, precision: Any = "32-true", target: str | None = None
) -> tuple[Case, list[Candidate], Machine]:
    kernels_of = {} if target is None else {slot: {"_target_": target}}
    settings = make_settings(layer_kernels=kernels_of)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    machine = Machine(CPU, precision)
    (shape,) = shapes_of_rows(slot, settings, [rows])
    returned = returned_dtypes(kernels.processor, settings, machine)
    case = make_case(slot, shape, settings, kernels.processor, returned, machine)
    return case, candidates(slot, settings, kernels), machine


def bench(slot: str, plan: Plan = QUICK, **options: Any) -> ShapeResult:
    case, named, machine = prepare(slot, **options)
    if options.get("target") is not None:
        named = [candidate for candidate in named if candidate.chosen_by]
    return bench_case(case, named, machine, CLOCK, CEILINGS, plan)


def own(result: ShapeResult, *, compiled: bool = False) -> KernelResult:
    return next(k for k in result.kernels if k.compiled == compiled)


@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "slot", ["LayerNorm", "Linear", "Activation", "QueryNorm", "KeyNorm", "MLP", "GraphAttention", "Attention"]
)
def test_kernels_of_the_package_are_right(slot: str, precision: str) -> None:
    result = bench(slot, precision=precision)
    assert result.timed
    for kernel in result.timed:
        assert kernel.errors is not None
        assert kernel.errors.output is not None, kernel.errors.reference
        assert (
            max(kernel.errors.output, kernel.errors.worst_gradient)
            < accuracy.BOUNDS[
                {"64-true": torch.float64, "32-true": torch.float32, "bf16-mixed": torch.bfloat16}[precision]
            ]
        )
        assert kernel.forward.call.median > 0
    for kernel in result.not_timed:
        assert (
            "library is missing" in kernel.reason or "FlexAttention does not support backward on CPU" in kernel.reason
        )
        assert not kernel.wrong


@pytest.mark.parametrize("slot", ["LayerNorm", "MLP", "GraphAttention", "Attention"])
def test_piece_by_piece_is_the_whole(slot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def errors() -> dict[str, float]:
        case, named, machine = prepare(slot)
        if slot == "Attention":
            case = Case(**{**vars(case), "window_size": 7, "build": lambda k: k.Attention(2, 8, window_size=7)})
        candidate = named[0]
        layer = case.build(candidate.kernels)
        inputs = case.random_inputs(0, CPU)
        outcome = accuracy.run_once(case, layer, inputs, 0, machine)
        return accuracy.relative_errors(case, layer, candidate.record, inputs, outcome, 0, machine)

    torch.manual_seed(0)
    whole = errors()
    monkeypatch.setattr(accuracy, "PIECE", 300)
    torch.manual_seed(0)
    pieces = errors()
    assert pieces.output == pytest.approx(whole.output, rel=1e-6)
    assert pieces.gradients == pytest.approx(whole.gradients, rel=1e-6)
    assert len(whole.gradients) >= 3


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {"eps": 1e-5, "bias": True}
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_CONSTANTS", dict(families._CONSTANTS))
    families.register_family("odd_kernels.WrongNorm", "layer_norm", constants)
    kernel = own(bench("LayerNorm", target="odd_kernels.WrongNorm"))
    assert kernel.wrong
    assert kernel.both is None
    assert "of the result, against LayerNorm in float64 (bound 1e-03)" in kernel.reason


def test_a_kernel_that_writes_to_its_input_is_wrong() -> None:
    kernel = own(bench("Activation", target="odd_kernels.WritesItsInput"))
    assert kernel.reason == "wrong: it writes to its input"


@pytest.mark.parametrize(
    ("target", "slot", "reason"),
    [
        ("faulty_kernels.OtherShape", "LayerNorm", "wrong: it returns the shape [50, 15], where [50, 16] is due"),
        ("faulty_kernels.Tuple", "LayerNorm", "wrong: it returns a tuple, where a tensor is due"),
        ("faulty_kernels.Halves", "LayerNorm", "wrong: it returns torch.float16, where"),
        ("faulty_kernels.NotANumber", "LayerNorm", "wrong: it returns NaN or infinity for small numbers"),
        ("faulty_kernels.FailsForward", "LayerNorm", "fails: RuntimeError: no driver"),
        ("faulty_kernels.FailsInBuilding", "LayerNorm", "fails: AssertionError: width is odd"),
        ("faulty_kernels.FailsBackward", "LayerNorm", "fails: NotImplementedError: only forward"),
    ],
)
def test_a_faulty_kernel_is_listed_with_the_reason(target: str, slot: str, reason: str) -> None:
    kernel = own(bench(slot, target=target))
    assert kernel.both is None
    assert kernel.reason.startswith(reason)


@pytest.mark.parametrize(
    ("target", "reason"),
    [("LostLater", "wrong: it returns NaN or infinity"), ("Drifts", "wrong: called again with the same numbers its")],
)
def test_a_kernel_that_is_right_at_first_only(target: str, reason: str) -> None:
    result = bench("Activation", target=f"odd_kernels.{target}")
    kernel = own(result)
    assert kernel.reason.startswith(reason)
    assert kernel.wrong
    assert (kernel.forward, kernel.both, kernel.peak_bytes) == (None, None, None)
    assert not result.timed


def test_a_kernel_that_fails_after_it_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odd_kernels.FailsLater.broken", False)
    timed = bench_slot._time

    def then_broken(*arguments: Any) -> None:
        timed(*arguments)
        monkeypatch.setattr("odd_kernels.FailsLater.broken", True)

    monkeypatch.setattr(bench_slot, "_time", then_broken)
    kernel = own(bench("Activation", target="odd_kernels.FailsLater"))
    assert kernel.reason == "after it was timed it fails: RuntimeError: spent"
    assert kernel.both is None


def test_a_random_kernel_is_wrong() -> None:
    kernel = own(bench("Activation", target="odd_kernels.Random"))
    assert kernel.reason.startswith("wrong: ")
    assert kernel.both is None


def test_a_kernel_may_write_to_its_cotangent() -> None:
    kernel = own(bench("Activation", target="odd_kernels.WritesItsCotangent"))
    assert kernel.both is not None
    assert kernel.errors.gradients["input"] < 1e-6


def test_an_unknown_kernel_is_compared_with_itself() -> None:
    kernel = own(bench("Activation", target="odd_kernels.NotCompiled"))
    assert kernel.errors.reference == "NotCompiled itself"
    assert kernel.errors.output < 1e-6


def test_a_kernel_without_a_form_in_float64_is_timed_all_the_same() -> None:
    kernel = own(bench("Activation", target="odd_kernels.Narrow"))
    assert kernel.both is not None
    assert kernel.errors.output is None
    assert kernel.errors.reference == "Narrow itself does not run in float64: only float32"


def test_kernels_that_do_not_fit_side_by_side_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("etesian.kernels.bench.slot.interleave", fails)
    result = bench("LayerNorm")
    assert result.timed == []
    reason = "not timed beside the others: fails: RuntimeError: CUDA out of memory"
    checked = [kernel.reason for kernel in result.kernels if kernel.errors is not None]
    assert len(checked) > 1
    assert set(checked) == {reason}


def test_compiled_forms() -> None:
    result = bench("Activation", Plan(2, 1e-4, True, "eager"), target="torch.nn.SiLU")
    assert [(kernel.compiled, kernel.reason) for kernel in result.kernels] == [(False, ""), (True, "")]
    assert own(result).chosen_by == ("model",)
    assert own(result, compiled=True).chosen_by == ()


def test_the_form_that_the_experiment_has_chosen_is_marked() -> None:
    for chosen in (
        {"layer_kernels": {"Activation": {"_target_": "torch.nn.SiLU", "_compile_": {"backend": "eager"}}}},
        {"layer_kernels": {"Activation": {"_target_": "torch.nn.SiLU"}}, "compile": [{"kernel": "Activation"}]},
    ):
        settings = make_settings(**chosen)
        kernels = resolve_kernels(settings, preset=None, overrides=[])
        machine = Machine(CPU, "32-true")
        (shape,) = shapes_of_rows("Activation", settings, [20])
        case = make_case("Activation", shape, settings, kernels.processor, {}, machine)
        named = candidates("Activation", settings, kernels)[:1]
        result = bench_case(case, named, machine, CLOCK, CEILINGS, Plan(1, 1e-4, True, "eager"))
        assert own(result).chosen_by == ()
        assert own(result, compiled=True).chosen_by == ("model",)


def test_a_compiled_form_that_is_none_is_told() -> None:
    result = bench("Activation", Plan(2, 1e-4, True, "eager"), target="odd_kernels.NotCompiled")
    assert own(result).both is not None
    compiled = own(result, compiled=True)
    assert compiled.both is None
    assert compiled.reason.startswith("can't be compiled: ") or "makes no graph" in compiled.reason


@pytest.mark.slow
def test_inductor_compiles_the_norms() -> None:
    result = bench("LayerNorm", Plan(2, 1e-3, True))
    timed = {(kernel.target, kernel.compiled) for kernel in result.timed}
    assert {("torch.nn.LayerNorm", True), ("torch.nn.RMSNorm", True)} <= timed


def test_floors_count_each_tensor_once() -> None:
    case, _, _ = prepare("LayerNorm", rows=1000)
    tensor, weights = 1000 * 16 * 4, 2 * 16 * 4
    assert case.floor_bytes(weights) == (2 * tensor + weights, 5 * tensor + 3 * weights)
    case, named, _ = prepare("MLP", rows=1000)
    layer = case.build(named[0].kernels)
    assert case.flops(layer) == (2 * 1000 * 2 * 16 * 32, 3 * 2 * 1000 * 2 * 16 * 32)


def test_input_sets_do_not_stay_in_the_cache() -> None:
    case, _, _ = prepare("LayerNorm", rows=1000)
    assert case.set_count(cache_bytes=1000) == 1
    assert case.set_count(cache_bytes=case.input_bytes) == 4
    assert case.set_count(cache_bytes=2**40) == 16


def test_shapes_of_an_experiment() -> None:
    settings = make_settings()
    edges = dict.fromkeys(("data2hidden", "hidden2hidden", "hidden2data"), made_up_edges(40))
    sizes = Sizes(data=40, hidden=10, copies=3, edges=edges)
    norms = [(s.name, s.rows, s.calls) for s in shapes_of_experiment("LayerNorm", settings, sizes)]
    assert norms == [("data nodes", 120, 4), ("hidden nodes", 30, 7)]
    attention = shapes_of_experiment("GraphAttention", settings, sizes)
    assert [(s.rows, s.calls, s.edge_features) for s in attention] == [(120, 1, 5), (120, 2, 4), (120, 1, 3)]
    assert attention[0].edges.num_edges == 3 * 8 * 40


def test_norms_tell_what_the_next_slot_gets() -> None:
    settings = make_settings(layer_kernels={"LayerNorm": {"_target_": "faulty_kernels.OtherDtype"}})
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    found = returned_dtypes(kernels.processor, settings, Machine(CPU, "bf16-mixed"))
    assert found == {"LayerNorm": torch.float32, "QueryNorm": torch.bfloat16, "KeyNorm": torch.bfloat16}


def test_kernels_may_be_checked_only() -> None:
    kernel = own(bench("Activation", Plan(0, compiled=False), target="torch.nn.SiLU"))
    assert kernel.errors is not None
    assert kernel.errors.worst_gradient < 1e-5
    assert (kernel.forward, kernel.both, kernel.reason) == (None, None, "")


@pytest.mark.parametrize("inference", [False, True])
def test_the_forward_pass_of_inference_keeps_no_gradients(inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    plain = torch.nn.SiLU.forward

    def forward(self: torch.nn.SiLU, x: torch.Tensor) -> torch.Tensor:
        kept.append(torch.is_grad_enabled())
        return plain(self, x)

    monkeypatch.setattr(torch.nn.SiLU, "forward", forward)
    plan = Plan(2, 1e-4, compiled=False, inference=inference)
    assert own(bench("Activation", plan, target="torch.nn.SiLU")).both is not None
    assert (False in kept) == inference
    assert True in kept
