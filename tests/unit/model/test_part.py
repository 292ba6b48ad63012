"""A model that processes share computes what one process computes: outputs, and gradients that add up."""

from __future__ import annotations

import pytest
import torch
from shared_models import CASES, PROCESSES, computed, run_all, whole_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    return run_all(tmp_path_factory.mktemp("shared"))


def test_rows_arrive_and_gradients_go_back(results):
    """Row k of process r goes to p, for k in the r + p rows behind those for the processes before p."""
    for process, found in enumerate(results):
        expected = []
        for sender in range(PROCESSES):
            first = sum(sender + other for other in range(process))
            expected += [100.0 * sender + first + k for k in range(sender + process)]
        assert found["exchange"]["arrived"].flatten().tolist() == expected
        back = [other + 1.0 for other in range(PROCESSES) for _ in range(process + other)]
        assert found["exchange"]["gradient"].flatten().tolist() == back


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_are_those_of_one_process(results, case: str):
    expected, shared = computed(whole_model(case)), [found[case] for found in results if case in found]
    assert len(shared) == CASES[case][1]
    for part in shared:
        torch.testing.assert_close(part["output"], expected["output"], rtol=1e-10, atol=1e-10)
    for name, gradient in expected.items():
        if name != "output":
            total = sum(part[name] for part in shared)
            torch.testing.assert_close(total, gradient, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: name + text)
    embedding = next(name for name in expected if name.startswith("encoder.embed_source.") and name.endswith("weight"))
    assert any(not torch.allclose(part[embedding], expected[embedding]) for part in shared)
