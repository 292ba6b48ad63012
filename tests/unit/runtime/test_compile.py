"""Compilation in place: same results, same names, copies and pickles without it, and graphs counted for each entry."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from compiled_models import (
    AOT,
    BLOCK,
    EAGER,
    MODEL,
    Breaks,
    assert_same,
    compiled_slot,
    entry,
    output_and_gradients,
    prepared,
    shapes,
)
from small_model import make_model, make_settings
from torch import nn

from etesian.errors import UserError
from etesian.places import package_config_dir
from etesian.runtime.checkpointing import is_checkpointed
from etesian.runtime.compile import GRAPHS_A_MODULE, CompiledForward, compile_modules
from etesian.runtime.entries import Entry
from etesian.schema.compilation import CompileOptions

CHECKPOINTED = {
    name: {"num_heads": 2, "gradient_checkpointing": True, "qk_norm": True}
    for name in ("encoder", "processor", "decoder")
}
CHECKPOINTED["processor"]["num_layers"] = 1
WAYS = {"norms": "LayerNorm", "blocks": BLOCK, "encoder": "etesian.model.encoder.Encoder", "model": MODEL}
SLOWLY = pytest.mark.parametrize(
    ("way", "checkpointed"),
    [
        ("norms", False),
        ("norms", True),
        pytest.param("blocks", False, marks=pytest.mark.slow),
        pytest.param("blocks", True, marks=pytest.mark.slow),
        pytest.param("encoder", True, marks=pytest.mark.slow),
        pytest.param("model", False, marks=pytest.mark.slow),
        pytest.param("model", True, marks=pytest.mark.slow),
    ],
)
"""Capturing a block takes a second, a model more."""


def settings_of(way: str, *, checkpointed: bool = False, **options: object):
    sections = CHECKPOINTED if checkpointed else {"processor": {"num_heads": 2, "num_layers": 1}}
    return make_settings(compile=[entry(WAYS[way], **(AOT | options))], **sections)


@SLOWLY
def test_outputs_and_gradients_are_those_of_the_uncompiled_model(way: str, checkpointed: bool) -> None:
    settings = settings_of(way, checkpointed=checkpointed)
    model, compilation = prepared(settings)
    plain, nothing = prepared(settings.model_copy(update={"compile": []}))
    assert nothing.describe() == ""
    assert any(is_checkpointed(module) for module in model.modules()) is checkpointed
    assert_same(output_and_gradients(model), output_and_gradients(plain), 1e-12)
    compilation.check()
    before = compilation.graphs
    assert_same(output_and_gradients(model), output_and_gradients(plain), 1e-12)
    assert compilation.graphs == before  # nothing is compiled a second time


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_default_compiler_agrees(way: str) -> None:
    settings = settings_of(way, backend="inductor", checkpointed=True)
    model, compilation = prepared(settings)
    assert_same(output_and_gradients(model), output_and_gradients(make_model(settings).double()), 1e-12)
    compilation.check()


def test_modules_that_are_alike_share_their_graphs() -> None:
    settings = make_settings(compile=[entry(BLOCK)], processor={"num_heads": 2, "num_layers": 5})
    model, compilation = prepared(settings)
    output_and_gradients(model)
    assert [len(compiled.names) for compiled in compilation.entries] == [7]
    assert compilation.graphs == 3  # encoder, processor, decoder
    assert compilation.describe() == "Block (7 modules, fullgraph, dynamic=False, backend=eager)"
    assert compilation.report().startswith("3 graphs in ")
    assert compilation.report().endswith("(Block 3)")


def test_graphs_are_counted_for_each_entry() -> None:
    norms = {"LayerNorm": {"_target_": "torch.nn.LayerNorm"}, "QueryNorm": compiled_slot("torch.nn.LayerNorm")}
    block = {"num_heads": 1, "qk_norm": True}
    components = {"encoder": block, "processor": block, "decoder": block}
    settings = make_settings(layer_kernels=norms, compile=[entry("LayerNorm")], **components)
    model, compilation = prepared(settings)
    output_and_gradients(model)
    names = {compiled.entry.name: compiled.backend.graphs for compiled in compilation.entries}
    assert set(names) == {"LayerNorm", "QueryNorm"}
    assert all(names.values()), names  # modules of one class and one width, and no entry takes another's graphs


@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_the_preset_components_covers_all_three(kind: str) -> None:
    text = (package_config_dir() / "model" / "compile" / "components.yaml").read_text()
    settings = make_settings(kind, compile=yaml.safe_load(text)["compile"])
    _, compilation = prepared(settings)
    entries = [compiled.entry.name for compiled in compilation.entries]
    assert entries == ["encoder.Encoder", "processor.Block", "decoder.Decoder"]
    names = [name for compiled in compilation.entries for name in compiled.names]
    assert names == ["encoder", "processor.blocks.0", "processor.blocks.1", "decoder"]


def test_the_preset_components_leaves_the_blocks_between_levels_to_the_processor() -> None:
    text = (package_config_dir() / "model" / "compile" / "components.yaml").read_text()
    _, compilation = prepared(make_settings("hierarchical", compile=yaml.safe_load(text)["compile"]))
    names = [compiled.names for compiled in compilation.entries]
    assert (names[0], names[2]) == (("encoder",), ("decoder",))
    assert {"processor.to_coarser.0.block", "processor.to_finer.1.block", "processor.up.0.blocks.0"} <= set(names[1])


def test_a_component_without_such_modules_is_named() -> None:
    with pytest.raises(UserError) as caught:
        prepared(make_settings(compile=[entry("etesian.model.decoder.Decoder") | {"component": "processor"}]))
    assert "(processor.Decoder) compiles nothing: no module of the processor is of that class" in str(caught.value)


def test_a_slot_of_a_component_is_compiled_alone() -> None:
    own = {"layer_kernels": {"LayerNorm": compiled_slot("torch.nn.RMSNorm")}}
    model, compilation = prepared(make_settings(processor={"num_heads": 2, "num_layers": 2} | own))
    (compiled,) = compilation.entries
    assert compiled.entry.name == "processor.LayerNorm"
    assert len(compiled.names) == 4
    assert all(name.startswith("processor.") for name in compiled.names)
    output_and_gradients(model)
    compilation.check()


def test_a_bare_compile_key_takes_the_defaults_of_the_compiler() -> None:
    settings = make_settings(layer_kernels={"LayerNorm": {"_target_": "torch.nn.RMSNorm", "_compile_": True}})
    _, compilation = prepared(settings)
    assert compilation.describe() == "LayerNorm (11 modules)"


@SLOWLY
def test_names_and_weights_pass_both_ways(way: str, checkpointed: bool) -> None:
    settings = settings_of(way, checkpointed=checkpointed)
    compiled, _ = prepared(settings)
    plain = make_model(settings, seed=1).double()
    weights = compiled.state_dict()
    assert list(weights) == list(plain.state_dict())
    assert not any("_orig_mod" in name for name in weights)
    output_and_gradients(compiled)
    assert list(compiled.state_dict()) == list(weights)
    plain.load_state_dict(weights, strict=True)
    assert_same(output_and_gradients(plain), output_and_gradients(compiled), 1e-12)
    compiled.load_state_dict(make_model(settings, seed=2).double().state_dict(), strict=True)
    assert_same(output_and_gradients(compiled), output_and_gradients(make_model(settings, seed=2).double()), 1e-12)


def test_weights_pass_between_rmsnorm_and_compiled_rmsnorm() -> None:
    norm = {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}
    plain = make_model(make_settings(layer_kernels={"LayerNorm": norm}))
    compiled, _ = prepared(make_settings(layer_kernels={"LayerNorm": norm | {"_compile_": EAGER}}), torch.float32)
    assert list(plain.state_dict()) == list(compiled.state_dict())
    plain.load_state_dict(compiled.state_dict(), strict=True)
    compiled.load_state_dict(plain.state_dict(), strict=True)


@SLOWLY
def test_copies_and_pickles_are_not_compiled(way: str, checkpointed: bool) -> None:
    model, _ = prepared(settings_of(way, checkpointed=checkpointed, **EAGER))
    fresh = copy.deepcopy(model)
    expected = output_and_gradients(model)[0]
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), saved_and_loaded(model)):
        assert not any(is_compiled(module) for module in made.modules())
        assert any(is_checkpointed(module) for module in made.modules()) is checkpointed
        assert torch.equal(output_and_gradients(made)[0], expected)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.zero_()
        assert not torch.equal(output_and_gradients(made)[0], expected)  # a copy uses its own parameters
        assert torch.equal(output_and_gradients(model)[0], expected)
    for again in (fresh, copy.deepcopy(copy.deepcopy(model))):
        assert torch.equal(output_and_gradients(again)[0], expected)


def saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def is_compiled(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    inner = forward.args[0] if is_checkpointed(module) else forward  # type: ignore[union-attr]
    return isinstance(inner, CompiledForward)


@pytest.mark.slow
def test_a_saved_module_loads_in_another_process_without_a_compiler(tmp_path: Path) -> None:
    model, _ = prepared(settings_of("norms", **EAGER))
    expected = output_and_gradients(model)[0]
    torch.save(model, tmp_path / "model.pt")
    torch.save(expected, tmp_path / "expected.pt")
    code = (
        "import sys, torch\n"
        f"sys.path[:0] = {[*sys.path]!r}\n"
        "from compiled_models import output_and_gradients\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "torch._dynamo.config.disable = True\n"
        f"assert torch.equal(output_and_gradients(model)[0], torch.load({str(tmp_path / 'expected.pt')!r}))\n"
        "assert not torch._dynamo.utils.counters['stats']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def norms(count: int, *, width: int = 8, **options: object):
    model = nn.ModuleList(nn.LayerNorm(width) for _ in range(count))
    asked = Entry("model.compile[0]", "LayerNorm", CompileOptions(**(EAGER | options)), kind=nn.LayerNorm)
    return model, compile_modules(model, [asked])


def test_more_shapes_than_the_compiler_keeps_by_itself() -> None:
    """12 modules with a shape each: the compiler's own limit is 8 for all of them together."""
    model, compilation = norms(12)
    for module, x in zip(model, shapes(8, 12), strict=True):
        module(x).sum().backward()
    assert compilation.graphs == 12


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_module_with_too_many_shapes_stops(fullgraph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etesian.runtime.compile._required", 0)  # of the models before
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=8):
        model, compilation = norms(1, fullgraph=fullgraph)
        for x in shapes(8, GRAPHS_A_MODULE):
            model[0](x)
        assert compilation.graphs == GRAPHS_A_MODULE
        with pytest.raises(UserError, match="was called with more shapes than graphs are kept") as caught:
            model[0](torch.randn(100, 8))
    (problem,) = caught.value.problems
    assert problem.where == "model.compile[0]"
    assert "options.dynamic: true" in str(problem.mend)


