"""Kernels of libraries beside those of PyTorch that may take their place, on a GPU."""

from __future__ import annotations

import pytest
import torch
from small_model import make_settings

from etesian.kernels.interchange import Difference, plain_record
from etesian.kernels.parity import compare
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import resolve_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize(
    ("slot", "target", "arguments"),
    [
        ("LayerNorm", "liger_kernel.transformers.rms_norm.LigerRMSNorm", {"eps": 1e-6}),
        ("LayerNorm", "etesian.kernels.liger.LigerLayerNorm", {"eps": 1e-5}),
        ("MLP", "etesian.kernels.liger.LigerSwiGLU", {}),
        ("MLP", "etesian.kernels.liger.LigerGeGLU", {}),
        ("LayerNorm", "transformer_engine.pytorch.RMSNorm", {"eps": 1e-5}),
        ("LayerNorm", "transformer_engine.pytorch.LayerNorm", {"eps": 1e-5}),
    ],
)
def test_the_plain_kernel_computes_the_same(slot: str, target: str, arguments: dict[str, float]) -> None:
    pytest.importorskip("transformer_engine" if "transformer_engine" in target else "liger_kernel")
    trained = resolve_kernels(
        make_settings(layer_kernels={slot: {"_target_": target, **arguments}}), preset=None, overrides=[]
    )
    old = next(record for record in trained.records if record.slot == slot)
    plain, reasons = plain_record(old)
    assert reasons == []
    settings = make_settings(layer_kernels={slot: {"_target_": plain.target, **plain.arguments}})
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    new: KernelRecord = next(record for record in kernels.records if record.slot == slot)
    parity = compare(Difference("model", slot, old, new), kernels, settings, torch.device("cuda"))
    assert parity.passed, parity
    assert parity.against == "", parity
