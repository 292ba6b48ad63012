"""What torch.compile takes, and what it is applied to."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from etesian.schema.base import Section


class CompileOptions(Section):
    """Arguments of ``torch.compile``."""

    fullgraph: bool = False
    """Stop where a module can't be compiled as one graph, instead of compiling the parts around what can't be."""
    dynamic: bool | None = None
    """false compiles a graph for every shape, true one for all; null begins with the shape it meets first."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = None
    """A set of inductor's options; null is ``default``."""
    backend: str = "inductor"
    """The compiler, one of ``torch._dynamo.list_backends()``; also ``eager`` and ``aot_eager``, which find faults."""
    options: dict[str, bool | int | float | str] = {}
    """Options of inductor by name, those of ``torch._inductor.list_options()``."""

    @model_validator(mode="after")
    def _mode_or_options(self) -> CompileOptions:
        if self.mode is not None and self.options:
            raise ValueError(f"mode={self.mode!r} and options exclude each other: a mode is a set of options")
        if self.backend != "inductor" and (self.mode is not None or self.options):
            given = "options" if self.options else f"mode={self.mode!r}"
            raise ValueError(f"{given} goes with backend 'inductor'; {self.backend!r} would not read it")
        return self


class CompileEntry(Section):
    """Modules to compile: those that a slot made, or those of a class."""

    kernel: str | None = None
    """A slot of ``model.layer_kernels``: every module that it made, in every component."""
    module: str | None = None
    """Import path of a class: every module that is an instance of it."""
    component: Literal["encoder", "processor", "decoder"] | None = None
    """With `module`: only the modules of that component; null: of all of them, and the model itself."""
    options: CompileOptions = CompileOptions()
    """Arguments of ``torch.compile``."""

    @model_validator(mode="after")
    def _names_one(self) -> CompileEntry:
        if (self.kernel is None) == (self.module is None):
            found = "neither kernel nor module" if self.kernel is None else "both kernel and module"
            raise ValueError(f"an entry names {found}: it takes one, 'kernel: SLOT' or 'module: import.path.Class'")
        if self.kernel is not None and self.component is not None:
            slot = f"model.{self.component}.layer_kernels.{self.kernel}"
            raise ValueError(f"component goes with module; a slot of a component is compiled by {slot}._compile_")
        return self


def describe_options(options: CompileOptions) -> str:
    """Return what of the options is not the default, in words: ``fullgraph, dynamic=False``."""
    words = ["fullgraph"] if options.fullgraph else []
    words += [] if options.dynamic is None else [f"dynamic={options.dynamic}"]
    words += [options.mode] if options.mode is not None else []
    words += [f"backend={options.backend}"] if options.backend != "inductor" else []
    return ", ".join([*words, *(f"{name}={value!r}" for name, value in options.options.items())])
