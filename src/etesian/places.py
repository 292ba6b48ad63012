"""The folders in which configs are looked for."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from etesian.errors import UserError, did_you_mean, shell_word


def package_config_dir() -> Path:
    """Return the shipped config: ``etesian/config`` when installed, ``config`` in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "config"
    return installed if installed.is_dir() else package.parents[1] / "config"


def search_path(config_dir: str | Path | None = None) -> list[Path]:
    """Return the folders that are searched, the first winning.

    Raises
    ------
    UserError
        If `config_dir` is no folder.
    """
    places = [Path.cwd()]
    if config_dir is not None:
        folder = Path(config_dir).expanduser()
        if not folder.is_dir():
            reason = "is a file" if folder.exists() else "does not exist"
            raise UserError(
                f"--config-dir {config_dir} {reason}", where="--config-dir", allowed="a folder of YAML files"
            )
        places.append(folder.resolve())
    return [*places, package_config_dir()]


def options_of(group: str, places: list[Path]) -> dict[str, Path]:
    """Return the options of a group, by name, each with the file that counts."""
    files: dict[str, Path] = {}
    for place in places:
        for file in sorted((place / group).glob("*.yaml")):
            files.setdefault(file.stem, file)  # the first place wins
    return files


def is_option_name(name: str) -> bool:
    """Tell whether ``group=name`` on the command line means the option of that name, and nothing else."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name) is not None
    return plain and name.lower() not in ("null", "true", "false", "nan", "inf")


def find_config(config_name: str, places: list[Path]) -> tuple[str, Path]:
    """Return the name of a top-level config without its suffix, and its file.

    Raises
    ------
    UserError
        If no place has it.
    """
    path = Path(config_name.removesuffix(".yaml"))
    name = path.name
    if len(path.parts) != 1:
        raise UserError(
            f"--config-name takes a name, not a path: {config_name}",
            where="--config-name",
            mend=f"--config-dir {shell_word(str(path.parent))} --config-name {shell_word(path.name)}",
        )
    for place in places:
        if (place / f"{name}.yaml").is_file():
            return name, place / f"{name}.yaml"
    found = {place: sorted(f.stem for f in place.glob("*.yaml")) for place in dict.fromkeys(places)}
    known = "; ".join(f"{', '.join(names) or 'none'} (in {place})" for place, names in found.items())
    hint = did_you_mean(name, dict.fromkeys(name for names in found.values() for name in names))
    raise UserError(f"there is no config named {config_name!r}", where="--config-name", allowed=known, mend=hint)


def file_of(config_path: str, places: list[Path]) -> Path:
    """Return the file that counts for a config or an option (``group/option``)."""
    candidates = [place / f"{config_path}.yaml" for place in places]
    return next((file for file in candidates if file.is_file()), candidates[-1])


def defaults_circle(name: str, places: list[Path], above: tuple[str, ...] = ()) -> list[str]:
    """Return the configs of a circle in the defaults lists, the first named again at the end; empty where none is."""
    if name in above:
        return [*above[above.index(name) :], name]
    file = file_of(name, places)
    content = yaml.safe_load(file.read_text()) if file.is_file() else None
    entries = content.get("defaults", []) if isinstance(content, dict) else []
    group = name.rpartition("/")[0]
    for entry in entries:
        pairs = entry.items() if isinstance(entry, dict) else [("", entry)]
        for key, option in pairs:
            if option == "_self_" or option is None:
                continue
            child = f"{str(key).split()[-1]}/{option}" if key else str(option)
            path = child[1:] if child.startswith("/") else "/".join(part for part in (group, child) if part)
            if circle := defaults_circle(path, places, (*above, name)):
                return circle
    return []
