"""Values that fit their type and mean nothing: refused by every key, with one problem that names it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from etesian.commands.common import register_kinds
from etesian.compose import compose
from etesian.errors import UserError
from etesian.schema.base import LARGEST
from etesian.schema.validate import all_keys, validate_config

register_kinds()
DEBUG = compose("debug").tree


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    tree = copy.deepcopy(DEBUG)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node[parent] = {} if node.get(parent) is None else node[parent]  # a section may be null
            node = node[parent]
        node[last] = value
    return tree


def said(changes: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        validate_config(changed(changes))
    return str(caught.value)


def settable() -> Iterator[str]:
    for key in all_keys():
        if "*" not in key and not isinstance(changed({}).get(key), dict) and "delta" not in key and not in_list(key):
            yield key


def in_list(key: str) -> bool:
    """Tell whether a key is that of an entry of a list, which has no place of its own."""
    node: Any = DEBUG
    for part in key.split(".")[:-1]:
        node = node.get(part) or {}
        if isinstance(node, list):
            return True
    return False


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "", "  ", [[]], object()], ids=lambda value: repr(value)[:9]
)
def test_no_key_takes_nonsense(value: Any) -> None:
    keys = list(settable())
    assert len(keys) > 90
    assert not [key for key in keys if key not in said({key: value})]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(
            ({"training.run_id": name}, "training.run_id")
            for name in ("a/b", "..", ".", " a", "a\nb", "x" * 201, "a\\b")
        ),
        ({"training.fork_run_id": ""}, "training.fork_run_id"),
        ({"training.seed": 2**32}, "training.seed"),
        ({"training.max_steps": LARGEST + 1}, f"at most {LARGEST}"),
        ({"training.optimization.optimizer.betas": [0.9, 1.5]}, "training.optimization.optimizer.betas"),
        ({"training.scalers.general_variable.weights": {"t": -1.0}}, "training.scalers.general_variable.weights.t"),
        ({"training.optimization.lr_scheduler": {"kind": "constant", "t_initial": 5000}}, "does nothing"),
        ({"model.residual": {"kind": "none", "step": -2}}, "model.residual.step"),
        ({"model.encoder.mlp_hidden_ratio": 1e-9}, "no hidden channel"),
        ({"task.rollout": {"start": 1, "epoch_increment": 2, "maximum": 1}}, "changes nothing"),
        ({"diagnostics.scores": {"climatology": "none", "climatology_file": "c.nc"}}, "climatology_file is not read"),
        ({"training.ema": {"decay": 1.0}}, "training.ema.decay"),
        ({"training.ema": {"start_step": 10}, "training.max_steps": 10}, "training.max_steps=10: nothing would be"),
        ({"training.early_stopping": {"patience": 0}}, "training.early_stopping.patience"),
        ({"training.transfer_allow": ["encoder"]}, "does nothing with training.transfer_from=null"),
        ({"training.transfer_from": "a", "training.fork_run_id": "b"}, "both say what the run starts from"),
        ({"training.transfer_from": "a", "training.run_id": "a"}, "are both 'a'"),
        ({"training.ema": {}, "training.strategy.kind": "fsdp"}, "training.ema works on whole weights"),
        ({"training.freeze": ["encoder"], "training.strategy.kind": "fsdp"}, "training.freeze works on whole weights"),
        ({"training.freeze": "encoder"}, "training.freeze"),
        ({"model.kind": ["graphtransformer"]}, "model.kind"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_would_do_nothing_or_harm(changes: dict[str, Any], named: str) -> None:
    assert named in said(changes)


def test_a_run_may_have_any_printable_name() -> None:
    config = validate_config(changed({"training.run_id": "Lauf 3, größer"}))
    assert config.training.run_id == "Lauf 3, größer"
