"""Model kind ``transformer``: windows, the order of the nodes, members apart, what its schema takes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from small_model import make_graph, make_model, make_settings
from torch import Tensor, nn

from etesian.graph.icosphere import build_icosphere
from etesian.kernels.attention.reference import ReferenceAttention
from etesian.kernels.resolve import resolve_kernels
from etesian.model.self_attention import (
    TransformerBlock,
    TransformerProcessor,
    TransformerProcessorSettings,
    latitude_order,
)

BLOCK = {"num_heads": 2, "mlp_hidden_ratio": 2.0, "num_layers": 2}


def make_input(batch: int = 1, ensemble: int = 1) -> Tensor:
    return torch.randn(batch, 2, ensemble, 14, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def make(**processor: object) -> nn.Module:
    """Return a model with every parameter away from its first value; the same ones whatever the window."""
    model = make_model(make_settings("transformer", processor=BLOCK | processor)).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def make_processor(nodes: int, order: Tensor | None = None, **changes: object) -> TransformerProcessor:
    settings = TransformerProcessorSettings.model_validate({"num_heads": 2, "num_layers": 1, **changes})
    kernels = resolve_kernels(make_settings("transformer"), preset=None, overrides=[]).processor
    torch.manual_seed(0)
    return TransformerProcessor(16, order, settings, kernels).double()


def sees(processor: nn.Module, nodes: int) -> Tensor:
    """Return which nodes [i, j] of one copy the output of node i depends on."""
    x = torch.randn(nodes, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    jacobian = torch.autograd.functional.jacobian(lambda x: processor(x, 1).sum(-1), x)  # [N, N, C]
    return jacobian.abs().amax(-1) > 0


@pytest.mark.parametrize("window", [0, 1, 2, None])
def test_the_window_says_what_a_node_sees(window: int | None) -> None:
    position = torch.arange(6)
    expected = (position[:, None] - position).abs() <= (6 if window is None else window)
    assert torch.equal(sees(make_processor(6, window_size=window), 6), expected)


def test_the_window_is_over_the_given_order() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    place = order.argsort()
    expected = (place[:, None] - place).abs() <= 1
    assert torch.equal(sees(make_processor(6, order, window_size=1), 6), expected)


def test_the_order_is_applied_once_and_each_node_gets_its_own_back() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    ordered = make_processor(6, order, window_size=1, num_layers=2)
    plain = make_processor(6, None, window_size=1, num_layers=2)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    expected = plain(x[:, order].reshape(12, 16), 2).view(2, 6, 16)[:, order.argsort()]
    torch.testing.assert_close(ordered(x.view(12, 16), 2).view(2, 6, 16), expected, rtol=0, atol=0)


def test_latitude_order_goes_around_the_globe_in_rows() -> None:
    longitudes = torch.linspace(-torch.pi, torch.pi, 13)[:-1]
    rows = [torch.stack([torch.full_like(longitudes, lat), longitudes], dim=-1) for lat in (-1.2, 0.02, 1.3)]
    order = latitude_order(torch.cat(rows))
    assert order.sort().values.tolist() == list(range(36))
    for place, first in enumerate((24, 12, 0)):  # from north to south; from longitude 0 to the east
        assert order[12 * place : 12 * place + 12].tolist() == [first + (6 + step) % 12 for step in range(12)]


def test_latitude_order_brings_neighbours_together() -> None:
    xyz = torch.from_numpy(build_icosphere(4).xyz)
    latlons = torch.stack([xyz[:, 2].asin(), torch.atan2(xyz[:, 1], xyz[:, 0])], dim=-1)
    place = latitude_order(latlons).argsort()
    nearest = torch.cdist(xyz, xyz).topk(6, largest=False).indices[:, 1:]  # five neighbours of each node
    apart = (place[nearest] - place[:, None]).abs()
    by_number = (nearest - torch.arange(len(xyz))[:, None]).abs()
    a_row = (torch.pi * len(xyz)) ** 0.5  # at the equator
    assert apart.max() <= 2.5 * a_row
    assert (by_number > 2.5 * a_row).double().mean() > 0.5  # most would be out of that window by their numbers


def test_the_default_window_holds_every_neighbour_at_10242_nodes() -> None:
    """What docs/models.md says."""
    sphere = build_icosphere(5)
    xyz, edges = torch.from_numpy(sphere.xyz), torch.from_numpy(sphere.edges(5))
    place = latitude_order(torch.stack([xyz[:, 2].asin(), torch.atan2(xyz[:, 1], xyz[:, 0])], dim=-1)).argsort()
    window = TransformerProcessorSettings().window_size
    assert len(xyz) == 10_242
    assert (place[edges].diff(dim=1).abs() <= window).all()
    assert (edges.diff(dim=1).abs() <= window).double().mean() == pytest.approx(0.25, abs=0.01)


def test_without_a_window_there_is_no_order_to_apply() -> None:
    assert make(window_size=None).processor.order is None
    assert make(window_size=4).processor.order is None  # five nodes: all see all
    assert make(window_size=3).processor.order is not None
    assert make(window_size=3, node_order="graph").processor.order is None
    x = make_input()
    torch.testing.assert_close(make(window_size=None)(x), make(window_size=4)(x), rtol=0, atol=0)
    assert not torch.allclose(make(window_size=None)(x), make(window_size=3)(x))
    assert not torch.allclose(make(window_size=1)(x), make(window_size=1, node_order="graph")(x))


@pytest.mark.parametrize("window", [1, None])
def test_batch_and_members_do_not_see_each_other(window: int | None) -> None:
    model = make(window_size=window)
    x = make_input(batch=2, ensemble=3)
    alone = torch.stack([torch.cat([model(x[b, None, :, e, None]) for e in range(3)], dim=1)[0] for b in range(2)])
    torch.testing.assert_close(model(x), alone, rtol=0, atol=1e-12)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[1, 2].sum(), x)
    touched = gradient.abs().amax(dim=(1, 3, 4)) > 0  # [B, E]
    assert touched.nonzero().tolist() == [[1, 2]]


def test_renumbering_the_nodes_renumbers_the_output() -> None:
    """The window is over places on the globe, not over the numbers that a graph happens to give."""
    settings = make_settings("transformer", processor=BLOCK | {"window_size": 1})
    model = make(window_size=1)
    new = torch.tensor([4, 2, 0, 1, 3])
    graph = make_graph()
    back = new.argsort()
    graph["hidden"].x = graph["hidden"].x[back]
    for kind, row in ((("data", "to", "hidden"), 1), (("hidden", "to", "data"), 0)):
        store = graph[kind]
        index = store.edge_index.clone()
        index[row] = new[index[row]]
        order = torch.argsort(index[0], stable=True)
        order = order[torch.argsort(index[1][order], stable=True)]
        store.edge_index = index[:, order]
        store.edge_length, store.edge_dirs = store.edge_length[order], store.edge_dirs[order]
        if row == 1:
            learnt = order
    other = make_model(settings, graph).double()
    state = model.state_dict()
    state["hidden_nodes.trainable"] = state["hidden_nodes.trainable"][back]
    state["encoder.edges.trainable"] = state["encoder.edges.trainable"][learnt]
    other.load_state_dict(state)
    torch.testing.assert_close(other(make_input()), model(make_input()), rtol=0, atol=1e-10)


def test_every_parameter_gets_a_gradient_in_the_first_step() -> None:
    processor = BLOCK | {"window_size": 1, "qk_norm": True}
    model = make_model(make_settings("transformer", processor=processor)).double()
    model(make_input(batch=2)).square().mean().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in idle if not name.endswith("key.bias")] == []


def test_it_is_made_without_hidden_edges_and_with_the_same_names() -> None:
    graph = make_graph()
    whole = make_model(make_settings("transformer"), graph)
    del graph[("hidden", "to", "hidden")]
    model = make_model(make_settings("transformer"), graph)
    assert list(model.state_dict()) == list(whole.state_dict()) == [name for name, _ in model.named_parameters()]
    block = {name.removeprefix("processor.blocks.0.") for name in model.state_dict() if ".blocks.0." in name}
    assert {name.rpartition(".")[0] for name in block} == {
        "norm_attention", "query", "key", "value", "projection", "norm_mlp", "mlp.linear_in", "mlp.linear_out",
    }  # fmt: skip
    assert not {"query.bias", "key.bias", "value.bias"} & block


def test_attention_gets_views_in_the_layout_of_the_linear_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """[B, H, N, C] with the heads behind the nodes in memory: no copy before, none after."""
    seen: list[Tensor] = []

    def forward(self: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.extend((query, key, value))
        return value

    monkeypatch.setattr(ReferenceAttention, "forward", forward)
    kernels = resolve_kernels(
        make_settings("transformer", layer_kernels={
            "Attention": {"_target_": "etesian.kernels.attention.reference.ReferenceAttention"}}),
        preset=None, overrides=[],
    ).processor  # fmt: skip
    settings = TransformerProcessorSettings(num_heads=2)
    TransformerBlock(16, settings, None, kernels)(torch.randn(3 * 5, 16), 3)
    for tensor in seen:
        assert tensor.shape == (3, 2, 5, 8)
        assert tensor.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_computes_the_same(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = make(window_size=1)
    torch.testing.assert_close(copied(model)(make_input()), model(make_input()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"edge_trainable_parameters": {"hidden2hidden": 1}}, "hidden2hidden"),
        ({"processor": {"num_heads": 3, "window_size": 1}}, "model.processor.num_heads=3 does not divide"),
        ({"processor": {"num_heads": 2, "window_size": -1}}, "window_size"),
        ({"processor": {"num_heads": 2, "window_size": 1.5}}, "window_size"),
        ({"processor": {"num_heads": 2, "node_order": "hilbert"}}, "node_order"),
        ({"processor": {"num_heads": 2, "window": 3}}, "processor.window"),
        ({"encoder": {"num_heads": 2, "window_size": 3}}, "encoder.window_size"),
    ],
)
def test_settings_that_it_does_not_take(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make_settings("transformer", **changes)


@pytest.mark.parametrize("key", ["window_size", "node_order"])
def test_the_other_kind_does_not_take_its_keys(key: str) -> None:
    with pytest.raises(ValidationError, match=f"processor.{key}"):
        make_settings(processor={"num_heads": 2, key: 1})


@pytest.mark.parametrize("window", [None, 3])
def test_a_block_compiles_as_one_graph(window: int | None) -> None:
    block = make_processor(100, window_size=window, qk_norm=True).blocks[0]
    x = torch.randn(200, 16, dtype=torch.float64)
    compiled = torch.compile(block.forward, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, 2), block(x, 2), rtol=0, atol=1e-12)