def test_with_dynamic_shapes_one_graph_serves_them_all() -> None:
    model, compilation = norms(1, dynamic=True)
    for x in shapes(8, 12):
        model[0](x)
    assert compilation.graphs == 1


def test_what_breaks_the_graph_is_an_error_with_fullgraph_and_a_split_without() -> None:
    x = torch.randn(3, 8)
    asked = Entry("model.compile[0]", "Breaks", CompileOptions(**EAGER), kind=Breaks)
    model = nn.Sequential(Breaks(8))
    compile_modules(model, [asked])
    with pytest.raises(UserError, match=r"asks for fullgraph, but compiled_models\.Breaks can't be compiled") as caught:
        model(x)
    assert "options.fullgraph: false" in str(caught.value.problems[0].mend)
    assert caught.value.__cause__ is not None

    split = Entry("model.compile[0]", "Breaks", CompileOptions(**(EAGER | {"fullgraph": False})), kind=Breaks)
    model = nn.Sequential(Breaks(8))
    compilation = compile_modules(model, [split])
    torch.testing.assert_close(model(x), Breaks(8)(x))
    assert compilation.graphs == 2
    compilation.check()


def test_a_compiler_that_fails_is_an_error() -> None:
    from torch._dynamo.backends.registry import register_backend

    def failing(graph, inputs):
        raise RuntimeError("out of paper")

    register_backend(failing, name="failing_for_a_test")
    model, _ = norms(1, backend="failing_for_a_test")
    with pytest.raises(UserError, match=r"'failing_for_a_test' fails on torch\.nn.*out of paper"):
        model[0](torch.randn(3, 8))


