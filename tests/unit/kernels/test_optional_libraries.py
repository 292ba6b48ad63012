"""Kernels of libraries that need not be installed: missing, too old, or there as a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from optional_libraries import importable, write_old_liger, write_transformer_engine
from small_model import make_settings

from etesian.errors import Problem, UserError
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import resolve_kernels


def problem(**slots: dict) -> Problem:
    with pytest.raises(UserError) as caught:
        resolve_kernels(make_settings(layer_kernels=slots), preset=None, overrides=[])
    (only,) = caught.value.problems
    return only


def test_a_missing_library_names_distribution_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    found = problem(LayerNorm={"_target_": "liger_kernel.transformers.rms_norm.LigerRMSNorm"})
    assert found.mend == "pip install 'etesian[liger]'"
    assert found.where == "model.layer_kernels.LayerNorm._target_"
    for part in ("slot LayerNorm", "liger_kernel.transformers.rms_norm.LigerRMSNorm", "(liger-kernel)", "missing"):
        assert part in found.what


def test_transformer_engine_has_its_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    found = problem(LayerNorm={"_target_": "transformer_engine.pytorch.LayerNorm"})
    assert found.mend == "pip install 'etesian[transformer_engine]'"


def test_an_adapter_of_a_missing_library_names_that_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.delitem(sys.modules, "etesian.kernels.liger", raising=False)
    found = problem(LayerNorm={"_target_": "etesian.kernels.liger.LigerLayerNorm"})
    assert found.mend == "pip install 'etesian[liger]'"
    assert found.where == "model.layer_kernels.LayerNorm._target_"
    for part in ("slot LayerNorm", "etesian.kernels.liger.LigerLayerNorm", "the library is missing (liger-kernel)"):
        assert part in found.what


def test_an_adapter_of_a_library_of_another_version_says_so(tmp_path: Path) -> None:
    write_old_liger(tmp_path)
    with importable(tmp_path, "liger_kernel"):
        found = problem(MLP={"_target_": "etesian.kernels.liger.LigerSwiGLU"})
    assert "importing 'etesian.kernels.liger' failed: ImportError: cannot import name" in found.what
    assert found.mend == "pip install 'etesian[liger]' --upgrade"


def test_liger_without_triton_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_old_liger(tmp_path)
    (tmp_path / "liger_kernel" / "ops" / "geglu.py").write_text("import triton\n")
    monkeypatch.setitem(sys.modules, "triton", None)
    with importable(tmp_path, "liger_kernel"):
        found = problem(Activation={"_target_": "liger_kernel.ops.geglu.LigerGeLU"})
        assert "importing 'liger_kernel.ops.geglu' failed: ModuleNotFoundError" in found.what
        assert "triton" in found.what
        assert found.mend == "pip install 'etesian[liger]'"
        found = problem(MLP={"_target_": "etesian.kernels.liger.LigerGeGLU"})
        assert "importing 'etesian.kernels.liger' failed: ModuleNotFoundError" in found.what
        assert "triton" in str(found.mend)


def test_kernels_of_transformer_engine_fit_their_slots(tmp_path: Path) -> None:
    write_transformer_engine(tmp_path)
    te = "transformer_engine.pytorch"
    with importable(tmp_path, "transformer_engine"):
        for name in ("LayerNorm", "RMSNorm"):
            on_cpu = {"device": "cpu"}  # else it makes its weights on a GPU
            slots = {
                "LayerNorm": {"_target_": f"{te}.{name}", "eps": 1e-6, **on_cpu},
                "Linear": {"_target_": f"{te}.Linear", **on_cpu},
            }
            settings = make_settings(layer_kernels=slots)
            kernels = resolve_kernels(settings, preset=None, overrides=[])
            probe_kernels(kernels, settings, torch.device("cpu"), "32-true")
            recorded = {r.slot: (r.family, r.library, r.version) for r in kernels.records}
            family = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}[name]
            assert recorded["LayerNorm"] == (family, "transformer-engine", "2.9.0")
            assert recorded["Linear"] == ("linear", "transformer-engine", "2.9.0")
            assert kernels.model.LayerNorm(8).eps == 1e-6
        found = problem(LayerNorm={"_target_": f"{te}.LayerNrom"})
        assert found.mend == "did you mean 'LayerNorm'?"
