"""The model as a whole: symmetry, batching, residual, gradients."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from small_model import make_fields, make_graph, make_model, make_settings, sort_edges
from torch_geometric.data import HeteroData

from etesian.errors import UserError
from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import ModelFields, build_model


def make_input(batch: int = 1, ensemble: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, 2, ensemble, 14, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter a value away from its first one, so that nothing hides behind a 0 or a small gain."""
    generator = torch.Generator().manual_seed(5)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def renumber(graph: HeteroData, new: dict[str, torch.Tensor]) -> tuple[HeteroData, dict[str, torch.Tensor]]:
    """Give node i of a set the number ``new[set][i]``; return the graph and, by edge set, where each edge came from."""
    renumbered, origins = HeteroData(), {}
    for name, numbers in new.items():
        renumbered[name].x = graph[name].x[numbers.argsort()]
    for kind in graph.edge_types:
        store = graph[kind]
        src, dst = new[kind[0]][store.edge_index[0]], new[kind[2]][store.edge_index[1]]
        order = torch.argsort(src, stable=True)
        order = order[torch.argsort(dst[order], stable=True)]
        renumbered[kind].edge_index = sort_edges(src, dst)
        renumbered[kind].edge_length = store.edge_length[order]
        renumbered[kind].edge_dirs = store.edge_dirs[order]
        origins[f"{kind[0]}2{kind[2]}"] = order
    return renumbered, origins


def test_renumbering_the_nodes_renumbers_the_output() -> None:
    settings = make_settings(edge_trainable_parameters={"data2hidden": 2, "hidden2hidden": 1, "hidden2data": 2})
    graph = make_graph()
    model = randomise(make_model(settings, graph))
    new = {"data": torch.randperm(14), "hidden": torch.randperm(5)}
    graph_renumbered, origins = renumber(graph, new)
    other = make_model(settings, graph_renumbered).double()
    state = model.state_dict()
    for name in ("data", "hidden"):
        state[f"{name}_nodes.trainable"] = state[f"{name}_nodes.trainable"][new[name].argsort()]
    for component, kind in (("encoder", "data2hidden"), ("processor", "hidden2hidden"), ("decoder", "hidden2data")):
        state[f"{component}.edges.trainable"] = state[f"{component}.edges.trainable"][origins[kind]]
    other.load_state_dict(state)

    x = make_input(batch=2)
    back = new["data"].argsort()
    expected = model(x)[..., back, :]
    assert not torch.allclose(expected, model(x))  # the renumbering changes something
    torch.testing.assert_close(other(x[..., back, :]), expected, rtol=0, atol=1e-10)


def test_a_batch_of_two_equals_two_of_one() -> None:
    model = randomise(make_model())
    x = make_input(batch=2, ensemble=2)
    one_by_one = torch.cat([model(x[:1]), model(x[1:])])
    assert model(x).shape == (2, 2, 14, 3)
    torch.testing.assert_close(model(x), one_by_one, rtol=0, atol=1e-12)


def test_ensemble_members_do_not_mix() -> None:
    model = randomise(make_model())
    x = make_input(ensemble=3)
    alone = torch.cat([model(x[:, :, member : member + 1]) for member in range(3)], dim=1)
    torch.testing.assert_close(model(x), alone, rtol=0, atol=1e-12)
    same = model(x[:, :, :1].expand(-1, -1, 3, -1, -1))
    torch.testing.assert_close(same[:, 0], same[:, 2], rtol=0, atol=1e-12)


def test_every_parameter_gets_a_gradient_in_the_first_step() -> None:
    model = make_model(
        make_settings(
            encoder={"num_heads": 2, "qk_norm": True},
            edge_trainable_parameters={"data2hidden": 2, "hidden2hidden": 2, "hidden2data": 2},
        )
    ).double()
    model(make_input(batch=2)).square().mean().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    # A bias of the keys, and of the edge projection inside q.(k + e), is the same for all edges: no gradient but
    # rounding; the second still gets one through the values.
    assert [name for name in idle if not name.endswith("key.bias")] == []


@pytest.mark.parametrize("step", [-1, -2])
def test_an_untrained_model_starts_near_persistence(step: int) -> None:
    model = make_model(make_settings(residual={"kind": "skip", "step": step})).double()
    x = make_input(batch=4)
    change = model(x)[..., :2] - x[:, step][..., [0, 2]]
    assert 0 < change.std() < 0.05
    assert model(x)[..., 2].std() < 0.05  # the diagnostic variable starts at its mean


def test_without_residual_nothing_is_added() -> None:
    skip, none = make_model(), make_model(make_settings(residual={"kind": "none"}))
    x = make_input().float()
    torch.testing.assert_close(skip(x)[..., :2] - none(x)[..., :2], x[:, -1][..., [0, 2]])
    torch.testing.assert_close(skip(x)[..., 2], none(x)[..., 2])


def test_latent_skip_counts() -> None:
    x = make_input().float()
    assert not torch.allclose(make_model()(x), make_model(make_settings(latent_skip=False))(x))


def test_both_steps_and_the_forcing_are_read() -> None:
    model = randomise(make_model())
    x = make_input().requires_grad_()
    model(x).square().sum().backward()
    assert (x.grad.abs().amax(dim=(0, 2, 3)) > 0).all()  # [T, V]


def test_the_state_dict_holds_parameters_only() -> None:
    model = make_model()
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert model.state_dict()["encoder.edges.trainable"].shape == (30, 2)
    assert "decoder.edges.trainable" not in model.state_dict()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_computes_the_same(copied: object) -> None:
    model = make_model()
    x = make_input(batch=2).float()
    torch.testing.assert_close(copied(model)(x), model(x), rtol=0, atol=0)


def test_repeated_edges_are_made_once_and_not_kept_for_ever() -> None:
    model = make_model()
    edges = model.encoder.edges.static
    assert edges.edges(2) is edges.edges(2)
    for copies in range(1, 10):
        edges.edges(copies)
    assert len(edges._repeated) <= 4
    model.double()
    assert not edges._repeated  # moving the module must not leave edges on the old device


def test_output_has_the_dtype_of_the_input_under_autocast() -> None:
    model = make_model()
    x = make_input().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(x), rtol=0, atol=0.02)


@pytest.mark.parametrize("shape", [(1, 3, 1, 14, 3), (1, 2, 1, 13, 3), (1, 2, 1, 14, 4)])
def test_input_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="the model was built for"):
        make_model()(torch.zeros(shape))


def test_a_residual_step_before_the_input_is_refused() -> None:
    with pytest.raises(UserError, match=r"step -3.*2 step") as caught:
        make_model(make_settings(residual={"kind": "skip", "step": -3}))
    assert caught.value.problems[0].where == "model.residual.step"


def test_an_unknown_kind_is_refused() -> None:
    settings = make_settings()
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    other = settings.model_copy(update={"kind": "graph_transformer"})
    with pytest.raises(UserError, match="unknown model kind") as caught:
        build_model(other, make_graph(), make_fields(), kernels)
    assert caught.value.problems[0].mend == "did you mean 'graphtransformer'?"


@pytest.mark.parametrize(("scale", "message"), [(torch.ones(2), "shape"), (torch.tensor([1.0, 0.0, 1.0]), "positive")])
def test_fields_need_one_positive_scale_a_variable(scale: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelFields(("a",), ("a", "b", "c"), 1, scale, torch.zeros(scale.shape))
