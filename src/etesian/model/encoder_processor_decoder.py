"""The model of every kind: encoder, processor and decoder, each of its own kind, residual connection and bounds.

Names in the state dict: ``data_nodes.trainable``, ``hidden_nodes.trainable``; ``encoder.edges.trainable``,
``decoder.edges.trainable``; ``processor.blocks.<i>.``. With encoder and decoder of kind ``graphtransformer``:
``encoder.block.`` and ``decoder.block.``; beside them ``encoder.embed_source``,
``encoder.embed_destination``, ``decoder.embed_destination``, ``decoder.norm_output`` and ``decoder.output``. Inside a
block of encoder and decoder: ``norm_attention``, ``norm_source``, ``query``, ``key``, ``value``, ``own``, ``edge``,
``query_norm`` and ``key_norm`` (with qk_norm), ``projection``, ``norm_mlp``, ``mlp``. What the graph and the data give
is not in the state dict.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import ComponentKernels
from etesian.model.base import Model
from etesian.model.bounding import build_bounding
from etesian.model.exchange import Halo
from etesian.model.features import EdgeFeatures, NodeFeatures, for_products
from etesian.model.fields import ModelFields
from etesian.model.residual import Residual
from etesian.schema.model import ModelSettings


class EncoderProcessorDecoder(Model):
    """Encoder, processor, decoder, residual connection and bounds.

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
        tiled = {
            name: settings.uses(name, "GraphAttention") and getattr(kernels, name).GraphAttention.reads_tiles
            for name in ("encoder", "decoder")
        }
        to_hidden = EdgeFeatures(graph, "data", "hidden", learnt_edges.data2hidden, tiled=tiled["encoder"])
        to_data = EdgeFeatures(graph, "hidden", "data", learnt_edges.hidden2data, tiled=tiled["decoder"])
        embedded, outputs = settings.encoder.embeds_data, len(fields.output_names)
        handed_on = channels if embedded else data_dim
        self.encoder = settings.encoder.build(data_dim, self.hidden_nodes.dim, channels, to_hidden, kernels.encoder)
        self.processor = settings.processor.build(channels, graph, learnt_edges, kernels.processor)
        self.decoder = settings.decoder.build(handed_on, outputs, channels, to_data, kernels.decoder, embedded=embedded)
        self.residual = Residual(settings.residual, fields)
        self.data_halo: Halo | None = None  # where processes share the model
        self.hidden_halo: Halo | None = None
        self.bounding = build_bounding(settings.bounding, fields, residual=settings.residual.kind == "skip")

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
        source = None if self.data_halo is None else self.data_halo(x_data, copies)
        # Data nodes [(B E G), F_data or C] and hidden nodes [(B E N_hidden), C].
        x_data, encoded = self.encoder(x_data, x_hidden, copies, source)
        processed = self.processor(encoded, copies)  # [(B E N_hidden), C]
        if self.latent_skip:
            processed = processed + encoded
        x_hidden = processed if self.hidden_halo is None else self.hidden_halo(processed, copies)
        y = self.decoder(x_hidden, x_data, copies)  # [(B E G), V_out]
        y = rearrange(y, "(b e g) v -> b e g v", b=batch, e=ensemble).to(x.dtype)
        return self.bounding(self.residual(y, x))  # [B, E, G, V_out]
