"""``config convert``: a config of anemoi-training becomes one of this package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.commands import common
from etesian.errors import UserError, shell_word
from etesian.outputs import check_writable

if TYPE_CHECKING:
    from etesian.migrate.theirs import Told

HELP = "make a config of one of anemoi-training, and list what was changed and dropped"
_CHOICES = {
    "data": "own_data", "dataloader": "fractions", "diagnostics": "default", "model/layer_kernels": "torch",
    "model/compile": "none", "task": "forecaster", "training": "default",
}  # fmt: skip


def add_arguments(actions: Any) -> None:
    """Add the action and its arguments."""
    parser = actions.add_parser(
        "convert",
        help=HELP,
        description="Compose a config of anemoi-training 0.3 to 0.17 and write OUT.yaml, a config of this package, and "
        "OUT.report.md, which lists every key: carried over, changed or dropped, and why. What has no counterpart here "
        "and keys that nobody knows are named, and nothing is written. The dataset is opened where loss weights or "
        "bounds have to be written out for its variables.",
        epilog="examples:\n  anemoi-training config convert their_configs -o mine.yaml\n"
        "  anemoi-training config convert their_configs -o mine.yaml --config-name lam model=transformer\n",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of its config.yaml")
    parser.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="key=value or group=option, as its own command"
    )
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="the .yaml to write")
    parser.add_argument(
        "--config-name", "-cn", metavar="NAME", default="config", help="its top-level YAML (%(default)s)"
    )
    parser.add_argument(
        "--also", metavar="DIR", type=Path, action="append", default=[],
        help="another folder to look in, such as anemoi/training/config of the release; may be given several times",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Convert a config."""
    output, told_in = args.output, args.output.with_suffix(".report.md")
    _check_paths(args, told_in)
    from etesian.compose import compose, compose_foreign
    from etesian.data.open import open_whole
    from etesian.files import write_text
    from etesian.interpolation import leaves
    from etesian.migrate.convert import convert
    from etesian.migrate.write import report, summary

    common.register_kinds()
    theirs, origin = compose_foreign([args.folder.resolve(), *(p.resolve() for p in args.also)], args.config_name,
                                     args.overrides)  # fmt: skip
    base = compose("own_data", None, ["system.input.dataset=converted.zarr"]).tree

    def open_dataset(options: Mapping[str, Any]) -> Any:
        return open_whole(options, common.cache_dir(), "dataloader.training.dataset_config")

    converted = convert(leaves(theirs), base, open_dataset)
    text = _write(converted.tree, origin, told_in)
    told = report(converted.told, str(origin), output.name)
    write_text(told_in, told)
    try:
        write_text(output, text)
    except BaseException:
        told_in.unlink(missing_ok=True)
        raise
    _print(converted.told)
    print(f"{summary(converted.told)}; {told_in} lists all of them")
    print(f"wrote {output}. To check it against the dataset, in its folder:")
    print(f"  anemoi-training config validate --config-name {shell_word(output.stem)}")
    return 0


def _check_paths(args: argparse.Namespace, report: Path) -> None:
    output: Path = args.output
    if output.suffix != ".yaml":
        mend = shell_word(f"--output={output.with_suffix('.yaml')}")
        raise UserError(f"the config is named *.yaml, not {output.name!r}", where="--output", mend=mend)
    for option, folders in (("DIR", [args.folder]), ("--also", args.also)):
        for folder in folders:
            if not folder.is_dir():
                reason = "is a file" if folder.exists() else "does not exist"
                raise UserError(f"{folder} {reason}", where=option, allowed="a folder of YAML files")
    for path in (output, report):
        if path.exists():
            raise UserError(
                f"{path} is there already, and nothing is overwritten", where="--output", mend="another name"
            )
        check_writable(path, "--output")


def _write(tree: dict[str, Any], origin: Path, report: Path) -> str:
    """Return the text of the config, which composes to the tree."""
    import yaml

    from etesian.compose import compose
    from etesian.migrate.write import check_same, write_config

    choices = _CHOICES | {
        "graph": "existing" if tree["graph"]["existing"] else "multi_scale",
        "model": tree["model"]["kind"],
        "system": "cpu" if tree["system"]["hardware"]["accelerator"] == "cpu" else "gpu",
    }
    order = ["data", "dataloader", "diagnostics", "graph", "model", "model/layer_kernels", "model/compile", "task",
             "training", "system"]  # fmt: skip
    given = {group: choices[group] for group in order}

    def composed(name: str, text: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / f"converted_{name}.yaml").write_text(text)
            return common.validated(compose(f"converted_{name}", folder, []).tree)

    def of_choices(chosen: Mapping[str, str]) -> dict[str, Any]:
        inputs = {"dataset": tree["system"]["input"]["dataset"]} | (
            {"graph": "x.pt"} if tree["graph"]["existing"] else {}
        )
        given = {"data": {"frequency": tree["data"]["frequency"]}, "system": {"input": inputs}}
        found = composed("base", yaml.safe_dump({"defaults": [*({k: v} for k, v in chosen.items()), "_self_"]} | given))
        found["data"]["frequency"] = found["system"]["input"]["dataset"] = None  # the dataloader refers to them
        return found

    text = write_config(tree, given, of_choices)
    check_same(composed("check", text), tree)
    return f"# Made of {origin} by anemoi-training config convert; {report.name} says what became of its keys.\n{text}"


def _print(told: list[Told]) -> None:
    """Print a table of what was changed and dropped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from etesian.migrate.write import shown

    console = Console(width=None if sys.stdout.isatty() else 120)
    for kind in ("changed", "dropped"):
        table = Table(title=kind, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("there", "here", "why") if kind == "changed" else ("there", "why"):
            table.add_column(head, overflow="fold")
        for entry in told:
            if entry.kind == kind:
                here = [f"{entry.ours}={_short(shown(entry.value))}"] if kind == "changed" else []
                given = shown(entry.given) if len(entry.keys) < 2 else f"({len(entry.keys)} keys)"
                table.add_row(f"{entry.key}={_short(given)}".replace("=(", " ("), *here, entry.why)
        if table.row_count:
            console.print(table, markup=False, highlight=False)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
