"""``mlflow sync``: upload a run to an MLflow server, or what the server lacks of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from etesian.errors import UserError

DESCRIPTION = "Upload a run to an MLflow server."
EPILOG = """examples:
  anemoi-training mlflow sync first
  anemoi-training mlflow sync outputs/first --tracking-uri http://localhost:5000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    sync = actions.add_parser(
        "sync",
        help="upload a run, or what the server lacks of it",
        description="Bring an MLflow server to what a run folder holds: config, kernels, metrics, scores, pictures. "
        "A run that was logged while it went on is filled up; one that was not is made. What the server has stays "
        "as it is, so the command may be given again.",
        epilog=EPILOG,
    )
    sync.add_argument("run", metavar="RUN", type=Path, help="a run's folder, or its name in outputs/")
    sync.add_argument("--tracking-uri", metavar="URI", help="address of the server (default: of the run's config)")
    sync.add_argument("--experiment-name", metavar="NAME", help="for a run that is made (default: of the config)")


def run(args: argparse.Namespace) -> int:
    """Upload the run and say what the server lacked."""
    folder = args.run if args.run.is_dir() else Path("outputs") / args.run
    if not folder.is_dir():
        raise UserError(
            f"there is no run {str(args.run)!r}", where="RUN", allowed="a run's folder, or a name in outputs/"
        )
    if args.tracking_uri is not None:
        from etesian.schema.diagnostics import checked_uri

        try:
            args.tracking_uri = checked_uri(args.tracking_uri, "--tracking-uri")
        except ValueError as cause:
            raise UserError(str(cause), where="--tracking-uri") from cause
    from etesian.training.run_folder import RunFolder
    from etesian.training.run_lock import check_free
    from etesian.training.tracking.sync import sync

    folder = folder.resolve()
    check_free(RunFolder(folder.parent, folder.name))
    synced = sync(folder, args.tracking_uri, args.experiment_name)
    what = "made" if synced.is_new else "there already"
    print(f"run {folder.name}, {what}: {synced.values} values of metrics uploaded, {synced.status}\n{synced.url}")
    return 0
