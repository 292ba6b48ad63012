"""Which weight of this package's models is which of anemoi-models 0.19."""

from __future__ import annotations

BLOCK_NAMES = {
    "norm_attention": "layer_norm_attention",
    "norm_source": "layer_norm_attention_src",
    "query": "lin_query",
    "key": "lin_key",
    "value": "lin_value",
    "own": "lin_self",
    "edge": "lin_edge",
    "projection": "projection",
    "query_norm": "q_norm",
    "key_norm": "k_norm",
    "norm_mlp": "layer_norm_mlp_dst",
    "mlp.linear_in": "node_dst_mlp.mlp.0",
    "mlp.linear_out": "node_dst_mlp.mlp.2",
}
"""Layers of a graph-transformer block: name here to name there."""

TRANSFORMER_NAMES = {
    "norm_attention": "layer_norm_attention",
    "query": "attention.lin_q",
    "key": "attention.lin_k",
    "value": "attention.lin_v",
    "query_norm": "attention.q_norm",
    "key_norm": "attention.k_norm",
    "projection": "attention.projection",
    "norm_mlp": "layer_norm_mlp",
    "mlp.linear_in": "mlp.mlp.0",
    "mlp.linear_out": "mlp.mlp.2",
}
"""Layers of a transformer block: name here to name there."""

MAPPER_NAMES = {
    "encoder.embed_source": "encoder.emb_nodes_src",
    "encoder.embed_destination": "encoder.emb_nodes_dst",
    "decoder.embed_destination": "decoder.emb_nodes_dst",
    "decoder.norm_output": "decoder.node_data_extractor.0",
    "decoder.output": "decoder.node_data_extractor.1",
}
"""Layers of encoder and decoder outside their blocks."""


def layer_name(module: str, kind: str = "graphtransformer") -> str | None:
    """Return the peer's name of a layer of a model, such as ``encoder.proc.lin_query`` of ``encoder.block.query``.

    Parameters
    ----------
    module : str
        Name of the layer here.
    kind : str
        Kind of the model.

    Returns
    -------
    str or None
        None for what is no layer of encoder, processor or decoder: learnt features of nodes and edges.
    """
    if module in MAPPER_NAMES:
        return MAPPER_NAMES[module]
    component, found, layer = module.partition(".block.")
    if found:
        return f"{component}.proc.{BLOCK_NAMES[layer]}"
    if not module.startswith("processor.blocks."):
        return None
    number, _, layer = module.removeprefix("processor.blocks.").partition(".")
    names = TRANSFORMER_NAMES if kind == "transformer" else BLOCK_NAMES
    return f"processor.proc.{number}.{names[layer]}"
