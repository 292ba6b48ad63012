"""Checkpoints as anemoi-training 0.17 writes them, of small models, in a process that has the peers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anemoi.graphs.create import GraphCreator
from anemoi.models.data_indices.collection import IndexCollection
from anemoi.models.interface import AnemoiModelInterface
from anemoi.utils.checkpoints import save_metadata
from omegaconf import OmegaConf
from torch_geometric.data import HeteroData

LAYERS = "anemoi.models.layers"
NAMES = ("t", "insolation", "q", "tp")


def make_graph(latitudes: Any, longitudes: Any, resolution: int = 1) -> HeteroData:
    """Return what anemoi-graphs makes of grid points in degrees; its processor edges are not sorted."""
    attributes = {
        name: {"_target_": f"anemoi.graphs.edges.attributes.{kind}", "norm": "unit-std"}
        for name, kind in (("edge_length", "EdgeLength"), ("edge_dirs", "EdgeDirection"))
    }
    edges = [("data", "hidden", {"_target_": "anemoi.graphs.edges.CutOffEdges", "cutoff_factor": 1.0}),
             ("hidden", "hidden", {"_target_": "anemoi.graphs.edges.MultiScaleEdges", "x_hops": 1,
                                   "scale_resolutions": resolution}),
             ("hidden", "data", {"_target_": "anemoi.graphs.edges.KNNEdges", "num_nearest_neighbours": 3})]  # fmt: skip
    area = {"_target_": "anemoi.graphs.nodes.attributes.SphericalAreaWeights", "norm": "unit-max", "fill_value": 0}
    points = {"_target_": "anemoi.graphs.nodes.LatLonNodes", "latitudes": list(map(float, latitudes)),
              "longitudes": list(map(float, longitudes))}  # fmt: skip
    mesh = {"_target_": "anemoi.graphs.nodes.TriNodes", "resolution": resolution}
    recipe = {
        "nodes": {"data": {"node_builder": points, "attributes": {"area_weight": area}},
                  "hidden": {"node_builder": mesh}},
        "edges": [{"source_name": source, "target_name": target, "edge_builders": [builder], "attributes": attributes}
                  for source, target, builder in edges],
    }  # fmt: skip
    return GraphCreator(OmegaConf.create(recipe)).create()


def make_config(*, kind: str = "graphtransformer", qk_norm: bool = False, mlp: str = "mlp") -> dict[str, Any]:
    """Return a config of the peer, resolved."""
    kernels = {
        "LayerNorm": {"_target_": "torch.nn.LayerNorm"}, "Linear": {"_target_": "torch.nn.Linear"},
        "Activation": {"_target_": "torch.nn.GELU"},
        "QueryNorm": {"_target_": f"{LAYERS}.normalization.AutocastLayerNorm", "bias": False},
        "KeyNorm": {"_target_": f"{LAYERS}.normalization.AutocastLayerNorm", "bias": False},
    }  # fmt: skip
    block = {"num_channels": 16, "num_chunks": 1, "mlp_hidden_ratio": 2, "mlp_implementation": mlp, "num_heads": 2,
             "qk_norm": qk_norm, "cpu_offload": False, "gradient_checkpointing": False,
             "layer_kernels": kernels}  # fmt: skip
    along_edges = {"trainable_size": 3, "sub_graph_edge_attributes": ["edge_length", "edge_dirs"],
                   "shard_strategy": "edges", "graph_attention_backend": "pyg", "edge_pre_mlp": False}  # fmt: skip
    processor = {"_target_": f"{LAYERS}.processor.GraphTransformerProcessor", "num_layers": 2} | block | along_edges
    if kind == "transformer":
        processor = block | {
            "_target_": f"{LAYERS}.processor.TransformerProcessor", "num_layers": 2, "window_size": 4,
            "attention_implementation": "scaled_dot_product_attention", "dropout_p": 0.0, "softcap": 0.0,
            "use_alibi_slopes": False, "use_rotary_embeddings": False,
        }  # fmt: skip
    mapper = block | along_edges
    model = {
        "num_channels": 16, "keep_batch_sharded": True,
        "model": {"_target_": "anemoi.models.models.AnemoiModelEncProcDec", "hidden_nodes_name": "hidden",
                  "latent_skip": True},
        "processor": processor,
        "encoders": {"0": {"source_datasets": ["data"], "dataset_fusing_strategy": "not_supported",
                           "mapper": {"_target_": f"{LAYERS}.mapper.GraphTransformerForwardMapper"} | mapper}},
        "latent_aggregator": {"_target_": f"{LAYERS}.aggregator.SumAggregator"},
        "decoders": {"0": {"target_datasets": ["data"], "target_node_features": ["encoded_data"],
                           "mapper": {"_target_": f"{LAYERS}.mapper.GraphTransformerBackwardMapper",
                                      "initialise_data_extractor_zero": False} | mapper}},
        "residual": {"datasets": {"data": {"_target_": f"{LAYERS}.residual.SkipConnection", "step": -1}}},
        "node_trainable_parameters": {"data": 2, "hidden": 3},
        "bounding": {"datasets": {"data": [{"_target_": f"{LAYERS}.bounding.ReluBounding", "variables": ["tp"]}]}},
    }  # fmt: skip
    normalizer = {"_target_": "anemoi.models.preprocessing.normalizer.InputNormalizer",
                  "config": {"default": "mean-std", "std": ["tp"], "none": ["insolation"]}}  # fmt: skip
    data = {"forcing": ["insolation"], "diagnostic": ["tp"], "processors": {"normalizer": normalizer}}
    split = {"datasets": {"data": {"dataset_config": {"dataset": "small.zarr", "frequency": "6h"}}}}
    return copy.deepcopy({"data": {"frequency": "6h", "datasets": {"data": data}}, "model": model,
                          "dataloader": {"training": split}})  # fmt: skip


def make_model(
    config: dict[str, Any], graph: HeteroData, names: tuple[str, ...] = NAMES
) -> tuple[AnemoiModelInterface, dict[str, Any]]:
    """Return a model of the peer with random weights, and what a training checkpoint holds beside them."""
    tree = OmegaConf.create(config)
    if config["model"]["processor"]["_target_"].rpartition(".")[2] == "TransformerProcessor":
        graph = graph.clone()
        del graph["hidden", "to", "hidden"]  # its processor goes along no edges
    generator = np.random.default_rng(0)
    kinds = ("mean", "stdev", "maximum", "minimum")
    statistics = {"data": {kind: generator.uniform(1, 2, len(names)) + 3 * (kind == "maximum") for kind in kinds}}
    indices = {"data": IndexCollection(tree.data.datasets.data, {name: n for n, name in enumerate(names)})}
    held = {"config": tree, "graph_data": graph, "statistics": statistics, "data_indices": indices}
    torch.manual_seed(0)
    model = AnemoiModelInterface(
        **copy.deepcopy(held), n_step_input=2, n_step_output=1, metadata={"metadata_inference": {"data": {}}},
        supporting_arrays={"data": {}},
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model, held


def write(path: Path, model: AnemoiModelInterface, held: dict[str, Any], contains: str = "training") -> None:
    """Write a checkpoint for training or for inference, with its metadata."""
    config = OmegaConf.to_container(held["config"], resolve=True)
    if contains == "training":
        state = {f"model.{name}": value for name, value in model.state_dict().items()}
        torch.save({"state_dict": state, "hyper_parameters": held, "epoch": 1, "global_step": 7}, path)
    else:
        model.config = model.metadata = model.supporting_arrays = None
        torch.save(model, path)
    names = list(held["data_indices"]["data"].name_to_index)
    timesteps = {"timestep": "6h", "input_relative_date_indices": [0, 1], "output_relative_date_indices": [2]}
    metadata = {
        "version": "2.0", "config": config, "training": {"current_epoch": 1, "global_step": 7},
        "metadata_inference": {"dataset_names": ["data"], "data": {"timesteps": timesteps}},
        "dataset": {"data": {"variables": names, "shape": [8, 4, 1, held["graph_data"]["data"].num_nodes],
                             "start_date": "2000-01-01T00:00:00", "end_date": "2000-01-02T18:00:00",
                             "frequency": "6h"}},
    }  # fmt: skip
    save_metadata(str(path), metadata, supporting_arrays={"data": {}})
