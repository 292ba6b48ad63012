"""Resolution of a composed tree: every ``???`` and every interpolation that fails, reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from etesian.errors import Problem, UserError, did_you_mean


def resolve(config: DictConfig) -> dict[str, Any]:
    """Return a config as plain Python values, interpolations replaced by what they refer to.

    Raises
    ------
    UserError
        With every key that is ``???`` and every interpolation that fails.
    """
    keys = [key for key, *_ in _walk(config)]
    problems = [
        Problem(f"{key} must be given: it is '???' in the config", key, mend=f"{key}=VALUE")
        for key in missing_keys(config)
    ]
    for key, node, parent, name in _walk(config):
        if node._is_interpolation() and (problem := _problem(key, node, parent, name, keys)):
            problems.append(problem)
    if problems:
        raise UserError.collect(problems)
    tree = OmegaConf.to_container(config, resolve=True)
    if not isinstance(tree, dict):
        raise TypeError(f"a config is a mapping, not {type(tree).__name__}")
    return {str(key): value for key, value in tree.items()}


def missing_keys(config: DictConfig) -> list[str]:
    """Return the full keys of the values that are ``???``."""
    return [key for key, node, *_ in _walk(config) if node._is_missing()]


def _walk(container: DictConfig | ListConfig, prefix: str = "") -> Iterator[tuple[str, Node, Any, Any]]:
    """Yield full key, node, its container and its key there, without resolving anything."""
    if container._is_none() or container._is_missing() or container._is_interpolation():
        return
    names: list[Any] = list(container.keys()) if isinstance(container, DictConfig) else list(range(len(container)))
    for name in names:
        node = container._get_node(name)
        if not isinstance(node, Node):
            continue
        yield f"{prefix}{name}", node, container, name
        if isinstance(node, DictConfig | ListConfig):
            yield from _walk(node, f"{prefix}{name}.")


def _problem(key: str, node: Node, parent: Any, name: Any, keys: list[str]) -> Problem | None:
    try:
        parent[name]
    except RecursionError:
        return Problem(f"{key}: {node._value()} refers to itself in a circle", key)
    except InterpolationToMissingValueError:
        return None  # the key it refers to is reported as missing
    except OmegaConfBaseException as error:
        text = str(error).partition("\n")[0]
        wanted = text.split("'")[1] if text.startswith("Interpolation key '") else ""
        hint = did_you_mean(wanted, keys) if wanted else None
        return Problem(f"{key}: {node._value()} cannot be resolved: {text}", key, mend=hint)
    return None


@dataclass(frozen=True)
class Unset:
    """A value that is ``???``, or an interpolation that can't be resolved."""

    why: str
    """What keeps it from being a value."""
    source: str | None = None
    """The key that it refers to and that has no value."""

    def __str__(self) -> str:
        return "???"


@dataclass(frozen=True)
class Leaf:
    """A value of a config that is no section.

    Attributes
    ----------
    path : tuple of str
        Names of the sections and of the value; places in lists are numbers.
    value : object
        Its value, interpolations resolved; an :class:`Unset` where it has none.
    referred : bool
        Whether another value refers to it, or to a section that it is in.
    lists : tuple of bool
        For each part of the path, whether it is a place in a list.
    """

    path: tuple[str, ...]
    value: Any
    referred: bool
    lists: tuple[bool, ...]

    def name(self, length: int | None = None) -> str:
        """Return the key of the value, or of the section that the first `length` parts of its path lead to."""
        parts = [f"[{part}]" if is_place else f".{part}" for part, is_place in zip(self.path, self.lists, strict=True)]
        return "".join(parts[:length]).removeprefix(".")


def leaves(config: DictConfig) -> list[Leaf]:
    """Return every value of a config; what can't be resolved is no error here."""
    referred = {name for key, node, *_ in _walk(config) if node._is_interpolation() for name in _references(key, node)}
    return [
        Leaf(path, value, any(".".join(path[:n]) in referred for n in range(1, len(path) + 1)), lists)
        for path, value, lists in _leaves(config, (), ())
    ]


def _leaves(
    container: DictConfig | ListConfig, path: tuple[str, ...], lists: tuple[bool, ...]
) -> Iterator[tuple[tuple[str, ...], Any, tuple[bool, ...]]]:
    is_list = isinstance(container, ListConfig)
    names: list[Any] = list(range(len(container))) if is_list else list(container.keys())
    for name in names:
        here, kinds = (*path, str(name)), (*lists, is_list)
        try:
            value = container[name]
        except OmegaConfBaseException as error:
            node = container._get_node(name)
            written = node._value() if isinstance(node, Node) else "???"
            text = str(error).partition("\n")[0]
            _, found, source = text.partition("Missing mandatory value: ")
            told = "it is '???'" if found else f"{written}: {text}"
            yield here, Unset(told, source if found and written != "???" else None), kinds
            continue
        nodes = [value._get_node(place) for place in range(len(value))] if isinstance(value, ListConfig) else []
        sections = any(isinstance(node, DictConfig) for node in nodes)
        if sections or (isinstance(value, DictConfig) and len(value)):
            yield from _leaves(value, here, kinds)
        else:
            plain = OmegaConf.to_container(value, resolve=True) if isinstance(value, DictConfig | ListConfig) else value
            yield here, plain, kinds


def _references(key: str, node: Node) -> Iterator[str]:
    """Yield the full keys that an interpolation refers to; one dot at its begin means beside it, two a section up."""
    for name in re.findall(r"\$\{([^${}:]+)\}", str(node._value())):
        plain = name.replace("[", ".").replace("]", "")
        dots = len(plain) - len(plain.lstrip("."))
        yield ".".join([*key.split(".")[:-dots], plain.lstrip(".")]) if dots else plain
