"""What ``model.compile`` takes, and how its options are told."""

from __future__ import annotations

from typing import Any

import pytest

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import Problem, UserError
from etesian.schema.compilation import CompileOptions, describe_options


def problem(entry: str) -> Problem:
    with pytest.raises(UserError) as caught:
        check_tree(compose("train", None, [f"model.compile=[{entry}]"]))
    (only,) = caught.value.problems
    return only


@pytest.mark.parametrize(
    ("entry", "where", "said"),
    [
        ("{kernel:LayerNorm,module:torch.nn.GELU}", "model.compile.0", "both kernel and module"),
        ("{options:{fullgraph:true}}", "model.compile.0", "neither kernel nor module"),
        (
            "{kernel:LayerNorm,component:decoder}",
            "model.compile.0",
            "a slot of a component is compiled by model.decoder.layer_kernels.LayerNorm._compile_",
        ),
        ("{kernel:LayerNorm,optoins:{}}", "model.compile.0.optoins", "has no key 'optoins'"),
        ("{kernel:LayerNorm,options:{fulgraph:true}}", "model.compile.0.options.fulgraph", "has no key 'fulgraph'"),
        ("{kernel:LayerNorm,options:{fullgraph:1}}", "model.compile.0.options.fullgraph", "=1 is not allowed"),
        ("{kernel:LayerNorm,options:{mode:fast}}", "model.compile.0.options.mode", "'fast' is not allowed"),
        ("{kernel:LayerNorm,options:{mode:default,options:{a:1}}}", "model.compile.0.options", "exclude each other"),
        (
            "{kernel:LayerNorm,options:{mode:default,backend:eager}}",
            "model.compile.0.options",
            "mode='default' goes with backend 'inductor'; 'eager' would not read it",
        ),
        (
            "{kernel:LayerNorm,options:{options:{a:1},backend:aot_eager}}",
            "model.compile.0.options",
            "options goes with backend 'inductor'; 'aot_eager' would not read it",
        ),
        ("LayerNorm", "model.compile.0", "is no mapping"),
    ],
)
def test_each_mistake(entry: str, where: str, said: str) -> None:
    found = problem(entry)
    assert found.where == where
    assert said in found.what


def test_the_keys_there_are_and_the_nearest_are_told() -> None:
    found = problem("{kernel:LayerNorm,options:{fulgraph:true}}")
    assert found.allowed == "fullgraph, dynamic, mode, backend, options"
    assert "'model.compile.0.options.fullgraph'" in str(found.mend)


@pytest.mark.parametrize(
    ("preset", "count"), [("none", 0), ("norms", 1), ("blocks", 1), ("components", 3), ("model", 1)]
)
def test_presets(preset: str, count: int) -> None:
    entries = check_tree(compose("train", None, [f"model/compile={preset}"])).model.compile
    assert len(entries) == count
    assert all(entry.options == CompileOptions(fullgraph=True, dynamic=False) for entry in entries)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"fullgraph": True, "dynamic": False}, "fullgraph, dynamic=False"),
        ({"mode": "max-autotune"}, "max-autotune"),
        ({"backend": "eager"}, "backend=eager"),
        ({"options": {"max_autotune": True}}, "max_autotune=True"),
    ],
)
def test_options_in_words(options: dict[str, Any], words: str) -> None:
    assert describe_options(CompileOptions(**options)) == words
