"""What does not go with a policy of activation checkpointing is told before any data are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_models import AOT, BLOCK, EAGER, MODEL, compiled_slot, entry, tried
from small_model import make_settings
from torch import Tensor, nn

from etesian.errors import Problem, UserError
from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.checkpointing_trial import try_checkpointing
from etesian.runtime.combinations import sharing_problems
from etesian.runtime.entries import collect_entries

KEY = "model.processor.gradient_checkpointing"
LOOSE = EAGER | {"fullgraph": False}


class InPlace(nn.Linear):
    """A Linear that changes its result in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mul_(2)


class ByHand(nn.Linear):
    """A Linear without a product of matrices."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[..., None, :] * self.weight).sum(-1)


def problem(*entries: dict[str, Any], policy: str, **sections: Any) -> Problem:
    with pytest.raises(UserError) as caught:
        tried(compile=list(entries), processor={"num_heads": 2, "gradient_checkpointing": policy}, **sections)
    (only,) = caught.value.problems
    return only


def refused(kind: str, slot: str, target: str) -> Problem:
    processor = {"num_heads": 2, "gradient_checkpointing": "selective", "layer_kernels": {slot: {"_target_": target}}}
    settings = make_settings(kind, processor=processor)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    with pytest.raises(UserError) as caught:
        try_checkpointing(settings, kernels, torch.device("cpu"), "32-true")
    return caught.value.problems[0]


def test_selective_inside_what_is_compiled_needs_fullgraph() -> None:
    for name in (BLOCK, MODEL):
        found = problem(entry(name, **LOOSE), policy="selective")
        assert "without fullgraph around processor.blocks.0, which recomputes its activations" in found.what
        assert found.where == "model.compile[0]"
        assert found.mend == f"fullgraph: true in model.compile[0], or {KEY}=full or none"


def test_full_goes_around_a_compiled_block_of_any_kind() -> None:
    compilation = tried(compile=[entry(BLOCK, **LOOSE)], processor={"num_heads": 2, "gradient_checkpointing": "full"})
    assert compilation.graphs >= 3


def test_nothing_can_be_offloaded_inside_what_is_compiled() -> None:
    found = problem(entry(MODEL), policy="offload")
    assert found.what == (
        "model.compile[0] (Model) compiles the whole model, around processor.blocks.0, which is to be offloaded: "
        "nothing is, inside of what is compiled"
    )
    assert found.mend == f"model/compile=blocks, or {KEY}=selective, full or none"


@pytest.mark.parametrize("name", ["Linear", "MLP", "GraphAttention", "torch.nn.Linear"])
def test_products_inside_what_is_compiled_can_not_be_kept(name: str) -> None:
    found = problem(entry(name, **AOT), policy="selective")
    assert "a part of processor.blocks.0: selective checkpointing can't see into it" in found.what
    assert found.allowed == "compiled with selective: whole blocks, or norms and activations"
    assert found.mend == f"model/compile=blocks, or {KEY}=full or none"


def test_norms_and_activations_may_be_compiled() -> None:
    compilation = tried(compile=[entry("LayerNorm"), entry("Activation")], encoder={"num_heads": 2},
                        processor={"num_heads": 2, "qk_norm": True, "gradient_checkpointing": "selective"},
                        layer_kernels={"QueryNorm": compiled_slot("torch.nn.LayerNorm")})  # fmt: skip
    assert compilation.graphs >= 3


@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_kernels_that_are_kept_pass(kind: str) -> None:
    block = {"num_heads": 2, "qk_norm": True, "gradient_checkpointing": "selective"}
    for precision in ("32-true", "bf16-mixed", "64-true"):
        settings = make_settings(kind, encoder=block, processor=block, decoder=block)
        kernels = resolve_kernels(settings, preset=None, overrides=[])
        try_checkpointing(settings, kernels, torch.device("cpu"), precision)


@pytest.mark.parametrize(
    ("kind", "slot", "target"),
    [
        ("graphtransformer", "GraphAttention", "etesian.kernels.reference.ReferenceGraphAttention"),
        ("graphtransformer", "GraphAttention", "etesian.kernels.pyg.PygGraphAttention"),
        ("transformer", "Attention", "etesian.kernels.attention.reference.ReferenceAttention"),
        ("transformer", "Linear", "test_combinations.ByHand"),
    ],
)
def test_a_kernel_without_an_operator_that_is_kept(kind: str, slot: str, target: str) -> None:
    found = refused(kind, slot, target)
    assert found.what == (
        f"{KEY}='selective' keeps the results of operators that it knows by name, and {target} in the slot {slot} "
        "calls none of them: its work would be done twice"
    )
    assert found.where == KEY
    assert str(found.allowed).startswith("kernels that call one of ")
    assert found.mend == f"{KEY}=full or none, or another kernel in model.processor.layer_kernels.{slot}"


def test_a_kernel_that_changes_a_kept_result() -> None:
    found = refused("transformer", "Linear", "test_combinations.InPlace")
    assert found.what.startswith(
        f"{KEY}='selective' does not run with these kernels: a kernel changes a result in place that is to be kept"
    )
    assert found.mend == f"{KEY}=full or none, or other kernels"


def test_without_selective_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etesian.runtime.checkpointing_trial.build_miniature", None)
    settings = make_settings(processor={"num_heads": 2, "gradient_checkpointing": "full"})
    try_checkpointing(settings, resolve_kernels(settings, preset=None, overrides=[]), torch.device("cpu"), "32-true")


MAPPERS = ["etesian.model.encoder.Encoder", "etesian.model.decoder.Decoder"]


def shared(kind: str, *entries: dict[str, Any]) -> list[Problem]:
    settings = make_settings(kind, compile=list(entries))
    return sharing_problems(settings, collect_entries(settings, resolve_kernels(settings, preset=None, overrides=[])))


def test_what_lies_between_exchanges_may_be_compiled() -> None:
    assert shared("graphtransformer", entry(BLOCK), *map(entry, MAPPERS), entry("LayerNorm")) == []
    assert shared("transformer", entry(BLOCK) | {"component": "decoder"}, entry("etesian.model.encoder.Encoder")) == []


@pytest.mark.parametrize(
    ("kind", "what", "found"),
    [
        (
            "graphtransformer",
            entry(MODEL),
            "compiles EncoderProcessorDecoder, in which the processes that share a model",
        ),
        ("graphtransformer", entry("etesian.model.processor.Processor"), "compiles Processor, in which"),
        (
            "transformer",
            entry("etesian.model.encoder_processor_decoder.EncoderProcessorDecoder"),
            "compiles EncoderProcessorDecoder, in which",
        ),
        (
            "transformer",
            entry(BLOCK),
            "compiles TransformerBlock, in which the processes that share a model exchange h",
        ),
        ("transformer", entry(BLOCK) | {"component": "processor"}, "compiles TransformerBlock, in which"),
    ],
)
def test_what_holds_an_exchange_may_not(kind: str, what: dict[str, Any], found: str) -> None:
    (problem,) = shared(kind, what)
    assert found in problem.what
    assert problem.where == "model.compile[0]"
    assert str(problem.mend).endswith("system.hardware.num_gpus_per_model=1")
