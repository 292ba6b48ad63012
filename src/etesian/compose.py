"""From YAML files and overrides to one resolved tree. Hydra is imported here only.

A config, or an option of a group, is looked for in the current folder, then in ``--config-dir``, then in the
package; the first file of that name counts. Whatever Hydra or OmegaConf objects to becomes a
:class:`~etesian.errors.UserError`, which keeps their words.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra import version as hydra_version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from etesian.errors import Problem, UserError, did_you_mean
from etesian.interpolation import missing_keys, resolve
from etesian.outdone import refuse_outdone, unmatched_choice
from etesian.places import defaults_circle, file_of, find_config, search_path
from etesian.presets import chosen_presets
from etesian.schema.presets import Preset
from etesian.slips import dotted_key, group_slip

DEFAULT_CONFIG = "train"
_ABSENT = object()
_FORMS = "key=value, group=option, +key=value (add), ~key (delete)"


@dataclass(frozen=True)
class Composed:
    """A composed config.

    Attributes
    ----------
    tree : dict
        The whole config in plain Python values, interpolations resolved.
    choices : dict of str to str or None
        The option chosen for each group.
    overrides : list of str
        The overrides as they were given.
    config_name : str
        Name of the top-level config.
    origin : Path
        Its file.
    absent : dict of str to list of str
        Overridden keys that no file sets and that were given without ``+``, each with the full keys that might have
        been meant. The schema tells whether they exist.
    preset_slots : dict
        Key of a mapping of layer kernels to the preset chosen there, as its file has it.
    """

    tree: dict[str, Any]
    choices: dict[str, str | None]
    overrides: list[str] = field(default_factory=list)
    config_name: str = DEFAULT_CONFIG
    origin: Path = Path()
    absent: dict[str, list[str]] = field(default_factory=dict)
    preset_slots: dict[str, Preset] = field(default_factory=dict)


def compose(
    config_name: str = DEFAULT_CONFIG, config_dir: str | Path | None = None, overrides: Sequence[str] = ()
) -> Composed:
    """Compose a config.

    Parameters
    ----------
    config_name : str
        Top-level YAML, with or without its suffix.
    config_dir : str or Path, optional
        Folder searched after the current one and before the package.
    overrides : sequence of str
        Overrides in Hydra's grammar.

    Raises
    ------
    UserError
        If anything in the files or overrides does not fit together.
    """
    places = search_path(config_dir)
    name, origin = find_config(config_name, places)
    loader = _loader(places)
    parsed = _parse(overrides, places)
    groups = _group_overrides(parsed, loader, places)
    with _explained(places, origin, parsed):
        base = loader.load_configuration(name, [_line(o) for o in groups], RunMode.RUN)
    absent = _absent_keys([o for o in parsed if o not in groups], base)
    free = [o for o in parsed if _is_plain(o) and (o.key_or_group in absent or _fills_a_slot(o))]
    lines = [f"++{_line(o)}" if o in free else _line(o) for o in parsed]
    with _explained(places, origin, parsed):
        config = loader.load_configuration(name, lines, RunMode.RUN)
        listed = loader.compute_defaults_list(name, [_line(o) for o in groups], RunMode.RUN).defaults
        files = {f.config_path: f.package for f in listed if f.config_path and not f.config_path.startswith("hydra/")}
        _refuse_hydra_sections(files, loader, places)
    choices = dict(config.hydra.runtime.choices.items())
    _refuse_hydra_choices(choices, origin)
    with _explained(places, origin, parsed):
        refuse_outdone(name, origin, base, files, loader.repository)
    names: list[Any] = [key for key in config if key != "hydra"]
    tree = resolve(OmegaConf.masked_copy(config, names))
    chosen = {str(group): option for group, option in choices.items() if not str(group).startswith("hydra/")}
    return Composed(tree, chosen, list(overrides), name, origin, absent, chosen_presets(chosen, loader.repository))


def compose_foreign(places: Sequence[Path], config_name: str, overrides: Sequence[str] = ()) -> tuple[DictConfig, Path]:
    """Compose a config of another package, from its own folders alone; interpolations stay as they are.

    Returns
    -------
    tuple of DictConfig, Path
        The config without Hydra's own section, and its file.

    Raises
    ------
    UserError
        If anything in the files or overrides does not fit together.
    """
    name, origin = find_config(config_name, list(places))
    parsed = _parse(overrides, list(places))
    with _explained(list(places), origin, parsed):
        config = _loader(places).load_configuration(name, list(overrides), RunMode.RUN)
    names: list[Any] = [key for key in config if key != "hydra"]
    return OmegaConf.masked_copy(config, names), origin


def split_jobs(overrides: Sequence[str], config_dir: str | Path | None = None) -> list[list[str]]:
    """Split sweeps (``a=1,2``, ``range``, ``glob``) into the overrides of each job, as Hydra's basic sweeper does."""
    places = search_path(config_dir)
    parsed = _parse(overrides, places, sweeps=True)
    for override in parsed:
        override.config_loader = _loader(places)
    try:
        batches = BasicSweeper.split_arguments(parsed, None)
    except HydraException as error:
        raise UserError(
            f"the overrides cannot be split into jobs: {error}",
            where="--multirun",
            allowed="key=a,b,c, key=choice(a,b), key=range(start,stop), key=glob(*)",
        ) from error
    return [list(job) for batch in batches for job in batch]


