"""Model kind ``pointwise``: the processor leaves each hidden node by itself."""

from __future__ import annotations

import torch
from small_model import make_graph, make_model, make_settings


def test_a_node_of_the_processor_sees_itself_alone() -> None:
    processor = make_model(make_settings("pointwise")).double().processor
    x = torch.randn(5, 16, dtype=torch.float64, requires_grad=True)
    for node in range(5):
        (gradient,) = torch.autograd.grad(processor(x, 1)[node].sum(), x)
        assert gradient.abs().amax(1).nonzero().flatten().tolist() == [node]


def test_it_is_made_without_hidden_edges() -> None:
    graph = make_graph()
    del graph[("hidden", "to", "hidden")]
    names = [name for name, _ in make_model(make_settings("pointwise"), graph).processor.named_parameters()]
    assert {name.partition(".")[2].partition(".")[2].partition(".")[0] for name in names} == {"norm", "mlp"}
