"""``checkpoint``: describe a checkpoint, export it for inference, or import one of anemoi-training."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.checkpoint.paths import check_input, check_output
from etesian.commands import checkpoint_import, common
from etesian.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

DESCRIPTION = "Describe a checkpoint, make one for inference from it, or import one of anemoi-training."
EPILOG = """examples:
  anemoi-training checkpoint describe outputs/first/checkpoints/best.ckpt
  anemoi-training checkpoint export outputs/first/checkpoints/best.ckpt -o inference.ckpt
  anemoi-training checkpoint import anemoi.ckpt -o imported.ckpt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    describe = actions.add_parser(
        "describe",
        help="print the model, variables and layer kernels of a checkpoint",
        description="Print what a checkpoint of a run, or an exported one, holds.",
        epilog="example:\n  anemoi-training checkpoint describe outputs/first/checkpoints/best.ckpt\n",
    )
    describe.add_argument(
        "checkpoint", metavar="FILE", type=Path, help="a checkpoint, or a folder such as inference-last"
    )
    describe.add_argument("--json", action="store_true", help="print JSON")
    export = actions.add_parser(
        "export",
        help="write a checkpoint for inference, with kernels of your choice",
        description="Write the forecaster of a checkpoint as a module that torch.load gives back, with layer kernels "
        "that are installed where it is to run. The kernels of each slot have to be of one family with the same "
        "constants; they are compared on random numbers.",
        epilog="example:\n  anemoi-training checkpoint export best.ckpt --layer-kernels torch -o inference.ckpt\n",
    )
    export.add_argument("checkpoint", metavar="FILE", type=Path, help="a checkpoint of a run")
    export.add_argument(
        "--layer-kernels", metavar="NAME", default="torch",
        help="torch: of each slot's family the kernel in plain PyTorch; or a preset (default: %(default)s)",
    )  # fmt: skip
    export.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="the file to write")
    export.add_argument("--force", action="store_true", help="replace OUT")
    export.add_argument("--device", default="cpu", help="where kernels are compared (default: %(default)s)")
    export.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder of your own YAML files, for its presets")
    checkpoint_import.add_arguments(actions)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    return {"describe": describe, "export": export, "import": checkpoint_import.run}[args.action](args)


def describe(args: argparse.Namespace) -> int:
    """Print what a checkpoint is."""
    check_input(args.checkpoint, folder=True)
    from etesian.checkpoint.summary import summarise

    summary = summarise(args.checkpoint)
    if args.json:
        print(json.dumps(summary, indent=2))
        return 0
    from rich.console import Console

    from etesian.kernels.record import from_json, table

    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(summary_table(summary))
    console.print(table(from_json(summary["kernels"])))
    return 0


def _compiled(entry: Mapping[str, Any]) -> str:
    from etesian.schema.compilation import CompileOptions, describe_options

    words = describe_options(CompileOptions.model_validate(entry.get("options") or {}))
    return f"{entry['module']} ({words})" if words else str(entry["module"])


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Lay a summary out, without its kernels."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    model, variables, graph = summary["model"], summary["variables"], summary["graph"]
    dataset = summary["dataset"]
    rows = {
        "file": f"{summary['file']}, {summary['bytes'] / 1e6:,.1f} MB, for {summary['contains']}",
        "etesian": f"{summary['etesian']}, format {summary['format']}",
        "model": f"{model['kind']}, {model['channels']} channels, processor layers: {model['layers']}, "
        f"{model['parameters']:,} parameters",
        "trained": f"{summary['step']:,} steps, epoch {summary['epoch']}, {summary['precision']}",
        "data": f"{dataset['dates']:,} dates, {dataset['first']} to {dataset['last']}; run {summary['run']}",
        "input": f"{summary['multistep_input']} states, {summary['timestep']} apart: {', '.join(variables['input'])}",
        "forcing": ", ".join(variables["forcing"]) or "none",
        "output": ", ".join(variables["output"]),
        "graph": _counts(graph["nodes"], "nodes") + "; " + _counts(graph["edges"], "edges"),
    }
    if summary["compile"]:
        rows["compiled"] = "; ".join(map(_compiled, summary["compile"]))
    if "exported" in summary:
        rows["exported"] = f"from {summary['exported']['checkpoint']}"
    table = Table(title="checkpoint", title_justify="left", box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, Text(text))
    return table


def export(args: argparse.Namespace) -> int:
    """Write a checkpoint for inference."""
    check_input(args.checkpoint)
    check_output(args.output, args.checkpoint, force=args.force)
    from etesian.checkpoint.export import PLAIN, TOLERANCE, write
    from etesian.checkpoint.export import export as make
    from etesian.places import search_path
    from etesian.runtime.device import get_device

    device = get_device(args.device)
    search_path(args.config_dir)  # a folder that is not there is a mistake whether it is needed or not
    mapping = None if args.layer_kernels == PLAIN else _preset(args.layer_kernels, args.config_dir)
    common.register_kinds()
    exported = make(args.checkpoint, args.layer_kernels, mapping, device)
    write(exported, args.output)
    from rich.console import Console

    from etesian.kernels.record import table

    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table(exported.kernels))
    for parity in exported.parities:
        print(parity)
    if exported.model is not None:
        print(f"whole model on random numbers: {exported.model:.1e} apart, {TOLERANCE:.0e} allowed")
    elif exported.why_not:
        print(f"the whole model was not compared: {exported.why_not}")
    else:
        print("the kernels are those of the checkpoint")
    print(f"wrote {args.output}")
    return 0


def _preset(name: str, config_dir: str | None) -> Mapping[str, Any]:
    """Return the mapping of a preset, as a config gets it.

    Raises
    ------
    UserError
        If there is no such preset, or the name is none.
    """
    from etesian.compose import compose
    from etesian.places import is_option_name, options_of, search_path

    if not is_option_name(name):
        known = ["torch", *options_of("model/layer_kernels", search_path(config_dir))]
        raise UserError(
            f"--layer-kernels takes the name of a preset, not {name!r}", where="--layer-kernels",
            allowed=", ".join(dict.fromkeys(known)), mend="write the mapping to model/layer_kernels/NAME.yaml",
        )  # fmt: skip

    mapping: Mapping[str, Any] = compose("train", config_dir, [f"model/layer_kernels={name}"]).tree["model"][
        "layer_kernels"
    ]
    return mapping


def _counts(numbers: Mapping[str, int], what: str) -> str:
    return f"{', '.join(f'{count:,} {name}' for name, count in numbers.items())} {what}"
