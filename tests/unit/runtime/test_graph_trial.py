"""What can't be recorded as CUDA graphs is refused before any data are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_models import BLOCK, entry
from fake_recorder import FakeRecorder
from small_model import make_settings
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.kernels.resolve import resolve_kernels
from etesian.model.block import Block
from etesian.runtime import step_graphs
from etesian.runtime.checkpointing import checkpointing_of
from etesian.runtime.graph_trial import try_step_graphs
from etesian.schema.model import ModelSettings

CPU = torch.device("cpu")


def attempt(settings: ModelSettings, recorder: FakeRecorder | None = None, precision: Any = "32-true") -> FakeRecorder:
    recorder = recorder or FakeRecorder()
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    try_step_graphs(settings, kernels, CPU, precision, recorder)
    return recorder


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_a_stand_in_is_recorded_and_leaves_the_random_state(kind: str, precision: str):
    before = torch.get_rng_state()
    recorder = attempt(make_settings(kind), precision=precision)
    assert (recorder.recordings, recorder.launches) == (1, 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_blocks_that_compute_a_part_again_are_recorded(policy: str, monkeypatch: pytest.MonkeyPatch):
    policies, forget = [], step_graphs.forget_random_states

    def noting(module: nn.Module) -> int:
        policies.extend(checkpointing_of(part) for part in module.modules() if isinstance(part, Block))
        return forget(module)

    monkeypatch.setattr(step_graphs, "forget_random_states", noting)
    block = {"num_heads": 2, "gradient_checkpointing": policy}
    assert attempt(make_settings(encoder=block, processor=block)).recordings == 1
    assert set(policies[:-1]) == {policy}
    assert policies[-1] == "none"  # the decoder's


class Refusing(FakeRecorder):
    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_what_cannot_be_recorded_names_the_key():
    with pytest.raises(UserError, match="not permitted when stream is capturing") as error:
        attempt(make_settings(), Refusing())
    assert error.value.problems[0].where == "training.cuda_graphs"


@pytest.mark.parametrize(
    ("options", "place", "words"),
    [
        ({"mode": "reduce-overhead"}, "mode", "mode 'reduce-overhead' records CUDA graphs of its own"),
        ({"mode": "max-autotune"}, "mode", "mode 'max-autotune' records"),
        ({"backend": "cudagraphs"}, "backend", "backend 'cudagraphs' records"),
        ({"options": {"triton.cudagraphs": True}}, "options", "option 'triton.cudagraphs' records"),
    ],
)
def test_compilers_with_graphs_of_their_own(options: dict[str, Any], place: str, words: str):
    with pytest.raises(UserError, match=words) as error:
        attempt(make_settings(compile=[entry(BLOCK, **options)]))
    (problem,) = error.value.problems
    assert problem.where == f"model.compile[0].options.{place}"
    assert "training.cuda_graphs=false" in problem.mend


def test_one_of_a_slot():
    slot = {"_target_": "torch.nn.LayerNorm", "_compile_": {"mode": "reduce-overhead"}}
    with pytest.raises(UserError, match="reduce-overhead") as error:
        attempt(make_settings(layer_kernels={"LayerNorm": slot}))
    assert error.value.problems[0].where == "model.layer_kernels.LayerNorm._compile_.mode"


def test_compilers_without_are_left_alone():
    compiled = [
        entry(BLOCK, mode="max-autotune-no-cudagraphs"),
        entry("LayerNorm", options={"triton.cudagraphs": False}),
    ]
    assert attempt(make_settings(compile=compiled)).recordings == 1
