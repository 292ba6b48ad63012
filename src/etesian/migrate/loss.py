"""``training.training_loss`` and ``training.scalers``: weights by parameter and level become weights by variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from etesian.migrate.store import Store
from etesian.migrate.theirs import Theirs, target

_LOSSES = {"MSELoss": "mse", "WeightedMSELoss": "mse", "MAELoss": "mae", "WeightedMAELoss": "mae",
           "HuberLoss": "huber", "WeightedHuberLoss": "huber"}  # fmt: skip
_LEVELS: dict[str, Callable[[float, float, float], float]] = {
    "ReluVariableLevelScaler": lambda level, slope, least: max(least, level * slope),
    "LinearVariableLevelScaler": lambda level, slope, least: level * slope + least,
    "PolynomialVariableLevelScaler": lambda level, slope, least: (slope * level) ** 2 + least,
    "NoVariableLevelScaler": lambda level, slope, least: 1.0,
}
_OPTIONS = {
    **dict.fromkeys(_LEVELS, ("group", "slope", "y_intercept", "norm")),
    **dict.fromkeys(("StdevTendencyScaler", "VarTendencyScaler", "NoTendencyScaler"), ("timestep", "norm")),
    "GeneralVariableLossScaler": ("weights", "norm"),
    "GraphNodeAttributeScaler": ("nodes_name", "nodes_attribute_name", "norm", "inverse"),
    "UniformTimeStepScaler": ("multistep_output",),
    "NaNMaskScaler": ("use_processors_tendencies", "norm"),
}
"""What scalers take."""
_TENDENCIES = {"StdevTendencyScaler": 1, "VarTendencyScaler": 2, "NoTendencyScaler": 0}
_WRITTEN_OUT = "weights of variables, written out for this dataset"


def translate_loss(theirs: Theirs, store: Store) -> None:
    """Translate loss and scalers; after ``data``."""
    key = "training.training_loss"
    kind = target(theirs.value(key))
    loss: dict[str, Any] = {"kind": _LOSSES.get(kind), "scalers": []}
    if loss["kind"] is None:
        theirs.refuse(f"{key}._target_", ", ".join(_LOSSES))
        theirs.drop(key, "refused")
        return
    theirs.ours["training"] |= {"training_loss": loss, "scalers": {}}
    theirs.carry_as(f"{key}._target_", f"{key}.kind", loss["kind"])
    if loss["kind"] == "huber":
        theirs.carry(f"{key}.delta")
    theirs.expect(f"{key}.ignore_nans", (False,), "a point that was not observed has no weight here")
    for name in ("predicted_variables", "target_variables"):
        theirs.expect(f"{key}.{name}", (None,), "every output is compared with itself")
    theirs.imply(f"{key}.check_variables_compatibility", "every output is compared with itself")
    if theirs.has("training.variable_loss_scaling"):
        _before_0_5(theirs, store, loss)
        return
    there = theirs.names("training.scalers")
    chosen = _chosen(theirs, there)
    for name in chosen:
        if name not in there:
            theirs.refuse(f"{key}.scalers", f"names under training.scalers: {', '.join(there)}")
        elif _scaler(theirs, name, store):
            loss["scalers"].append(name)
    theirs.carry_as(f"{key}.scalers", f"{key}.scalers", loss["scalers"], _unobserved(theirs, chosen))
    theirs.imply("training.scalers", "the loss does not name it")
    theirs.imply("training.variable_groups", "read through the scalers")


def _before_0_5(theirs: Theirs, store: Store, loss: dict[str, Any]) -> None:
    """Translate weights as releases before 0.5 have them: by parameter and level in one, and always by area."""
    section, levels = "training.variable_loss_scaling", "training.pressure_level_scaler"
    named = [str(name) for name in theirs.listed("training.training_loss.scalars")]
    for name in named:
        if name not in ("variable", "loss_weights_mask"):
            theirs.refuse("training.training_loss.scalars", "variable, loss_weights_mask")
    by_level = _LEVELS.get(target(theirs.value(levels)).replace("Pressure", "Variable"))
    if by_level is None:
        theirs.refuse(f"{levels}._target_", "Relu-, Linear-, Polynomial-, NoPressureLevelScaler")
        theirs.stop()
    assert by_level is not None
    slope, least = (float(theirs.number(f"{levels}.{name}")) for name in ("slope", "minimum"))
    written = {}
    for name in store.variables.output if "variable" in named else ():
        stem, _, level = name.rpartition("_")
        if level.isdigit() and theirs.has(f"{section}.pl.{stem}"):
            weight = theirs.number(f"{section}.pl.{stem}", 1.0) * by_level(float(level), slope, least)
            written[name] = round(weight, 12)
        elif theirs.has(f"{section}.sfc.{name}"):
            written[name] = float(theirs.number(f"{section}.sfc.{name}", 1.0))
    default = float(theirs.number(f"{section}.default", 1.0)) if "variable" in named else 1.0
    scalers = {"variable": {"kind": "variable", "default": default, "weights": written},
               "node_weights": {"kind": "node_attribute", "attribute": "area_weight"}}  # fmt: skip
    theirs.change(section, "training.scalers.variable", scalers["variable"], _WRITTEN_OUT)
    theirs.imply(levels, "in the weights of the variables")
    theirs.expect("training.node_loss_weights.node_attribute", ("area_weight",), "training.scalers.node_weights")
    theirs.imply("training.node_loss_weights", "training.scalers.node_weights")
    loss["scalers"] = list(scalers)
    theirs.set("training.scalers", scalers)
    theirs.carry_as("training.training_loss.scalars", "training.training_loss.scalers", loss["scalers"])


def _chosen(theirs: Theirs, there: list[str]) -> list[str]:
    """Return the names of the scalers; ``*`` stands for all, ``!name`` for all but that one."""
    given = [str(name) for name in theirs.listed("training.training_loss.scalers")]
    left_out = {name[1:] for name in given if name.startswith("!")}
    named = [name for name in given if name != "*" and not name.startswith("!")]
    return [name for name in (there if "*" in given else named) if name not in left_out]


def _unobserved(theirs: Theirs, chosen: list[str]) -> str:
    """Return what is otherwise here where NaNs are replaced and no scaler masks them in the loss."""
    imputer = theirs.ours["data"]["processors"]["imputer"]
    masked = any(target(theirs.value(f"training.scalers.{name}")) == "NaNMaskScaler" for name in chosen)
    return "" if masked or not any(imputer.values()) else "points that were imputed have no weight here; there they do"


def _scaler(theirs: Theirs, name: str, store: Store) -> bool:
    """Translate a scaler and tell whether there is one here."""
    key = f"training.scalers.{name}"
    given = dict(theirs.section(key))
    kind = target(given.pop("_target_", None))
    if kind in _OPTIONS:
        theirs.only(key, _OPTIONS[kind])
    if kind == "GraphNodeAttributeScaler":
        return _node_weights(theirs, key, given)
    if kind in ("UniformTimeStepScaler", "NaNMaskScaler"):
        why = "a model forecasts one step" if kind[0] == "U" else "a point that was not observed has no weight here"
        theirs.imply(key, why)
        return False
    if given.pop("norm", None) is not None:
        theirs.refuse(f"{key}.norm", "null")
    if kind == "GeneralVariableLossScaler":
        _by_parameter(theirs, key, store)
    elif kind in _LEVELS:
        groups = theirs.section("training.variable_groups")
        _by_level(theirs, key, kind, given, groups, store)
    elif kind in _TENDENCIES:
        changes = (
            {} if kind == "NoTendencyScaler" else store.stdev(given.get("timestep") or theirs.value("task.timestep"))
        )
        weights = {n: (field / change) ** _TENDENCIES[kind] for n, (field, change) in changes.items()}
        _variable(theirs, key, 1.0, weights)
    else:
        theirs.refuse(f"{key}._target_", ", ".join([*_LEVELS, *_TENDENCIES, "GeneralVariableLossScaler",
                                                    "GraphNodeAttributeScaler", "NaNMaskScaler"]))  # fmt: skip
        theirs.drop(key, "refused")
        return False
    return True


def _node_weights(theirs: Theirs, key: str, given: Mapping[str, Any]) -> bool:
    theirs.imply(f"{key}.nodes_name", "the data nodes")
    theirs.expect(f"{key}.nodes_attribute_name", ("area_weight",), "an area weight")
    theirs.expect(f"{key}.inverse", (False,), "not inverted")
    theirs.set(key, {"kind": "node_attribute", "attribute": "area_weight"})
    norm = given.get("norm")
    why = "" if norm in ("unit-sum", "l1") else "weights have a mean of one and errors their mean: a factor on the loss"
    theirs.carry_as(key, key, theirs.ours["training"]["scalers"][key.rpartition(".")[2]], why)
    return True


def _by_parameter(theirs: Theirs, key: str, store: Store) -> None:
    """Give each output the weight of its parameter: ``q`` is that of ``q_500`` and ``q_850``."""
    weights = {str(name): float(theirs.number(f"{key}.weights.{name}", 1.0)) for name in theirs.names(f"{key}.weights")}
    default = weights.pop("default", 1.0)
    named = weights
    if not named:
        _variable(theirs, key, default, {})
        return
    outputs = {name: store.parameter_and_level(name)[0] for name in store.variables.output}
    for name in named:
        if name not in outputs.values():
            theirs.drop(f"{key}.weights.{name}", "no output has this name")
    _variable(theirs, key, default, {out: named[name] for out, name in outputs.items() if name in named})


def _by_level(
    theirs: Theirs, key: str, kind: str, given: Mapping[str, Any], groups: Mapping[str, Any], store: Store
) -> None:
    """Give each output of a group of variables a weight by its level."""
    slope, least = float(theirs.number(f"{key}.slope")), float(theirs.number(f"{key}.y_intercept", 1.0))
    weights = {}
    for name in store.variables.output:
        if store.group(name, groups) != given.get("group"):
            continue
        level = store.parameter_and_level(name)[1]
        if level is None:
            theirs.refuse(f"{key}.group", f"variables with a level; {name} has none")
            continue
        weights[name] = round(_LEVELS[kind](float(level), slope, least), 12)
    _variable(theirs, key, 1.0, weights)


def _variable(theirs: Theirs, key: str, default: float, weights: dict[str, float]) -> None:
    scaler = {"kind": "variable", "default": default, "weights": weights}
    theirs.set(key, scaler)
    theirs.carry_as(key, key, scaler, _WRITTEN_OUT if weights else "")
