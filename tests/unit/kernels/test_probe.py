"""The probe: what runs passes, and each way of not running is told with slot, device, precision and cause."""

from __future__ import annotations

import time

import pytest
import torch
from small_model import make_settings

from etesian.errors import Problem, UserError
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import resolve_kernels

PRECISIONS = ["32-true", "64-true", "bf16-mixed"]
CPU = torch.device("cpu")


def faulty(name: str) -> dict[str, str]:
    return {"_target_": f"faulty_kernels.{name}"}


def probe(mapping: dict | None = None, *, precision: str = "32-true", qk_norm: bool = False, **sections: dict) -> None:
    block = {"num_heads": 2, "qk_norm": qk_norm}
    base = {"encoder": block, "processor": block | {"num_layers": 1}, "decoder": block}
    merged = base | {name: base[name] | section for name, section in sections.items()}
    settings = make_settings(layer_kernels=mapping or {}, **merged)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    probe_kernels(kernels, settings, CPU, precision)


def problems(mapping: dict | None = None, **options: object) -> tuple[Problem, ...]:
    with pytest.raises(UserError) as caught:
        probe(mapping, **options)
    return caught.value.problems


def problem(mapping: dict | None = None, **options: object) -> Problem:
    (only,) = problems(mapping, **options)
    return only


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}},
        {"LayerNorm": faulty("NoParameters"), "KeyNorm": faulty("FrozenParameter")},
        {"QueryNorm": {"_target_": "torch.nn.LayerNorm"}, "MLP": {"_target_": "etesian.kernels.glu.SwiGLU"}},
        {"GraphAttention": {"_target_": "etesian.kernels.pyg.PygGraphAttention"}},
        {"GraphAttention": {"_target_": "etesian.kernels.reference.ReferenceGraphAttention"}},
        {"GraphAttention": faulty("AttentionOverTiles")},
        {"GraphAttention": faulty("attention_over_tiles")},
        {"Linear": {"_target_": "torch.nn.Linear", "bias": False}},
    ],
    ids=["defaults", "rms norm", "without parameters", "gated", "pyg", "reference", "tiles", "a function", "no bias"],
)
def test_what_runs_passes(mapping: dict, precision: str) -> None:
    probe(mapping, precision=precision, qk_norm=True)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("FailsInBuilding", "building it fails: AssertionError: width is odd"),
        ("FailsForward", "its forward pass fails: RuntimeError: no driver"),
        ("FailsBackward", "its backward pass fails: NotImplementedError: only forward"),
        ("OtherShape", "it returns the shape [6, 15], where [6, 16] is due"),
        ("InPlaceNorm", "it writes to its input"),
        ("Tuple", "it returns a tuple, where a tensor is due"),
        ("Halves", "it returns torch.float16, where torch.float32 is due"),
        ("NotANumber", "it returns NaN or infinity for small numbers"),
        ("NoGradientAtZero", "the gradient of its input is not finite"),
        ("Detached", "it passes no gradient to its input"),
        ("InputDetached", "it passes no gradient to its input"),
        ("UnusedParameter", "it passes no gradient to its parameter spare"),
    ],
)
def test_each_fault_is_told(kernel: str, said: str) -> None:
    found = problem({"LayerNorm": faulty(kernel)})
    does_not_run = f"faulty_kernels.{kernel} does not run on cpu with training.precision=32-true"
    assert found.what == f"slot LayerNorm of the model: {does_not_run}: {said}"
    assert found.where == "model.layer_kernels.LayerNorm"
    assert "model.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm" in str(found.mend)


def test_an_activation_in_place_is_told_with_the_argument_that_makes_it_so() -> None:
    found = problem({"Activation": {"_target_": "torch.nn.ReLU", "inplace": True}})
    assert found.what.endswith("it writes to its input")
    assert str(found.mend).startswith("model.layer_kernels.Activation.inplace=false, or ")
    assert "correct the kernel, or " in str(problem({"Activation": faulty("InPlace")}).mend)


def test_a_kernel_that_writes_to_one_of_several_inputs_is_told_which() -> None:
    assert problem({"GraphAttention": faulty("AttentionInPlace")}).what.endswith("it writes to its key")


def test_a_kernel_that_reads_tiles_unasked_fails_here_and_not_in_training() -> None:
    found = problem({"GraphAttention": faulty("AttentionWithoutItsTiles")})
    assert "its forward pass fails: ValueError: the edges are not in tiles" in found.what