def to_yaml(tree: dict[str, Any]) -> str:
    """Return a tree as YAML, keys in the order of the files."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)


def _loader(places: Iterable[Path]) -> ConfigLoaderImpl:
    hydra_version.setbase("1.3")
    Plugins.instance()
    JobRuntime.instance().set("name", "etesian")
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    for place in places:
        path.append("etesian", f"file://{place}")
    path.append("schema", "structured://")
    loader = ConfigLoaderImpl(path)
    loader.repository = _Files(path)
    return loader


class _Files(ConfigRepository):
    """Parses a file once while its text stays: Hydra asks for each file several times, and changes what it gets."""

    parsed: ClassVar[dict[tuple[Path, bytes], bytes]] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return what a config, or an option of a group, holds."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return None
        file = Path(source.path, source._normalize_file_name(config_path))
        key = file, file.read_bytes() if file.is_file() else b""  # Hydra's own lie in no folder, and never change
        if key not in self.parsed:
            self.parsed[key] = pickle.dumps(super().load_config(config_path))
        return pickle.loads(self.parsed[key])

    def __deepcopy__(self, memo: Any) -> _Files:
        """Hydra copies it before it adds folders that a config asks for, which is refused here."""
        return self


def _parse(overrides: Sequence[str], places: list[Path], sweeps: bool = False) -> list[Override]:
    parser = OverridesParser.create()
    parsed, problems = [], []
    for line in overrides:
        try:
            if not line.partition("=")[0].strip("+~"):
                raise OverrideParseException(line, "it names no key")
            override = parser.parse_overrides([line])[0]
        except OverrideParseException as error:
            problems.append(_bad_override(line, error, places))
            if _unclosed(line):
                break  # the words that follow are the rest of it
            continue
        parsed.append(override)
        if override.is_hydra_override():
            mend = "--config-dir DIR" if "searchpath" in line else "system.output.root=DIR sets where runs are written"
            problems.append(Problem(f"{line}: Hydra's own settings are not used here", "command line", mend=mend))
        elif override.is_sweep_override() and not sweeps:
            key, value = override.get_key_element(), line.partition("=")[2]
            problems.append(
                Problem(
                    f"{line}: this is a sweep over several values",
                    where=override.key_or_group,
                    mend=f"'{key}=[{value}]' for a list, \"{key}='{value}'\" for text, train --multirun for a job each",
                )
            )
    if problems:
        raise UserError.collect(problems)
    return parsed


def _bad_override(line: str, error: Exception, places: list[Path]) -> Problem:
    if "=" not in line:
        is_config = any((place / f"{line.removesuffix('.yaml')}.yaml").is_file() for place in places)
        mend = f"--config-name {line}" if is_config else f"{line}=VALUE"
        return Problem(f"{line!r} is no override: it has no '='", "command line", _FORMS, mend)
    text = " ".join(str(error).partition("\nSee https")[0].split())
    mend = f"quote the value: {line.partition('=')[0]}=\"'...'\""
    if _unclosed(line):
        mend = f"close it, and quote the whole override where it holds spaces: '{line.partition('=')[0]}=[...]'"
    return Problem(f"override {line!r} cannot be read: {text}", "command line", _FORMS, dotted_key(line) or mend)


def _unclosed(line: str) -> bool:
    return line.count("[") > line.count("]") or line.count("{") > line.count("}")


def _group_overrides(parsed: list[Override], loader: ConfigLoaderImpl, places: list[Path]) -> list[Override]:
    """Return the overrides that choose an option of a group; refuse those that name no group or no option."""
    chosen, problems = [], []
    for override in parsed:
        key, value = override.key_or_group, override.value()
        if "/" in key and not loader.repository.group_exists(key):
            known = sorted({str(f.parent.relative_to(p)) for p in places[1:] for f in p.rglob("*.yaml")} - {"."})
            what = f"{override.input_line}: there is no config group {key!r}"
            problems.append(Problem(what, "command line", ", ".join(known), did_you_mean(key, known)))
        elif slip := group_slip(key, value, loader.repository.get_group_options):
            problems.append(slip)
        elif loader.repository.group_exists(key) and not isinstance(value, dict):
            chosen.append(override)
            if not isinstance(value, str | list) and not override.is_delete():
                options = ", ".join(loader.repository.get_group_options(key))
                problems.append(
                    Problem(f"{override.input_line}: a group takes the name of one of its files", key, options)
                )
    if problems:
        raise UserError.collect(problems)
    return chosen


def _absent_keys(overrides: list[Override], base: DictConfig) -> dict[str, list[str]]:
    """Return the plainly overridden keys that `base` lacks, each with the keys beside the part that is missing."""
    unset = missing_keys(base)
    added = [o.key_or_group for o in overrides if o.is_add() or o.is_force_add()]
    absent: dict[str, list[str]] = {}
    for override in overrides:
        key = override.key_or_group
        if not _is_plain(override) or key in unset or any(f"{key}.".startswith(f"{a}.") for a in added):
            continue
        try:
            found = OmegaConf.select(base, key, default=_ABSENT)
        except OmegaConfBaseException:
            continue  # on the way lies an interpolation that fails; resolving reports it
        if found is _ABSENT:
            absent[key] = _beside(key, base)
    return absent


def _beside(key: str, base: DictConfig) -> list[str]:
    node, known = base, ""
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node:
            break
        node, known = node[part], f"{known}{part}."
    return [f"{known}{name}" for name in map(str, node)] if isinstance(node, DictConfig) else []


def _is_plain(override: Override) -> bool:
    return not (override.is_add() or override.is_force_add() or override.is_delete())


def _fills_a_slot(override: Override) -> bool:
    """Tell whether a mapping is given to a slot of kernels, whose arguments are no keys that a file has to have."""
    return ".layer_kernels." in override.key_or_group and isinstance(override.value(), dict)


def _line(override: Override) -> str:
    return str(override.input_line)


def _refuse_hydra_sections(files: dict[str, str | None], loader: ConfigLoaderImpl, places: list[Path]) -> None:
    for path, package in files.items():
        loaded = loader.repository.load_config(path)
        if loaded is None or not OmegaConf.is_dict(loaded.config):
            continue
        if (package or "").split(".")[0] == "hydra" or (not package and "hydra" in loaded.config):
            raise UserError(
                "this file sets keys under 'hydra', which nothing here reads",
                where=str(file_of(path, places)),
                mend="delete them; system.output.root says where runs are written, --multirun runs a sweep",
            )


def _refuse_hydra_choices(choices: dict[Any, Any], origin: Path) -> None:
    for group, option in choices.items():
        if str(group).startswith("hydra/") and option not in (None, "default", "basic"):
            raise UserError(
                f"the defaults list chooses {group}: {option}, but Hydra's own settings are not used here",
                where=str(origin),
                mend=f"delete the line 'override {group}: {option}'",
            )


class _explained:
    """Turn whatever composing raises into a UserError, and keep Hydra from warning on the way."""

    def __init__(self, places: list[Path], origin: Path, overrides: Sequence[Override]) -> None:
        self.places, self.origin, self.overrides = places, origin, overrides
        self.quiet = warnings.catch_warnings()

    def __enter__(self) -> None:
        self.quiet.__enter__()
        warnings.simplefilter("ignore", UserWarning)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.quiet.__exit__(kind, error, traceback)
        if isinstance(error, Exception) and not isinstance(error, UserError):
            raise _explain(error, self.places, self.origin, self.overrides) from error


def _explain(error: Exception, places: list[Path], origin: Path, overrides: Sequence[Override]) -> UserError:
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, yaml.MarkedYAMLError):
            mark = cause.problem_mark or cause.context_mark
            where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(origin)
            return UserError(f"YAML cannot be read: {cause.problem or cause.context}", where=where)
        if isinstance(cause, RecursionError):
            circle = defaults_circle(origin.stem, places)
            what = f"the defaults lists include each other in a circle: {' -> '.join(circle)}"
            return UserError(what, where=str(file_of(circle[0], places) if circle else origin))
        if isinstance(cause, MissingConfigException) and cause.missing_cfg_file:
            return _missing_config(cause, places, origin, overrides)
    if choice := next(filter(None, map(unmatched_choice, map(str, chain))), None):
        return UserError.collect([replace(choice, where=str(origin))])
    text = "; ".join(dict.fromkeys(" ".join(str(cause).split()) for cause in chain if str(cause).strip()))
    for override in overrides:
        if any(line in text for line in (_line(override), f"'{override.key_or_group}'")):
            return _refused_override(override, text)
    return UserError(f"the config cannot be composed: {text or type(error).__name__}", where=str(origin))


def _refused_override(override: Override, text: str) -> UserError:
    line, key = _line(override), override.key_or_group
    if "item is already at" in text:
        return UserError(f"{line}: the config has {key!r} already", where=key, mend=f"without the '+': {line[1:]}")
    if "Could not delete" in text:
        return UserError(f"{line}: there is nothing to delete. {text}", where=key)
    return UserError(f"{line} cannot be applied: {text}", where=key)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _missing_config(
    error: MissingConfigException, places: list[Path], origin: Path, overrides: Sequence[Override]
) -> UserError:
    path = str(error.missing_cfg_file)
    group, _, option = path.rpartition("/")
    text = str(error)
    parent = text[4:].partition("'")[0] if text.startswith("In '") else origin.stem
    naming = [origin, file_of(parent, places)]
    where = str(next((file for file in naming if file.is_file() and option in file.read_text()), naming[-1]))
    if any(override.key_or_group == group and override.value() == option for override in overrides):
        where = "command line"
    if error.options is None:
        names = sorted({f.stem for place in places for f in (place / group).glob("*.yaml")} - {origin.stem})
        what = f"the defaults list names {path!r}, and there is no such config"
        return UserError(what, where=where, allowed=", ".join(names), mend=did_you_mean(option, names))
    options = [str(known) for known in error.options]
    return UserError(
        f"{group}={option}: the group {group!r} has no such option",
        where=where,
        allowed=", ".join(options),
        mend=did_you_mean(option, options),
    )
