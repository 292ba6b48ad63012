"""The same graph as anemoi-graphs 0.9 builds, up to the numbering of the hidden nodes.

Run by ``test_peers.py``, in a process that has the peer.
"""

import numpy as np
import pytest
import torch
from anemoi.graphs import edges as peer_edges
from anemoi.graphs import nodes as peer_nodes
from anemoi.graphs.edges import attributes as peer_attributes
from anemoi.graphs.nodes import attributes as peer_node_attributes
from anemoi.graphs.nodes.builders import from_vectors as vectors
from scipy.spatial import cKDTree
from torch_geometric.data import HeteroData

from etesian.graph.area import area_weights
from etesian.graph.build import build_graph
from etesian.graph.nodes import to_xyz
from etesian.schema.graph import GraphSettings


def scattered(number=3000):
    rng = np.random.default_rng(0)
    return np.rad2deg(np.arcsin(rng.uniform(-1, 1, number))), rng.uniform(0, 360, number)


def peer_graph(latitudes, longitudes, settings):
    graph = vectors.LatLonNodes(latitudes=latitudes, longitudes=longitudes, name="data").update_graph(HeteroData(), {})
    graph = peer_nodes.TriNodes(resolution=settings.nodes.hidden.resolution, name="hidden").update_graph(graph, {})
    edges = settings.edges
    for builder in (
        peer_edges.CutOffEdges("data", "hidden", edges.data2hidden.cutoff_factor, max_num_neighbours=10**5),
        peer_edges.MultiScaleEdges("hidden", "hidden", edges.hidden2hidden.x_hops),
        peer_edges.KNNEdges("hidden", "data", edges.hidden2data.num_nearest_neighbours),
    ):
        graph = builder.register_edges(graph)
        store, ends = graph[builder.name], (graph[builder.name[0]], graph[builder.name[2]])
        for name, kind in (("edge_length", "EdgeLength"), ("edge_dirs", "EdgeDirection")):
            store[name] = getattr(peer_attributes, kind)(norm="unit-std")(x=ends, edge_index=store.edge_index)
    return graph


@pytest.mark.parametrize("x_hops", [1, 2])
def test_edges_and_attributes_equal_the_peers(x_hops):
    settings = GraphSettings.model_validate(
        {
            "nodes": {"hidden": {"resolution": 3}},
            "edges": {"data2hidden": {"cutoff_factor": 0.8}, "hidden2hidden": {"x_hops": x_hops}},
        }
    )
    ours, theirs = build_graph(*scattered(), settings), peer_graph(*scattered(), settings)
    ours_xyz, theirs_xyz = (to_xyz(graph["hidden"].x.double().numpy()) for graph in (ours, theirs))
    distance, number = cKDTree(ours_xyz).query(theirs_xyz)
    assert distance.max() < 1e-6
    numbering = {"data": np.arange(3000), "hidden": number}
    for source, relation, target in ours.edge_types:
        one, other = ours[source, relation, target], theirs[source, relation, target]
        index = other.edge_index.numpy().astype(np.int64)
        index = np.stack([numbering[source][index[0]], numbering[target][index[1]]])
        order = np.lexsort((index[0], index[1]))
        np.testing.assert_array_equal(index[:, order], one.edge_index.numpy())
        torch.testing.assert_close(one.edge_length, other.edge_length[order].float(), rtol=0, atol=1e-4)
        # At the south pole the peer's float32 rounding picks the opposite axis; in float64 it picks ours.
        away = ours[target].x[one.edge_index[1], 0] > -1.57
        torch.testing.assert_close(one.edge_dirs[away], other.edge_dirs[order][away].float(), rtol=0, atol=2e-3)


def test_area_weights_equal_the_peers():
    latlon = np.deg2rad(np.stack(scattered(), axis=-1))
    own = area_weights(to_xyz(latlon)).ravel()
    builder = peer_node_attributes.SphericalAreaWeights(norm="unit-sum", fill_value=0, dtype="float64")
    theirs = np.asarray(builder.compute_area_weights(latlon)).ravel()
    np.testing.assert_allclose(own / own.sum(), theirs / theirs.sum(), rtol=1e-9)
