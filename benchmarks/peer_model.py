"""The model of kind ``graphtransformer`` made of the mappers and the processor of anemoi-models 0.19.

Same graph, same weights, same mathematics: what lies between the features of the nodes and the output head is the
peer's code; joining the coordinates to the input and the residual connection are those of this package, on both sides.
Its edges come from the peer's own graph provider. The peer is imported when a model is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.checkpoint.peer.names import layer_name
from etesian.errors import UserError
from etesian.model.features import NodeFeatures
from etesian.model.fields import ModelFields
from etesian.model.graphtransformer import GraphTransformerSettings
from etesian.model.residual import Residual
from etesian.runtime.compile import Compilation, compile_modules
from etesian.runtime.entries import Entry
from etesian.schema.compilation import CompileOptions
from etesian.schema.model import BlockSettings
from peer_attention import DISTRIBUTION

NAMES = {
    "data_nodes": "data_nodes",
    "hidden_nodes": "hidden_nodes",
    "encoder.edges": "encoder_edges.trainable",
    "processor.edges": "processor_edges.trainable",
    "decoder.edges": "decoder_edges.trainable",
}
"""Modules with learnt features: name here to name in :class:`PeerModel`."""


@dataclass(frozen=True)
class PeerOptions:
    """How the peer is run; the rest comes from the model's settings.

    Attributes
    ----------
    checkpointing : bool
        Its ``gradient_checkpointing``, of every component; each layer of the processor is a chunk of its own.
    mappers : str
        Its ``shard_strategy`` of encoder and decoder. One process shards nothing, but ``edges`` copies nodes and edges
        all the same, and ``heads`` does not.
    compiler : str or None
        Backend with which torch compiles the forward of each block, for the shapes that it meets.
    backend : str
        Its ``graph_attention_backend``: ``triton``, or ``pyg`` on a CPU.
    """

    checkpointing: bool = False
    mappers: str = "heads"
    compiler: str | None = None
    backend: str = "triton"


class PeerModel(nn.Module):
    """Encoder, processor and decoder of the peer, called as a model of this package is.

    Parameters
    ----------
    settings : GraphTransformerSettings
        Section ``model``.
    graph : HeteroData
        The graph.
    fields : ModelFields
        Variables and steps.
    options : PeerOptions
        How the peer is run.

    Raises
    ------
    ImportError
        If the peer can't be imported.
    RuntimeError
        If the peer takes another backend than the one that was asked for.
    UserError
        If the model has bounds, which are not compared.
    """

    def __init__(
        self, settings: GraphTransformerSettings, graph: HeteroData, fields: ModelFields, options: PeerOptions
    ) -> None:
        super().__init__()
        if settings.bounding:
            raise UserError("bounds are not compared with the peer's", where="model.bounding", allowed="[]")
        layers = _import("anemoi.models.layers.mapper")
        learnt, channels = settings.node_trainable_parameters, settings.num_channels
        self.latent_skip = settings.latent_skip
        self.data_nodes = NodeFeatures(graph["data"].x, learnt.data)
        self.hidden_nodes = NodeFeatures(graph["hidden"].x, learnt.hidden)
        data_dim = fields.num_steps * len(fields.input_names) + self.data_nodes.dim
        learnt_edges = settings.edge_trainable_parameters
        self.encoder_edges = _edges(graph, "data", "hidden", learnt_edges.data2hidden)
        self.decoder_edges = _edges(graph, "hidden", "data", learnt_edges.hidden2data)
        self.encoder = layers.GraphTransformerForwardMapper(
            in_channels_src=data_dim,
            in_channels_dst=self.hidden_nodes.dim,
            **_mapper_arguments(channels, self.encoder_edges, settings.encoder, options),
        )
        self.processor_edges, self.processor = make_processor(settings, graph, options)
        self.decoder = layers.GraphTransformerBackwardMapper(
            in_channels_src=channels,
            in_channels_dst=data_dim,
            out_channels_dst=len(fields.output_names),
            **_mapper_arguments(channels, self.decoder_edges, settings.decoder, options),
        )
        self.residual = Residual(settings.residual, fields)
        shapes = _import("anemoi.models.distributed.shapes")
        self._unsharded = shapes.BipartiteGraphShardInfo(src_nodes=None, dst_nodes=None, edges=None)
        self.compilation = finish(self, options)

    def forward(self, x: Tensor) -> Tensor:
        """Predict the next state, (B, T, E, G, V_in) to (B, E, G, V_out), normalised."""
        batch, _, ensemble, _, _ = x.shape
        copies = batch * ensemble
        x_data = self.data_nodes.join(rearrange(x, "b t e g v -> (b e g) (t v)"), copies)
        x_hidden = self.hidden_nodes(copies)

        x_data, encoded = self._map(self.encoder, self.encoder_edges, (x_data, x_hidden), copies)
        processed = run_processor(self.processor, self.processor_edges, encoded, copies)
        if self.latent_skip:
            processed = processed + encoded
        y = self._map(self.decoder, self.decoder_edges, (processed, x_data), copies)
        y = rearrange(y, "(b e g) v -> b e g v", b=batch, e=ensemble).to(x.dtype)
        return self.residual(y, x)

    def _map(self, mapper: Any, edges: Any, x: tuple[Tensor, Tensor], copies: int) -> Any:
        edge_attr, edge_index, _ = edges.get_edges(batch_size=copies, act_checkpoint=False)
        return mapper(x, batch_size=copies, shard_info=self._unsharded, edge_attr=edge_attr, edge_index=edge_index)


class PeerProcessor(nn.Module):
    """The peer's processor by itself, called as that of this package is.

    Parameters
    ----------
    settings : GraphTransformerSettings
        Section ``model``.
    graph : HeteroData
        With the hidden nodes and the edges among them.
    options : PeerOptions
        How the peer is run.
    """

    def __init__(self, settings: GraphTransformerSettings, graph: HeteroData, options: PeerOptions) -> None:
        super().__init__()
        self.processor_edges, self.processor = make_processor(settings, graph, options)
        self.compilation = finish(self, options)

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_hidden), C] to the same shape."""
        return run_processor(self.processor, self.processor_edges, x, copies)


