"""Modules that are not trained, by name or pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_model import make_model

from etesian.errors import UserError
from etesian.schema.training import OptimizationSettings
from etesian.training.freezing import check_same_frozen, describe_frozen, freeze
from etesian.training.optimizer import build_optimizer


def frozen_names(*patterns: str) -> set[str]:
    model = make_model()
    freeze(model, patterns)
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_a_name_freezes_its_module_alone() -> None:
    assert frozen_names() == set()
    names = [name for name, _ in make_model().named_parameters()]
    assert frozen_names("encoder") == {name for name in names if name.startswith("encoder.")}
    assert frozen_names("processor.blocks.0") == {name for name in names if name.startswith("processor.blocks.0.")}
    both = {name for name in names if name.startswith("processor.blocks.")}
    assert frozen_names("processor.blocks.[01]") == frozen_names("processor.blocks.?") == both != set()


def test_what_is_frozen_is_unknown_to_the_optimiser() -> None:
    model = make_model()
    freeze(model, ["encoder"])
    optimizer = build_optimizer(OptimizationSettings(lr=1e-3), model.parameters())
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    count = sum(parameter.numel() for parameter in model.encoder.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert describe_frozen(model, ["encoder"]) == f"frozen: encoder ({count:,} of {total:,} parameters)"


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["encodr"], "the model has no module 'encodr'"),
        (["encodr"], "did you mean 'encoder'"),
        (["encoder", "decoder.blok", "x"], "the model has no module 'x'"),
        (["residual"], "the module 'residual' has no parameters"),
        (["*"], "nothing is left to train"),
    ],
)
def test_names_that_freeze_nothing_or_all(patterns: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        freeze(make_model(), patterns)
    assert said in str(caught.value)
    assert "training.freeze" in str(caught.value)


def test_a_run_goes_on_with_the_same_parts() -> None:
    checkpoint: dict[str, Any] = {"etesian": {"config": {"training": {"freeze": ["encoder", "decoder"]}}}}
    check_same_frozen(Path("last.ckpt"), checkpoint, ["decoder", "encoder"])
    check_same_frozen(Path("last.ckpt"), {"etesian": {"config": {"training": {}}}}, [])
    with pytest.raises(UserError, match=r"training\.freeze=\[encoder, decoder\], this config has \[encoder\]"):
        check_same_frozen(Path("last.ckpt"), checkpoint, ["encoder"])