def test_what_never_runs_compiled_nothing() -> None:
    model, compilation = norms(2)
    with pytest.raises(UserError, match="compiled nothing") as caught:
        compilation.check()
    assert caught.value.problems[0].where == "model.compile[0]"
    model[0](torch.randn(3, 8))
    compilation.check()


def test_torchs_own_way_to_compile_a_norm_compiles_nothing() -> None:
    """Why the graphs are counted; where this fails, the page on compilation has to change."""
    seen: list[int] = []

    def backend(graph, inputs):
        seen.append(1)
        return graph.forward

    norm = nn.LayerNorm(8)
    norm.compile(backend=backend)
    norm(torch.randn(3, 8))
    assert seen == []


def test_graphs_that_an_earlier_process_compiled_are_told() -> None:
    from torch._dynamo.utils import counters

    model, compilation = prepared(make_settings(compile=[entry("LayerNorm")]))
    backend = compilation.entries[0].backend
    compiler = backend.compiler

    def found(graph: object, inputs: object) -> object:
        counters["inductor"]["fxgraph_cache_hit"] += 1
        return compiler(graph, inputs)

    backend.compiler = found
    output_and_gradients(model)
    assert compilation.report().endswith("(LayerNorm 2), 2 of them kept from before")
    again, plain = prepared(make_settings(compile=[entry("LayerNorm")]))
    output_and_gradients(again)
    assert plain.report().endswith("(LayerNorm 2)")
