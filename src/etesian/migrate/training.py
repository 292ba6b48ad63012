"""Sections ``task`` and ``training``: steps, length of the run, precision, optimiser, schedule."""

from __future__ import annotations

from etesian.migrate.theirs import Theirs, target

_PRECISIONS = {"64-true": "64-true", "32-true": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed",
               "64": "64-true", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}  # fmt: skip
_METHODS = ("SingleTraining", "GraphForecaster")
_DATASET = "statistics are those of the dataset that a run is given"
_FORK = "anemoi-training checkpoint import, then training.fork_run_id=imported.ckpt"


def check_method(theirs: Theirs) -> None:
    """Refuse what is no training of one deterministic forecaster.

    Raises
    ------
    UserError
        Naming the method or the task.
    """
    for key, classes in (("training.method", _METHODS), ("task._target_", ("Forecaster",))):
        if theirs.has(key) and target(theirs.value(key)) not in classes:
            theirs.refuse(key, " or ".join(classes))
        theirs.imply(key, "task.kind: forecaster")
    theirs.stop()


def translate_task(theirs: Theirs) -> None:
    """Translate the section ``task``, which releases before 0.12 keep in ``training`` and ``data``."""
    theirs.carry("task.multistep_input")
    theirs.expect("task.multistep_output", (1,), "a model forecasts one step", default=1)
    if theirs.has("task.timestep"):
        theirs.carry_as("task.timestep", "task.timestep", str(theirs.value("task.timestep")).lower())
    section = "training" if theirs.has("training.rollout") else "task"
    start, maximum = (theirs.number(f"{section}.rollout.{name}", 1) for name in ("start", "maximum"))
    every = theirs.number(f"{section}.rollout.epoch_increment")
    theirs.set("task.rollout", {"start": start, "epoch_increment": every, "maximum": maximum})
    theirs.carry(f"{section}.rollout.start", "task.rollout.start")
    if every > 0 and maximum <= start:
        theirs.change(f"{section}.rollout.epoch_increment", "task.rollout.epoch_increment", 0, "start is the maximum")
    elif every > 1 and section == "training":
        why = f"here one step more after epochs {every}, {2 * every}, ...; there after 1, {every + 1}, ..."
        theirs.change(f"{section}.rollout.epoch_increment", "task.rollout.epoch_increment", every, why)
    else:
        theirs.carry(f"{section}.rollout.epoch_increment", "task.rollout.epoch_increment")
    if (every <= 0 and maximum > start) or maximum < start:
        theirs.change(f"{section}.rollout.maximum", "task.rollout.maximum", start, "never reached: no epoch_increment")
    else:
        theirs.carry(f"{section}.rollout.maximum", "task.rollout.maximum")
    if theirs.value("task.validation_rollout", 1) is None:
        why = "null there: as many steps as in training" if maximum > 1 else ""
        theirs.carry_as("task.validation_rollout", "task.validation_rollout", start, why)
    else:
        theirs.carry("task.validation_rollout")


def translate_training(theirs: Theirs) -> None:
    """Translate the section ``training``, but for loss and scalers; after ``system``."""
    for key in ("deterministic", "accum_grad_batches", "num_sanity_val_steps", "gradient_clip.algorithm"):
        theirs.carry(f"training.{key}")
    value = theirs.number("training.gradient_clip.val")
    theirs.carry_as("training.gradient_clip.val", "training.gradient_clip.val", float(value) if value else None)
    for key in ("max_epochs", "max_steps"):
        limit = theirs.value(f"training.{key}")
        theirs.carry_as(f"training.{key}", f"training.{key}", None if limit == -1 else limit)
    _precision(theirs)
    _optimiser(theirs)
    _schedule(theirs)
    for key in ("run_id", "fork_run_id"):
        if theirs.value(f"training.{key}") is not None:
            theirs.refuse(f"training.{key}", "null", _FORK)
        theirs.imply(f"training.{key}", "no run is gone on from")
    for key in ("transfer_learning", "load_weights_only", "loss_gradient_scaling", "swa.enabled", "zero_optimizer"):
        theirs.expect(f"training.{key}", (False, None), "off")
    theirs.imply("training.swa", "off")
    theirs.expect("training.weight_averaging", (None,), "no weights are averaged")
    theirs.expect("training.submodules_to_freeze", ([], None), "every weight is trained")
    for key in ("update_ds_stats_on_ckpt_load", "check_variables_compatibility"):
        theirs.imply(f"training.{key}", _DATASET)
    strategy = target(theirs.value("training.strategy"))
    if strategy not in ("", "DDPGroupStrategy"):
        theirs.refuse("training.strategy._target_", "DDPGroupStrategy")
    theirs.imply("training.strategy", "data parallel over system.hardware")
    theirs.drop(
        "training.recompile_limit", "model/compile says what is compiled; there is no second compilation unasked"
    )
    for key in ("validation_metrics", "metrics", "scale_validation_metrics"):
        theirs.drop(
            f"training.{key}", "the validation loss chooses the weights, the test period is scored in physical units"
        )


