"""What blocks keep for the backward pass, moved to the host's memory and back beside the computation.

Blocks are stages of a chain in the order in which they run. A tensor that autograd saves is copied to the host on a
stream of its own; the device's memory of a stage is given up when the next stage has run, by when the copies are done
or are waited for. In the backward pass a stage that begins fetches the stage before it. So the device holds what two
blocks keep, and the last block's never has to come back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from etesian.runtime.device import CopyStream

SMALLEST = 2**20
"""Bytes of a tensor that is moved; smaller ones stay where they are."""


class OffloadChain:
    """The stages of a model, and the streams that its devices copy on.

    Attributes
    ----------
    latest : Stage or None
        The stage that ran last.
    fetched : Stage or None
        The stage that was fetched last.
    """

    def __init__(self) -> None:
        self.latest: Stage | None = None
        self.fetched: Stage | None = None
        self._streams: dict[torch.device, CopyStream] = {}

    def stream(self, device: torch.device) -> CopyStream:
        """Return the stream of a device."""
        if device not in self._streams:
            self._streams[device] = CopyStream(device)
        return self._streams[device]

    def __reduce__(self) -> tuple[Any, ...]:
        return OffloadChain, ()  # copies and pickles have stages and streams of their own


class Stored:
    """Memory that tensors of a stage lie in.

    Attributes
    ----------
    host : Tensor, uint8
        The copy.
    device : Tensor, uint8, or None
        The same on the device, while it is there.
    """

    def __init__(self, device: Tensor, host: Tensor) -> None:
        self.device: Tensor | None = device
        self.host = host


class Stage:
    """One call of a block.

    Parameters
    ----------
    chain : OffloadChain
        The chain that it becomes a part of.
    stays : set of int
        Addresses of memory that is held anyway: the block's parameters.
    """

    def __init__(self, chain: OffloadChain, stays: set[int]) -> None:
        self.chain, self.stays = chain, stays
        before = chain.latest
        self.before = None if before is None else weakref.ref(before)
        self.stored: dict[tuple[int, int], weakref.ref[Stored]] = {}
        self.copied: list[tuple[Tensor, int]] = []  # tensors of which a copy may be under way, and their versions
        self.stream: CopyStream | None = None
        self.mark: Any = None  # when the copies of this stage are done
        self.begun = False

    def pack(self, tensor: Tensor) -> Any:
        """Return what autograd keeps for a tensor."""
        if type(tensor) not in (Tensor, nn.Parameter):  # a stand-in of a compiler, which has no memory
            return tensor
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not tensor.is_floating_point() or storage.nbytes() < SMALLEST or address in self.stays:
            return tensor
        held = self.stored.get((address, tensor._version), lambda: None)()
        if held is None:
            held = self._send(tensor)
            self.stored[address, tensor._version] = weakref.ref(held)
        return self, held, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def unpack(self, packed: Any) -> Tensor:
        """Return the tensor again."""
        if isinstance(packed, Tensor):
            return packed
        _, held, dtype, offset, shape, stride = packed
        if not self.begun:
            self.begin_backward()
        if held.device is None:  # of a graph that is gone through again
            self.fetch()
            self.arrive()
        tensor: Tensor = torch.empty(0, dtype=dtype, device=held.device.device)
        return tensor.set_(held.device.untyped_storage(), offset, shape, stride)

    def _send(self, tensor: Tensor) -> Stored:
        self.stream = self.chain.stream(tensor.device)
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        self.copied.append((tensor.detach(), tensor._version))
        return Stored(memory, self.stream.to_host(memory))

    def end_forward(self) -> None:
        """Give up the device's memory of the stage before.

        Raises
        ------
        RuntimeError
            If a tensor was changed in place after it was saved: the copy may hold either value.
        """
        if any(tensor._version != version for tensor, version in self.copied):
            raise RuntimeError("a tensor that is needed for the backward pass was changed in place after it was saved")
        if self.stream is not None:
            self.mark = self.stream.mark()
        before = self.chain.latest
        if before is not None:
            before.arrive()
            for held in before.alive():
                held.device = None
        self.chain.latest = self

    def begin_backward(self) -> None:
        """Wait until this stage is on the device, and fetch the one before."""
        self.begun = True
        self.fetch()
        self.arrive()
        before = None if self.before is None else self.before()
        if before is not None:
            before.fetch()

    def fetch(self) -> None:
        """Copy to the device what is not there."""
        missing = [held for held in self.alive() if held.device is None]
        if not missing or self.stream is None:
            return
        if self.chain.fetched is not None:
            self.chain.fetched.arrive()
        self.chain.fetched = self
        for held in missing:
            held.device = self.stream.to_device(held.host)
            self.copied.append((held.device, held.device._version))
        self.mark = self.stream.mark()

    def arrive(self) -> None:
        """Let the computation wait for the copies of this stage."""
        if self.stream is not None and self.copied:
            self.stream.wait(self.mark)
        self.copied.clear()

    def alive(self) -> list[Stored]:
        """Return the memory that autograd still holds."""
        return [held for reference in self.stored.values() if (held := reference()) is not None]


def run_offloaded(
    chain: OffloadChain, forward: Callable[..., Tensor], block: nn.Module, *args: Any, **kwargs: Any
) -> Tensor:
    """Run the forward of a block with what it keeps moved to the host.

    Parameters
    ----------
    chain : OffloadChain
        The chain of the model's blocks.
    forward : callable
        The forward of the block, compiled or not.
    block : nn.Module
        The block, whose parameters stay on the device.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    stage = Stage(chain, {parameter.untyped_storage().data_ptr() for parameter in block.parameters()})
    with saved_tensors_hooks(stage.pack, stage.unpack):
        out = forward(*args, **kwargs)
    stage.end_forward()
    return out