def make_processor(settings: GraphTransformerSettings, graph: HeteroData, options: PeerOptions) -> tuple[Any, Any]:
    """Return the peer's edges among the hidden nodes, and its processor."""
    edges = _edges(graph, "hidden", "hidden", settings.edge_trainable_parameters.hidden2hidden)
    processor = _import("anemoi.models.layers.processor").GraphTransformerProcessor(
        num_layers=settings.processor.num_layers,
        num_channels=settings.num_channels,
        num_chunks=settings.processor.num_layers,
        edge_dim=edges.edge_dim,
        gradient_checkpointing=options.checkpointing,
        **_block_arguments(settings.processor, options),
    )
    return edges, processor


def run_processor(processor: Any, edges: Any, x: Tensor, copies: int) -> Tensor:
    """Call the peer's processor on hidden nodes [(copies N_hidden), C]."""
    unsharded = _import("anemoi.models.distributed.shapes").GraphShardInfo(nodes=None, edges=None)
    edge_attr, edge_index, _ = edges.get_edges(batch_size=copies, act_checkpoint=False)
    done = processor(x=x, batch_size=copies, shard_info=unsharded, edge_attr=edge_attr, edge_index=edge_index)
    return done[0] if isinstance(done, tuple) else done  # beside the nodes it returns the edges


def finish(model: nn.Module, options: PeerOptions) -> Compilation:
    """Check that the peer took the backend that was asked for, and compile its blocks where that was asked for.

    Raises
    ------
    RuntimeError
        If it took another backend: it falls back to ``pyg`` where it finds no Triton or no GPU.
    """
    kind = _import("anemoi.models.layers.block").GraphTransformerBaseBlock
    for block in (module for module in model.modules() if isinstance(module, kind)):
        if block.graph_attention_backend != options.backend:
            raise RuntimeError(
                f"{DISTRIBUTION} takes its backend {block.graph_attention_backend!r}, not {options.backend!r}: that "
                "needs a GPU and Triton, and no ANEMOI_INFERENCE_GRAPHTRANSFORMER_ATTENTION_BACKEND in the environment"
            )
    if options.compiler is None:
        return Compilation()
    how = CompileOptions(backend=options.compiler, dynamic=False)
    return compile_modules(model, [Entry("the peer's blocks", kind.__name__, how, kind=kind)])


def their_name(name: str) -> str:
    """Return the peer's name of a weight of this package's model, such as ``encoder.block.query.weight``."""
    module, weight = name.rsplit(".", maxsplit=1)
    return f"{NAMES.get(module) or layer_name(module)}.{weight}"


def take_weights(theirs: nn.Module, own: Mapping[str, Tensor]) -> None:
    """Copy the weights of this package's model into the peer's; each of either side has its place in the other.

    Raises
    ------
    ValueError
        With the names of weights that are left over on either side.
    """
    wanted = dict(theirs.named_parameters())  # each once: a norm of theirs has two names
    given = {their_name(name): weight for name, weight in own.items()}
    if left := sorted(wanted.keys() ^ given.keys()):
        raise ValueError(f"weights without a counterpart: {', '.join(left)}")
    with torch.no_grad():
        for name, weight in given.items():
            if wanted[name].shape != weight.shape:
                raise ValueError(f"{name} has the shape {tuple(wanted[name].shape)} there, {tuple(weight.shape)} here")
            wanted[name].copy_(weight)


def _edges(graph: HeteroData, src: str, dst: str, learnt: int) -> Any:
    """Return the peer's provider of the edges between two sets of nodes."""
    return _import("anemoi.models.layers.graph_provider").StaticGraphProvider(
        graph=graph[(src, "to", dst)],
        edge_attributes=["edge_length", "edge_dirs"],
        src_size=graph[src].num_nodes,
        dst_size=graph[dst].num_nodes,
        trainable_size=learnt,
    )


def _mapper_arguments(channels: int, edges: Any, settings: BlockSettings, options: PeerOptions) -> dict[str, Any]:
    return {
        "num_channels": channels,
        "num_chunks": 1,
        "edge_dim": edges.edge_dim,
        "gradient_checkpointing": options.checkpointing,
        "shard_strategy": options.mappers,
        **_block_arguments(settings, options),
    }


def _block_arguments(settings: BlockSettings, options: PeerOptions) -> dict[str, Any]:
    return {
        "num_heads": settings.num_heads,
        "mlp_hidden_ratio": settings.mlp_hidden_ratio,
        "qk_norm": settings.qk_norm,
        "layer_kernels": {},
        "graph_attention_backend": options.backend,
    }


def _import(name: str) -> Any:
    """Import a module of the peer.

    Raises
    ------
    ImportError
        If it can't be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as cause:
        raise ImportError(
            f"{DISTRIBUTION} can't be imported ({cause}): `pip install --no-deps --target FOLDER -r tests/peers.txt`, "
            "and FOLDER on PYTHONPATH"
        ) from cause
