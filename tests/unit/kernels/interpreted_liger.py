"""Liger's kernels against float64: under Triton's interpreter by ``test_liger.py``, on a GPU by ``test_gpu.py``.

The interpreter multiplies bfloat16 numbers as the integers that hold them: bfloat16 is for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from liger_kernel.transformers.rms_norm import LigerRMSNorm
from small_model import make_model, make_settings
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.kernels.families import family_of
from etesian.kernels.interchange import interchangeable, plain_record
from etesian.kernels.liger import LigerGeGLU, LigerLayerNorm, LigerSwiGLU
from etesian.kernels.probe import probe_kernels
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import LayerKernels, resolve_kernels
from etesian.schema.training import Precision

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if ON_GPU else "cpu")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3}
"""Relative, in the norm; about ten roundings of each dtype."""
if ON_GPU:
    TOLERANCE |= {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PRECISIONS = ["32-true", *(["bf16-mixed", "16-mixed"] if ON_GPU else [])]

RMS_NORM = "liger_kernel.transformers.rms_norm.LigerRMSNorm"
LAYER_NORM = "etesian.kernels.liger.LigerLayerNorm"
SWIGLU, GEGLU = "etesian.kernels.liger.LigerSwiGLU", "etesian.kernels.liger.LigerGeGLU"


def mapping(**targets: str) -> dict[str, dict]:
    return {slot: {"_target_": target} for slot, target in targets.items()}


def plain_kernels(**slots: dict) -> LayerKernels:
    return resolve_kernels(make_settings(layer_kernels=slots), preset=None, overrides=[]).model


def results(layer: Callable[[Tensor], Tensor], x: Tensor, seed: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    y = layer(x)
    return [y, *torch.autograd.grad(y, [x, *parameters], seed.to(y.dtype))]


def compare(mine: nn.Module, theirs: nn.Module, x: Tensor, width_out: int, dtype: torch.dtype) -> None:
    """Compare output and gradients of a layer in a dtype with those of another in float64, with the same weights."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    mine, theirs, x = mine.to(DEVICE, dtype), theirs.to(DEVICE), x.to(DEVICE)
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(mine.state_dict())
    theirs = theirs.double()
    x = x.to(dtype)
    seed = torch.randn(*x.shape[:-1], width_out).to(x)
    got = results(mine, x.clone().requires_grad_(), seed.clone(), list(mine.parameters()))
    want = results(theirs, x.double().requires_grad_(), seed.double(), list(theirs.parameters()))
    assert got[0].dtype == dtype
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert ((one.double() - other).norm() / other.norm()).item() < TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(6, 16), (2, 3, 13), (1, 5)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_norm_is_that_of_torch(kind: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    width = shape[-1]
    mine, theirs = {
        "rms": (LigerRMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)),
        "layer": (LigerLayerNorm(width), nn.LayerNorm(width, eps=1e-5)),
    }[kind]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-2  # small, so that eps counts
    compare(mine, theirs, x, width, dtype)


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 5), (1, 7)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["SwiGLU", "GeGLU"])
def test_a_gated_mlp_is_its_formula(kind: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    constant = {"approximate": "tanh"} if kind == "GeGLU" else {}
    theirs = plain_kernels(MLP={"_target_": f"etesian.kernels.glu.{kind}", **constant})
    mine = plain_kernels(MLP={"_target_": f"etesian.kernels.liger.Liger{kind}"})
    layers = [kernels.MLP(shape[-1], 11, 3, layer_kernels=kernels) for kernels in (mine, theirs)]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    compare(*layers, x, 3, dtype)


@pytest.mark.parametrize("cls", [LigerSwiGLU, LigerGeGLU])
def test_the_backward_pass_leaves_what_it_was_given(cls: type[nn.Module]) -> None:
    kernels = plain_kernels()
    mlp, hidden = cls(4, 5, 3, layer_kernels=kernels).to(DEVICE), torch.randn(1, 10, device=DEVICE, requires_grad=True)
    before, seed = hidden.detach().clone(), torch.randn(1, 5, device=DEVICE)
    mlp.gated(hidden).backward(seed)
    assert torch.equal(hidden, before)


def test_the_exact_gelu_is_another_function() -> None:
    kernels = plain_kernels()
    exact, fused = (plain_kernels(**mapping(MLP=path)).MLP(4, 64, 3, layer_kernels=kernels)
                    for path in ("etesian.kernels.glu.GeGLU", GEGLU))  # fmt: skip
    exact.load_state_dict(fused.state_dict())
    x = 3 * torch.randn(50, 4, device=DEVICE)
    assert (exact.to(DEVICE)(x) - fused.to(DEVICE)(x)).abs().max() > 1e-4


def test_each_is_interchangeable_with_the_same_function_only() -> None:
    def record(target: str, **arguments: object) -> KernelRecord:
        return KernelRecord("MLP", "model", target, arguments, family_of(target))

    glu = "etesian.kernels.glu"
    assert not interchangeable(record(SWIGLU), record(f"{glu}.SwiGLU"))
    assert not interchangeable(record(GEGLU), record(f"{glu}.GeGLU", approximate="tanh"))
    assert interchangeable(record(GEGLU), record(f"{glu}.GeGLU"))
    assert interchangeable(record(SWIGLU), record(GEGLU))
    plain, lost = plain_record(record(GEGLU))
    assert (plain.target, plain.arguments, lost) == (f"{glu}.GeGLU", {"approximate": "tanh"}, [])


def test_linears_of_the_mlps_come_from_the_mapping() -> None:
    for path in (SWIGLU, GEGLU):
        kernels = plain_kernels(**mapping(MLP=path), Linear={"_target_": "torch.nn.Linear", "bias": False})
        mlp = kernels.MLP(3, 7, 2, layer_kernels=kernels)
        assert {name: tuple(weight.shape) for name, weight in mlp.named_parameters()} == {
            "linear_in.weight": (14, 3), "linear_out.weight": (2, 7),
        }  # fmt: skip


def test_the_layer_norm_begins_as_torch_does() -> None:
    mine, theirs = LigerLayerNorm(8), nn.LayerNorm(8)
    assert mine.variance_epsilon == theirs.eps
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in mine.state_dict().items())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("slots", [{"LayerNorm": RMS_NORM, "MLP": SWIGLU}, {"LayerNorm": LAYER_NORM, "MLP": GEGLU}])
def test_they_run_in_their_slots(slots: dict[str, str], precision: Precision) -> None:
    settings = make_settings(layer_kernels=mapping(**slots))
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    probe_kernels(kernels, settings, DEVICE, precision)
    for record in kernels.records:
        assert (record.library == "liger-kernel") is (record.slot in slots), record


