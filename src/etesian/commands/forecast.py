"""``anemoi-training forecast``: one forecast from one date, written with its coordinates and units."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.checkpoint.paths import check_input
from etesian.commands import common
from etesian.errors import UserError
from etesian.outputs import check_writable

if TYPE_CHECKING:
    from etesian.data.gridded import GriddedDataset

DESCRIPTION = "Forecast from one date with a trained model, and write NetCDF or zarr by the CF conventions."
EPILOG = """examples:
  anemoi-training forecast outputs/first/checkpoints/best.ckpt --date 2020-01-01 --lead-time 120h --output out.nc
  anemoi-training forecast inference-last.ckpt --date 2020-01-01T12 --lead-time 5d --dataset my.zarr --output out.zarr
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path,
        help="a checkpoint of a run, one for inference, or a folder such as inference-last",
    )  # fmt: skip
    parser.add_argument("--date", required=True, help="date of the newest initial state: 2020-01-01, 2020-01-01T06")
    parser.add_argument("--lead-time", metavar="TIME", required=True, help="how far: 120h, 5d; 6mo of monthly data")
    parser.add_argument("--dataset", metavar="PATH", help="what holds the initial states (default: the run's own)")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="the .nc or .zarr to write")
    parser.add_argument("--force", action="store_true", help="replace OUT")
    parser.add_argument("--device", default="cpu", help="where to run (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Forecast and write."""
    check_input(args.checkpoint, folder=True)
    from etesian.data.timeline import first_date
    from etesian.inference.forecast_file import as_dataset, check_target, write

    start = first_date(args.date, "--date")
    check_target(args.output, force=args.force)
    check_writable(args.output / "x" if args.output.suffix == ".zarr" else args.output, "--output")
    from etesian.checkpoint.open import open_forecaster
    from etesian.data.description import step_of
    from etesian.inference.forecast import run_forecast, steps_in
    from etesian.runtime.device import get_device

    device = get_device(args.device)
    common.register_kinds()
    forecaster = open_forecaster(args.checkpoint)
    about = forecaster.about
    steps = steps_in(args.lead_time, step_of(about["dataset"]))
    dataset = _dataset(args.dataset, about["config"]["dataloader"]["test"]["dataset_config"])
    forecast = run_forecast(forecaster, dataset, start, steps, device)
    write(as_dataset(forecast, _attributes(about, args.checkpoint)), args.output)
    last = forecast.dates[-1]
    print(f"wrote {args.output}: {len(forecast.variables)} variables, {steps} steps from {start} to {last}")
    return 0


def _dataset(path: str | None, options: dict[str, Any]) -> GriddedDataset:
    """Open the dataset of the command line, or the run's own test data, with all their dates."""
    from etesian.data.open import open_whole

    if path is None:
        return open_whole(options, common.cache_dir(), "the dataset of the checkpoint (another with --dataset)")
    try:
        return open_whole({"dataset": path}, common.cache_dir(), "--dataset")
    except UserError as error:
        mend = "--dataset /path/to/dataset.zarr"
        problems = [replace(problem, where="--dataset", mend=mend) for problem in error.problems]
        raise UserError.collect(problems) from error


def _attributes(about: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    exported, now = about["exported"], datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "title": f"forecast of run {about['run']['id']}",
        "source": f"etesian {about['version']}, {about['config']['model']['kind']}, {exported['step']} training steps",
        "checkpoint": str(checkpoint),
        "history": f"{now}: anemoi-training {' '.join(sys.argv[1:])}",
    }
