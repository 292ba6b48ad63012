"""Selective checkpointing keeps graph attention in Triton; run by ``test_kept_operators.py``, with the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_models import assert_same, output_and_gradients, prepared
from kept_bytes import Operators
from small_model import make_settings

from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.checkpointing_trial import try_checkpointing
from etesian.schema.model import ModelSettings

ATTENTION = "etesian::graph_attention"
TRITON = {"GraphAttention": {"_target_": "etesian.kernels.triton_kernels.attention.TritonGraphAttention"}}


def settings_of(policy: str, **mapper: Any) -> ModelSettings:
    block = {"num_heads": 2, "qk_norm": True, "gradient_checkpointing": policy}
    return make_settings(encoder=block | mapper, processor=block | {"num_layers": 1}, decoder=block | mapper,
                         layer_kernels=TRITON)  # fmt: skip


@pytest.mark.parametrize(("policy", "repeated"), [("selective", 0), ("full", 3)])
def test_its_three_results_are_kept(policy: str, repeated: int) -> None:
    model, _ = prepared(settings_of(policy))
    y = model(torch.randn(1, 2, 1, 14, 3, dtype=torch.float64))
    with Operators() as operators:
        y.square().mean().backward()
    assert operators.calls[ATTENTION] == repeated
    assert operators.calls[f"{ATTENTION}_backward"] == 3


def test_gradients_are_those_without() -> None:
    plain, _ = prepared(settings_of("none"))
    model, _ = prepared(settings_of("selective", num_chunks=2, fuse_projections=True))
    assert_same(output_and_gradients(model, 1), output_and_gradients(plain, 1), 1e-12)


def test_the_door_sees_it() -> None:
    settings = settings_of("selective")
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    try_checkpointing(settings, kernels, torch.device("cpu"), "32-true")
