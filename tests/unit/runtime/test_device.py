"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from etesian.errors import UserError
from etesian.runtime.device import get_device


def test_cpu() -> None:
    assert get_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("name", "message"), [("cuda:99", "CUDA device"), ("grapevine", "unknown device 'grapevine'")])
def test_a_device_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        get_device(name)
