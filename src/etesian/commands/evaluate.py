"""``anemoi-training evaluate``: forecasts over a period, scored beside persistence and climatology."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.checkpoint.paths import find_checkpoint
from etesian.commands import common
from etesian.errors import Problem, UserError, did_you_mean
from etesian.outputs import check_writable

if TYPE_CHECKING:
    from etesian.commands.evaluate_run import Evaluation

DESCRIPTION = """Score the forecasts of a trained model over a period: RMSE, MAE, bias and anomaly correlation by
variable and lead time, beside persistence and climatology. Writes CSV, NetCDF and pictures."""
EPILOG = """examples:
  anemoi-training evaluate first
  anemoi-training evaluate outputs/first --lead-time 120h --every 4 --device cuda
  anemoi-training evaluate inference-last.ckpt --dataset my.zarr --start 2020-01 --end 2020-12 --output scores-2020
"""
SHOWN = 8
"""Variables that are shown where none is named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "run", metavar="RUN", type=Path,
        help="a run's folder, or its name in outputs/ (its best.ckpt); a checkpoint; a folder such as inference-last",
    )  # fmt: skip
    parser.add_argument("--start", metavar="DATE", help="first date that is forecast (default: of the test period)")
    parser.add_argument("--end", metavar="DATE", help="last date that is forecast (default: of the test period)")
    parser.add_argument("--dataset", metavar="PATH", help="other data than the run's own, by default all of its dates")
    parser.add_argument(
        "--lead-time", metavar="TIME", help="how far: 120h, 5d; 6mo of monthly data; or steps (default: of the config)"
    )
    parser.add_argument("--every", metavar="N", type=int, default=1, help="forecast from every Nth date (default: 1)")
    parser.add_argument("--variables", metavar="NAME,...", help=f"which are shown and drawn (default: first {SHOWN})")
    parser.add_argument("--batch-size", metavar="N", type=int, help="forecasts at a time (default: of the config)")
    parser.add_argument("--climatology", choices=("monthly", "daily", "none"), help="default: of the config")
    parser.add_argument("--climatology-file", metavar="FILE", help="NetCDF to read the climatology from")
    parser.add_argument("--allow-large", action="store_true", help="compute it from over 20 GB of training data too")
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="default: evaluation, in the run's folder")
    parser.add_argument("--force", action="store_true", help="replace what FOLDER holds of an evaluation")
    parser.add_argument("--device", default="cpu", help="where to run (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print, write and draw."""
    checkpoint = find_checkpoint(args.run, Path("outputs"))
    for option, value in (("--every", args.every), ("--batch-size", args.batch_size)):
        if value is not None and value < 1:
            raise UserError(f"{option} {value} is not 1 or more", where=option, allowed="1, 2, 3, ...")
    output = args.output or _beside(checkpoint)
    _check_output(output, force=args.force)
    from etesian.commands.evaluate_run import FILES, draw, evaluate, plan, write
    from etesian.files import files_together
    from etesian.inference.evaluation_data import Period

    common.register_kinds()
    period = Period(args.dataset, args.start, args.end)
    planned = plan(args, checkpoint, period, common.cache_dir())
    shown = _shown(args.variables, planned.forecaster.variables.output)
    evaluation = evaluate(planned, shown)
    _print(evaluation)
    attributes = _attributes(planned.forecaster.about, checkpoint, evaluation)
    with files_together(output, FILES) as folder:
        files = write(evaluation, folder, attributes)
        if not args.no_plots:
            files += draw(evaluation, folder)
    print(f"wrote {len(files)} files to {output}: {', '.join(file.name for file in files if file.suffix != '.png')}"
          + (f" and {sum(file.suffix == '.png' for file in files)} pictures" if not args.no_plots else ""))  # fmt: skip
    return 0


def _beside(checkpoint: Path) -> Path:
    folder = checkpoint.absolute().parent
    folder = (folder.parent if folder.name == "checkpoints" else folder) / "evaluation"
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _check_output(output: Path, *, force: bool) -> None:
    where = "--output"
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is no folder", where=where, mend="another name")
    if output.is_dir() and any(output.iterdir()):
        if not force:
            raise UserError(f"{output} is there already", where=where, mend="another name, or --force to replace it")
        if not (output / "scores.csv").is_file():
            raise UserError(f"{output} holds no evaluation, so it is not replaced", where=where, mend="another name")
    check_writable(output / "scores.csv", where)


def _shown(text: str | None, outputs: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return outputs[:SHOWN]
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    problems = [
        Problem(f"{name!r} is not an output of the model", "--variables", ", ".join(outputs),
                did_you_mean(name, outputs))
        for name in names if name not in outputs
    ]  # fmt: skip
    if problems:
        raise UserError.collect(problems)
    if not names:
        raise UserError("--variables names none", where="--variables", allowed=", ".join(outputs))
    return names


def _print(evaluation: Evaluation) -> None:
    from rich.console import Console

    from etesian.inference.score_table import measures_table, scores_table

    console, table = Console(), evaluation.scores
    leads = evaluation.rows(6)
    shown = table.select(evaluation.shown, leads)
    console.print()
    console.print(scores_table(shown, title=f"RMSE, {evaluation.period}"))
    console.print(measures_table(shown))
    left_out = [
        text for text, more in (
            (f"{len(table.variables) - len(evaluation.shown)} variables", len(table.variables) > len(evaluation.shown)),
            (f"{len(table.lead_times) - len(leads)} lead times", len(table.lead_times) > len(leads)),
        ) if more
    ]  # fmt: skip
    if left_out:
        print(f"The files hold {' and '.join(left_out)} more than these tables; --variables chooses others.")
    if evaluation.trained_on:
        print(
            f"{evaluation.trained_on} of the dates that are forecast lie in the period that the model was trained on."
        )
    if evaluation.no_spectra:
        print(f"No spectra: {evaluation.no_spectra}.")


def _attributes(about: dict[str, Any], checkpoint: Path, evaluation: Evaluation) -> dict[str, Any]:
    exported, now = about["exported"], datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "run": f"run {about['run']['id']}",
        "source": f"etesian {about['version']}, {about['config']['model']['kind']}, {exported['step']} training steps",
        "checkpoint": str(checkpoint),
        "period": evaluation.period,
        "forecasts": evaluation.scores.forecasts,
        "climatology": evaluation.climatology,
        "weighting": "area of each grid point's cell on the sphere",
        "history": f"{now}: anemoi-training {' '.join(sys.argv[1:])}",
    }
