"""The comparison of two kernels that are said to compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_model import make_settings
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.kernels import families, formulas
from etesian.kernels.attention.sdpa import ScaledDotProductAttention
from etesian.kernels.constants import FAMILIES
from etesian.kernels.families import constants_of, family_of, register_family
from etesian.kernels.interchange import Difference, arguments_for, find
from etesian.kernels.parity import as_json, check_parity, compare
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import resolve_kernels

CPU = torch.device("cpu")
LIGER = "liger_kernel.transformers.rms_norm.LigerRMSNorm"


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_CONSTANTS", dict(families._CONSTANTS))


class Wrong(nn.RMSNorm):
    """Claims to be an RMS norm and forgets eps."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight, 0.0)


class WrongBackward(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.1 * (x - x.detach())


class NeedsDriver(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no driver")


class NeedsDriverToBuild(nn.RMSNorm):
    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        raise RuntimeError("no driver")


class NanOfLarge(torch.autograd.Function):
    """The identity; the gradient of large numbers is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() > 8, torch.nan, gradient)


class NanGradient(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(NanOfLarge.apply(x))


class NanResult(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(x > 8, torch.nan)


class EvalOnly(nn.RMSNorm):
    """Another function in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if self.training else 2)


class Stateful(nn.RMSNorm):
    """Another function from the second call on."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * min(self.calls, 2)


class NanLater(nn.RMSNorm):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1.0 if self.calls == 1 else torch.nan)


class Frozen(nn.RMSNorm):
    """Passes no gradient to its weight."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__(num_channels, eps)
        self.weight.requires_grad_(False)


class Renamed(nn.Module):
    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.gamma.shape, self.gamma, 1e-6)


class SinglePrecision(nn.Module):
    """Takes 32 bits only."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("float64 is not for me")
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, 1e-6)


def changed(
    slot: str,
    old: str,
    new: str,
    component: str = "model",
    old_arguments: dict[str, Any] | None = None,
    **arguments: Any,
) -> tuple[Difference, Any, Any]:
    """Return a difference, and the kernels and settings of a model that has the new kernel."""
    settings = make_settings(
        layer_kernels={slot: {"_target_": new, **arguments}},
        **{name: {"num_heads": 2, "qk_norm": True} for name in ("encoder", "processor", "decoder")},
    )
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    record = next(record for record in kernels.records if record.slot == slot)
    given = arguments if old_arguments is None else old_arguments
    before = replace(record, target=old, arguments=given, constants=constants_of(old, record.family, given))
    return Difference(component, slot, before, record), kernels, settings


@pytest.mark.parametrize(
    ("slot", "old", "new", "arguments"),
    [
        ("LayerNorm", "etesian.kernels.norms.AutocastLayerNorm", "torch.nn.LayerNorm", {"eps": 1e-5}),
        ("QueryNorm", "torch.nn.LayerNorm", "etesian.kernels.norms.AutocastLayerNorm", {"bias": False}),
        ("GraphAttention", "etesian.kernels.reference.ReferenceGraphAttention",
         "etesian.kernels.factored.FactoredGraphAttention", {}),
    ],
)  # fmt: skip
def test_kernels_that_compute_the_same(slot: str, old: str, new: str, arguments: dict[str, Any]) -> None:
    state = torch.get_rng_state()
    parity = compare(*changed(slot, old, new, **arguments), CPU)
    assert parity.passed
    assert parity.precision == "64-true"
    assert 0 <= max(parity.output, parity.gradients) < 1e-12
    assert parity.against == ""
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("slot", "new", "arguments"),
    [
        ("LayerNorm", "torch.nn.RMSNorm", {}),
        ("LayerNorm", "torch.nn.RMSNorm", {"eps": 1e-6}),
        ("LayerNorm", "torch.nn.RMSNorm", {"eps": 1e-6, "elementwise_affine": False}),
        ("LayerNorm", "torch.nn.LayerNorm", {"eps": 1e-3, "bias": False}),
        ("Linear", "torch.nn.Linear", {}),
        ("Activation", "torch.nn.GELU", {"approximate": "tanh"}),
        ("Activation", "torch.nn.GELU", {}),
        ("Activation", "torch.nn.SiLU", {}),
        ("Activation", "torch.nn.ReLU", {}),
        ("MLP", "etesian.kernels.glu.SwiGLU", {}),
        ("GraphAttention", "etesian.kernels.factored.FactoredGraphAttention", {}),
    ],
)
def test_the_formula_stands_in_for_what_is_not_installed(slot: str, new: str, arguments: dict[str, Any]) -> None:
    """The formulas of the families are those of PyTorch's own kernels."""
    difference, kernels, settings = changed(slot, "no_such_library.Kernel", new, **arguments)
    old = replace(difference.old, constants=difference.new.constants)
    parity = compare(replace(difference, old=old), kernels, settings, CPU)
    assert max(parity.output, parity.gradients) < 1e-12
    assert parity.against == f"{FAMILIES[old.family].reference}, as no_such_library can't be imported here"


