"""The one place for what differs between devices."""

from __future__ import annotations

import torch

from etesian.errors import UserError


def get_device(name: str) -> torch.device:
    """Return a device by its name.

    Parameters
    ----------
    name : str
        ``cpu``, ``cuda`` or ``cuda:1``.

    Raises
    ------
    UserError
        If this machine has no such device; nothing falls back to another.
    """
    try:
        device = torch.device(name)
    except RuntimeError as cause:
        raise UserError(f"unknown device {name!r}: {cause}", allowed="cpu, cuda, cuda:0") from cause
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if count <= (device.index or 0):
            raise UserError(f"device {name!r} was asked for, but this machine has {count} CUDA device(s)")
    return device


def device_of_process(accelerator: str, local_rank: int) -> torch.device:
    """Return the device of one process of a run: the one with its number, or the CPU that all share.

    Parameters
    ----------
    accelerator : str
        ``system.hardware.accelerator``.
    local_rank : int
        Number of the process on its machine.

    Raises
    ------
    UserError
        If this machine has no such device.
    """
    try:
        return get_device(accelerator if accelerator == "cpu" else f"{accelerator}:{local_rank}")
    except UserError as error:
        raise UserError(str(error.args[0]), where="system.hardware", mend="system=cpu") from error


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; on a CPU that is always so."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
