"""Floating-point operations of the matrix products of a model of kind ``graphtransformer``, from its shapes."""

from __future__ import annotations

from dataclasses import dataclass

from etesian.model.graphtransformer import GraphTransformerSettings


@dataclass(frozen=True)
class Shapes:
    """Sizes of what a model computes on.

    Attributes
    ----------
    data_nodes, hidden_nodes : int
        Nodes with batch and ensemble, G and N.
    data_features, hidden_features : int
        Features of a node before it is embedded, F_data and F_hidden: input states, coordinates, learnt ones.
    outputs : int
        Output variables, V_out.
    """

    data_nodes: int
    hidden_nodes: int
    data_features: int
    hidden_features: int
    outputs: int


def model_flops(settings: GraphTransformerSettings, shapes: Shapes) -> int:
    """Return the operations of a forward pass.

    A product of [n, a] and [a, b] takes 2 n a b. With C channels, L layers in the processor, and an MLP R times as
    wide inside:

    ============  ===================================================================
    encoder       2 C (G F_data + N F_hidden) + 2 C^2 (2 G + 3 N + 2 R N)
    processor     L 2 C^2 (5 + 2 R) N
    decoder       2 C G F_data + 2 C^2 (2 N + 3 G + 2 R G) + 2 C V_out G
    ============  ===================================================================

    In a block the source nodes have keys and values, the destination nodes queries, `own`, `projection` and the MLP.
    What is computed for each edge is not counted, neither the attention nor the projection of edge features: it is
    less than 2 percent, and kernels differ in how they go about it.
    """
    channels, nodes, points = settings.num_channels, shapes.hidden_nodes, shapes.data_nodes
    embed_points = 2 * channels * points * shapes.data_features
    embed_nodes = 2 * channels * nodes * shapes.hidden_features
    encoder = block_flops(channels, points, nodes, settings.encoder.mlp_hidden_ratio)
    decoder = block_flops(channels, nodes, points, settings.decoder.mlp_hidden_ratio)
    head = 2 * channels * shapes.outputs * points
    return embed_points + embed_nodes + encoder + processor_flops(settings, nodes) + embed_points + decoder + head


def processor_flops(settings: GraphTransformerSettings, nodes: int) -> int:
    """Return the operations of a forward pass of the processor: L 2 C^2 (5 + 2 R) N."""
    each = block_flops(settings.num_channels, nodes, nodes, settings.processor.mlp_hidden_ratio)
    return settings.processor.num_layers * each


def block_flops(channels: int, sources: int, destinations: int, ratio: float) -> int:
    """Return the operations of a forward pass of a block: 2 C^2 (2 N_src + 3 N_dst) + 4 C (R C) N_dst."""
    linear = 2 * channels**2 * (2 * sources + 3 * destinations)
    return linear + 4 * channels * int(channels * ratio) * destinations


def step_flops(forward: int) -> int:
    """Return the operations of a forward and a backward pass.

    For each product of the forward pass the backward pass has two of the same size, for the gradients of input and
    weights. That holds for the first layers too where nodes have learnt features. What activation checkpointing
    computes a second time is not counted: it is no use to anybody.
    """
    return 3 * forward
