"""Keys of a config's files that come to nothing, since another file of the defaults list sets them after it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from etesian.errors import Problem, UserError

_MISSING = object()
_UNMATCHED = re.compile(r"In '([^']+)': Could not override '([^']+)'")


def refuse_outdone(name: str, origin: Path, base: DictConfig, files: Mapping[str, str | None], repository: Any) -> None:
    """Refuse keys that a top-level config sets, or an option of a group for other sections, and that do not count.

    Parameters
    ----------
    name : str
        The top-level config.
    origin : Path
        Its file.
    base : DictConfig
        The config without the overrides of the command line that choose no option of a group.
    files : mapping
        Path of each file, without its suffix, to the key that it is put under, in the order they are put together.
    repository : hydra's config repository
        Reads the files.

    Raises
    ------
    UserError
        With each such key and the file that sets it instead.
    """
    contents = {path: keys for path in files if (keys := _keys(path, repository)) is not None}
    problems: list[Problem] = []
    if name in contents and not files.get(name):
        problems += _own(contents[name], origin, OmegaConf.to_container(base))
    for path, package in files.items():
        if "/" in path and not package and path in contents:
            problems += _of_option(path, contents, files, origin)
    if problems:
        raise UserError.collect(problems)


def unmatched_choice(text: str) -> Problem | None:
    """Return the problem of a file that chooses an option of a group which no defaults list names before it."""
    found = _UNMATCHED.search(text)
    if found is None:
        return None
    file, group = found.groups()
    option = file.replace("/", ": ")
    return Problem(
        f"{file}.yaml chooses an option of the group {group!r}, which the defaults list does not name before it",
        mend=f"put '- {group}: OPTION' into the defaults list, and '- {option}' after it, just before '- _self_'",
    )


def _keys(path: str, repository: Any) -> Any:
    """Return what a file sets; None where it is no mapping."""
    loaded = repository.load_config(path)
    if loaded is None or not OmegaConf.is_dict(loaded.config):
        return None
    return OmegaConf.to_container(loaded.config)


def _own(keys: Any, origin: Path, base: Any) -> Iterator[Problem]:
    """Yield the keys of the top-level config that are not what came of them."""
    for key, value in _leaves(keys):
        there = _at(base, key)
        if there != value:
            dotted = ".".join(map(str, key))
            shown = _shown(None if there is _MISSING else there)
            what = (
                f"{dotted}: {_shown(value)} does not count: a file that the defaults list names after it sets {shown}"
            )
            yield Problem(what, f"{origin}, {dotted}", mend="put '- _self_' at the end of the defaults list")


def _of_option(
    path: str, contents: Mapping[str, Any], files: Mapping[str, str | None], origin: Path
) -> Iterator[Problem]:
    """Yield the keys of an option that sets those of other sections, and that one of another group sets after it."""
    group = path.rpartition("/")[0]
    later = [other for other in list(files)[list(files).index(path) + 1 :] if other in contents]
    for key, value in _leaves(contents[path]):
        setters = {}
        for other in later:
            inside = tuple(filter(None, (files[other] or "").split(".")))
            found = _at(contents[other], key[len(inside) :]) if key[: len(inside)] == inside else _MISSING
            if found is not _MISSING:
                setters[other] = found
        last = next(reversed(setters), "")
        if last.rpartition("/")[0] not in ("", group) and setters[last] != value:
            dotted, option = ".".join(map(str, key)), path.replace("/", ": ")
            what = (
                f"{dotted}: {_shown(value)} of {path}.yaml does not count: {last}.yaml, which the defaults list names "
                f"after it, sets {_shown(setters[last])}"
            )
            yield Problem(
                what, str(origin), mend=f"put '- {option}' at the end of the defaults list, before '- _self_'"
            )


def _shown(value: Any) -> str:
    """Return a value as YAML writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(tree: Any, key: tuple[Any, ...]) -> Any:
    for part in key:
        if not isinstance(tree, dict) or part not in tree:
            return _MISSING
        tree = tree[part]
    return tree


def _leaves(value: Any, key: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for name, child in value.items():
            if key or name != "defaults":
                yield from _leaves(child, (*key, name))
    else:
        yield key, value
