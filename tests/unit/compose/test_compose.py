"""Composition: where files are found, and what is said of those that do not fit together."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from etesian.commands.common import check_tree
from etesian.compose import compose, split_jobs, to_yaml
from etesian.errors import Problem, UserError
from etesian.places import package_config_dir, search_path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def problem(*overrides: str, name: str = "train", config_dir: Path | None = None) -> Problem:
    with pytest.raises(UserError) as caught:
        compose(name, config_dir, overrides)
    assert len(caught.value.problems) == 1, str(caught.value)
    return caught.value.problems[0]


class TestDefault:
    def test_needs_no_override(self) -> None:
        composed = compose()
        assert composed.tree["system"]["input"]["dataset"] == "embedded:ncep-monthly-5deg"
        assert composed.choices["model/layer_kernels"] == "torch"
        assert composed.origin == package_config_dir() / "train.yaml"
        assert not composed.absent

    def test_interpolations_are_resolved(self) -> None:
        tree = compose(overrides=["system.input.dataset=/data/era5.zarr"]).tree
        assert tree["dataloader"]["test"]["dataset_config"]["dataset"] == "/data/era5.zarr"

    def test_every_shipped_config_composes(self) -> None:
        names = [file.stem for file in package_config_dir().glob("*.yaml")]
        assert {"train", "debug"} <= set(names)
        for name in names:
            tree = compose(name, overrides=["system.input.dataset=flow.zarr"]).tree
            assert set(tree) >= {"data", "model", "training"}

    @pytest.mark.parametrize("name", ["shallow_water", "own_data"])
    def test_a_config_for_a_dataset_of_ones_own_asks_for_it_once(self, name: str) -> None:
        with pytest.raises(UserError) as error:
            compose(name)
        (problem,) = error.value.problems
        assert problem.where == "system.input.dataset"
        assert problem.mend == "system.input.dataset=VALUE"

    def test_leaves_no_global_state_and_repeats(self) -> None:
        first = compose(overrides=["training.seed=5"])
        second = compose()
        assert not GlobalHydra.instance().is_initialized()
        assert (first.tree["training"]["seed"], second.tree["training"]["seed"]) == (5, 1234)
        assert first.overrides == ["training.seed=5"]


class TestSearchPath:
    def test_order(self, folder: Path, tmp_path: Path) -> None:
        assert search_path(tmp_path) == [folder, tmp_path, package_config_dir()]

    def test_the_current_folder_wins_over_config_dir_over_package(self, folder: Path, tmp_path: Path) -> None:
        for place, seed in ((tmp_path / "dir", 2), (folder, 1)):
            write(place / "mine.yaml", f"defaults: [train, _self_]\ntraining: {{seed: {seed}}}\n")
            assert compose("mine", tmp_path / "dir").tree["training"]["seed"] == seed

    def test_a_users_file_replaces_the_packages(self, folder: Path) -> None:
        write(folder / "train.yaml", "defaults: [debug, _self_]\ntraining: {seed: 7}\n")
        assert compose().tree["training"]["seed"] == 7

    def test_so_do_options_of_groups(self, folder: Path, tmp_path: Path) -> None:
        write(tmp_path / "dir/task/forecaster.yaml", "kind: forecaster\nmultistep_input: 3\n")
        assert compose("debug", config_dir=tmp_path / "dir").tree["task"]["multistep_input"] == 3
        write(folder / "task/forecaster.yaml", "kind: forecaster\nmultistep_input: 4\n")
        assert compose("debug", config_dir=tmp_path / "dir").tree["task"]["multistep_input"] == 4

    def test_a_new_option_of_a_group(self, folder: Path) -> None:
        write(folder / "model/layer_kernels/mine.yaml", "Linear: {_target_: torch.nn.Linear}\n")
        composed = compose(overrides=["model/layer_kernels=mine"])
        assert list(composed.tree["model"]["layer_kernels"]) == ["Linear"]
        assert composed.choices["model/layer_kernels"] == "mine"

    def test_the_file_may_be_named_with_its_suffix(self) -> None:
        assert compose("debug.yaml").config_name == "debug"

    def test_no_such_config(self, folder: Path, tmp_path: Path) -> None:
        write(tmp_path / "dir/ours.yaml", "defaults: [train]\n")
        found = problem(name="trian", config_dir=tmp_path / "dir")
        assert "'trian'" in found.what
        assert f"ours (in {tmp_path / 'dir'})" in str(found.allowed)
        assert f"none (in {folder})" in str(found.allowed)
        assert f"(in {package_config_dir()})" in str(found.allowed)
        assert found.mend == "did you mean 'train'?"

    def test_a_path_is_no_name(self) -> None:
        assert problem(name="sub/mine.yaml").mend == "--config-dir sub --config-name mine"

    @pytest.mark.parametrize(("make", "text"), [(False, "does not exist"), (True, "is a file")])
    def test_config_dir_must_be_a_folder(self, tmp_path: Path, make: bool, text: str) -> None:
        if make:
            (tmp_path / "x").write_text("")
        assert text in problem(config_dir=tmp_path / "x").what


class TestGroups:
    def test_unknown_option(self) -> None:
        found = problem("model=graphtransfomer")
        assert found.what == "model=graphtransfomer: the group 'model' has no such option"
        assert found.where == "command line"
        assert "graphtransformer" in str(found.allowed)
        assert found.mend == "did you mean 'graphtransformer' or 'transformer'?"

    def test_unknown_option_of_a_nested_group(self) -> None:
        found = problem("model/layer_kernels=troch")
        assert "'model/layer_kernels'" in found.what
        assert found.mend == "did you mean 'torch'?"

    def test_unknown_group(self) -> None:
        found = problem("model/layer_kernel=torch")
        assert "no config group 'model/layer_kernel'" in found.what
        assert found.mend == "did you mean 'model/layer_kernels'?"

    def test_a_number_is_no_option(self) -> None:
        found = problem("data=5")
        assert found.where == "data"
        assert "ncep_monthly" in str(found.allowed)

    def test_unknown_name_in_a_defaults_list(self, folder: Path) -> None:
        file = write(folder / "mine.yaml", "defaults: [trian, _self_]\n")
        found = problem(name="mine")
        assert "'trian'" in found.what
        assert found.where == str(file)
        assert found.mend == "did you mean 'train'?"

    def test_unknown_option_in_a_defaults_list(self, folder: Path) -> None:
        file = write(folder / "mine.yaml", "defaults:\n  - train\n  - override system: cpuu\n")
        found = problem(name="mine")
        assert "system=cpuu" in found.what
        assert found.where == str(file)
        assert found.mend == "did you mean 'cpu'?"

    def test_a_circle_of_defaults(self, folder: Path) -> None:
        write(folder / "a.yaml", "defaults: [b]\n")
        write(folder / "b.yaml", "defaults: [a]\n")
        found = problem(name="a")
        assert found.what.endswith("in a circle: a -> b -> a")
        assert found.where == str(folder / "a.yaml")


class TestOverrides:
    def test_keys_no_file_has_are_handed_to_the_schema(self) -> None:
        composed = compose(overrides=["training.max_epoch=3", "training.max_epochs=4", "+new.key=1"])
        assert list(composed.absent) == ["training.max_epoch"]
        assert "training.max_epochs" in composed.absent["training.max_epoch"]
        assert composed.tree["training"]["max_epoch"] == 3
        assert composed.tree["new"] == {"key": 1}

    def test_a_key_that_was_added_may_be_set(self) -> None:
        assert not compose(overrides=["+training.x={a: 1}", "training.x.a=2"]).absent

    def test_deleting(self) -> None:
        assert (
            "weights"
            not in compose(overrides=["~training.scalers.general_variable.weights"]).tree["training"]["scalers"][
                "general_variable"
            ]
        )

    def test_deleting_nothing(self) -> None:
        found = problem("~training.max_epoch")
        assert (found.where, "nothing to delete" in found.what) == ("training.max_epoch", True)

    def test_adding_what_is_there(self) -> None:
        found = problem("+training.max_epochs=3")
        assert found.what == "+training.max_epochs=3: the config has 'training.max_epochs' already"
        assert found.mend == "without the '+': training.max_epochs=3"

    def test_no_equals_sign(self) -> None:
        assert problem("training.max_epochs").mend == "training.max_epochs=VALUE"

    def test_the_name_of_a_config_as_an_override(self) -> None:
        assert problem("debug").mend == "--config-name debug"

    def test_grammar(self) -> None:
        found = problem("training.max_epochs=[1")
        assert "'training.max_epochs=[1' cannot be read" in found.what
        assert "no viable alternative" in found.what

    def test_an_override_that_the_shell_split(self) -> None:
        found = problem("model.bounding=[{kind:", "relu}]")
        assert "quote the whole override" in str(found.mend)

    def test_all_bad_overrides_at_once(self) -> None:
        with pytest.raises(UserError) as caught:
            compose(overrides=["a=1]", "b", "hydra.run.dir=x"])
        assert len(caught.value.problems) == 3

    def test_a_list_over_a_mapping(self) -> None:
        found = problem("training.scalers=[]")
        assert found.where == "training.scalers"
        assert "Cannot merge DictConfig with ListConfig" in found.what

    @pytest.mark.parametrize("value", ["1,2", "range(1,3)", "choice(1,2)"])
    def test_a_sweep_without_multirun(self, value: str) -> None:
        found = problem(f"training.seed={value}")
        assert found.where == "training.seed"
        assert "--multirun" in str(found.mend)


class TestHydrasOwnSettings:
    def test_override(self) -> None:
        assert "system.output.root" in str(problem("hydra.run.dir=x").mend)

    def test_search_path(self) -> None:
        assert problem("hydra.searchpath=[x]").mend == "--config-dir DIR"

    def test_section(self, folder: Path) -> None:
        file = write(folder / "mine.yaml", "defaults: [train, _self_]\nhydra: {run: {dir: x}}\n")
        found = problem(name="mine")
        assert found.where == str(file)
        assert "nothing here reads" in found.what

    def test_defaults_list(self, folder: Path) -> None:
        write(folder / "hydra/launcher/mine.yaml", "x: 1\n")
        write(folder / "mine.yaml", "defaults: [train, {override hydra/launcher: mine}]\n")
        assert "hydra/launcher" in problem(name="mine").what


class TestFiles:
    def test_yaml_that_cannot_be_read_names_file_and_line(self, folder: Path) -> None:
        file = write(folder / "mine.yaml", "defaults: [train, _self_]\ntraining:\n  seed: [1\nmodel: 2\n")
        found = problem(name="mine")
        assert str(found.where).startswith(f"{file}, line 4")
        assert "YAML cannot be read" in found.what

    def test_a_key_twice(self, folder: Path) -> None:
        file = write(folder / "mine.yaml", "defaults: [train, _self_]\ntraining: {seed: 1}\ntraining: {seed: 2}\n")
        found = problem(name="mine")
        assert "duplicate key training" in found.what
        assert str(file) in str(found.where)

    def test_a_file_that_is_no_mapping(self, folder: Path) -> None:
        file = write(folder / "mine.yaml", "- 1\n- 2\n")
        found = problem(name="mine")
        assert found.where == str(file)
        assert "must be a DictConfig" in found.what

    def test_a_defaults_list_that_is_none(self, folder: Path) -> None:
        write(folder / "mine.yaml", "defaults: {a: b}\n")
        assert "defaults must be a list" in problem(name="mine").what

    def test_dates_stay_text(self, folder: Path) -> None:
        write(folder / "mine.yaml", "defaults: [train, _self_]\ndataloader: {training: {end: 2005-12-31}}\n")
        assert compose("mine").tree["dataloader"]["training"]["end"] == "2005-12-31"

    def test_the_users_keys_count_last_even_without_self(self, folder: Path, recwarn: pytest.WarningsRecorder) -> None:
        write(folder / "mine.yaml", "defaults: [train]\ntraining: {seed: 9}\n")
        assert compose("mine").tree["training"]["seed"] == 9
        assert not recwarn.list


class TestResolving:
    def test_every_missing_value(self) -> None:
        with pytest.raises(UserError) as caught:
            compose(overrides=["training.seed=???", "system.input.dataset=???"])
        assert [p.where for p in caught.value.problems[:2]] == ["training.seed", "system.input.dataset"]
        assert caught.value.problems[0].mend == "training.seed=VALUE"

    def test_unknown_reference(self) -> None:
        found = problem("training.seed=${system.input.datset}")
        assert found.where == "training.seed"
        assert "'system.input.datset' not found" in found.what
        assert "'system.input.dataset'" in str(found.mend)

    def test_circle(self) -> None:
        with pytest.raises(UserError, match=r"training\.seed"):
            compose(overrides=["training.seed=${training.max_steps}", "training.max_steps=${training.seed}"])

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ETESIAN_TEST_ROOT", "/scratch")
        tree = compose(overrides=["system.output.root=${oc.env:ETESIAN_TEST_ROOT}/runs"]).tree
        assert tree["system"]["output"]["root"] == "/scratch/runs"

    def test_environment_that_is_not_set(self) -> None:
        assert "'ETESIAN_TEST_UNSET' not found" in problem("training.run_id=${oc.env:ETESIAN_TEST_UNSET}").what

    def test_unknown_resolver(self) -> None:
        assert "nope" in problem("training.run_id=${nope:1}").what


class TestJobs:
    def test_without_a_sweep(self) -> None:
        assert split_jobs(["a=1", "b=2"]) == [["a=1", "b=2"]]

    def test_product_in_order(self) -> None:
        assert split_jobs(["a=1,2", "+b=x", "c=range(0,2)"]) == [
            ["a=1", "+b=x", "c=0"], ["a=1", "+b=x", "c=1"], ["a=2", "+b=x", "c=0"], ["a=2", "+b=x", "c=1"],
        ]  # fmt: skip

    def test_glob_lists_the_options(self) -> None:
        assert ["system=cpu"] in split_jobs(["system=glob(*)"])

    def test_quotes_stay(self) -> None:
        assert split_jobs(["a='x,y'"]) == [["a='x,y'"]]

    def test_interval_is_no_list_of_jobs(self) -> None:
        with pytest.raises(UserError, match="does not support sweep type"):
            split_jobs(["a=interval(0,1)"])


def test_yaml_keeps_the_order_and_reads_back() -> None:
    tree = {"b": 1, "a": {"date": "2005-12-31", "number": "5", "rate": 3e-7, "none": None}}
    text = to_yaml(tree)
    assert text.startswith("b: 1\na:\n")
    assert yaml.safe_load(text) == tree


DEFAULTS = [
    "data: ncep_monthly", "dataloader: ncep_monthly", "diagnostics: default", "graph: multi_scale",
    "model: graphtransformer", "model/layer_kernels: torch", "model/compile: none", "task: forecaster",
    "training: default", "system: cpu", "_self_",
]  # fmt: skip
INPUT = 'system: {input: {dataset: "embedded:ncep-monthly-5deg"}}\n'


class TestKeysThatComeToNothing:
    def test_own_keys_before_the_defaults(self, folder: Path) -> None:
        write(folder / "mine.yaml", "defaults: [_self_, train]\ntraining: {max_epochs: 3}\n")
        found = problem(name="mine")
        assert "training.max_epochs: 3 does not count" in found.what
        assert found.mend == "put '- _self_' at the end of the defaults list"

    def test_own_keys_after_the_defaults(self, folder: Path) -> None:
        write(folder / "mine.yaml", "defaults: [train, _self_]\ntraining: {max_epochs: 3}\n")
        assert compose("mine").tree["training"]["max_epochs"] == 3

    def test_an_option_that_sets_keys_of_a_section_named_after_it(self, folder: Path) -> None:
        lines = [line for line in DEFAULTS if line != "system: cpu"]
        lines.insert(lines.index("training: default"), "system: h200")
        write(folder / "mine.yaml", yaml.safe_dump({"defaults": [yaml.safe_load(line) for line in lines]}) + INPUT)
        with pytest.raises(UserError) as caught:
            compose("mine")
        outdone = {
            "training.precision": ("bf16-mixed", "32-true"),
            "training.cuda_graphs": ("true", "false"),
            "training.optimization.optimizer.implementation": ("fused", "foreach"),
        }
        assert [found.what for found in caught.value.problems] == [
            f"{key}: {chosen} of system/h200.yaml does not count: training/default.yaml, which the defaults list names "
            f"after it, sets {set_after}"
            for key, (chosen, set_after) in outdone.items()
        ]
        assert {found.where for found in caught.value.problems} == {str(folder / "mine.yaml")}
        mend = "put '- system: h200' at the end of the defaults list, before '- _self_'"
        assert {found.mend for found in caught.value.problems} == {mend}

    def test_an_option_that_sets_keys_which_the_config_sets_itself(self, folder: Path) -> None:
        write(
            folder / "mine.yaml", "defaults: [train, override system: h200, _self_]\ntraining: {precision: 32-true}\n"
        )
        assert compose("mine").tree["training"]["precision"] == "32-true"

    @pytest.mark.parametrize("early", [True, False])
    def test_an_option_that_chooses_of_a_group_that_is_not_there_yet(self, folder: Path, early: bool) -> None:
        lines = [line for line in DEFAULTS if line != "system: cpu" and (early or "model/" not in line)]
        lines.insert(0 if early else len(lines) - 1, "system: h200")
        write(folder / "mine.yaml", yaml.safe_dump({"defaults": [yaml.safe_load(line) for line in lines]}) + INPUT)
        found = problem(name="mine")
        assert found.what == (
            "system/h200.yaml chooses an option of the group 'model/layer_kernels', which the defaults list does not "
            "name before it"
        )
        assert "'- system: h200' after it" in str(found.mend)

    def test_a_key_that_is_no_text(self, folder: Path) -> None:
        write(folder / "mine.yaml", "defaults: [train, _self_]\n1: 2\n")
        assert compose("mine").tree["1"] == 2

    def test_the_last_override_of_a_key_counts(self) -> None:
        """As scripts expect that put their caller's arguments after their own."""
        composed = compose(overrides=["training.seed=1", "system=gpu", "training.seed=2", "system=cpu"])
        assert composed.tree["training"]["seed"] == 2
        assert composed.choices["system"] == "cpu"

    def test_deleting_and_adding_anew(self) -> None:
        tree = compose(overrides=["~model.layer_kernels.LayerNorm", "+model.layer_kernels.LayerNorm._target_=a.B"]).tree
        assert tree["model"]["layer_kernels"]["LayerNorm"] == {"_target_": "a.B"}

    def test_an_override_without_a_key(self) -> None:
        assert "it names no key" in problem("=3").what


