"""A built model made that of one process among several that share it.

Every process keeps all parameters, learnt features of nodes and edges included, so a state dict is that of the whole
model. What the graph gives is cut down to the process' own nodes and the edges into them, and the sources that others
have are fetched: data nodes once by the encoder, hidden nodes once by the decoder, and in every block of the processor.
"""

from __future__ import annotations

from torch.distributed import ProcessGroup
from torch_geometric.data import HeteroData

from etesian.graph.partition import Partition
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.exchange import Halo, Heads
from etesian.model.features import EdgeFeatures
from etesian.model.self_attention import TransformerProcessor


def leave_part(
    model: EncoderProcessorDecoder, graph: HeteroData, partition: Partition, rank: int, group: ProcessGroup
) -> None:
    """Leave a model its part of the nodes and edges, in place: it then takes and returns the data nodes of that part.

    Its gradients are those of what this process computes: their sum over the group is the gradient of the whole.

    Parameters
    ----------
    model : EncoderProcessorDecoder
        A whole model, on the device that its graph was built on.
    graph : HeteroData
        Its graph.
    partition : Partition
        The graph in as many parts as the group has processes.
    rank : int
        Which part is this process'.
    group : ProcessGroup
        The processes that share the model.

    Raises
    ------
    UserError
        If encoder or decoder have more chunks than this process has nodes.
    """
    model.data_nodes.keep(partition.data.parts[rank])
    model.hidden_nodes.keep(partition.hidden.parts[rank])

    def keep(edges: EdgeFeatures, src: str, dst: str) -> Halo:
        part = partition.edges(graph, src, dst, rank, tiled=edges.static.is_tiled)
        edges.keep(part.edge, part.edges)
        return Halo(part, group)

    encoder, decoder = model.encoder, model.decoder
    model.data_halo = keep(encoder.edges, "data", "hidden")
    model.hidden_halo = keep(decoder.edges, "hidden", "data")
    for mapper in (encoder, decoder):
        mapper.cut()
    processor = model.processor
    if isinstance(processor, TransformerProcessor):
        processor.share(Heads(partition.hidden, rank, processor.order, group))
    elif isinstance(getattr(processor, "edges", None), EdgeFeatures):  # one without edges looks at no other nodes
        processor.halo = keep(processor.edges, "hidden", "hidden")
