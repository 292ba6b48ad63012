"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from etesian.errors import UserError
from etesian.runtime.device import device_of_process, get_device


def test_cpu() -> None:
    assert get_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda:99", "CUDA device"),
        ("grapevine", "unknown device 'grapevine'"),
        ("meta", "'meta' is none that models run on"),
    ],
)
def test_a_device_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        get_device(name)


def test_processes_share_a_cpu_and_have_a_gpu_each() -> None:
    assert device_of_process("cpu", 3) == torch.device("cpu")
    with pytest.raises(UserError, match="'cuda:99'"):
        device_of_process("cuda", 99)