def _precision(theirs: Theirs) -> None:
    key = "training.precision"
    if not theirs.has(key):
        return
    given = theirs.value(key)
    precision = _PRECISIONS.get(str(given))
    if precision is None:
        theirs.refuse(key, ", ".join(_PRECISIONS))
    else:
        theirs.carry_as(key, key, precision, "" if precision == given else "its name here")


def _optimiser(theirs: Theirs) -> None:
    key, ours = "training.optimization.optimizer", "training.optimization.optimizer"
    names = ("num_gpus_per_node", "num_nodes", "num_gpus_per_model")
    gpus, nodes, shared = (theirs.number(f"system.hardware.{name}", 1) for name in names)
    models = gpus * nodes / (shared or 1)
    lr = theirs.number("training.optimization.lr")
    if theirs.has("training.optimization.lr"):
        why = f"times {models:g} models, as there; here lr is taken as it is" if models != 1 else ""
        theirs.carry_as("training.optimization.lr", "training.optimization.lr", lr * models, why)
    kind = target(theirs.value(key)) or "AdamW"
    if kind == "ZeroRedundancyOptimizer" and target(theirs.value(f"{key}.optimizer_class")) == "AdamW":
        theirs.change(f"{key}._target_", f"{ours}.kind", "adamw", "the same steps; every process keeps all moments")
        theirs.imply(f"{key}.optimizer_class", "AdamW")
    elif kind != "AdamW":
        theirs.refuse(f"{key}._target_", "AdamW")
        theirs.drop(key, "refused")
    theirs.imply(f"{key}._target_", "AdamW")
    theirs.set(ours, {"kind": "adamw", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01})  # torch's own
    for section in (key, f"{key}.kwargs"):
        for name in ("betas", "eps", "weight_decay"):
            theirs.carry(f"{section}.{name}", f"{ours}.{name}")
    fused = theirs.value(f"{key}.fused")
    theirs.set(f"{ours}.implementation", "fused" if fused else "foreach")
    theirs.carry_as(f"{key}.fused", f"{ours}.implementation", "fused" if fused else "foreach")
    theirs.drop(f"{key}.zero", "every process keeps all moments")


def _schedule(theirs: Theirs) -> None:
    key = ours = "training.optimization.lr_scheduler"
    theirs.expect("training.optimization.pl_lr_scheduler.interval", ("step",), "a rate for every step", default="step")
    if not theirs.has(key) or theirs.value(key) is None:
        theirs.set(ours, {"kind": "constant", "lr_min": 0.0, "warmup_t": 0, "t_initial": None})
        theirs.carry_as(key, f"{ours}.kind", "constant")
        return
    if target(theirs.value(key)) not in ("", "CosineLRScheduler"):
        theirs.refuse(f"{key}._target_", "CosineLRScheduler of timm, null")
        theirs.drop(key, "refused")
        return
    theirs.set(ours, {"kind": "cosine", "lr_min": 0.0, "warmup_t": 0, "t_initial": None})
    theirs.imply(f"{key}._target_", "a warm-up, then a cosine")
    theirs.expect(f"{key}.t_in_epochs", (False,), "steps")
    theirs.carry(f"{key}.lr_min")
    why = "the cosine begins after the warm-up here, with the first step there; the first rate is not 0"
    warmup = theirs.number(f"{key}.warmup_t")
    theirs.carry_as(f"{key}.warmup_t", f"{ours}.warmup_t", warmup, why if warmup else "")
    theirs.carry(f"{key}.t_initial")
