"""Kernels of Liger: they run in a process that has Liger, with Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_site import run_tests


@pytest.mark.slow
def test_they_are_their_formulas_and_run_in_their_slots(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("interpreted_liger.py"), tmp_path)


@pytest.mark.slow
def test_their_declared_defaults_are_those_of_the_library(tmp_path: Path) -> None:
    """Else skipped, as Liger is not in the environment of the tests."""
    run_tests(Path(__file__).with_name("test_families.py"), tmp_path, "-k", "declared_defaults and liger")
