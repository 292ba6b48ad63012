"""Compilation of chosen modules in place, with the graphs of each entry counted.

A module's bound forward is replaced, not the module, so the names in a state dict stay. Copies and pickles have the
forward that was there before. Each entry has a backend object and a code object of its own: the compiler keeps graphs
by both, so the graphs of one entry are never taken for those of another, and the modules of one entry share theirs.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn

from etesian.errors import Problem, UserError
from etesian.runtime.entries import Entry, match_entries
from etesian.schema.compilation import CompileOptions

GRAPHS_A_MODULE = 8
"""Graphs that a module may have, for the shapes and modes that it meets; more stop the run."""


class CountingBackend:
    """The backend of one entry; counts the graphs that it compiles, but for those in which nothing is computed.

    Of those it counts how many were found as an earlier process had left them.

    Parameters
    ----------
    options : CompileOptions
        Name, mode and options of the compiler.
    """

    def __init__(self, options: CompileOptions) -> None:
        arguments = (options.mode, dict(options.options) or None, options.dynamic)
        if options.backend == "inductor":
            self.compiler: Any = torch._TorchCompileInductorWrapper(*arguments)
        else:
            self.compiler = torch._TorchCompileWrapper(options.backend, *arguments)
        self.graphs, self.found, self.seconds = 0, 0, 0.0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Compile a graph."""
        began, before = time.perf_counter(), _found_so_far()
        compiled = self.compiler(graph, inputs)
        self.seconds += time.perf_counter() - began
        if any(node.op.startswith("call_") for node in graph.graph.nodes):
            self.graphs += 1
            self.found += _found_so_far() > before
        return compiled


