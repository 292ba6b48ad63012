"""Weights for other variables or another grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_model import make_fields, make_graph, make_settings
from torch import nn

from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import ModelFields, build_model
from etesian.training.transfer import PREFIX, transfer, transfer_json

BEFORE = Variables(("t", "insolation", "q", "tp"), forcing=("insolation",), diagnostic=("tp",))
NOW = Variables(("q", "wind", "t", "insolation"), forcing=("insolation",))
PATH = Path("last.ckpt")


def model(variables: Variables, seed: int, num_data: int = 14) -> nn.Module:
    fields = ModelFields(variables.input, variables.output, 2, torch.ones(3), torch.zeros(3))
    settings = make_settings()
    torch.manual_seed(seed)
    return build_model(settings, make_graph(num_data), fields, resolve_kernels(settings, preset=None, overrides=[]))


def checkpoint(of: nn.Module, variables: Variables = BEFORE, steps: int = 2) -> dict[str, Any]:
    roles = {"names": variables.names, "forcing": variables.forcing, "diagnostic": variables.diagnostic}
    content = {"config": {"task": {"multistep_input": steps}}, "variables": roles}
    return {"etesian": content, "state_dict": {PREFIX + name: value.clone() for name, value in of.state_dict().items()}}


def test_the_fields_of_the_small_model_are_these() -> None:
    assert BEFORE.input == make_fields().input_names
    assert BEFORE.output == make_fields().output_names


def test_columns_and_rows_are_matched_by_variable() -> None:
    old, new = model(BEFORE, 1), model(NOW, 2)
    first = {name: value.clone() for name, value in new.state_dict().items()}
    found = {entry.name: entry for entry in transfer(new, PATH, checkpoint(old), NOW, 2, ["wind", "tp"])}
    own, their = new.encoder.embed_source.weight, old.encoder.embed_source.weight
    width, before = len(NOW.input), len(BEFORE.input)
    for step in range(2):
        for name in ("t", "q", "insolation"):
            here, there = step * width + NOW.input.index(name), step * before + BEFORE.input.index(name)
            assert torch.equal(own[:, here], their[:, there]), (name, step)
        place = step * width + NOW.input.index("wind")
        assert torch.equal(own[:, place], first["encoder.embed_source.weight"][:, place])
    assert torch.equal(own[:, 2 * width :], their[:, 2 * before :])  # the features of the nodes
    for part in ("weight", "bias"):
        rows, others = getattr(new.decoder.output, part), getattr(old.decoder.output, part)
        assert torch.equal(rows[NOW.output.index("q")], others[BEFORE.output.index("q")])
        place = NOW.output.index("wind")
        assert torch.equal(rows[place], first[f"decoder.output.{part}"][place])
    assert found["encoder.embed_source.weight"].how == "by variable"
    assert found["encoder.embed_source.weight"].anew == ("wind",)
    assert found["decoder.output.weight"].left_out == ("tp",)
    taken = [name for name, entry in found.items() if entry.how == "taken"]
    assert len(taken) == len(found) - 4
    assert all(torch.equal(new.state_dict()[name], old.state_dict()[name]) for name in taken)
    assert len(transfer_json(PATH, list(found.values()))["tensors"]) == len(found)


def test_another_order_alone_needs_nothing_allowed() -> None:
    old = model(BEFORE, 1)
    other = Variables(("tp", "q", "t", "insolation"), forcing=("insolation",), diagnostic=("tp",))
    new = model(other, 2)
    transfer(new, PATH, checkpoint(old), other, 2, [])
    assert torch.equal(new.decoder.output.bias, old.decoder.output.bias[[BEFORE.output.index(n) for n in other.output]])


def test_another_grid_starts_what_belongs_to_its_points_anew() -> None:
    old, new = model(BEFORE, 1), model(BEFORE, 2, num_data=20)
    allowed = ["data_nodes.trainable", "*.edges.trainable"]
    with pytest.raises(UserError) as caught:
        transfer(new, PATH, checkpoint(old), BEFORE, 2, [])
    assert "data_nodes.trainable is (14, 2) there, (20, 2) here" in str(caught.value)
    assert "training.transfer_allow=[data_nodes.trainable" in str(caught.value)
    needed = {e.name for e in transfer(new, PATH, checkpoint(old), BEFORE, 2, allowed[:1]) if e.how == "anew"}
    assert needed == {"data_nodes.trainable"}
    assert torch.equal(new.hidden_nodes.trainable, old.hidden_nodes.trainable)


@pytest.mark.parametrize(
    ("allowed", "steps", "said"),
    [
        (["wind"], 2, "tp has no place in decoder.output.weight"),
        (["tp"], 2, "wind is new in encoder.embed_source.weight"),
        (["wind", "tp", "winds"], 2, "names 'winds', and nothing of that name starts anew"),
        (["wind", "tp"], 3, "of a model of 2 input steps, this one has 3"),
    ],
)
def test_what_is_not_allowed_is_named_and_nothing_taken(allowed: list[str], steps: int, said: str) -> None:
    new = model(NOW, 2)
    first = new.decoder.output.bias.clone()
    with pytest.raises(UserError) as caught:
        transfer(new, PATH, checkpoint(model(BEFORE, 1)), NOW, steps, allowed)
    assert said in str(caught.value)
    assert torch.equal(new.decoder.output.bias, first)


def test_tensors_that_only_the_other_model_has_are_left_out_when_allowed() -> None:
    stored = checkpoint(model(BEFORE, 1))
    stored["state_dict"][PREFIX + "processor.blocks.2.query.weight"] = torch.ones(1)
    with pytest.raises(UserError, match=r"processor\.blocks\.2\.query\.weight is not in this model"):
        transfer(model(BEFORE, 2), PATH, stored, BEFORE, 2, [])
    found = transfer(model(BEFORE, 2), PATH, stored, BEFORE, 2, ["processor.blocks.2.*"])
    assert [entry.name for entry in found if entry.how == "left out"] == ["processor.blocks.2.query.weight"]


def test_variables_inside_of_an_mlp_are_refused() -> None:
    new = model(NOW, 2)
    new.encoder.embed_source = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 16))
    with pytest.raises(UserError, match="matched in linear embeddings and outputs alone"):
        transfer(new, PATH, checkpoint(model(BEFORE, 1)), NOW, 2, ["wind", "tp"])
