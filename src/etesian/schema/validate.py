"""From a composed tree to a :class:`~etesian.schema.config.Config`: every mistake found, in one error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from etesian.errors import Problem, UserError, did_you_mean, nearest, shell_word
from etesian.schema.base import LARGEST, Section
from etesian.schema.config import Config
from etesian.schema.describe import describe, is_list, keys_of, section_in, show
from etesian.schema.registry import KindError, kinds, load_kind
from etesian.schema.rules import cross_section_problems

Path = tuple[str | int, ...]
SectionType = TypeVar("SectionType", bound=Section)

_KIND_OF: dict[tuple[str, ...], str] = {
    ("model",): "model",
    ("model", "encoder"): "encoder",
    ("model", "processor"): "processor",
    ("model", "decoder"): "decoder",
    ("model", "bounding", "*"): "bounding",
    ("training", "training_loss"): "loss",
    ("training", "scalers", "*"): "scaler",
}
"""Sections whose keys depend on their ``kind``, by path; ``*`` stands for any name or position."""


def validate_config(tree: dict[str, Any]) -> Config:
    """Check a resolved tree against the schema.

    Parameters
    ----------
    tree : dict
        The whole config in plain Python values. The kinds it names must be registered already.

    Returns
    -------
    Config
        Frozen; sections with a ``kind`` are instances of that kind's own section.

    Raises
    ------
    UserError
        With one problem for each mistake: full key, value, what is allowed, nearest spelling.
    """
    found = _Found()
    prepared = _build_kinds(tree, (), found)
    config = None
    try:
        config = Config.model_validate(prepared)
    except ValidationError as error:
        found.add(error, (), tree, Config)
    if config is not None and not found.problems:
        found.problems.extend(cross_section_problems(config))
    if found.problems or config is None:
        raise UserError.collect(dict.fromkeys(found.problems))
    return config


def validate_section(name: str, value: Any) -> Any:
    """Check one section of the config alone, such as ``model``; the rules across sections are left out.

    Raises
    ------
    UserError
        As :func:`validate_config`.
    """
    found = _Found()
    prepared = _build_kinds(value, (name,), found)
    section: Any = Config.model_fields[name].annotation
    try:
        checked = prepared if isinstance(prepared, Section) else section.model_validate(prepared)
    except ValidationError as error:
        found.add(error, (name,), value, section)
    if found.problems:
        raise UserError.collect(dict.fromkeys(found.problems))
    return checked


class _Found:
    """What was found wrong so far, and the sections with a kind that it concerns."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.failed: list[Path] = []

    def fail(self, path: Path, problem: Problem) -> None:
        self.problems.append(problem)
        self.failed.append(path)

    def add(self, error: ValidationError, prefix: Path, value: Any, root: type[Section]) -> None:
        """Add one problem for each place that pydantic objects to in `value`, which stands at `prefix`."""
        details: dict[Path, Any] = {}
        for detail in error.errors(include_url=False):
            location = detail["loc"]
            if detail["type"] in ("missing", "extra_forbidden"):
                inner = (*_real_path(location[:-1], value), location[-1])
            else:
                inner = _real_path(location, value)
            path = (*prefix, *inner)
            if not any(path[: len(failed)] == failed for failed in self.failed):
                details.setdefault(inner, detail)
        for inner, detail in details.items():
            if not any(other[: len(inner)] == inner and other != inner for other in details):
                self.problems.append(_problem(detail, prefix, inner, value, root))


def check_section(value: Any, key: str, section: type[SectionType]) -> tuple[SectionType | None, list[Problem]]:
    """Check a section that stands where the schema allows anything.

    Parameters
    ----------
    value : Any
        What stands there.
    key : str
        Its full key.
    section : type of Section
        What it should be.

    Returns
    -------
    tuple
        The section, or None where the list beside it tells what is wrong.
    """
    found = _Found()
    try:
        return section.model_validate(value), []
    except ValidationError as error:
        found.add(error, tuple(key.split(".")), value, section)
    return None, found.problems


def knows(key: str, tree: dict[str, Any]) -> bool | None:
    """Tell whether the schema has a full key: True, False, or None where any name may stand (a free mapping)."""
    if isinstance(tree.get("model"), dict):
        tree = tree | {"model": with_component_kinds(tree["model"])}
    section: type[Section] | None = Config
    path: Path = ()
    for name in key.split("."):
        if section is None:
            return None
        field = section.model_fields.get(_field_name(section, name) or "")
        if field is None:
            return False
        path = (*path, name)
        section = _section_at(path, tree, section_in(field.annotation))
        if section is not None and "*" in [pattern[-1] for pattern in _KIND_OF if pattern[:-1] == path]:
            section = None
    return True


