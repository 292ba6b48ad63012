"""What a model costs: operations as formulas give them, memory as torch allocates it, any policy of checkpointing."""

from __future__ import annotations

import pytest
import torch
from kept_bytes import kept_bytes
from small_model import make_graph, make_model, make_settings
from torch import nn

from etesian.kernels.machine import Machine
from etesian.runtime.checkpointing import apply_activation_checkpointing, forget_random_states
from etesian.runtime.costs import FORMULAS, Cost, model_costs
from etesian.schema.model import ModelSettings
from etesian.schema.registry import kinds

CPU = Machine(torch.device("cpu"), "32-true")
SHAPE = (2, 2, 1, 14, 3)
COPIES, CHANNELS = 2, 16


def costs_of(settings: ModelSettings, machine: Machine = CPU) -> dict[str, Cost]:
    return {cost.part: cost for cost in model_costs(make_model(settings), settings, SHAPE, machine)}


@pytest.mark.parametrize("kind", kinds("model"))
def test_every_parameter_is_counted_once_and_every_kind_has_operations(kind: str) -> None:
    settings = make_settings(kind)
    costs = costs_of(settings)
    assert list(costs) == ["encoder", "processor", "decoder", "rest"]
    assert sum(cost.parameters for cost in costs.values()) == sum(p.numel() for p in make_model(settings).parameters())
    for name in ("encoder", "processor", "decoder"):
        cost = costs[name]
        assert cost.kind == getattr(settings, name).kind
        assert cost.kept_bytes > 0
        assert 2.5 * cost.forward_flops < cost.flops <= 3.5 * cost.forward_flops


def test_operations_of_a_graph_network() -> None:
    settings, graph = make_settings("gnn", processor={"num_layers": 2}), make_graph()
    nodes, edges = COPIES * 5, graph["hidden", "to", "hidden"].num_edges
    embedding = 2 * edges * (3 + 1) * CHANNELS + 2 * edges * 2 * CHANNELS**2  # once for all copies
    messages = 2 * COPIES * edges * (3 + 1 + 1) * CHANNELS**2
    update = 2 * nodes * (2 + 1 + 1) * CHANNELS**2
    assert costs_of(settings)["processor"].forward_flops == embedding + 2 * (messages + update)


def test_operations_of_graph_attention() -> None:
    settings, graph = make_settings(processor={"num_heads": 2, "num_layers": 1, "mlp_hidden_ratio": 2.0}), make_graph()
    nodes, edges, features = COPIES * 5, COPIES * graph["hidden", "to", "hidden"].num_edges, 3 + 1
    linears = 2 * nodes * (4 + 1 + 2 * 2) * CHANNELS**2
    attention = 4 * edges * (CHANNELS + 2 * features) + 4 * nodes * CHANNELS * features
    processor = costs_of(settings)["processor"]
    assert processor.forward_flops == linears + attention
    assert processor.flops == 3 * processor.forward_flops


def test_operations_of_attention_among_nodes() -> None:
    processor = {"num_heads": 2, "num_layers": 1, "mlp_hidden_ratio": 2.0, "window_size": None}
    linears = 2 * COPIES * 5 * (3 + 1 + 2 * 2) * CHANNELS**2
    attention = 4 * COPIES * 5 * 5 * CHANNELS
    assert costs_of(make_settings("transformer", processor=processor))["processor"].forward_flops == linears + attention


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize("kind", kinds("model"))
def test_memory_is_what_torch_allocates(kind: str, policy: str) -> None:
    settings = make_settings(kind)
    changed = settings.processor.model_copy(update={"gradient_checkpointing": policy})
    settings = settings.model_copy(update={"processor": changed})
    counted = costs_of(settings)["processor"].kept_bytes
    model: nn.Module = make_model(settings)
    for module in model.modules():
        if hasattr(module, "as_one_operator"):
            module.as_one_operator = True
    apply_activation_checkpointing(model, settings)
    forget_random_states(model)  # 5 kB each, which are a state of the run and no activations
    x = torch.randn(COPIES * 5, CHANNELS, requires_grad=True)
    model.processor(x, COPIES)  # the repeated edges are kept from now on
    _, kept = kept_bytes(lambda: model.processor(x, COPIES))
    assert counted == pytest.approx(kept, rel=0.02, abs=600)  # the profiler rounds up what it allocates


def test_checkpointing_trades_memory_for_operations() -> None:
    settings = make_settings()
    costs = {}
    for policy in ("none", "selective", "full", "offload"):
        changed = settings.processor.model_copy(update={"gradient_checkpointing": policy})
        costs[policy] = costs_of(settings.model_copy(update={"processor": changed}))["processor"]
    memory = [costs[policy].kept_bytes for policy in ("none", "selective", "full")]
    assert memory == sorted(memory, reverse=True)
    assert costs["full"].flops > costs["selective"].flops == costs["none"].flops
    assert costs["offload"] == costs["full"]
    assert len({cost.forward_flops for cost in costs.values()}) == 1


def test_16_bits_take_less_memory() -> None:
    wide, narrow = (costs_of(make_settings("pointwise"), Machine(CPU.device, p)) for p in ("32-true", "bf16-mixed"))
    assert narrow["processor"].kept_bytes < wide["processor"].kept_bytes
    assert narrow["processor"].flops == wide["processor"].flops


def test_torch_has_no_formulas_of_these_operators() -> None:
    """Where it gets some one day, those here may go."""
    from torch.utils.flop_counter import flop_registry

    assert not FORMULAS.keys() & flop_registry.keys()
