"""Section ``diagnostics``: what is logged, kept and drawn."""

from __future__ import annotations

from etesian.migrate.theirs import Theirs

_DROPPED = {
    "diagnostics.plot": "pictures are drawn at the end of a run, from diagnostics.plot.parameters",
    "diagnostics.callbacks": "callbacks are not configured here; the scores at the end roll out over the test period",
    "diagnostics.benchmark_profiler": "anemoi-training profile, or diagnostics.benchmark_profiler.mode",
    "diagnostics.log": "metrics.csv is always written, TensorBoard on request",
    "diagnostics.progress_bar": "diagnostics.enable_progress_bar",
    "diagnostics.print_memory_summary": "the report of a run has its memory",
    "diagnostics.profiler": "anemoi-training profile",
    "diagnostics.eval": "the scores at the end roll out over the test period",
}


def translate_diagnostics(theirs: Theirs) -> None:
    """Translate the section ``diagnostics``; logging elsewhere and pictures during a run are dropped."""
    for key in ("enable_progress_bar", "check_val_every_n_epoch", "debug.anomaly_detection", "log.interval",
                "log.tensorboard.enabled", "plot.sample_idx"):  # fmt: skip
        theirs.carry(f"diagnostics.{key}")
    if theirs.value("diagnostics.plot.parameters"):
        theirs.carry("diagnostics.plot.parameters")
    for trigger in ("every_n_minutes", "every_n_epochs", "every_n_train_steps"):
        for key in ("save_frequency", "num_models_saved"):
            theirs.carry(f"diagnostics.checkpoint.{trigger}.{key}")
    for logger in _LOGGERS:
        _logger(theirs, logger)
    if not theirs.value("diagnostics.callbacks"):
        theirs.imply("diagnostics.callbacks", "none")
    theirs.imply("diagnostics.enable_checkpointing", "last.ckpt and best.ckpt are always written")
    for key, why in _DROPPED.items():
        theirs.drop(key, why)


_LOGGERS = {
    "mlflow": ("offline", "tracking_uri", "experiment_name", "run_name"), "wandb": ("offline", "project", "entity"),
}  # fmt: skip
"""What is taken over of loggers elsewhere, where they are on."""


def _logger(theirs: Theirs, name: str) -> None:
    key = f"diagnostics.log.{name}"
    if theirs.value(f"{key}.enabled", False):
        theirs.carry(f"{key}.enabled")
        for option in _LOGGERS[name]:
            if theirs.is_set(f"{key}.{option}"):
                theirs.carry(f"{key}.{option}")
        theirs.drop(key, "not chosen here")
    theirs.imply(key, "off there")
