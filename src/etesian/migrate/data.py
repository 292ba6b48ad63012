"""Section ``data``: roles of the variables, normaliser, imputers."""

from __future__ import annotations

from typing import Any

from etesian.migrate.layouts import plain
from etesian.migrate.theirs import Theirs, target

_METHODS = ("mean-std", "std", "max", "min-max", "none")
_READ = "the dataset tells it"


def translate_data(theirs: Theirs) -> None:
    """Translate the section ``data``."""
    theirs.carry("data.frequency")
    for role in ("forcing", "diagnostic"):
        if theirs.has(f"data.{role}"):
            theirs.carry_as(f"data.{role}", f"data.{role}", theirs.listed(f"data.{role}"))
        else:
            theirs.set(f"data.{role}", [])
    theirs.expect("data.target", (None, []), "no variable is a target only")
    theirs.expect("data.remapped", (None, [], {}), "nothing is remapped")
    for key in ("format", "resolution", "num_features"):
        theirs.imply(f"data.{key}", _READ)
    theirs.set("data.processors", {"normalizer": {"default": "none"}, "imputer": {"mean": [], "constant": {}}})
    seen: list[str] = []
    for name in theirs.names("data.processors"):
        _processor(theirs, f"data.processors.{name}", seen)
    for name in ("normalizer", "imputer", "remapper"):
        theirs.imply(f"data.{name}", "read through data.processors")


def _processor(theirs: Theirs, key: str, seen: list[str]) -> None:
    kind = target(theirs.value(key))
    theirs.imply(f"{key}._convert_", "of Hydra's instantiation")
    if kind == "InputNormalizer":
        _normalizer(theirs, key)
    elif kind in ("InputImputer", "ConstantImputer"):
        if "InputNormalizer" in seen:
            theirs.refuse(f"{key}._target_", "an imputer before the normalizer: NaNs are replaced in physical units")
        _imputer(theirs, key, kind)
    else:
        theirs.refuse(f"{key}._target_", "InputNormalizer, InputImputer, ConstantImputer")
        theirs.drop(key, "refused")
    seen.append(kind)


def _normalizer(theirs: Theirs, key: str) -> None:
    theirs.imply(f"{key}._target_", "the normalizer here: the same methods, from the same statistics")
    settings: dict[str, Any] = {"default": "none"}
    theirs.expect(f"{key}.config.remap", (None, {}), "no variable has the statistics of another one")
    if theirs.has(f"{key}.config.default"):
        settings["default"] = theirs.value(f"{key}.config.default")
    for method in theirs.names(f"{key}.config"):
        if method == "default":
            theirs.carry_as(f"{key}.config.default", "data.processors.normalizer.default", settings["default"])
        elif method in _METHODS:
            settings[method] = theirs.listed(f"{key}.config.{method}")
            theirs.carry_as(f"{key}.config.{method}", f"data.processors.normalizer.{method}", settings[method])
        elif method != "remap":
            theirs.refuse(f"{key}.config.{method}", ", ".join(_METHODS))
    theirs.set("data.processors.normalizer", settings)


def _imputer(theirs: Theirs, key: str, kind: str) -> None:
    theirs.imply(f"{key}._target_", "the imputer here")
    theirs.expect(
        f"{key}.config.default", ("none",), "here too a variable that is not named must have no NaN", default="none"
    )
    ours = "data.processors.imputer"
    imputer = theirs.ours["data"]["processors"]["imputer"]
    for method in theirs.names(f"{key}.config"):
        if method == "default":
            continue
        names = [str(name) for name in theirs.listed(f"{key}.config.{method}")]
        constant = _number(plain(method)) if kind == "ConstantImputer" else None
        if constant is not None:
            imputer["constant"] |= dict.fromkeys(names, constant)
            theirs.carry_as(f"{key}.config.{method}", f"{ours}.constant", imputer["constant"])
        elif kind == "InputImputer" and method == "mean":
            imputer["mean"] += names
            theirs.carry_as(f"{key}.config.{method}", f"{ours}.mean", imputer["mean"])
        else:
            theirs.refuse(f"{key}.config.{method}", "the mean of a variable, or a constant")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