def _build_kinds(value: Any, path: Path, found: _Found) -> Any:
    """Return `value` with each section that has a kind replaced by its instance, or by None where it is wrong."""
    if isinstance(value, list):
        return [_build_kinds(child, (*path, index), found) for index, child in enumerate(value)]
    group = kind_group(path)
    if not isinstance(value, dict):
        if group is not None:
            found.fail(path, _no_mapping(value, path, group))
        return value
    if group is not None and (problem := _load(group, value.get("kind"), path)) is not None:
        found.fail(path, problem)
        return None
    value = with_component_kinds(value) if group == "model" else value
    children = {key: _build_kinds(child, (*path, key), found) for key, child in value.items()}
    if group is None:
        return children
    known, key = kinds(group), _dotted((*path, "kind"))
    kind = value.get("kind")
    if "kind" not in value:
        found.fail(path, Problem(f"{key} is missing", key, ", ".join(known)))
    elif not isinstance(kind, str) or kind not in known:
        what = f"{key}={show(kind)} is no {group} there is"
        found.fail(path, Problem(what, key, ", ".join(known) or "none", did_you_mean(str(kind), known)))
    else:
        try:
            return known[kind].model_validate(children)
        except ValidationError as error:
            found.add(error, path, value, known[kind])
            found.failed.append(path)
    return None


def _load(group: str, kind: Any, path: Path) -> Problem | None:
    """Import the module that a kind names, if it names one; return what is wrong with it."""
    try:
        load_kind(group, str(kind))
    except KindError as error:
        key = _dotted((*path, "kind"))
        allowed = f"{', '.join(kinds(group))}, or the import path of a module that registers itself"
        return Problem(f"{key}={kind!r}: {error}", key, allowed)
    return None


