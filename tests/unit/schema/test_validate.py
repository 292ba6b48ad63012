"""Validation: what is said of each kind of mistake, and that all are said at once."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from etesian.commands.common import register_kinds
from etesian.compose import compose
from etesian.errors import Problem, UserError
from etesian.schema.validate import all_keys, knows, validate_config

Tree = dict[str, Any]


@pytest.fixture(scope="session")
def shipped() -> Tree:
    register_kinds()
    return compose().tree


@pytest.fixture
def tree(shipped: Tree) -> Tree:
    return copy.deepcopy(shipped)


def put(tree: Tree, key: str, value: Any) -> Tree:
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree[parent]
    tree[last] = value
    return tree


def problems(tree: Tree) -> list[Problem]:
    with pytest.raises(UserError) as caught:
        validate_config(tree)
    for text in ("Extra inputs", "Input should be", "Field required", "pydantic", "Value error"):
        assert text not in str(caught.value)
    return list(caught.value.problems)


def only(tree: Tree, key: str, value: Any) -> Problem:
    put(tree, key, value)
    found = problems(tree)
    assert len(found) == 1, found
    return found[0]


def test_the_shipped_config_is_right(tree: Tree) -> None:
    config = validate_config(tree)
    assert type(config.model).__name__ == "GraphTransformerSettings"
    assert type(config.training.scalers["general_variable"]).__name__ == "VariableScaler"
    with pytest.raises(Exception, match="frozen"):
        config.training.seed = 3  # type: ignore[misc]


def test_everything_is_reported_at_once(tree: Tree) -> None:
    put(tree, "training.max_epoch", 3)
    put(tree, "training.max_epochs", "3")
    put(tree, "training.training_loss.kind", "mes")
    put(tree, "model.num_chanels", 64)
    put(tree, "nonsense", 1)
    assert {p.where for p in problems(tree)} == {
        "training.max_epoch", "training.max_epochs", "training.training_loss.kind", "model.num_chanels", "nonsense",
    }  # fmt: skip


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("key", "mend"),
        [
            ("training.max_epoch", "did you mean 'training.max_epochs' or 'training.max_steps'?"),
            ("dataloader.batch_sizes", "did you mean 'dataloader.batch_size' or 'dataloader.limit_batches'?"),
            ("model.encoder.num_head", "did you mean 'model.encoder.num_heads'?"),
            ("model.numChannels", "did you mean 'model.num_channels'?"),
            ("training.num_gpus_per_node", "the key is system.hardware.num_gpus_per_node"),
            ("trainng", "did you mean 'training'?"),
            ("data.processors.normalizer.minmax", "did you mean 'data.processors.normalizer.min-max'?"),
            ("training.scalers.node_weights.atribute", "did you mean 'training.scalers.node_weights.attribute'?"),
            ("training.training_loss.delta", "delta is a key of kind huber"),
        ],
    )
    def test_where_it_may_have_been_meant(self, tree: Tree, key: str, mend: str) -> None:
        found = only(tree, key, 1)
        assert found.where == key
        assert f"no key {key.rpartition('.')[2]!r}" in found.what
        assert found.mend == mend

    def test_nothing_near(self, tree: Tree) -> None:
        found = only(tree, "dataloader.zzz", 1)
        assert found.mend == "leave it out"
        assert "batch_size" in str(found.allowed)


class TestValues:
    @pytest.mark.parametrize(
        ("key", "value", "what", "allowed", "mend"),
        [
            ("training.max_epochs", "3", "'3' is text", "a whole number, at least 1, or null", "without quotes: 3"),
            ("training.max_epochs", 3.0, "3.0 is not a whole number", "a whole number, at least 1, or null", "write 3"),
            ("training.max_epochs", 2.5, "2.5 is not a whole number", "a whole number, at least 1, or null", None),
            ("training.max_epochs", 0, "0 is too small", "a whole number, at least 1, or null", None),
            ("training.max_epochs", True, "true is not allowed", "a whole number, at least 1, or null", None),
            ("training.max_epochs", {"a": 1}, '{"a": 1} is not allowed', "a whole number, at least 1, or null", None),
            ("training.seed", None, "null is not allowed", "a whole number, at least 0", None),
            ("training.optimization.lr", "1e-3", "'1e-3' is text", "a number, more than 0", "without quotes: 1e-3"),
            ("training.optimization.lr", "fast", "'fast' is text", "a number, more than 0", None),
            ("training.optimization.lr", 0, "0 is too small", "a number, more than 0", None),
            ("training.deterministic", "yes", "'yes' is text", "true or false", "write true, without quotes"),
            ("training.deterministic", "off", "'off' is text", "true or false", "write false, without quotes"),
            ("training.deterministic", 1, "1 is not allowed", "true or false", None),
            ("training.run_id", 5, "5 is a number, not text", "text or null", "training.run_id='5'"),
            ("training.precision", "bf16", "'bf16'", "'64-true', '32-true', 'bf16-mixed' or '16-mixed'", "bf16-mixed"),
            ("training.gradient_clip", 1.0, "1.0 is no mapping", "a mapping with the keys val, algorithm", None),
            ("data.diagnostic", "tp", "'tp' is no list", "a list of text", None),
            ("data.forcing", "compute", "'compute'", "a list of text or 'computed'", None),
            ("dataloader.training.start", 1.5, "1.5 is a number", "text, a whole number or null", None),
            ("graph.nodes.hidden.resolution", 10, "10 is too large", "a whole number, at least 0, at most 9", None),
            (
                "training.optimization.optimizer.betas",
                [0.9],
                "too short",
                "a list of numbers, each at least 0, less than 1, exactly 2 entries",
                None,
            ),
            ("data.processors.imputer.constant", {"sst": "0"}, "constant.sst='0' is text", None, "quotes: 0"),
            ("model.layer_kernels", {"Linear": "torch"}, "layer_kernels.Linear='torch' is no mapping", None, None),
            ("training", 3, "training=3 is no mapping", "a mapping with the keys", None),
        ],
    )
    def test_key_value_allowed_and_mend(
        self, tree: Tree, key: str, value: Any, what: str, allowed: str | None, mend: str | None
    ) -> None:
        found = only(tree, key, value)
        assert str(found.where).startswith(key)
        assert what in found.what
        assert key in found.what
        if allowed is not None:
            assert allowed in str(found.allowed)
        if mend is not None:
            assert mend in str(found.mend)

    def test_an_entry_of_a_list(self, tree: Tree) -> None:
        found = only(tree, "data.diagnostic", ["a", 3])
        assert (found.where, found.allowed) == ("data.diagnostic.1", "text")

    def test_whole_numbers_pass_for_numbers(self, tree: Tree) -> None:
        put(tree, "training.optimization.lr", 1)
        assert validate_config(tree).training.optimization.lr == 1.0

    def test_a_date_may_be_a_year(self, tree: Tree) -> None:
        put(tree, "dataloader.training.start", 1950)
        assert validate_config(tree).dataloader.training.start == 1950

    def test_a_long_value_is_cut(self, tree: Tree) -> None:
        assert len(only(tree, "training.seed", "x" * 500).what) < 150

    def test_missing_key(self, tree: Tree) -> None:
        del tree["dataloader"]["batch_size"]["training"]
        found = problems(tree)[0]
        assert found.what == "dataloader.batch_size.training is missing"
        assert found.mend == "dataloader.batch_size.training=VALUE"

    def test_missing_section(self, tree: Tree) -> None:
        del tree["task"]
        found = problems(tree)[0]
        assert found.what == "task is missing"
        assert "defaults: [train, _self_]" in str(found.mend)

    def test_either_name_of_a_key(self, tree: Tree) -> None:
        put(tree, "data.processors.normalizer", {"min_max": ["a"]})
        assert validate_config(tree).data.processors.normalizer.min_max == ["a"]


class TestKinds:
    @pytest.mark.parametrize(
        ("key", "value", "known"),
        [
            ("model.kind", "graph_transformer", "graphtransformer"),
            ("training.training_loss.kind", "hubre", "huber"),
            ("training.scalers.general_variable.kind", "variables", "variable"),
        ],
    )
    def test_unknown(self, tree: Tree, key: str, value: str, known: str) -> None:
        found = only(tree, key, value)
        assert found.where == key
        assert repr(value) in found.what
        assert known in str(found.allowed)
        assert found.mend == f"did you mean {known!r}?"

    def test_a_deeper_key_of_another_kind(self, tree: Tree) -> None:
        found = only(tree, "model.processor.window_size", 3)
        assert found.where == "model.processor.window_size"
        assert found.mend == "window_size is a key of kind transformer; ~model.processor.window_size leaves it out"

    def test_learnt_features_of_edges_that_the_processor_does_not_go_along(self, tree: Tree) -> None:
        tree["model"] |= {"kind": "transformer", "processor": {"num_heads": 4}}
        (found,) = problems(tree)
        assert found.where == "model.edge_trainable_parameters.hidden2hidden"
        assert found.what.endswith(
            "=8 does nothing with model.processor.kind='transformer', which goes along no such edges"
        )

    def test_no_learnt_features_of_edges_that_it_goes_along(self, tree: Tree) -> None:
        found = only(tree, "model.edge_trainable_parameters.hidden2hidden", None)
        assert found.what.endswith("=null, but model.processor.kind='graphtransformer' goes along these edges")

    def test_a_kind_that_processes_cannot_share(self, tree: Tree) -> None:
        tree["model"] |= {"kind": "hierarchical", "processor": {"num_heads": 4}}
        tree["graph"]["nodes"]["hidden"]["levels"] = 2
        tree["system"]["hardware"] |= {"num_gpus_per_node": 2, "num_gpus_per_model": 2}
        (found,) = problems(tree)
        assert found.where == "system.hardware.num_gpus_per_model"
        assert found.what.endswith("a processor of model.processor.kind='hierarchical' can't be shared")
        assert str(found.allowed).endswith("model.processor.kind: graphtransformer, transformer, gnn, pointwise")

    @pytest.mark.parametrize(
        ("kind", "levels", "said"),
        [("hierarchical", 1, "works on several levels of hidden nodes, and graph.nodes.hidden.levels gives one"),
         ("gnn", 2, "gives 2 levels of hidden nodes, and model.processor.kind='gnn' works on")],
    )  # fmt: skip
    def test_levels_of_the_graph_and_of_the_model(self, tree: Tree, kind: str, levels: int, said: str) -> None:
        tree["model"] |= {"kind": kind, "processor": {}}
        tree["graph"]["nodes"]["hidden"]["levels"] = levels
        (found,) = problems(tree)
        assert said in found.what
        assert found.where == "graph.nodes.hidden.levels"

    def test_a_model_has_the_kind_of_its_processor(self, tree: Tree) -> None:
        found = only(tree, "model.kind", "gnn")
        assert found.where == "model.kind"
        assert found.what == (
            "model.kind='gnn', but model.processor.kind='graphtransformer': a model has the kind of its processor; "
            "model/processor=gnn or model/processor=graphtransformer chooses both"
        )

    def test_components_have_the_kind_of_the_model_unless_they_say_their_own(self, tree: Tree) -> None:
        tree["model"] |= {"kind": "gnn", "encoder": {}, "processor": {}, "decoder": {"kind": "graphtransformer"}}
        model = validate_config(tree).model
        assert [part.kind for part in (model.encoder, model.processor, model.decoder)] == [
            "gnn",
            "gnn",
            "graphtransformer",
        ]
        assert model.edge_trainable_parameters.hidden2hidden == 8
        assert validate_config(validate_config(tree).model_dump(mode="json", by_alias=True)).model == model

    @pytest.mark.parametrize("component", ["encoder", "processor", "decoder"])
    def test_an_unknown_kind_of_component(self, tree: Tree, component: str) -> None:
        found = only(tree, f"model.{component}.kind", "gn")
        assert found.what == f"model.{component}.kind='gn' is no {component} there is"
        assert found.mend == "did you mean 'gnn'?"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "the module my_kinds can't be imported: ModuleNotFoundError: No module named 'my_kinds'"),
            ("1 / 0", "can't be imported: ZeroDivisionError: division by zero"),
            ("", "registers no processor of that name: @register('processor', 'my_kinds.inner')"),
        ],
    )
    def test_a_kind_of_the_users(
        self, tree: Tree, text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if text is not None:
            (tmp_path / "my_kinds").mkdir()
            (tmp_path / "my_kinds" / "inner.py").write_text(text)
        for name in ("my_kinds", "my_kinds.inner"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        found = only(tree, "model.processor.kind", "my_kinds.inner")
        assert found.where == "model.processor.kind"
        assert said.replace("the module my_kinds ", "the module my_kinds.inner ") in found.what
        assert "the import path of a module that registers itself" in str(found.allowed)

    def test_missing(self, tree: Tree) -> None:
        del tree["training"]["training_loss"]["kind"]
        found = problems(tree)
        assert [p.what for p in found] == ["training.training_loss.kind is missing"]
        assert "mse" in str(found[0].allowed)

    def test_the_bare_name_of_a_kind(self, tree: Tree) -> None:
        assert only(tree, "training.training_loss", "mse").mend == "'training.training_loss={kind: mse}'"

    def test_each_entry_of_a_list(self, tree: Tree) -> None:
        put(tree, "model.bounding", [{"kind": "relu"}, {"kind": "rela"}, 3])
        assert [p.where for p in problems(tree)] == [
            "model.bounding.0.variables", "model.bounding.1.kind", "model.bounding.2",
        ]  # fmt: skip

    def test_rules_of_a_kind(self, tree: Tree) -> None:
        found = only(tree, "model.encoder.num_heads", 5)
        assert found.what == "model.encoder.num_heads=5 does not divide model.num_channels=32"
        assert found.where == "model.encoder.num_heads"

    def test_null(self, tree: Tree) -> None:
        assert only(tree, "training.scalers.general_variable", None).what.endswith("=null is no mapping")


class TestRulesWithinSections:
    @pytest.mark.parametrize(
        ("changes", "where"),
        [
            ({"training.max_epochs": None}, "training.max_epochs"),
            ({"training.load_weights_only": True}, "training.load_weights_only"),
            ({"training.run_id": "a", "training.fork_run_id": "a"}, "training.run_id"),
            ({"training.training_loss.scalers": ["area"]}, "training.training_loss.scalers"),
            ({"task.rollout.start": 3}, "task.rollout.maximum"),
            ({"task.rollout.maximum": 3}, "task.rollout.maximum"),
        ],
    )
    def test_names_the_key(self, tree: Tree, changes: Tree, where: str) -> None:
        for key, value in changes.items():
            put(tree, key, value)
        found = problems(tree)
        assert [p.where for p in found] == [where]
        assert where in found[0].what


@pytest.mark.parametrize(
    ("accelerator", "shape", "what"),
    [
        ("cuda", (1, 6, 4), "1 node x 6 GPUs = 6 processes; 6 is not a multiple of num_gpus_per_model=4"),
        ("cpu", (2, 3, 4), "2 nodes x 3 processes = 6 processes; 6 is not a multiple of num_gpus_per_model=4"),
    ],
)
def test_processes_that_do_not_multiply_out(tree: Tree, accelerator: str, shape: tuple[int, int, int], what: str):
    put(tree, "system.hardware.accelerator", accelerator)
    for name, number in zip(("num_nodes", "num_gpus_per_node", "num_gpus_per_model"), shape, strict=True):
        put(tree, f"system.hardware.{name}", number)
    (found,) = problems(tree)
    assert (found.where, found.what) == ("system.hardware.num_gpus_per_model", what)
    assert found.allowed == "a divisor of 6: 1, 2, 3, 6"
    assert found.mend == "system.hardware.num_gpus_per_model=3, or other num_gpus_per_node and num_nodes"


def test_heads_that_processes_can_not_share():
    register_kinds()
    tree = compose(overrides=["model=transformer", "model.processor.num_heads=4"]).tree
    put(tree, "system.hardware.num_gpus_per_node", 3)
    found = only(tree, "system.hardware.num_gpus_per_model", 3)
    assert found.where == "system.hardware.num_gpus_per_model"
    assert found.what.startswith("system.hardware.num_gpus_per_model=3 does not divide model.processor.num_heads=4")
    put(tree, "system.hardware.num_gpus_per_node", 2)
    put(tree, "system.hardware.num_gpus_per_model", 2)
    assert validate_config(tree).system.hardware.model_copies == 1


ON_GPU = {"system.hardware.accelerator": "cuda"}
PREFETCHED = {"dataloader.prefetch_to_device": True}
RECORDED = {**ON_GPU, "training.cuda_graphs": True}
DIVIDED = {"system.hardware.num_gpus_per_node": 2, "training.strategy.kind": "fsdp"}
IMPLEMENTATION = "training.optimization.optimizer.implementation"


class TestRulesBetweenSections:
    @pytest.mark.parametrize(
        ("changes", "where"),
        [
            ({"training.precision": "16-mixed"}, "training.precision"),
            ({"dataloader.pin_memory": True}, "dataloader.pin_memory"),
            ({"model.encoder.gradient_checkpointing": "offload"}, "model.encoder.gradient_checkpointing"),
            ({"dataloader.prefetch_to_device": True}, "dataloader.prefetch_to_device"),
            ({**ON_GPU, **PREFETCHED, "dataloader.pin_memory": False}, "dataloader.prefetch_to_device"),
            ({"training.cuda_graphs": True}, "training.cuda_graphs"),
            ({**RECORDED, "system.hardware.num_gpus_per_node": 2}, "training.cuda_graphs"),
            ({**RECORDED, "system.hardware.num_nodes": 2}, "training.cuda_graphs"),
            ({**RECORDED, "model.decoder.gradient_checkpointing": "offload"}, "model.decoder.gradient_checkpointing"),
            (
                {**RECORDED, "diagnostics.debug.anomaly_detection": True},
                "diagnostics.debug.anomaly_detection",
            ),
            (
                {**ON_GPU, IMPLEMENTATION: "fused", "training.precision": "16-mixed"},
                IMPLEMENTATION,
            ),
            ({"system.hardware.num_gpus_per_model": 2}, "system.hardware.num_gpus_per_model"),
            ({"dataloader.workers": "threads"}, "dataloader.workers"),
            ({"training.strategy.kind": "fsdp"}, "training.strategy.kind"),
            ({**DIVIDED, "system.hardware.num_gpus_per_model": 2}, "training.strategy.kind"),
            ({"training.strategy.reshard_after_forward": False}, "training.strategy.reshard_after_forward"),
            ({"model.residual.step": -14}, "model.residual.step"),
            ({"data.diagnostic": ["insolation"]}, "data.forcing"),
            ({"data.processors.normalizer.std": ["insolation"]}, "data.processors.normalizer"),
            ({"data.processors.imputer": {"mean": ["a"], "constant": {"a": 0}}}, "data.processors.imputer"),
            ({"training.optimization.lr_scheduler.t_initial": 50}, "training.optimization.lr_scheduler.t_initial"),
            ({"training.optimization.lr_scheduler.lr_min": 1}, "training.optimization.lr_scheduler.lr_min"),
            (
                {"graph.edges.hidden2hidden.scale_resolutions": [0, 4]},
                "graph.edges.hidden2hidden.scale_resolutions",
            ),
        ],
    )
    def test_names_the_key(self, tree: Tree, changes: Tree, where: str) -> None:
        for key, value in changes.items():
            put(tree, key, value)
        assert [p.where for p in problems(tree)] == [where]

    @pytest.mark.parametrize(
        "changes",
        [
            {**ON_GPU, **PREFETCHED},
            {**ON_GPU, **PREFETCHED, "dataloader.pin_memory": True},
            RECORDED,
            {**RECORDED, "model.encoder.gradient_checkpointing": "full"},
            {**RECORDED, "model.processor.gradient_checkpointing": "selective"},
            {**RECORDED, IMPLEMENTATION: "fused", "training.precision": "bf16-mixed"},
            {IMPLEMENTATION: "fused"},
            {**DIVIDED, "training.strategy.reshard_after_forward": False},
            {**DIVIDED, "system.hardware.num_gpus_per_node": 1, "system.hardware.num_nodes": 2},
            {**ON_GPU, IMPLEMENTATION: "fused", "training.precision": "16-mixed", "training.gradient_clip.val": None},
        ],
    )
    def test_what_goes_together(self, tree: Tree, changes: Tree) -> None:
        for key, value in changes.items():
            put(tree, key, value)
        validate_config(tree)


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("training.max_steps", True),
        ("training.max_step", False),
        ("training.training_loss.delta", False),
        ("data.processors.normalizer.min-max", True),
        ("data.processors.normalizer.min_max", True),
        ("training.scalers.mine.kind", None),
        ("dataloader.training.dataset_config.select", None),
        ("model.layer_kernels.LayerNorm.eps", None),
    ],
)
def test_whether_the_schema_knows_a_key(tree: Tree, key: str, known: bool | None) -> None:
    assert knows(key, tree) is known


def test_the_keys_of_kinds_are_among_all_keys(tree: Tree) -> None:
    assert {"model.bounding.*.min_val", "training.scalers.*.weights", "training.training_loss.delta"} <= set(all_keys())
