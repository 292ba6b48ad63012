"""What is to be compiled is tried before any data are read; each mistake names its entry and the mend."""

from __future__ import annotations

import pytest
import torch
from compiled_models import BLOCK, EAGER, MODEL, compiled_slot, entry, tried

from etesian.errors import Problem, UserError

NORM = "torch.nn.LayerNorm"


def problems(**sections: object) -> tuple[Problem, ...]:
    with pytest.raises(UserError) as caught:
        tried(**sections)
    return caught.value.problems


def problem(*entries: dict, **sections: object) -> Problem:
    (only,) = problems(compile=list(entries), **sections)
    return only


def test_with_nothing_to_compile_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etesian.runtime.trial.build_miniature", None)
    assert tried().entries == ()


@pytest.mark.parametrize(
    "kind", ["LayerNorm", pytest.param(BLOCK, marks=pytest.mark.slow), pytest.param(MODEL, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("component", [{}, {"gradient_checkpointing": True, "qk_norm": True}], ids=["", "checkpointed"])
def test_what_can_be_compiled_passes(kind: str, component: dict) -> None:
    block = {"num_heads": 2} | component
    compilation = tried(compile=[entry(kind)], encoder=block, processor=block, decoder=block)
    assert compilation.graphs == {"LayerNorm": 2, BLOCK: 3, MODEL: 1}[kind]


def test_bounds_are_there_to_be_compiled() -> None:
    from etesian.model.bounding import HardtanhSettings

    bound = HardtanhSettings(kind="hardtanh", variables=["tp", "q"], min_val=0.0, max_val=1.0)
    assert tried(compile=[entry("etesian.model.bounding.Clamp")], bounding=[bound]).graphs == 1


def test_unknown_slots_and_paths_are_told_together() -> None:
    found = problems(
        compile=[entry("LayerNrom"), entry("etesian.model.block.Blok"), entry("etesian.errors.UserError"),
                 entry("no_such_library.Norm"), entry("torch.nn.functional.relu"),
                 entry("marker_kernels.make_norm")]
    )  # fmt: skip
    told = {str(p.where): (p.what, p.allowed, p.mend) for p in found}
    assert told["model.compile[0].kernel"][2] == "did you mean 'LayerNorm'?"
    assert "LayerNorm" in str(told["model.compile[0].kernel"][1])
    assert told["model.compile[1].module"][2] == "did you mean 'Block'?"
    assert told["model.compile[2].module"][0] == "etesian.errors.UserError is a class, but no torch.nn.Module"
    assert told["model.compile[2].module"][1] == "the import path of a subclass of torch.nn.Module"
    assert "the library is missing (no_such_library)" in told["model.compile[3].module"][0]
    assert "torch.nn.functional.relu" in told["model.compile[4].module"][0]
    assert told["model.compile[5].module"][0] == "marker_kernels.make_norm is a function, not a class"


def test_a_slot_that_makes_no_module() -> None:
    found = problem(entry("QueryNorm"))
    assert found.what == ("model.compile[0] (QueryNorm) compiles nothing: no module of this model is made by that slot")
    assert "LayerNorm" in str(found.allowed)
    assert "QueryNorm" not in str(found.allowed)


def test_a_compile_key_of_a_slot_that_makes_no_module() -> None:
    (found,) = problems(layer_kernels={"KeyNorm": compiled_slot(NORM)})
    assert found.where == "model.layer_kernels.KeyNorm._compile_"
    assert found.mend == "~model.layer_kernels.KeyNorm._compile_"


def test_a_class_of_which_there_is_no_module() -> None:
    found = problem(entry("torch.nn.Conv2d"))
    assert "no module of this model is of that class" in found.what
    assert "etesian.model.block.GraphTransformerBlock" in str(found.allowed)


@pytest.mark.parametrize("outer", [BLOCK, MODEL])
def test_an_entry_inside_what_another_compiles(outer: str) -> None:
    (found,) = problems(compile=[entry(outer)], layer_kernels={"LayerNorm": compiled_slot(NORM)})
    assert "model.compile[0] (" in found.what
    assert found.where == "model.layer_kernels.LayerNorm._compile_"
    assert found.mend == "drop the inner: ~model.layer_kernels.LayerNorm._compile_"
    assert problem(entry("LayerNorm"), entry(outer)).mend == "drop the inner: delete model.compile[0]"


def test_two_entries_for_one_module() -> None:
    (found,) = problems(compile=[entry("LayerNorm")], layer_kernels={"LayerNorm": compiled_slot(NORM)})
    assert "model.compile[0] (LayerNorm) and model.layer_kernels.LayerNorm._compile_ (LayerNorm) both" in found.what
    assert "~model.layer_kernels.LayerNorm._compile_" in str(found.mend)
    assert "both compile" in problem(entry("LayerNorm"), entry(NORM)).what


def test_modules_of_one_entry_inside_each_other() -> None:
    nested = {"LayerNorm": {"_target_": "compiled_models.ModuleWithinModule"}}
    found = problem(entry("compiled_models.ModuleWithinModule"), layer_kernels=nested)
    assert "which is inside it" in found.what


def test_around_checkpointed_blocks_only_with_fullgraph() -> None:
    loose = EAGER | {"fullgraph": False}
    found = problem(entry(MODEL, **loose), processor={"num_heads": 2, "gradient_checkpointing": True})
    assert "without fullgraph around processor.blocks.0" in found.what


def test_a_norm_that_breaks_the_graph() -> None:
    breaking = {"LayerNorm": {"_target_": "compiled_models.Breaks"}}
    found = problem(entry("LayerNorm"), layer_kernels=breaking)
    assert "model.compile[0] (LayerNorm) asks for fullgraph, but compiled_models.Breaks can't" in found.what
    assert "torch.compiler.disable" in found.what
    loose = EAGER | {"fullgraph": False}
    assert tried(compile=[entry("LayerNorm", **loose)], layer_kernels=breaking).graphs > 0


@pytest.mark.parametrize("fullgraph", [True, False])
def test_an_entry_without_a_graph(fullgraph: bool) -> None:
    options = EAGER | {"fullgraph": fullgraph}
    found = problem(entry("LayerNorm", **options), layer_kernels={"LayerNorm": {"_target_": "compiled_models.Idle"}})
    assert "model.compile[0] (LayerNorm) compiled nothing: the model ran" in found.what
    assert found.mend == "delete model.compile[0]"


def test_a_kernel_that_fails_in_the_stand_in() -> None:
    failing = {"LayerNorm": {"_target_": "compiled_models.FewRowsOnly"}}
    found = problem(entry("Linear"), layer_kernels=failing)
    assert "does not run: ValueError: too many rows" in found.what


def test_an_unknown_compiler() -> None:
    found = problem(entry("LayerNorm", backend="indctor"))
    assert found.where == "model.compile[0].options.backend"
    assert found.mend == "did you mean 'inductor'?"
    (found,) = problems(layer_kernels={"LayerNorm": compiled_slot(NORM, backend="indctor")})
    assert found.where == "model.layer_kernels.LayerNorm._compile_.backend"


@pytest.mark.parametrize("backend", ["relu_accuracy_error_TESTING_ONLY", "eager_debug", "dynamo_minifier_backend"])
def test_a_compiler_for_tests_of_compilers(backend: str) -> None:
    found = problem(entry("LayerNorm", backend=backend))
    assert found.what == f"model.compile[0] (LayerNorm): backend {backend!r} is for tests of the compiler"
    assert found.where == "model.compile[0].options.backend"
    assert {"inductor", "eager", "aot_eager"} <= set(str(found.allowed).split(", "))
    assert backend not in str(found.allowed)


@pytest.mark.parametrize(
    ("options", "key", "what"),
    [
        ({"mode": "reduce-overhead"}, "mode", "mode 'reduce-overhead'"),
        ({"backend": "cudagraphs"}, "backend", "backend 'cudagraphs'"),
        ({"options": {"triton.cudagraphs": True}}, "options", "option 'triton.cudagraphs'"),
    ],
)
def test_what_is_for_gpus_is_no_option_of_a_cpu(options: dict, key: str, what: str) -> None:
    found = problem(entry("LayerNorm", **options))
    assert found.what == f"model.compile[0] (LayerNorm): {what} is for GPUs and does nothing on a CPU"
    assert found.where == f"model.compile[0].options.{key}"
    (found,) = problems(layer_kernels={"LayerNorm": compiled_slot(NORM, **options)})
    assert found.where == f"model.layer_kernels.LayerNorm._compile_.{key}"


def test_an_unknown_option_of_the_compiler() -> None:
    found = problem(entry("LayerNorm", options={"max_autotun": True}))
    assert found.where == "model.compile[0].options.options"
    assert "'max_autotune'" in str(found.mend)


def test_a_missing_compiler() -> None:
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        found = problem(entry("LayerNorm", fullgraph=True))
    assert "model.compile[0] (LayerNorm): the compiler 'inductor' does not work on cpu" in found.what
    assert "no-such-compiler" in found.what
    assert str(found.mend).startswith("install a C++ compiler (apt-get install g++)")


def test_a_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from etesian.runtime import trial

    monkeypatch.setattr(trial.importlib.util, "find_spec", lambda name: None)
    assert trial._installation("inductor", torch.device("cuda")).startswith("pip install triton")
    monkeypatch.setattr(trial.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(trial.shutil, "which", lambda name: None)
    assert "apt-get install gcc" in trial._installation("inductor", torch.device("cuda"))


def test_a_process_in_which_the_compiler_is_switched_off() -> None:
    with torch._dynamo.config.patch(disable=True):
        found = problem(entry("LayerNorm"))
    assert "torch.compile is switched off in this process" in found.what
    assert "TORCH_COMPILE_DISABLE" in str(found.mend)


def test_the_compiler_is_tried_before_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling three operations takes seconds at most; capturing a large model's blocks takes far longer."""
    from etesian.runtime import trial

    monkeypatch.setattr(trial, "_try_compiler", lambda entry, device: Problem("it is broken"))
    monkeypatch.setattr(trial, "_capture", lambda *_: pytest.fail("the stand-in was captured"))
    assert problem(entry("LayerNorm")).what == "it is broken"
