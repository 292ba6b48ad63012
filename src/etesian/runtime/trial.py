"""Whether what is to be compiled can be, before any data are read.

The compiler of each entry is tried on a function of three operations. Then a stand-in of the model runs forward and
backward with its modules captured but not compiled, which takes seconds where compiling takes minutes.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence

import torch

from etesian.errors import Problem, UserError, did_you_mean
from etesian.kernels.machine import Machine
from etesian.kernels.resolve import ComponentKernels
from etesian.model.miniature import build_miniature, miniature_input, miniature_settings
from etesian.runtime.compile import Compilation, CountingBackend, first_lines
from etesian.runtime.entries import Entry, collect_entries
from etesian.runtime.prepare import prepare_model
from etesian.schema.model import ModelSettings
from etesian.schema.training import Precision


def try_compilation(
    settings: ModelSettings, kernels: ComponentKernels, device: torch.device, precision: Precision
) -> Compilation:
    """Try what ``model.compile`` and the slots' ``_compile_`` ask for; with neither, nothing is done.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    kernels : ComponentKernels
        The kernels of the experiment.
    device : torch.device
        The device of the run.
    precision : str
        ``training.precision``.

    Returns
    -------
    Compilation
        What was captured of the stand-in.

    Raises
    ------
    UserError
        If an entry names nothing there is or no module of the model, if two mean one module or one what is inside
        another's, if a module can't be captured as its options ask, if an entry captured nothing, if a compiler
        is unknown, made for tests or does not work here, or if an option says nothing to the device.
    """
    entries = collect_entries(settings, kernels)
    if not entries:
        return Compilation()
    problems = _switched_off(entries) or _unknown_backends(entries) or _for_gpus_only(entries, device)
    if problems:
        raise UserError.collect(problems)
    problems = _broken_compilers(entries, device)
    if problems:
        raise UserError.collect(problems)
    return _capture(settings, kernels, Machine(device, precision))


def _switched_off(entries: Sequence[Entry]) -> list[Problem]:
    from torch._dynamo import config

    if not config.disable:
        return []
    what = f"{entries[0].shown}: torch.compile is switched off in this process and would compile nothing"
    return [Problem(what, entries[0].where, mend="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE")]


def _unknown_backends(entries: Sequence[Entry]) -> list[Problem]:
    """Return the backends that are not there, and those that search for faults of torch or put some in."""
    from torch._dynamo import list_backends

    known = list(dict.fromkeys([*list_backends(), "eager", "aot_eager"]))
    there = list_backends(exclude_tags=())
    return [
        Problem(
            f"{entry.shown}: backend {entry.options.backend!r} is for tests of the compiler"
            if entry.options.backend in there
            else f"{entry.shown}: unknown backend {entry.options.backend!r}",
            _place(entry, "backend"),
            ", ".join(known),
            did_you_mean(entry.options.backend, known),
        )
        for entry in entries
        if entry.options.backend not in known
    ]


def _for_gpus_only(entries: Sequence[Entry], device: torch.device) -> list[Problem]:
    """Return the options that say nothing on a CPU."""
    if device.type != "cpu":
        return []
    problems = []
    for entry in entries:
        options = entry.options
        given = [("backend", "backend 'cudagraphs'")] if options.backend == "cudagraphs" else []
        given += [("mode", "mode 'reduce-overhead'")] if options.mode == "reduce-overhead" else []
        given += [("options", f"option {name!r}") for name in options.options
                  if name.replace("-", "_").startswith(("triton.", "cuda.", "rocm."))]  # fmt: skip
        problems += [
            Problem(f"{entry.shown}: {what} is for GPUs and does nothing on a CPU", _place(entry, key),
                    mend="leave it out, or system=gpu")
            for key, what in given
        ]  # fmt: skip
    return problems


def _place(entry: Entry, key: str) -> str:
    """Return the config key of an argument of torch.compile."""
    return f"{entry.where}.options.{key}" if "[" in entry.where else f"{entry.where}.{key}"


def _capture(settings: ModelSettings, kernels: ComponentKernels, machine: Machine) -> Compilation:
    """Run the stand-in forward and backward, with its modules captured and run as they are."""
    device = machine.device
    small = miniature_settings(settings)
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        model = build_miniature(settings, kernels).to(device, machine.parameters)
        compilation = prepare_model(model, small, kernels, backend="eager")
        try:
            with machine.context():
                y = model(miniature_input(settings, machine.parameters).to(device))
            y.float().square().mean().backward()
        except UserError:
            raise
        except Exception as cause:  # of a kernel, or of the compiler beside its own errors
            what = (
                f"a stand-in of the model ({small.num_channels} channels, one layer) that tries what is to be compiled "
                f"does not run: {type(cause).__name__}: {first_lines(cause)}"
            )
            raise UserError(what, where="model.compile", mend="model/compile=none, or other kernels") from cause
        finally:
            torch._dynamo.reset()  # what it learnt of the stand-in's shapes is not to count for the model's
    compilation.check()
    return compilation


def _broken_compilers(entries: Sequence[Entry], device: torch.device) -> list[Problem]:
    tried: dict[str, Problem | None] = {}
    for entry in entries:
        key = entry.options.model_copy(update={"fullgraph": False, "dynamic": None}).model_dump_json()
        if key not in tried:
            tried[key] = _try_compiler(entry, device)
    return [problem for problem in tried.values() if problem is not None]


def _try_compiler(entry: Entry, device: torch.device) -> Problem | None:
    """Compile a function that no cache holds, and run it forward and backward."""
    options, number = entry.options, time.time_ns() % 2**31

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + number).sin()

    x = torch.ones(64, device=device, requires_grad=True)
    try:
        compiled = torch.compile(function, backend=CountingBackend(options), fullgraph=True, dynamic=False)
        compiled(x).sum().backward()
    except Exception as cause:  # a compiler may raise anything
        return _broken(entry, device, cause)
    return None


def _broken(entry: Entry, device: torch.device, cause: Exception) -> Problem:
    options = entry.options
    if options.backend == "inductor" and "nexpected optimization option" in str(cause):
        known = torch._inductor.list_options()
        wrong = [name for name in options.options if name.replace("-", "_") not in known]
        place = _place(entry, "options")
        what = f"{entry.shown}: inductor has no option {', '.join(map(repr, wrong))}"
        return Problem(what, place, "those of torch._inductor.list_options()", did_you_mean(wrong[0], known))
    what = (
        f"{entry.shown}: the compiler {options.backend!r} does not work on {device.type}: "
        f"{type(cause).__name__}: {first_lines(cause)}"
    )
    return Problem(what, entry.where, mend=f"{_installation(options.backend, device)}model/compile=none")


def _installation(backend: str, device: torch.device) -> str:
    """Return what is to be installed for inductor, as far as it is not there."""
    if backend != "inductor":
        return ""
    if device.type != "cpu" and importlib.util.find_spec("triton") is None:
        return "pip install triton, which builds of torch for GPUs come with, or "
    if device.type != "cpu" and not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return "install a C compiler (apt-get install gcc), or "
    if device.type == "cpu":
        return "install a C++ compiler (apt-get install g++) or name one in CXX, or "
    return ""