def with_component_kinds(model: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``model`` in which each component that is there says its kind."""
    section: Any = kinds("model").get(str(model.get("kind")))
    defaults = {} if section is None else section.component_kinds
    said = {name: {"kind": kind} | model[name] for name, kind in defaults.items() if isinstance(model.get(name), dict)}
    return model | said


def _no_mapping(value: Any, path: Path, group: str) -> Problem:
    key, known = _dotted(path), kinds(group)
    allowed = f"a mapping with 'kind' ({', '.join(known)}) and the keys of that kind"
    mend = shell_word(f"{key}={{kind: {value}}}") if isinstance(value, str) and value in known else None
    return Problem(f"{key}={show(value)} is no mapping", key, allowed, mend)


def kind_group(path: Path) -> str | None:
    """Return the group whose kinds may stand at a path, or None where the keys are always the same."""
    for pattern, group in _KIND_OF.items():
        if len(pattern) == len(path) and all(p in ("*", part) for p, part in zip(pattern, path, strict=True)):
            return group
    return None


def _problem(detail: Any, prefix: Path, inner: Path, value: Any, root: type[Section]) -> Problem:
    path = (*prefix, *inner)
    key, kind = _dotted(path), detail["type"]
    if kind == "value_error":
        text = str(detail["ctx"]["error"])
        named = next((word for word in text.replace("=", " ").split() if word in all_keys()), None)
        return Problem(text, named or key or None)
    section = _walk_sections(root, inner[:-1], value)
    if kind == "extra_forbidden":
        return _unknown_key(path, section)
    field = section.model_fields.get(_field_name(section, str(inner[-1])) or "") if section and inner else None
    allowed = describe(field) if field else None
    if kind == "missing":
        mend: str | None = "begin the YAML file with 'defaults: [train, _self_]'" if len(path) == 1 else f"{key}=VALUE"
        return Problem(f"{key} is missing", key, allowed, mend)
    given = _value_at(value, inner)
    what, mend = _objection(kind, key, given, field)
    if kind == "beyond_largest":
        allowed = f"{allowed or 'whole numbers'}, at most {LARGEST} either way"
    return Problem(what, key, allowed or _allowed_entry(detail), mend)


def _objection(kind: str, key: str, given: Any, field: Any) -> tuple[str, str | None]:
    """Return what is wrong with a value, and the mend where there is a likely one."""
    what, mend = f"{key}={show(given)} is not allowed", None
    allowed = describe(field) if field else ""
    if kind == "literal_error":
        literals = [part.split("'")[1] for part in allowed.replace(" or ", ", ").split(", ") if part.startswith("'")]
        mend = did_you_mean(str(given), literals)
    elif isinstance(given, str) and kind.startswith(("int", "float", "bool")):
        what = f"{key}={show(given)} is text"
        if _is_number(given) and not kind.startswith("bool"):
            mend = f"write the number without quotes: {given}"
        elif kind.startswith("bool") and given.lower() in ("yes", "no", "on", "off", "true", "false", "y", "n"):
            mend = f"write {'true' if given.lower() in ('yes', 'on', 'true', 'y') else 'false'}, without quotes"
    elif isinstance(given, float) and kind.startswith("int"):
        what = f"{key}={show(given)} is not a whole number"
        mend = f"write {int(given)}" if given.is_integer() else None
    elif kind == "string_type" and isinstance(given, int | float) and not isinstance(given, bool):
        what, mend = f"{key}={show(given)} is a number, not text", f"quote it: \"{key}='{given}'\""
    elif kind in ("model_type", "model_attributes_type", "dict_type", "list_type"):
        what = f"{key}={show(given)} is no {'list' if kind == 'list_type' else 'mapping'}"
        if isinstance(given, str) and key.split(".")[-2:-1] == ["layer_kernels"]:
            mend = shell_word(f"{key}._target_={given}")
    elif kind.startswith(("greater_than", "too_short")):
        what = f"{key}={show(given)} is too {'short' if kind == 'too_short' else 'small'}"
    elif kind == "empty_text":
        what = f"{key}={show(given)} holds empty text"
        mend = f"{key}=null" if allowed.endswith("null") else None
    elif kind == "finite_number":
        what = f"{key}={show(given)} is not finite"
    elif kind == "beyond_largest":
        what = f"{key}={show(given)} is too large"
    elif kind.startswith(("less_than", "too_long")):
        what = f"{key}={show(given)} is too {'long' if kind == 'too_long' else 'large'}"
    return what, mend


def _unknown_key(path: Path, section: type[Section] | None) -> Problem:
    """Return the problem of a key that nothing reads: the nearest one here, or where the key lives instead."""
    key, name, parent = _dotted(path), str(path[-1]), _dotted(path[:-1])
    known = keys_of(section) if section else []
    place = f"section {parent!r}" if parent else "the config"
    elsewhere = [full for full in all_keys() if full.rpartition(".")[2] == name and full != key]
    owners = _kinds_with(path)
    near = [f"{parent}.{candidate}".lstrip(".") for candidate in nearest(name, known)]
    if owners:
        in_component = len(path) == 3 and path[0] == "model"  # the file of a config may be for another kind
        way_out = f"; ~{key} leaves it out" if in_component else ""
        mend: str | None = f"{name} is a key of kind {' or '.join(owners)}{way_out}"
    elif near:
        mend = f"did you mean {' or '.join(repr(candidate) for candidate in near)}?"
    elif elsewhere:
        mend = f"the key is {' or '.join(elsewhere[:3])}"
    else:
        far = nearest(name, dict.fromkeys(full.rpartition(".")[2] for full in all_keys()), least=0.75)
        full_names = [full for full in all_keys() if full.rpartition(".")[2] in far]
        mend = f"did you mean {' or '.join(repr(full) for full in full_names[:3])}?" if full_names else "leave it out"
    return Problem(f"{key}: {place} has no key {name!r}", key, ", ".join(known), mend)


def _kinds_with(path: Path) -> list[str]:
    """Return the kinds of the innermost section with kinds around `path` that know the key there."""
    for end in range(len(path) - 1, 0, -1):
        if group := kind_group(path[:end]):
            inner, name = path[end:-1], str(path[-1])
            sections = {kind: _walk_sections(kept, inner, None) for kind, kept in kinds(group).items()}
            return [kind for kind, section in sections.items() if section and name in keys_of(section)]
    return []


def all_keys() -> list[str]:
    """Return every full key of the schema, the keys of every kind included."""
    return list(dict.fromkeys(_all_keys(Config, ())))


def _all_keys(section: type[Section], path: Path) -> Iterator[str]:
    for name, field in section.model_fields.items():
        full = (*path, field.alias or name)
        yield _dotted(full)
        inner = section_in(field.annotation)
        for deeper in (full, (*full, "*")):
            if group := kind_group(deeper):
                for candidate in kinds(group).values():
                    yield from _all_keys(candidate, deeper)
                break
        else:
            yield from _all_keys(inner, (*full, "*") if is_list(field) else full) if inner else ()


def _walk_sections(root: type[Section], path: Path, value: Any) -> type[Section] | None:
    """Return the section that holds the keys at `path`; None inside a free mapping."""
    section: type[Section] | None = root
    for name in path:
        if section is None:
            return None
        if isinstance(name, int):  # an entry of a list of sections
            continue
        field = section.model_fields.get(_field_name(section, str(name)) or "")
        section = section_in(field.annotation) if field else None
    return section


def _section_at(path: Path, tree: dict[str, Any], declared: type[Section] | None) -> type[Section] | None:
    group, value = kind_group(path), _value_at(tree, path)
    if group and isinstance(value, dict):
        return kinds(group).get(str(value.get("kind")), declared)
    return declared


def _field_name(section: type[Section], key: str) -> str | None:
    return next((name for name, field in section.model_fields.items() if key in (name, field.alias)), None)


def _real_path(location: tuple[str | int, ...], value: Any) -> Path:
    """Return the part of a location that exists in the input; pydantic adds the members of unions to it."""
    path: list[str | int] = []
    for part in location:
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
        if inside:
            value = value[part]
            path.append(part)
    return tuple(path)


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _allowed_entry(detail: Any) -> str | None:
    words = {
        "string_type": "text", "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false",
        "dict_type": "a mapping", "list_type": "a list",
    }  # fmt: skip
    return words.get(detail["type"])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