class TestPresetsOfKernels:
    def test_their_slots_are_kept_as_their_files_have_them(self, folder: Path) -> None:
        write(folder / "model" / "layer_kernels" / "mine.yaml", "LayerNorm: {_target_: a.B, eps: 1.0e-3}\n")
        at = "+model/layer_kernels@model.decoder.layer_kernels=mine"
        composed = compose(overrides=["model/layer_kernels=rmsnorm", at, "model.layer_kernels.LayerNorm.eps=1e-2"])
        assert composed.preset_slots["model.layer_kernels"].slots["LayerNorm"] == {
            "_target_": "torch.nn.RMSNorm",
            "eps": 1e-6,
        }
        of_decoder = ("mine", {"LayerNorm": {"_target_": "a.B", "eps": 1e-3}})
        assert composed.preset_slots["model.decoder.layer_kernels"] == of_decoder

    def test_a_preset_that_begins_with_another(self, folder: Path) -> None:
        text = "defaults: [rmsnorm, _self_]\nActivation: {_target_: a.B}\n"
        write(folder / "model" / "layer_kernels" / "mine.yaml", text)
        composed = compose(overrides=["model/layer_kernels=mine"])
        name, slots = composed.preset_slots["model.layer_kernels"]
        assert (name, slots) == ("mine", composed.tree["model"]["layer_kernels"])
        assert slots["LayerNorm"]["_target_"] == "torch.nn.RMSNorm"

    def test_a_mapping_is_given_to_a_slot_with_arguments_that_no_file_has(self) -> None:
        given = [
            "model.layer_kernels.LayerNorm={_target_: a.B, scale: 2}",
            "model.encoder.layer_kernels.MLP={_target_: c.D}",
        ]
        model = compose(overrides=given).tree["model"]
        assert model["layer_kernels"]["LayerNorm"] == {"_target_": "a.B", "eps": 1e-5, "scale": 2}
        assert model["encoder"]["layer_kernels"] == {"MLP": {"_target_": "c.D"}}

    def test_an_empty_preset_of_the_user(self, folder: Path) -> None:
        write(folder / "model" / "layer_kernels" / "mine.yaml", "# none\n")
        assert compose(overrides=["model/layer_kernels=mine"]).preset_slots == {"model.layer_kernels": ("mine", {})}


