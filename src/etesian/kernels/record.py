"""What was resolved, for the screen, the loggers and the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from etesian.schema.compilation import CompileOptions, describe_options

if TYPE_CHECKING:
    from rich.table import Table

_NOT_USED = "not used"


@dataclass(frozen=True)
class KernelRecord:
    """One slot of one component.

    Attributes
    ----------
    slot : str
        Name of the slot.
    component : str
        ``model``, or the component that fills the slot otherwise than the model does.
    target : str
        Dotted path of the kernel.
    arguments : dict
        What the config passes to it.
    family : str
        Its mathematics; see :mod:`etesian.kernels.families`.
    library, version : str
        The distribution that provides it, and its version.
    origin : str
        ``preset NAME``, ``config``, ``override`` or ``default``.
    note : str
        What a user has to know beside that, such as a fusion over another slot.
    compile : dict or None
        The options with which it is compiled that are not torch.compile's defaults; None where it is not.
    compiled_by : str
        Config key that has it compiled: its ``_compile_``, or an entry of ``model.compile``.
    constants : dict
        What the arguments and the defaults of the kernel make of the constants of its family, such as eps.
    """

    slot: str
    component: str
    target: str
    arguments: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    library: str = ""
    version: str = ""
    origin: str = "default"
    note: str = ""
    compile: dict[str, Any] | None = None
    constants: dict[str, Any] = field(default_factory=dict)
    compiled_by: str = ""


def config_key(component: str, slot: str) -> str:
    """Return the config key of a slot of ``model``, or of a component."""
    prefix = "model" if component == "model" else f"model.{component}"
    return f"{prefix}.layer_kernels.{slot}"


def table(records: Sequence[KernelRecord]) -> Table:
    """Lay the records out for a terminal of 80 columns: the kernel, and below it family, library, origin and note.

    A component's kernel that stands above already takes one line, and so do all that are not used.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    laid_out = Table(title="Layer kernels", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    laid_out.add_column("slot", no_wrap=True)
    laid_out.add_column("kernel: family, library, origin", overflow="fold")
    shown: dict[str, str] = {}
    for record in records:
        if record.note.startswith(_NOT_USED):
            continue
        label, kernel = _label(record), f"{record.slot} {record.target} {record.arguments} {record.compile}"
        if kernel in shown:
            facts = [f"as {shown[kernel]}", record.origin, record.note]
            laid_out.add_row(label, Text(", ".join(fact for fact in facts if fact), style="dim"))
            continue
        shown[kernel] = label
        arguments = ", ".join(f"{name}={value!r}" for name, value in record.arguments.items())
        target = f"{record.target}({arguments})" if arguments else record.target
        facts = [record.family, f"{record.library} {record.version}".strip(), record.origin, _compiled(record)]
        facts.append(record.note)
        laid_out.add_row(label, Text.assemble(target, "\n", (", ".join(fact for fact in facts if fact), "dim")))
    if unused := _unused(records):
        laid_out.add_row("not used", Text(unused, style="dim"))
    return laid_out


def _label(record: KernelRecord) -> str:
    return record.slot if record.component == "model" else f"{record.component}.{record.slot}"


def _unused(records: Sequence[KernelRecord]) -> str:
    """Return the slots that nothing uses, by reason: ``QueryNorm, KeyNorm (qk_norm is false); ...``."""
    reasons: dict[str, list[str]] = {}
    for record in records:
        if record.note.startswith(_NOT_USED):
            reasons.setdefault(record.note.removeprefix(_NOT_USED).lstrip(": "), []).append(_label(record))
    return "; ".join(f"{', '.join(labels)} ({reason})" for reason, labels in reasons.items())


def _compiled(record: KernelRecord) -> str:
    if record.compile is None:
        return ""
    words = describe_options(CompileOptions.model_validate(record.compile))
    return f"compiled ({words})" if words else "compiled"


def to_json(records: Sequence[KernelRecord]) -> list[dict[str, Any]]:
    """Return the records as plain dicts, for a checkpoint's metadata or a logger."""
    return [asdict(record) for record in records]


def from_json(records: Sequence[dict[str, Any]]) -> list[KernelRecord]:
    """Return the records that :func:`to_json` wrote.

    Raises
    ------
    TypeError
        If an entry has a key that a record has not, or lacks one.
    """
    return [KernelRecord(**record) for record in records]
