"""The first batch of a run tells whether everything was compiled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from compiled_models import entry, output_and_gradients, prepared
from small_model import make_settings

from etesian.errors import UserError
from etesian.training.compiled import CompiledGraphs


def after_a_batch(callback: CompiledGraphs, *, main: bool = True) -> None:
    callback.on_train_batch_end(SimpleNamespace(is_global_zero=main), None, None, None, 0)


def test_the_graphs_are_told_once_by_the_main_process(capsys: pytest.CaptureFixture[str]) -> None:
    model, compilation = prepared(make_settings(compile=[entry("LayerNorm")]))
    output_and_gradients(model)
    callback = CompiledGraphs(compilation)
    after_a_batch(callback)
    after_a_batch(callback)
    after_a_batch(CompiledGraphs(compilation), main=False)
    said = capsys.readouterr().out
    assert said.startswith("the first batch compiled 2 graphs in 0.")
    assert said.count("\n") == 1


def test_an_entry_that_compiled_nothing_stops_the_run() -> None:
    _, compilation = prepared(make_settings(compile=[entry("LayerNorm"), entry("Activation")]))
    with pytest.raises(UserError) as caught:
        after_a_batch(CompiledGraphs(compilation))
    assert [problem.where for problem in caught.value.problems] == ["model.compile[0]", "model.compile[1]"]
