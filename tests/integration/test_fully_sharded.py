"""Two processes that divide a model train what one trains, whatever else is asked of the step; files are whole."""

from __future__ import annotations

import pytest
from sharded_steps import CASES, ON_GPUS, run_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = [name for name in CASES if name not in ("blocks", "norms", "components", "blocks and full", *ON_GPUS)]
"""All but those that compile as another does, which takes long, and those for GPUs."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return run_cases(tmp_path_factory.mktemp("steps"), 2, HERE)


@pytest.mark.parametrize("name", HERE)
def test_a_divided_model_computes_what_a_whole_one_does(found: dict[str, dict[str, float]], name: str) -> None:
    got, precision = found[name], CASES[name].precision
    assert got["losses"] < {"64-true": 1e-12, "32-true": 1e-5, "bf16-mixed": 2e-3}[precision]
    assert 0.5 <= got["held"] < 0.52
    if precision == "64-true":
        assert got["weights"] < 1e-11
        assert got["moments"] < 1e-6  # of some weights the gradient is nothing but rounding
    if "resumed" in got:
        assert got["resumed"] == 0
