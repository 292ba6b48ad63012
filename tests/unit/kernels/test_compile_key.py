"""A slot's ``_compile_``: what it takes, and what the record and the table say of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console
from small_model import make_settings

from etesian.errors import UserError
from etesian.kernels.record import KernelRecord, from_json, table, to_json
from etesian.kernels.resolve import resolve_kernels

NORM = {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}
KEY = "model.layer_kernels.LayerNorm._compile_"


def record(value: Any) -> KernelRecord:
    settings = make_settings(layer_kernels={"LayerNorm": NORM | {"_compile_": value}})
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    return next(record for record in kernels.records if record.slot == "LayerNorm")


@pytest.mark.parametrize(
    ("value", "options", "shown"),
    [
        (True, {}, "compiled"),
        ({}, {}, "compiled"),
        ({"fullgraph": True}, {"fullgraph": True}, "compiled (fullgraph)"),
        ({"fullgraph": False, "dynamic": False}, {"dynamic": False}, "compiled (dynamic=False)"),
        (None, None, "rms_norm"),
    ],
)
def test_the_record_and_the_table_tell_it(value: Any, options: dict | None, shown: str) -> None:
    found = record(value)
    assert found.compile == options
    assert found.arguments == {"eps": 1e-6}
    assert from_json(json.loads(json.dumps(to_json([found])))) == [found]
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table([found]))
    said = console.export_text()
    assert shown in said
    assert ("compiled" in said) is (options is not None)


@pytest.mark.parametrize(
    ("value", "where", "said"),
    [
        (False, KEY, "=false is no way to compile"),
        ("fullgraph", KEY, "'fullgraph' is no way to compile"),
        ({"fulgraph": True}, f"{KEY}.fulgraph", "has no key 'fulgraph'"),
        ({"dynamic": "no"}, f"{KEY}.dynamic", "'no' is text"),
        ({"mode": "default", "options": {"a": 1}}, KEY, "exclude each other"),
    ],
)
def test_each_mistake(value: Any, where: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        record(value)
    (problem,) = caught.value.problems
    assert problem.where == where
    assert said in problem.what


def test_the_layers_of_a_slot_know_it() -> None:
    own = {"layer_kernels": {"LayerNorm": NORM}, "num_heads": 2}
    kernels = resolve_kernels(make_settings(processor=own), preset=None, overrides=[])
    assert kernels.processor.LayerNorm(8).made_by == ("processor", "LayerNorm")
    assert kernels.encoder.LayerNorm(8).made_by == ("model", "LayerNorm")
    mlp = kernels.processor.MLP(8, 8, 8, layer_kernels=kernels.processor)
    assert mlp.linear_in.made_by == ("model", "Linear")