@pytest.mark.parametrize("window", [None, 3, 100])
def test_attention_is_compared_on_more_positions_than_a_window_has(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Size] = []
    forward = ScaledDotProductAttention.forward

    def spy(self: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.append(query.shape)
        return forward(self, query, key, value)

    monkeypatch.setattr(ScaledDotProductAttention, "forward", spy)
    settings = make_settings("transformer", processor={"num_heads": 2, "num_layers": 1, "window_size": window})
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    new = next(record for record in kernels.records if record.slot == "Attention")
    old = replace(new, target="etesian.kernels.attention.reference.ReferenceAttention")
    parity = compare(Difference("model", "Attention", old, new), kernels, settings, CPU)
    assert max(parity.output, parity.gradients) < 1e-12
    assert parity.precision == "64-true"
    assert all(shape[2] >= 4 * (window or 1) for shape in seen)


def test_another_eps_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    difference, kernels, settings = changed(
        "LayerNorm", "torch.nn.RMSNorm", "torch.nn.RMSNorm", old_arguments={"eps": 1e-5}, eps=1e-6
    )
    parity = compare(difference, kernels, settings, CPU)
    assert not parity.passed
    assert min(parity.output, parity.gradients) > 0.1


@pytest.mark.parametrize(
    "kernel",
    ["Wrong", "WrongBackward", "NanGradient", "NanResult", "NanLater", "EvalOnly", "Stateful", "Frozen"],
)
def test_a_kernel_of_the_wrong_family_is_found_out(kernel: str) -> None:
    path = f"test_parity.{kernel}"
    register_family(path, "rms_norm")
    difference, kernels, settings = changed("LayerNorm", "torch.nn.RMSNorm", path, eps=1e-6)
    with pytest.raises(UserError, match="do not compute the same") as caught:
        check_parity([difference], kernels, settings, CPU)
    problem = caught.value.problems[0]
    assert problem.where == "model.layer_kernels.LayerNorm"
    assert " apart forward, " in problem.what
    assert problem.allowed == "at most 1e-05 apart"
    assert "torch.nn.RMSNorm(eps=1e-06)" in str(problem.mend)


def test_other_names_of_parameters() -> None:
    register_family("test_parity.Renamed", "rms_norm")
    with pytest.raises(UserError, match=r"has the parameters weight \(16,\), not gamma \(16,\)"):
        compare(*changed("LayerNorm", "torch.nn.RMSNorm", "test_parity.Renamed", eps=1e-6), CPU)


def test_the_widest_precision_that_both_run_in() -> None:
    register_family("test_parity.SinglePrecision", "rms_norm")
    parity = compare(*changed("LayerNorm", "torch.nn.RMSNorm", "test_parity.SinglePrecision", eps=1e-6), CPU)
    assert parity.precision == "32-true"
    assert parity.passed
    assert " in 32-true, 1e-05 allowed" in str(parity)


def test_an_old_kernel_that_does_not_run_here() -> None:
    register_family("test_parity.NeedsDriver", "rms_norm", {"eps": 1e-6})
    parity = compare(*changed("LayerNorm", "test_parity.NeedsDriver", "torch.nn.RMSNorm", eps=1e-6), CPU)
    assert parity.passed
    assert parity.against.endswith("RMSNorm, as test_parity.NeedsDriver does not run here: RuntimeError: no driver")


@pytest.mark.parametrize(("kernel", "output", "gradients"), [("NanGradient", False, True), ("NanResult", True, False)])
def test_nan_counts_wherever_it_is(kernel: str, output: bool, gradients: bool) -> None:
    path = f"test_parity.{kernel}"
    register_family(path, "rms_norm")
    for old, new in (("torch.nn.RMSNorm", path), (path, "torch.nn.RMSNorm")):
        parity = compare(*changed("LayerNorm", old, new, eps=1e-6), CPU)
        assert not parity.passed
        assert (parity.output != parity.output) is output
        assert gradients <= (parity.gradients != parity.gradients)


def test_an_old_kernel_that_can_not_be_built_here() -> None:
    path = "test_parity.NeedsDriverToBuild"
    register_family(path, "rms_norm", {"eps": 1e-6})
    parity = compare(*changed("LayerNorm", path, "torch.nn.RMSNorm", eps=1e-6), CPU)
    assert parity.passed
    assert parity.against == f"etesian.kernels.formulas.RMSNorm, as {path} does not run here: RuntimeError: no driver"
    with pytest.raises(UserError, match=f"building {path} failed: RuntimeError: no driver"):
        compare(*changed("LayerNorm", "torch.nn.RMSNorm", path, eps=1e-6), CPU)


def test_a_new_kernel_that_does_not_run_here() -> None:
    register_family("test_parity.NeedsDriver", "rms_norm")
    with pytest.raises(UserError, match="can't be compared here: RuntimeError: no driver"):
        compare(*changed("LayerNorm", "torch.nn.RMSNorm", "test_parity.NeedsDriver", eps=1e-6), CPU)


def test_the_component_that_has_the_new_kernel() -> None:
    parts = {name: {"num_heads": 2} for name in ("encoder", "processor", "decoder")}
    parts["decoder"]["layer_kernels"] = {"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}}
    settings = make_settings(**parts)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    new = next(record for record in kernels.records if record.component == "decoder")
    old = KernelRecord("LayerNorm", "decoder", LIGER, {"eps": 1e-6}, "rms_norm")
    (parity,) = check_parity([Difference("decoder", "LayerNorm", old, new)], kernels, settings, CPU)
    assert parity.passed
    assert as_json([parity])[0]["tolerance"] == 1e-5


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if "formulas" in str(family.reference)])
def test_every_formula_takes_the_constants_of_its_family(name: str) -> None:
    family = FAMILIES[name]
    constants = constants_of(str(family.plain), name, {"eps": 1e-3} if "eps" in family.constants else {})
    arguments, reasons = arguments_for(str(family.reference), name, constants)
    assert reasons == []
    assert arguments.get("eps", 1e-3) == 1e-3
    assert find(str(family.reference)) is getattr(formulas, str(family.reference).rpartition(".")[2])
    assert family_of(str(family.plain)) == name
