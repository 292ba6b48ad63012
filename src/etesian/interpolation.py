"""Resolution of a composed tree: every ``???`` and every interpolation that fails, reported at once."""

from __future__ import annotations

from collections.abc import Iterator
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