def test_a_precision_that_the_norm_does_not_know_stops_in_the_probe() -> None:
    settings = make_settings(layer_kernels=mapping(LayerNorm=RMS_NORM))
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    with pytest.raises(UserError) as caught:
        probe_kernels(kernels, settings, DEVICE, "64-true")
    (problem,) = caught.value.problems
    assert "training.precision=64-true: its backward pass fails: KeyError: torch.float64" in problem.what


def test_a_model_of_them_is_the_model_of_torch() -> None:
    """Norms of one input may share the memory of their gradients with a sum beside them; Liger writes into it."""
    settings = make_settings(
        layer_kernels={"LayerNorm": {"_target_": RMS_NORM, "eps": 1e-6}, "MLP": {"_target_": SWIGLU}}
    )
    plain = make_settings(layer_kernels={"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": 1e-6},
                                         "MLP": {"_target_": "etesian.kernels.glu.SwiGLU"}})  # fmt: skip
    mine, theirs = make_model(settings).to(DEVICE), make_model(plain).to(DEVICE).double()
    theirs.load_state_dict(mine.state_dict())
    x = torch.randn(1, 2, 1, 14, 3, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    mine(x).square().sum().backward()
    theirs(x.double()).square().sum().backward()
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(
            one.grad.double(), other.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
