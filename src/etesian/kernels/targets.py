"""From a dotted path to the class or function it names, with the whole cause where that fails."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import traceback
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from etesian import __version__
from etesian.errors import Problem, did_you_mean, nearest
from etesian.kernels.libraries import EXTRAS, installation, installed_version, top_library


class TargetError(Exception):
    """A target that can't be used; carries the problem for the user."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.what)


def import_target(path: str, *, slot: str, where: str) -> Any:
    """Import what a dotted path names and check that it can make a layer; nothing of it is called.

    Parameters
    ----------
    path : str
        For example ``torch.nn.LayerNorm``.
    slot : str
        The slot it is for, for the message.
    where : str
        The config key that holds the path.

    Raises
    ------
    TargetError
        If the library is missing or broken, the path is wrong inside it, or the object is neither a class of
        modules nor a function that is annotated to return one.
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise TargetError(
            Problem(
                f"slot {slot}: {path!r} is not a dotted path",
                where,
                "a full import path such as torch.nn.LayerNorm",
            )
        )
    found: Any = _import_library(parts[0], path, slot, where)
    for position in range(1, len(parts)):
        found = _step_into(found, parts, position, slot, where)
    _check_makes_modules(found, path, slot, where)
    return found


def library_of(found: Any, path: str) -> tuple[str, str]:
    """Return the distribution that provides an imported target, and its version; a file of no distribution has none.

    An adapter of this package for kernels of another library counts as that library's.
    """
    top = top_library(path)
    if top == "etesian":
        return "etesian", __version__
    if top in EXTRAS:
        return EXTRAS[top][0], installed_version(EXTRAS[top][0]) or "not installed as a distribution"
    try:
        return top, importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        distributions = _distributions().get(top)
    if distributions:
        return distributions[0], importlib.metadata.version(distributions[0])
    return inspect.getsourcefile(found) or top, ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _import_library(name: str, path: str, slot: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        if cause.name != name:
            raise TargetError(_import_failure(name, path, slot, where, cause)) from cause
        raise TargetError(_library_missing(name, path, slot, where, cause)) from cause
    except (Exception, SystemExit) as cause:
        raise TargetError(_import_failure(name, path, slot, where, cause)) from cause


def _library_missing(name: str, path: str, slot: str, where: str, cause: BaseException) -> Problem:
    here = [module.name for module in pkgutil.iter_modules([str(Path.cwd())])]
    near = nearest(name, ["torch", "etesian", *EXTRAS, *here], least=0.75)
    ways = f"install the library that provides {name!r}, put {name}.py into the current folder, or correct the path"
    meant = f"did you mean {' or '.join(map(repr, near))}? Else " if near else ""
    distribution, mend = name, f"{meant}{ways}"
    if name in EXTRAS:
        distribution, extra = EXTRAS[name]
        mend = installation(extra)
    what = f"slot {slot}: {path} can't be imported: the library is missing ({distribution}): {_text(cause)}"
    return Problem(what, where, mend=mend)


def _step_into(found: Any, parts: list[str], position: int, slot: str, where: str) -> Any:
    """Return the attribute or submodule ``parts[position]`` of what the parts before it lead to."""
    path, name, last = ".".join(parts), parts[position], position == len(parts) - 1
    if last and _has(found, name, parts, position, slot, where):
        return getattr(found, name)
    if isinstance(found, ModuleType):
        module = ".".join(parts[: position + 1])
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as cause:
            if cause.name != module:
                raise TargetError(_import_failure(module, path, slot, where, cause)) from cause
        except (Exception, SystemExit) as cause:
            raise TargetError(_import_failure(module, path, slot, where, cause)) from cause
    if _has(found, name, parts, position, slot, where):
        return getattr(found, name)
    parent = ".".join(parts[:position])
    what = (
        f"slot {slot}: {path} can't be imported: {parts[0]!r} is installed, but the path is wrong inside it: "
        f"{parent!r} has no {name!r}"
    )
    raise TargetError(Problem(what, where, mend=did_you_mean(name, _names_in(found))))


def _has(found: Any, name: str, parts: list[str], position: int, slot: str, where: str) -> bool:
    """Tell whether `found` has the attribute; a module that imports it only now may fail in doing so."""
    try:
        return hasattr(found, name)
    except (Exception, SystemExit) as cause:
        module = ".".join(parts[: position + 1])
        raise TargetError(_import_failure(module, ".".join(parts), slot, where, cause)) from cause


def _names_in(found: Any) -> list[str]:
    names = {name for name in dir(found) if not name.startswith("_")}
    if isinstance(found, ModuleType) and hasattr(found, "__path__"):
        names |= {module.name for module in pkgutil.iter_modules(found.__path__)}
    return sorted(names)


def _import_failure(module: str, path: str, slot: str, where: str, cause: BaseException) -> Problem:
    what = f"slot {slot}: {path} can't be imported: importing {module!r} failed: {_text(cause)}"
    named = (cause.name or "").split(".")[0] if isinstance(cause, ImportError) else ""
    missing = named if isinstance(cause, ModuleNotFoundError) else ""
    top = module.split(".", maxsplit=1)[0]
    if missing == top_library(path) and importlib.util.find_spec(missing) is None:  # an adapter's own library
        return _library_missing(missing, path, slot, where, cause)
    if missing and (top in EXTRAS or missing in EXTRAS):
        _, extra = EXTRAS.get(top) or EXTRAS[missing]
        return Problem(what, where, mend=installation(extra))
    if named in EXTRAS:  # a name that an adapter needs is not in the version that is there
        return Problem(what, where, mend=f"{installation(EXTRAS[named][1])} --upgrade")
    if missing:
        return Problem(what, where, mend=f"install {missing!r}")
    line = _own_line(top, cause)
    return Problem(what, where, mend=f"correct {line}" if line else f"mend the installation of {top!r}")


def _own_line(top: str, cause: BaseException) -> str | None:
    """Return file and line where importing failed, where the code is of no distribution but the user's own."""
    if top in _distributions():
        return None
    if isinstance(cause, SyntaxError) and cause.filename is not None:
        return f"{cause.filename}, line {cause.lineno}"
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if top in Path(f.filename).with_suffix("").parts]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None


def _type_name(annotation: Any) -> str:
    if not inspect.isclass(annotation):
        return str(annotation)
    return f"{annotation.__module__}.{annotation.__qualname__}".removeprefix("builtins.")


def _text(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {cause}"


def _check_makes_modules(found: Any, path: str, slot: str, where: str) -> None:
    allowed = "a subclass of torch.nn.Module, or a function annotated to return one"
    if inspect.isclass(found):
        if issubclass(found, nn.Module):
            return
        raise TargetError(Problem(f"slot {slot}: {path} is a class, but no torch.nn.Module", where, allowed))
    if not inspect.isfunction(found):
        kind = "module" if isinstance(found, ModuleType) else type(found).__name__
        raise TargetError(Problem(f"slot {slot}: {path} is a {kind}; it was not called", where, allowed))
    try:
        returned = typing.get_type_hints(found).get("return")
    except Exception as cause:
        what = f"slot {slot}: the annotations of {path} can't be read ({_text(cause)}); it was not called"
        raise TargetError(Problem(what, where, allowed)) from cause
    if not (inspect.isclass(returned) and issubclass(returned, nn.Module)):
        said = "has no return annotation" if returned is None else f"is annotated to return {_type_name(returned)}"
        raise TargetError(Problem(f"slot {slot}: the function {path} {said}; it was not called", where, allowed))
