"""What all model kinds share: encoder and decoder of graph-transformer blocks, residual connection, bounds.

Names in the state dict: ``data_nodes.trainable``, ``hidden_nodes.trainable``; ``encoder.`` and ``decoder.``, each with
``edges.trainable`` and ``block.``; ``processor.blocks.<i>.``; beside them ``encoder.embed_source``,
``encoder.embed_destination``, ``decoder.embed_destination``, ``decoder.norm_output`` and ``decoder.output``. Inside a
block of encoder and decoder: ``norm_attention``, ``norm_source``, ``query``, ``key``, ``value``, ``own``, ``edge``,
``query_norm`` and ``key_norm`` (with qk_norm), ``projection``, ``norm_mlp``, ``mlp``. What the graph and the data give
is not in the state dict.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from einops import rearrange
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import ComponentKernels, LayerKernels
from etesian.model.base import Model
from etesian.model.bounding import build_bounding
from etesian.model.decoder import Decoder
from etesian.model.encoder import Encoder
from etesian.model.exchange import Halo
from etesian.model.features import EdgeFeatures, NodeFeatures, for_products
from etesian.model.fields import ModelFields
from etesian.model.residual import Residual
from etesian.schema.model import ModelSettings


class EncoderProcessorDecoder(Model, ABC):
    """Encoder, processor, decoder, residual connection and bounds; a kind adds its processor.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    graph : HeteroData
        Nodes ``data`` and ``hidden``; edges data to hidden and hidden to data, sorted by destination, and whatever
        else the processor needs.
    fields : ModelFields
        Variables and steps.
    kernels : ComponentKernels
        Where every layer comes from.

    Raises
    ------
    UserError
        If a bound or the residual asks for something that the fields don't have.
    """

    def __init__(
        self, settings: ModelSettings, graph: HeteroData, fields: ModelFields, kernels: ComponentKernels
    ) -> None:
        super().__init__()
        channels = settings.num_channels
        self.num_steps, self.num_inputs = fields.num_steps, len(fields.input_names)
        self.latent_skip = settings.latent_skip
        learnt = settings.node_trainable_parameters
        self.data_nodes = NodeFeatures(graph["data"].x, learnt.data)
        self.hidden_nodes = NodeFeatures(graph["hidden"].x, learnt.hidden)
        data_dim = fields.num_steps * len(fields.input_names) + self.data_nodes.dim

        learnt_edges = settings.edge_trainable_parameters
        tiled = [component.GraphAttention.reads_tiles for component in (kernels.encoder, kernels.decoder)]
        to_hidden = EdgeFeatures(graph, "data", "hidden", learnt_edges.data2hidden, tiled=tiled[0])
        to_data = EdgeFeatures(graph, "hidden", "data", learnt_edges.hidden2data, tiled=tiled[1])
        self.encoder = Encoder(data_dim, self.hidden_nodes.dim, channels, to_hidden, settings.encoder, kernels.encoder)
        self.processor = self.make_processor(settings, graph, kernels.processor)
        self.decoder = Decoder(data_dim, len(fields.output_names), channels, to_data, settings.decoder, kernels.decoder)
        self.residual = Residual(settings.residual, fields)
        self.data_halo: Halo | None = None  # where processes share the model
        self.hidden_halo: Halo | None = None
        self.bounding = build_bounding(settings.bounding, fields, residual=settings.residual.kind == "skip")

    @staticmethod
    @abstractmethod
    def make_processor(settings: ModelSettings, graph: HeteroData, kernels: LayerKernels) -> nn.Module:
        """Return the processor: called with hidden nodes [(copies N_hidden), C] and copies, it keeps the shape."""

    def forward(self, x: Tensor) -> Tensor:
        """Predict the next state.

        Parameters
        ----------
        x : Tensor, shape (B, T, E, G, V_in)
            Batch, input steps, ensemble, grid points, input variables; normalised.

        Returns
        -------
        Tensor, shape (B, E, G, V_out)
            Output variables of the next step, normalised, in the dtype of x.

        Raises
        ------
        ValueError
            If x has not the shape that the model was built for.
        """
        batch, steps, ensemble, grid, variables = x.shape
        built_for = (self.num_steps, self.data_nodes.num_nodes, self.num_inputs)
        if (steps, grid, variables) != built_for:
            raise ValueError(f"input has (T, G, V) = {(steps, grid, variables)}, the model was built for {built_for}")
        copies = batch * ensemble

        x_flat = rearrange(for_products(x), "b t e g v -> (b e g) (t v)")
        x_data = self.data_nodes.join(x_flat, copies)  # [(B E G), F_data]
        x_hidden = self.hidden_nodes(copies)  # [(B E N_hidden), F_hidden]
        source = x_data if self.data_halo is None else self.data_halo(x_data, copies)
        encoded = self.encoder(source, x_hidden, copies)  # [(B E N_hidden), C]
        processed = self.processor(encoded, copies)  # [(B E N_hidden), C]
        if self.latent_skip:
            processed = processed + encoded
        source = processed if self.hidden_halo is None else self.hidden_halo(processed, copies)
        y = self.decoder(source, x_data, copies)  # [(B E G), V_out]
        y = rearrange(y, "(b e g) v -> b e g v", b=batch, e=ensemble).to(x.dtype)
        return self.bounding(self.residual(y, x))  # [B, E, G, V_out]
