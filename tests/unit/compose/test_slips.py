"""Groups named as keys and keys named as groups: the mend is the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import Problem, UserError


def problem(*overrides: str) -> Problem:
    with pytest.raises(UserError) as caught:
        check_tree(compose(overrides=overrides))
    assert len(caught.value.problems) == 1, str(caught.value)
    return caught.value.problems[0]


class TestGroupsAndKeys:
    @pytest.mark.parametrize(
        ("override", "meant"),
        [
            ("model.layer_kernels=rmsnorm", "model/layer_kernels=rmsnorm"),
            ("+model.layer_kernels=rmsnorn", "model/layer_kernels=rmsnorm"),
            ("model.compile=norms", "model/compile=norms"),
            ("model.processor.layer_kernels=liger", "+model/layer_kernels@model.processor.layer_kernels=liger"),
            ("model/layer_kernels/LayerNorm.eps=1e-3", "model.layer_kernels.LayerNorm.eps=1e-3"),
            ("model/processor.num_layers=4", "model.processor.num_layers=4"),
        ],
    )
    def test_one_for_the_other(self, override: str, meant: str) -> None:
        assert problem(override).mend == f"did you mean {meant}?"

    def test_a_preset_of_the_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "model" / "layer_kernels").mkdir(parents=True)
        (tmp_path / "model" / "layer_kernels" / "mine.yaml").write_text("# none\n")
        found = problem("model.layer_kernels=mine")
        assert (found.where, found.mend) == ("model.layer_kernels", "did you mean model/layer_kernels=mine?")
        assert "mine" in str(found.allowed)

    def test_what_is_no_name_is_left_to_the_schema(self) -> None:
        assert compose(overrides=["model.compile=null"]).tree["model"]["compile"] is None

    def test_a_target_in_place_of_a_slot(self) -> None:
        key = "model.layer_kernels.LayerNorm"
        assert problem(f"{key}=torch.nn.RMSNorm").mend == f"{key}._target_=torch.nn.RMSNorm"

    def test_entries_of_compile_have_no_kind(self) -> None:
        assert (
            problem("model.compile=3").allowed == "a list of mappings with the keys kernel, module, component, options"
        )
