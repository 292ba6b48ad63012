"""Whose fault it is when a layer fails in the middle of a run: the trial before it has few rows and one call.

Nothing wraps the layers: the traceback tells which of them was being called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from torch import nn

from etesian.errors import UserError
from etesian.kernels.record import KernelRecord, config_key
from etesian.kernels.resolve import ComponentKernels, KernelFactory
from etesian.kernels.slots import SLOTS


@contextmanager
def naming_kernels(kernels: ComponentKernels) -> Iterator[None]:
    """Turn what a layer of a slot raises into an error that names its slot and kernel; all else passes as it is.

    Want of memory is no fault of the layer that asked for it last. Failures of a backward pass have no layer in their
    traceback, and pass.

    Raises
    ------
    UserError
        With the kernel, the kind and text of what it raised, and where; caused by that.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as cause:
        record, place = _failing(cause.__traceback__, kernels)
        text = " ".join(str(cause).split())
        if record is None or "out of memory" in text or "allocate memory" in text:
            raise
        where = config_key(record.component, record.slot)
        owner = "the model" if record.component == "model" else f"the {record.component}"
        default = SLOTS[record.slot].target
        other = f", or {where}._target_={default}" if record.target != default else ""
        raise UserError(
            f"slot {record.slot} of {owner}: {record.target} failed at {place}: {type(cause).__name__}: {text}",
            where=where,
            mend=f"correct the kernel{other}" if record.library != "torch" else None,
        ) from cause


def _failing(traceback: TracebackType | None, kernels: ComponentKernels) -> tuple[KernelRecord | None, str]:
    """Return the kernel of the innermost layer of a slot that was being called, and the last line reached."""
    record, place = None, ""
    while traceback is not None:
        frame = traceback.tb_frame
        place = f"{frame.f_code.co_filename}:{traceback.tb_lineno}"
        layer = frame.f_locals.get("self")
        made_by = vars(layer).get("made_by") if isinstance(layer, nn.Module) else None
        if made_by is not None:
            component, slot = made_by
            factory: KernelFactory = getattr(getattr(kernels, component), slot)
            record = factory.record
        traceback = traceback.tb_next
    return record, place
