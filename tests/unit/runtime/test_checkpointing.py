"""Activation checkpointing changes memory, nothing else."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from small_model import make_model, make_settings
from torch import nn

from etesian.runtime.checkpointing import apply_activation_checkpointing

ALL = {
    "encoder": {"num_heads": 2, "gradient_checkpointing": True},
    "processor": {"num_heads": 2, "num_layers": 2, "gradient_checkpointing": True},
    "decoder": {"num_heads": 2, "gradient_checkpointing": True},
}


def loss_and_gradients(model: nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
    x = torch.randn(2, 2, 1, 14, 3, generator=torch.Generator().manual_seed(0))
    loss = model(x).square().mean()
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_loss_and_gradients_stay_the_same(kind: str) -> None:
    settings = make_settings(kind, **ALL)
    plain, checkpointed = make_model(settings), make_model(settings)
    assert apply_activation_checkpointing(checkpointed, settings) == 4
    expected_loss, expected = loss_and_gradients(plain)
    loss, gradients = loss_and_gradients(checkpointed)
    assert loss == expected_loss
    for gradient, value in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, value)


@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
@pytest.mark.parametrize("component", ["encoder", "processor", "decoder"])
def test_only_the_chosen_component_runs_its_blocks_twice(component: str, kind: str) -> None:
    settings = make_settings(kind, **{component: ALL[component]})
    model = make_model(settings)
    apply_activation_checkpointing(model, settings)
    calls = {}
    for name in ("encoder", "processor", "decoder"):
        for path, module in model.get_submodule(name).named_modules():
            if path.endswith("projection"):
                module.register_forward_hook(lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1}))
    loss_and_gradients(model)
    blocks = {"encoder": 1, "processor": 2, "decoder": 1}
    assert calls == {name: count * (2 if name == component else 1) for name, count in blocks.items()}


def test_names_copies_and_pickles_stay_usable() -> None:
    settings = make_settings(**ALL)
    model = make_model(settings)
    names = list(model.state_dict())
    apply_activation_checkpointing(model, settings)
    assert list(model.state_dict()) == names
    expected, _ = loss_and_gradients(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.zero_()
        assert loss_and_gradients(copied)[0] != expected  # a copy uses its own parameters
        assert loss_and_gradients(model)[0] == expected


def test_it_is_applied_once() -> None:
    settings = make_settings(**ALL)
    model = make_model(settings)
    apply_activation_checkpointing(model, settings)
    with pytest.raises(ValueError, match="checkpointed already"):
        apply_activation_checkpointing(model, settings)


def test_nothing_is_changed_unless_asked() -> None:
    settings = make_settings()
    assert apply_activation_checkpointing(make_model(settings), settings) == 0


def test_a_component_without_blocks_is_an_error() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "processor": nn.Identity(), "decoder": nn.Identity()})
    with pytest.raises(ValueError, match="encoder has no blocks"):
        apply_activation_checkpointing(model, make_settings(encoder=ALL["encoder"]))