def test_the_values_that_the_config_sets_are_named() -> None:
    key = "model.layer_kernels.LayerNorm"
    negative = problem({"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": -9.0}})
    assert f"another value of {key}.eps (now -9.0)" in str(negative.mend)


def test_a_kernel_that_is_called_otherwise_is_told_how_the_slot_calls_it() -> None:
    found = problem({"GraphAttention": {"_target_": "torch.nn.Identity"}})
    assert "its forward(input) can't be called with 7 arguments: too many positional arguments" in found.what
    assert str(found.allowed).startswith("a kernel that is called with (query [N_dst, H, C], ")
    assert "accelerator" not in str(found.mend)


@pytest.mark.parametrize(
    ("slot", "shape"),
    [("QueryNorm", "[6, 2, 7], where [6, 2, 8]"), ("KeyNorm", "[6, 2, 7], where [6, 2, 8]")],
)
def test_norms_of_heads_keep_the_shape(slot: str, shape: str) -> None:
    assert shape in problem({slot: faulty("OtherShape")}, qk_norm=True).what


def test_a_slot_that_nothing_uses_is_not_run() -> None:
    probe({"QueryNorm": faulty("FailsForward")}, qk_norm=False)


@pytest.mark.parametrize(
    ("kernel", "precision", "said"),
    [
        ("Float32Only", "64-true", "TypeError: takes float32 only, not torch.float64"),
        ("Float32Only", "bf16-mixed", "TypeError: takes float32 only, not torch.bfloat16"),
        ("OtherDtype", "64-true", "it returns torch.float32, where torch.float64 is due"),
        ("Halves", "bf16-mixed", "it returns torch.float16, where torch.bfloat16 or torch.float32 is due"),
    ],
)
def test_the_precision_of_the_run_counts(kernel: str, precision: str, said: str) -> None:
    probe({"LayerNorm": faulty("Float32Only")})
    found = problem({"LayerNorm": faulty(kernel)}, precision=precision)
    assert f"training.precision={precision}: " in found.what
    assert said in found.what


def test_a_kernel_that_can_not_is_mended_by_another_or_another_device_and_one_that_is_wrong_by_correction() -> None:
    key = "model.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm"
    can_not = problem({"LayerNorm": faulty("FailsForward")}).mend
    assert can_not == f"{key}, or another system.hardware.accelerator or training.precision"
    assert problem({"LayerNorm": faulty("OtherShape")}).mend == f"correct the kernel, or {key}"


def test_a_kernel_without_a_gpu_is_sent_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faulty_kernels.FailsForward.forward", no_driver)
    assert str(problem({"LayerNorm": faulty("FailsForward")}).mend).startswith("run on a GPU, system=gpu, or ")


def no_driver(self: object, x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("0 active drivers ([]). There should only be one.")


def test_a_component_is_named_and_its_own_heads_are_used() -> None:
    own = {"layer_kernels": {"GraphAttention": faulty("AttentionOfFewHeads")}}
    probe(processor=own)
    found = problem(processor=own | {"num_heads": 4})
    assert found.where == "model.processor.layer_kernels.GraphAttention"
    assert found.what.startswith("slot GraphAttention of processor: ")
    assert "ValueError: 4 heads are too many" in found.what


def test_attention_has_to_pass_gradients_to_every_input() -> None:
    assert "it passes no gradient to its key" in problem({"GraphAttention": faulty("AttentionWithoutKeys")}).what


def test_all_problems_come_at_once_and_an_mlp_is_not_blamed_for_its_activation() -> None:
    mapping = {"LayerNorm": faulty("NotANumber"), "Activation": faulty("FailsAsActivation")}
    found = problems(mapping, decoder={"layer_kernels": {"LayerNorm": faulty("OtherShape")}})
    assert [problem.where for problem in found] == [
        "model.layer_kernels.LayerNorm",
        "model.layer_kernels.Activation",
        "model.decoder.layer_kernels.LayerNorm",
    ]


def test_random_states_and_the_default_dtype_are_kept() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    probe(precision="64-true")
    assert torch.equal(torch.get_rng_state(), state)
    problems({"LayerNorm": faulty("FailsForward")}, precision="64-true")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


def test_it_is_quick_at_the_width_of_large_models() -> None:
    block = {"num_heads": 16, "qk_norm": True}
    settings = make_settings(num_channels=1024, encoder=block, processor=block | {"num_layers": 1}, decoder=block)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    probe_kernels(kernels, settings, CPU, "32-true")
    start = time.process_time()
    probe_kernels(kernels, settings, CPU, "32-true")
    assert time.process_time() - start < 0.5