class TestSystemH200:
    """A group file of ``system`` that sets keys of other sections, openly."""

    @pytest.mark.parametrize(
        "name", ["train", "n320", "o96", "own_data", "shallow_water", "debug", "ncep_monthly_long"]
    )
    def test_what_it_sets(self, name: str) -> None:
        composed = compose(name, overrides=["system=h200", "system.input.dataset=any.zarr"])
        tree, model = composed.tree, composed.tree["model"]
        assert tree["system"]["hardware"]["accelerator"] == "cuda"
        assert tree["training"]["precision"] == "bf16-mixed"
        assert [model[part]["fuse_projections"] for part in ("encoder", "processor", "decoder")] == [True] * 3
        assert "triton_kernels" in model["layer_kernels"]["GraphAttention"]["_target_"]
        assert tree["training"]["cuda_graphs"] is tree["dataloader"]["prefetch_to_device"] is True
        assert tree["training"]["optimization"]["optimizer"]["implementation"] == "fused"
        assert model["compile"] == compose(overrides=["model/compile=blocks"]).tree["model"]["compile"]
        assert check_tree(composed).training.cuda_graphs  # the rules between sections hold
        assert composed.preset_slots["model.layer_kernels"].name == composed.choices["model/layer_kernels"]

    def test_a_file_built_on_it_may_set_its_keys_otherwise(self, folder: Path) -> None:
        text = "# @package _global_\ndefaults: [h200, _self_]\ntraining: {precision: 32-true}\n"
        (folder / "system").mkdir()
        write(folder / "system" / "ours.yaml", text)
        composed = compose(overrides=["system=ours"])
        assert composed.tree["training"]["precision"] == "32-true"
        assert composed.choices["model/layer_kernels"] == "triton_mixed"

    def test_the_command_line_wins(self) -> None:
        overrides = ["model/layer_kernels=rmsnorm", "model/compile=none", "training.precision=32-true", "system=h200"]
        composed = compose(overrides=overrides)
        assert composed.choices["model/layer_kernels"] == "rmsnorm"
        assert composed.tree["model"]["compile"] == []
        assert composed.tree["training"]["precision"] == "32-true"

    def test_several_gpus_need_steps_that_are_not_recorded(self) -> None:
        overrides = ["system=h200", "system.hardware.num_gpus_per_node=4"]
        with pytest.raises(UserError) as caught:
            check_tree(compose(overrides=overrides))
        (found,) = caught.value.problems
        assert (found.where, found.mend) == ("training.cuda_graphs", "training.cuda_graphs=false")
        assert not check_tree(compose(overrides=[*overrides, str(found.mend)])).training.cuda_graphs

    def test_with_the_other_kind_of_model(self) -> None:
        model = compose(overrides=["model=transformer", "system=h200"]).tree["model"]
        assert (model["kind"], model["processor"]["fuse_projections"]) == ("transformer", True)
