"""Graph attention in Triton: it runs in a process that has Triton, with Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_site import run_tests


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_its_formula(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("interpreted_graph_attention.py"), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compilers_take_it(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("compiled_graph_attention.py"), tmp_path, interpreter=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_read_edges_in_tiles(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("interpreted_tiled_models.py"), tmp_path)