class CompiledEntry:
    """An entry with the modules that it compiled.

    Parameters
    ----------
    entry : Entry
        What asks for it.
    names : sequence of str
        Names of the modules in the model.
    backend : str, optional
        A compiler to take instead of the entry's.
    """

    def __init__(self, entry: Entry, names: Sequence[str], backend: str | None) -> None:
        self.entry, self.names = entry, tuple(names)
        options = entry.options
        if backend is not None:
            options = options.model_copy(update={"backend": backend, "mode": None, "options": {}})
        self.backend = CountingBackend(options)
        self.limit = GRAPHS_A_MODULE * len(self.names)
        self.code: CodeType | None = None
        self.faults = _faults()

    def compile(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `forward` compiled."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        if self.code is None:
            self.code = call.__code__.replace(co_name=f"compiled_{self.entry.name}".replace(".", "_"))
        call.__code__ = self.code
        options = self.entry.options
        return torch.compile(call, backend=self.backend, fullgraph=options.fullgraph, dynamic=options.dynamic)

    def explain(self, cause: Exception, module: nn.Module) -> UserError:
        """Return the error of a module that can't be compiled."""
        from torch._dynamo.exc import BackendCompilerFailed, Unsupported

        entry, kind = self.entry, f"{type(module).__module__}.{type(module).__qualname__}"
        text = first_lines(cause)
        if type(cause).__name__ in _LIMIT_HIT:
            return UserError(
                f"{entry.shown}: {kind} was called with more shapes than graphs are kept ({GRAPHS_A_MODULE} for each "
                f"of its {len(self.names)} modules)",
                where=f"{entry.where}",
                mend="options.dynamic: true, which compiles for all shapes, or batches of one size",
            )
        if isinstance(cause, BackendCompilerFailed):
            what = f"{entry.shown}: the compiler {entry.options.backend!r} fails on {kind}: {text}"
            return UserError(what, where=entry.where, mend="another backend or mode, or do not compile it")
        if isinstance(cause, Unsupported):
            return UserError(
                f"{entry.shown} asks for fullgraph, but {kind} can't be compiled as one graph: {text}",
                where=entry.where,
                mend="options.fullgraph: false, which compiles the parts around what can't be, or another kernel",
            )
        what = f"{entry.shown}: compiling {kind} fails: {type(cause).__name__}: {text}"
        return UserError(what, where=entry.where, mend="do not compile it, or another kernel")


class CompiledForward:
    """Stands in for the bound forward of a module and runs it compiled; copies and pickles are what it stands for.

    Parameters
    ----------
    module : nn.Module
        The module.
    compiled : CompiledEntry
        The entry that it belongs to.
    """

    def __init__(self, module: nn.Module, compiled: CompiledEntry) -> None:
        self.module, self.compiled = module, compiled
        self.__wrapped__ = module.forward
        self.function = compiled.compile(module.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of the module, compiled."""
        if getattr(_LIMITS, "at", -1) != _required:
            _set_limits()
        try:
            return self.function(*args, **kwargs)
        except self.compiled.faults as cause:
            raise self.compiled.explain(cause, self.module) from cause

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.__wrapped__,)


def _itself(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward


@dataclass(frozen=True)
class Compilation:
    """What of a model is compiled."""

    entries: tuple[CompiledEntry, ...] = ()

    @property
    def graphs(self) -> int:
        """Graphs so far."""
        return sum(compiled.backend.graphs for compiled in self.entries)

    @property
    def seconds(self) -> float:
        """Seconds that the compilers took so far."""
        return sum(compiled.backend.seconds for compiled in self.entries)

    @property
    def found(self) -> int:
        """Graphs among them that an earlier process had compiled."""
        return sum(compiled.backend.found for compiled in self.entries)

    def describe(self) -> str:
        """Return ``LayerNorm (11 modules, fullgraph), ...``; empty where nothing is compiled."""
        return ", ".join(compiled.entry.describe(len(compiled.names)) for compiled in self.entries)

    def report(self) -> str:
        """Return the graphs of each entry."""
        each = ", ".join(f"{compiled.entry.name} {compiled.backend.graphs}" for compiled in self.entries)
        kept = f", {self.found} of them kept from before" if self.found else ""
        return f"{self.graphs} graph{'s' * (self.graphs != 1)} in {self.seconds:.1f} s ({each}){kept}"

    def check(self) -> None:
        """Check, after the model ran, that every entry compiled something.

        Raises
        ------
        UserError
            With each entry that did not.
        """
        idle = [compiled for compiled in self.entries if not compiled.backend.graphs]
        if idle:
            raise UserError.collect([_no_graph(compiled) for compiled in idle])


def compile_modules(model: nn.Module, entries: Sequence[Entry], *, backend: str | None = None) -> Compilation:
    """Compile the modules that the entries mean, in place; the compiler runs when they are first called.

    Parameters
    ----------
    model : nn.Module
        A built model.
    entries : sequence of Entry
        What to compile.
    backend : str, optional
        A compiler to take instead of that of each entry, such as ``eager`` to see whether modules can be captured.

    Raises
    ------
    UserError
        See :func:`etesian.runtime.entries.match_entries`.
    """
    matched = match_entries(model, entries)
    done = []
    for entry, modules in zip(entries, matched, strict=True):
        compiled = CompiledEntry(entry, list(modules), backend)
        for module in modules.values():
            module.forward = CompiledForward(module, compiled)
        done.append(compiled)
    if done:
        _require_limit(max(compiled.limit for compiled in done))
    return Compilation(tuple(done))


def _no_graph(compiled: CompiledEntry) -> Problem:
    entry, count = compiled.entry, len(compiled.names)
    what = (
        f"{entry.shown} compiled nothing: the model ran, and the compiler was given no graph of its {count} "
        f"module{'s' * (count != 1)}, which {'are' if count != 1 else 'is'} not called, or hold nothing to compile"
    )
    return Problem(what, entry.where, mend=entry.removal)


_LIMIT_HIT = ("FailOnRecompileLimitHit", "FailOnCacheLimitHit")
_LIMITS = threading.local()
_required = 0


def _require_limit(graphs: int) -> None:
    """Let that many graphs be kept for one code object, on every thread; one more is an error, never eager code."""
    global _required
    _required = max(_required, graphs)
    _set_limits()


def _set_limits() -> None:
    """Set the limits for this thread: the compiler's settings belong to a thread, and a backward pass has its own."""
    from torch._dynamo import config

    for name in ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit", "accumulated_cache_size_limit"):
        if hasattr(config, name):
            setattr(config, name, max(getattr(config, name), _required))
    for name in ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit"):
        if hasattr(config, name):
            setattr(config, name, True)
    _LIMITS.at = _required


def _found_so_far() -> int:
    """Return how many graphs the compiler found compiled already."""
    from torch._dynamo.utils import counters

    return int(counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"])


def _faults() -> tuple[type[Exception], ...]:
    from torch._dynamo import exc

    limits = [getattr(exc, name) for name in _LIMIT_HIT if hasattr(exc, name)]
    return (exc.TorchDynamoException, *limits)


def first_lines(cause: Exception) -> str:
    """Return what an error of the compiler says before it shows code, on one line."""
    lines = []
    for line in str(cause).splitlines():
        if line.strip().startswith(("from user code", "Developer debug context", "Set TORCH", "For more details")):
            break
        lines.append(line.strip())
    return " ".join(part for part in lines if part)[:600]
