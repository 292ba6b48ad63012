"""``config``: show what a config amounts to, check it, copy the shipped one, convert one, list its keys."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.commands import common, config_convert
from etesian.errors import UserError

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from etesian.training.experiment import Experiment

DESCRIPTION = "Show, check, copy or convert a config."
EPILOG = """examples:
  anemoi-training config show training.max_epochs=3
  anemoi-training config validate --config-name my_experiment
  anemoi-training config generate my_configs
  anemoi-training config convert their_configs -o mine.yaml
"""

_HELP = {
    "show": "print the whole config, overrides and interpolations resolved",
    "validate": "check all that can be checked without training: keys, kernels, dataset, dates, variables, graph",
    "generate": "copy the shipped config into a folder, to be edited",
    "reference": "print what every key means, as Markdown",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    for name, text in _HELP.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_EPILOGS[name])
        if name in ("show", "validate"):
            common.add_hydra_arguments(action, cfg=name != "show")
        elif name == "generate":
            action.add_argument("folder", metavar="DIR", type=Path, help="a folder that is empty or does not exist")
    config_convert.add_arguments(actions)


_EPILOGS = {
    "show": f"example:\n  anemoi-training config show model/layer_kernels=torch\n\n{common.HYDRA_EPILOG}",
    "validate": f"example:\n  anemoi-training config validate training.max_epochs=3\n\n{common.HYDRA_EPILOG}",
    "generate": "example:\n  anemoi-training config generate my_configs\n"
    "  anemoi-training train --config-dir my_configs\n",
    "reference": "example:\n  anemoi-training config reference > config.md\n",
}


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    match args.action:
        case "show":
            return common.print_config(args)
        case "validate":
            return validate(args)
        case "generate":
            return generate(args.folder)
        case "convert":
            return config_convert.run(args)
        case _:
            from etesian.schema.reference import render

            common.register_kinds()
            print(render(), end="")
            return 0


def generate(folder: Path) -> int:
    """Copy the shipped config.

    Raises
    ------
    UserError
        If the folder holds something already, or cannot be written.
    """
    from etesian.places import package_config_dir

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UserError(f"{folder} {what}, and nothing is overwritten", where="DIR", allowed="an empty or new folder")
    made = folder.exists()
    try:
        shutil.copytree(package_config_dir(), folder, dirs_exist_ok=True)
    except OSError as error:  # of several files it holds a list, each with its reason behind it
        shutil.rmtree(folder, ignore_errors=True)
        if made:
            folder.mkdir(exist_ok=True)
        reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error.strerror
        raise UserError(f"{folder} cannot be written: {reason}", where="DIR", mend="another folder") from error
    print(f"copied to {folder}; edit there, then run")
    print(f"  anemoi-training train --config-dir {folder}")
    return 0


def validate(args: argparse.Namespace) -> int:
    """Check a config as ``train`` does before it trains, and print what was found."""
    config, composed = common.load_config(args)
    experiment = common.check_experiment(config, composed, common.cache_dir())
    summarise(experiment, experiment.load_graph())
    print(f"{composed.origin}: nothing is wrong")
    return 0


def summarise(experiment: Experiment, graph: HeteroData) -> None:
    """Print the splits, the roles of the variables, the kernels and the graph of an experiment."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from etesian.kernels.record import table

    console = Console(width=None if sys.stdout.isatty() else 100)
    config, variables = experiment.config, experiment.variables
    splits = Table(
        "split",
        "first forecast",
        "last forecast",
        "windows",
        title="splits",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name, windows in experiment.window_counts().items():
        first, last = experiment.forecast_period(name)
        splits.add_row(name, str(first), str(last), str(windows))
    console.print(splits)
    roles = Table(
        "role", "number", "variables", title="variables", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for role in ("prognostic", "forcing", "diagnostic"):
        names = getattr(variables, role)
        roles.add_row(role, str(len(names)), ", ".join(names) or "none")
    console.print(roles)
    console.print(table(experiment.kernels.records))
    edges = ", ".join(f"{graph[kind].num_edges} {kind[0]} to {kind[2]}" for kind in graph.edge_types)
    source = f"of {config.system.input.graph}" if config.graph.existing else f"resolution {config.graph.resolution}"
    console.print(
        f"graph: {graph['data'].num_nodes} data nodes, {graph['hidden'].num_nodes} hidden nodes"
        f" ({source}); edges: {edges}", highlight=False,
    )  # fmt: skip
