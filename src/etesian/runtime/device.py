"""The one place for what differs between devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is none that models run on", allowed="cpu, cuda, cuda:0")
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


class CopyStream:
    """Copies between a device and the host's pinned memory beside what the device computes.

    On a CPU, where there is no beside, copies are made at once.

    Parameters
    ----------
    device : torch.device
        The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def to_host(self, source: torch.Tensor) -> torch.Tensor:
        """Return a tensor that will hold a copy; the source has to stay until :meth:`wait`."""
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=self.stream is not None)
        return self._copy(host, source)

    def to_device(self, source: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device that will hold a copy, and has to stay until :meth:`wait`."""
        return self._copy(torch.empty(source.shape, dtype=source.dtype, device=self.device), source)

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if self.stream is None:
            return target.copy_(source)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))  # source written, target's memory free
        with torch.cuda.stream(self.stream):
            return target.copy_(source, non_blocking=True)

    def mark(self) -> Any:
        """Return a mark of all copies so far."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, mark: Any) -> None:
        """Let what the device computes from now on wait for the copies before a mark; the host does not wait."""
        if mark is not None:
            torch.cuda.current_stream(self.device).wait_event(mark)


class Mark(NamedTuple):
    """A moment: of the host, in seconds of its clock, and an event in the queue of a device that has one."""

    host: float
    event: torch.cuda.Event | None


class DeviceClock:
    """Takes times and reads memory on a device: the clock of :mod:`etesian.kernels.bench.timing`.

    On a GPU times come from events in the stream; on a CPU from a monotonic clock.

    Parameters
    ----------
    device : torch.device
        The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.cache_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        else:
            self.cache_bytes = _CACHE_OF_A_CPU

    @property
    def name(self) -> str:
        """Name of the card, or ``cpu`` with its threads."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        threads = torch.get_num_threads()
        return f"cpu, {threads} thread{'' if threads == 1 else 's'}"

    def seconds(self, work: Callable[[int], object], calls: int) -> tuple[float, float]:
        """Return the seconds of a call, back to back, and those that the host takes to launch it.

        Parameters
        ----------
        work : callable
            Called with 0, 1, ... `calls` - 1.
        calls : int
            How often.
        """
        if self.device.type != "cuda":
            start = time.perf_counter()
            for number in range(calls):
                work(number)
            each = (time.perf_counter() - start) / calls
            return each, each
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            start = time.perf_counter()
            for number in range(calls):
                work(number)
            host = time.perf_counter() - start
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / calls, host / calls

    def queued_seconds(self, work: Callable[[int], object], calls: int, host_seconds: float) -> float | None:
        """Return the seconds of a call on the device alone: all calls wait in its queue before the first begins.

        The queue is held up by a kernel that does nothing for longer than the host needs for the launches.

        Parameters
        ----------
        work : callable
            Called with 0, 1, ... `calls` - 1.
        calls : int
            How often.
        host_seconds : float
            What the host needs for one.

        Returns
        -------
        float or None
            None on a CPU, where launch and work are one.
        """
        if self.device.type != "cuda":
            return None
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int((1.5 * host_seconds * calls + 1e-3) * _FASTEST_CLOCK))
            begin.record()
            for number in range(calls):
                work(number)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / calls

    def peak_bytes(self, work: Callable[[], object]) -> int | None:
        """Return the most memory that work takes beside what is held before; None on a CPU, where nobody counts it."""
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def held_bytes(self) -> int | None:
        """Return the memory that tensors of this process hold; None on a CPU."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    def kept_bytes(self) -> int | None:
        """Return the memory that other processes can't have, recorded steps' too, unused caches given back."""
        if self.device.type != "cuda":
            return None
        self.release()
        return torch.cuda.memory_reserved(self.device)

    def free_bytes(self) -> int | None:
        """Return the memory that this process may still take, beside what its tensors hold; None on a CPU."""
        if self.device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept

    def mark(self) -> Mark:
        """Note this moment, of the host and, where the device has a queue, of the work that it has by then done."""
        if self.device.type != "cuda":
            return Mark(time.perf_counter(), None)
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return Mark(time.perf_counter(), event)

    def has_passed(self, mark: Mark) -> bool:
        """Tell, without waiting, whether the device has got to a mark."""
        return mark.event is None or mark.event.query()

    def between(self, first: Mark, second: Mark) -> float:
        """Return the seconds of the device from one mark to another; it must have passed both.

        What the device waits for between them, such as data, counts.
        """
        if first.event is None or second.event is None:
            return second.host - first.host
        return first.event.elapsed_time(second.event) / 1e3

    def peak_held_bytes(self) -> tuple[int, int] | None:
        """Return the most that tensors of this process held so far, and the most it kept for them; None on a CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)

    def record_allocations(self) -> None:
        """Begin to note what memory is taken and given back, and by which lines; nothing on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=_ALLOCATIONS, stacks="python")

    def write_allocations(self, path: Path) -> None:
        """Write what was noted, for pytorch.org/memory_viz, and note no more; nothing on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.memory._dump_snapshot(str(path))
            torch.cuda.memory._record_memory_history(enabled=None)

    def release(self) -> None:
        """Give the memory back that is kept for reuse."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class GraphRecorder:
    """Records work on a GPU as CUDA graphs that share their memory: :class:`etesian.runtime.step_graphs.Recorder`.

    Graphs that share it may be launched in any order if what one of them returned is read before the next begins.

    Parameters
    ----------
    device : torch.device
        The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], object]) -> None:
        """Run work in the stream that it will be recorded in: what libraries set up belongs to a stream."""
        with torch.cuda.device(self.device):
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                work()
            torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Return what launches the work again, and the tensor that then holds its result."""
        graph = torch.cuda.CUDAGraph()
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        generator = torch.cuda.default_generators[index]
        before = generator.clone_state()
        try:
            # Only this thread is watched: others may read data and copy them to the device meanwhile.
            with (
                torch.cuda.device(self.device),
                torch.cuda.stream(torch.cuda.current_stream(self.device)),  # set again where a recording's end fails
                torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                result = work()
        except Exception:
            generator.graphsafe_set_state(before)  # its own would wait for the end of the recording for ever
            raise
        return graph.replay, result


class BatchCopies:
    """Copies tensors to a device beside what it computes.

    Parameters
    ----------
    device : torch.device
        The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def begin(self, tensors: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Begin copies of tensors in page-locked memory; what is returned gives them, for the work that comes next."""
        with torch.cuda.stream(self.stream):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            done = self.stream.record_event()

        def arrived() -> list[torch.Tensor]:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(done)
            for copy in copies:
                copy.record_stream(current)  # its memory is not to be used again before that work is done
            return copies

        return arrived


_FASTEST_CLOCK = 2.2e9  # cycles a second: no card of today is faster, and on a slower one the wait is longer

_ALLOCATIONS = 200_000  # the latest that are kept; each holds a few lines of code

_CACHE_OF_A_CPU = 2**25  # bytes; about what a large one has a core or two
