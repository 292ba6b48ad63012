"""What can't be divided among processes is told before any data are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_models import BLOCK, MODEL, entry
from small_model import make_settings

from etesian.errors import Problem, UserError
from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.shards_trial import try_shards

NORM = "model.layer_kernels.LayerNorm"
PARTS = [entry("etesian.model.encoder.Encoder"), entry("etesian.model.decoder.Decoder")]


def tried(precision: Any = "32-true", **changes: object) -> list[Problem]:
    settings = make_settings(**changes)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    try:
        try_shards(settings, kernels, torch.device("cpu"), precision)
    except UserError as error:
        return list(error.problems)
    return []


def norm(name: str) -> dict[str, Any]:
    return {"layer_kernels": {"LayerNorm": {"_target_": f"indivisible_kernels.{name}"}}}


@pytest.mark.parametrize("kind", ["graphtransformer", "transformer", "gnn", "pointwise", "hierarchical"])
@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-mixed"])
def test_plain_kernels_can_be_divided(kind: str, precision: str) -> None:
    assert tried(precision, kind=kind) == []


@pytest.mark.parametrize("compile", [[entry(BLOCK)], [entry("LayerNorm")], PARTS], ids=["blocks", "norms", "parts"])
def test_units_and_what_is_in_them_may_be_compiled(compile: list[dict[str, Any]]) -> None:
    assert tried(compile=compile) == []


@pytest.mark.parametrize(
    ("module", "holds"), [(MODEL, "the whole model"), ("etesian.model.processor.Processor", "processor")]
)
def test_units_inside_of_what_is_compiled_are_refused(module: str, holds: str) -> None:
    (problem,) = tried(compile=[entry(module)])
    assert problem.what.startswith(f"model.compile[0] ({module.rpartition('.')[2]}) compiles {holds}, and ")
    assert "they would not be gathered" in problem.what
    assert problem.where == "model.compile[0]"


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("ScalarNorm", "divides weights along their first axis, and encoder.block.norm_attention.scale has none"),
        ("SharedNorm", "processor.blocks.0.norm_attention.weight is a weight of encoder too"),
    ],
)
def test_weights_that_cannot_be_divided_name_their_kernel(kernel: str, said: str) -> None:
    found = tried(**norm(kernel))
    assert said in found[0].what
    assert found[0].where == NORM
    assert "training.strategy.kind=ddp" in str(found[0].mend)


@pytest.mark.parametrize(
    ("kernel", "said"), [("WideNorm", "TypeError: weights of 32 bits only"), ("LostNorm", "is NaN or infinite")]
)
def test_kernels_run_with_weights_as_they_are_gathered(kernel: str, said: str) -> None:
    assert tried("32-true", **norm(kernel)) == []
    (problem,) = tried("bf16-mixed", **norm(kernel))
    assert said in problem.what
    assert "gathers weights in bfloat16 with training.precision='bf16-mixed'" in problem.what
