"""Section ``graph``: hidden nodes and the three sets of edges."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from etesian.schema.base import Section

Norm = Literal["unit-std", "unit-max", "none"]


class HiddenNodesSettings(Section):
    """Hidden nodes: the vertices of an icosahedron refined ``resolution`` times."""

    resolution: int = Field(ge=0, le=9)
    """Number of refinements: 10 * 4^n + 2 nodes."""
    levels: int = Field(default=1, ge=1, le=10)
    """Levels of hidden nodes, each coarser than the one before; more than one for the model kind ``hierarchical``."""
    coarsening: int = Field(default=1, ge=1, le=9)
    """By how many refinements a level is coarser than the one before."""

    @model_validator(mode="after")
    def _levels_there_are(self) -> HiddenNodesSettings:
        if self.resolutions[-1] < 0:
            raise ValueError(
                f"graph.nodes.hidden.levels={self.levels} with coarsening={self.coarsening} go below 0 refinements from"
                f" resolution={self.resolution}"
            )
        if self.levels == 1 and self.coarsening != 1:
            raise ValueError(f"graph.nodes.hidden.coarsening={self.coarsening} does nothing with levels=1")
        return self

    @property
    def resolutions(self) -> list[int]:
        """Refinements of each level, the finest first."""
        return [self.resolution - level * self.coarsening for level in range(self.levels)]


class NodesSettings(Section):
    """Nodes that are built here; the data nodes are the dataset's own grid points."""

    hidden: HiddenNodesSettings
    """Hidden nodes."""


class CutOffEdgesSettings(Section):
    """Encoder edges: every data node within ``cutoff_factor`` times the hidden nodes' reference distance."""

    cutoff_factor: float = Field(default=0.6, gt=0)
    """Radius, in reference distances of the hidden nodes."""


class MultiScaleEdgesSettings(Section):
    """Processor edges: neighbours within ``x_hops`` on each of the refinement levels."""

    x_hops: int = Field(default=1, ge=1, le=4)
    """Hops to the farthest neighbour on a level."""
    scale_resolutions: list[int] | None = None
    """Levels whose edges are taken; null takes all from 0 to the nodes' own."""


class NearestEdgesSettings(Section):
    """Decoder edges: each data node from its nearest hidden nodes."""

    num_nearest_neighbours: int = Field(default=3, ge=1)
    """Hidden nodes a data node."""


class EdgesSettings(Section):
    """The sets of edges, named source 2 target."""

    data2hidden: CutOffEdgesSettings = CutOffEdgesSettings()
    """Encoder."""
    hidden2hidden: MultiScaleEdgesSettings = MultiScaleEdgesSettings()
    """Processor."""
    hidden2data: NearestEdgesSettings = NearestEdgesSettings()
    """Decoder."""
    fine2coarse: CutOffEdgesSettings = CutOffEdgesSettings(cutoff_factor=0.8)
    """From each level of hidden nodes to the next coarser one, with ``graph.nodes.hidden.levels``."""
    coarse2fine: NearestEdgesSettings = NearestEdgesSettings()
    """The way back."""


class EdgeAttributesSettings(Section):
    """Norm of the two edge attributes."""

    edge_length: Norm = "unit-std"
    """Norm of the length of an edge."""
    edge_dirs: Norm = "unit-std"
    """Norm of its direction."""


class ExistingGraphSettings(Section):
    """A graph file made elsewhere, such as by anemoi-graphs: which of its node sets are taken."""

    data_nodes: str = "data"
    """Node set of the dataset's grid points."""
    hidden_nodes: str = "hidden"
    """Node set that encoder and decoder work with, and the processor too."""
    coarser_nodes: list[str] = []
    """Node sets of coarser levels, the finest first; for the model kind ``hierarchical``."""


class GraphSettings(Section):
    """The graph: built here, and rebuilt when anything it is made from changes; or a file that is used as it is."""

    nodes: NodesSettings | None = None
    """Nodes; null with ``existing``."""
    edges: EdgesSettings = EdgesSettings()
    """Edges."""
    edge_attributes: EdgeAttributesSettings = EdgeAttributesSettings()
    """What an edge carries."""
    existing: ExistingGraphSettings | None = None
    """Use the file ``system.input.graph`` as it is; null builds a graph. The choice ``graph=existing`` sets it."""
    overwrite: bool = False
    """Rebuild even where a cached graph fits."""

    @model_validator(mode="after")
    def _built_or_existing(self) -> GraphSettings:
        if self.existing is None:
            if self.nodes is None:
                raise ValueError("graph.nodes is missing: a graph is built from it (graph=existing uses a file)")
            return self._without_idle_edges()
        if self.nodes is not None:
            raise ValueError(
                "graph.nodes does nothing with graph.existing, which uses a file as it is: graph.nodes=null"
            )
        for name, default in (("edges", EdgesSettings()), ("edge_attributes", EdgeAttributesSettings())):
            if getattr(self, name) != default:
                raise ValueError(f"graph.{name} does nothing with graph.existing, which uses a file as it is")
        if self.overwrite:
            raise ValueError("graph.overwrite does nothing with graph.existing: the file is never replaced")
        return self

    def _without_idle_edges(self) -> GraphSettings:
        for name in () if self.num_levels > 1 else ("fine2coarse", "coarse2fine"):
            if getattr(self.edges, name) != getattr(EdgesSettings(), name):
                raise ValueError(f"graph.edges.{name} does nothing with graph.nodes.hidden.levels=1")
        return self

    @property
    def num_levels(self) -> int:
        """Levels of hidden nodes."""
        if self.existing is not None:
            return 1 + len(self.existing.coarser_nodes)
        assert self.nodes is not None
        return self.nodes.hidden.levels

    @property
    def resolution(self) -> int:
        """Refinements of the hidden nodes of a graph that is built."""
        assert self.nodes is not None
        return self.nodes.hidden.resolution
