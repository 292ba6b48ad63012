"""Selective checkpointing with the operators of a library: in a process that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_site import run_tests


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_graph_attention_in_triton_is_kept(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("interpreted_kept_operators.py"), tmp_path)
