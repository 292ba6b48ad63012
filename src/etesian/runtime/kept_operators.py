"""What ``gradient_checkpointing: selective`` keeps of a block: the one list of operators.

The results of matrix products and of attention are kept; norms, activations, residuals, casts and copies are computed
again in the backward pass, at the cost of reading and writing them once more. Names are those of torch's operators,
``namespace::name`` without the overload, so an operator of a library that is not here is a name that never occurs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

PRODUCTS = frozenset({
    "aten::mm",
    "aten::addmm",
    "aten::_addmm_activation",
    "aten::bmm",
    "aten::baddbmm",
    "aten::linear",
    "aten::_scaled_mm",
})  # fmt: skip
"""Products of matrices: what the slots ``Linear`` and ``MLP`` spend their time in."""

ATTENTION = frozenset({
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_scaled_dot_product_attention_math",
    "flash_attn::_flash_attn_forward",
    "etesian::factored_graph_attention",
    "etesian::graph_attention",
})  # fmt: skip
"""Attention as one operator: what the slots ``Attention`` and ``GraphAttention`` call."""

KEPT = PRODUCTS | ATTENTION


def operator_name(operator: Any) -> str:
    """Return the name of an operator without its overload, ``aten::addmm``."""
    schema = getattr(operator, "_schema", None)  # operators of higher order have none
    return str(operator.name()) if schema is None else str(schema.name)


def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Tell torch whether the results of an operator are kept."""
    kept = operator_name(operator) in KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


keep_products = partial(create_selective_checkpoint_contexts, policy)
"""What ``torch.utils.checkpoint.checkpoint`` takes as ``context_fn``."""
