"""The reference of the config, rendered from the schema."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from etesian.schema.base import Section
from etesian.schema.config import Config
from etesian.schema.describe import describe, is_list, section_in
from etesian.schema.registry import kinds
from etesian.schema.validate import kind_group

_PREAMBLE = """# Configuration reference

Rendered from the schema by `anemoi-training config reference`; `anemoi-training config show` prints the values of an
experiment. A key that is not here is an error. A default is what counts when the YAML leaves the key out; the files
under `config/` write every value down.
"""


_Done = set[tuple[tuple[str, ...], type[Section]]]
"""Path and section of what is rendered: the kinds of models share most of their sections."""


def render() -> str:
    """Return the reference as Markdown. The kinds must be registered already."""
    parts, done = [_PREAMBLE], _Done()
    for name, field in Config.model_fields.items():
        parts += _section(name, (name,), section_in(field.annotation), 2, done)
    return "\n".join(parts).rstrip() + "\n"


def _section(
    title: str, path: tuple[str, ...], section: type[Section] | None, level: int, done: _Done
) -> Iterator[str]:
    """Yield heading, purpose and table of a section, then the sections in it; one for each kind where it has kinds."""
    group = kind_group(path)
    if group is not None:
        for kind, kept in sorted(kinds(group).items()):
            yield from _one(f"{title}, kind `{kind}`", path, kept, level, done)
    elif section is not None:
        yield from _one(title, path, section, level, done)


def _one(title: str, path: tuple[str, ...], section: type[Section], level: int, done: _Done) -> Iterator[str]:
    if (path, section) in done:
        return
    done.add((path, section))
    yield f"{'#' * min(level, 4)} {title}\n"
    if text := inspect.getdoc(section):
        yield f"{_plain(text)}\n"
    meanings = field_docs(section)
    yield "| key | allowed | default | meaning |\n|---|---|---|---|"
    deeper: list[tuple[str, tuple[str, ...], type[Section] | None]] = []
    for name, field in section.model_fields.items():
        key = field.alias or name
        inner, full = section_in(field.annotation), (*path, key)
        many = kind_group((*full, "*")) is not None or is_list(field)
        child = (*full, "*") if many else full
        if inner is not None:
            deeper.append((".".join(child), child, inner))
        allowed = f"see `{'.'.join(child)}`" if inner else _cell(describe(field))
        yield f"| `{key}` | {allowed} | {_default(field, inner)} | {_cell(_plain(meanings.get(name, '')))} |"
    yield ""
    for heading, child, inner in deeper:
        yield from _section(heading, child, inner, level + 1, done)


def field_docs(section: type[Section]) -> dict[str, str]:
    """Return what stands under each field of a section, those it inherits included."""
    docs: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if not (issubclass(owner, Section) and owner is not Section):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = inspect.cleandoc(text)
    return docs


def _default(field: FieldInfo, inner: type[Section] | None) -> str:
    value: Any = field.default
    if field.is_required():
        return "required"
    if field.default_factory is dict:
        return "its defaults"
    if value is PydanticUndefined or isinstance(value, Section) or (inner and not value):
        return "its defaults" if isinstance(value, Section) else "none"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
