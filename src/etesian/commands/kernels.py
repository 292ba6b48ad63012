"""``kernels``: what may fill the slots of the model, and whether an experiment's kernels run here."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from etesian.commands import common, kernels_bench

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DESCRIPTION = "List the slots of layer kernels, check the kernels of an experiment, or find the fastest."
EPILOG = """examples:
  anemoi-training kernels list
  anemoi-training kernels check model/layer_kernels=rmsnorm
  anemoi-training kernels bench --slots LayerNorm,MLP
"""

GROUP = "model/layer_kernels"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    shown = actions.add_parser(
        "list",
        help="print the slots, the presets, and which kernel libraries are installed",
        description="Print how each slot is built, called and filled, the presets, and the libraries of kernels.",
        epilog="example:\n  anemoi-training kernels list\n",
    )
    shown.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder of your own YAML files, for its presets")
    check = actions.add_parser(
        "check",
        help="resolve the kernels of an experiment and run each once, without data",
        description="Resolve the kernels of an experiment and run each forward and backward, small, on the device and "
        "in the precision of its config. No dataset is opened.",
        epilog=f"example:\n  anemoi-training kernels check model/layer_kernels=rmsnorm\n\n{common.HYDRA_EPILOG}",
    )
    common.add_hydra_arguments(check)
    kernels_bench.add_arguments(
        actions.add_parser(
            "bench", help=kernels_bench.HELP, description=kernels_bench.DESCRIPTION, epilog=kernels_bench.EPILOG
        )
    )


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100)
    if args.action == "check":
        return check(args, console)
    if args.action == "bench":
        return kernels_bench.run(args, console)
    console.print(slots_table())
    console.print(presets_table(args.config_dir))
    console.print(libraries_table())
    return 0


def check(args: argparse.Namespace, console: Console) -> int:
    """Resolve and probe the kernels of an experiment, and print them."""
    config, composed = common.load_config(args)
    from etesian.kernels.probe import probe_kernels
    from etesian.kernels.record import table
    from etesian.kernels.resolve import resolve_kernels
    from etesian.runtime.checkpointing_trial import try_checkpointing
    from etesian.runtime.device import device_of_process
    from etesian.runtime.trial import try_compilation

    device = device_of_process(config.system.hardware.accelerator, 0)
    preset = composed.choices.get("model/layer_kernels")
    kernels = resolve_kernels(
        config.model, preset=preset, overrides=composed.overrides, preset_slots=composed.preset_slots
    )
    probe_kernels(kernels, config.model, device, config.training.precision)
    try_checkpointing(config.model, kernels, device, config.training.precision)
    compilation = try_compilation(config.model, kernels, device, config.training.precision)
    console.print(table(kernels.records))
    if compilation.entries:
        console.print(f"compiled in a model of one layer: {compilation.describe()}", highlight=False)
    where = f"{device.type} with training.precision={config.training.precision}"
    console.print(f"all that are used run forward and backward on {where}", highlight=False)
    return 0


def slots_table() -> Table:
    """Lay out how each slot is built and called, and its default."""
    from rich.markup import escape

    from etesian.kernels.slots import SLOTS

    table = _table("slots", "slot", "built with, called with, default")
    for slot in SLOTS.values():
        arguments = ", ".join(f"{name}={value!r}" for name, value in slot.arguments.items())
        default = f"{slot.target}({arguments})" if arguments else slot.target
        table.add_row(slot.name, escape(f"{slot.construction}\n{slot.call}\n{default}"))
    return table


def presets_table(config_dir: str | None) -> Table:
    """Lay out the presets of the group ``model/layer_kernels``, with the libraries that they need.

    Raises
    ------
    UserError
        If `config_dir` is no folder.
    """
    from rich.markup import escape

    from etesian.places import options_of, package_config_dir, search_path

    table = _table("presets, chosen with model/layer_kernels=NAME", "preset", "what, where, and what is missing here")
    for name, file in options_of(GROUP, search_path(config_dir)).items():
        text = file.read_text()
        first = text.partition("\n")[0]
        lines = [first.removeprefix("#").strip() if first.startswith("#") else ""]
        lines.append("" if file.is_relative_to(package_config_dir()) else str(file))
        lines += [f"{library}: {here}" for library, here in _missing_libraries(text)]
        table.add_row(name, escape("\n".join(line for line in lines if line)))
    return table


def libraries_table() -> Table:
    """Lay out the libraries of kernels, with their versions or what installs them."""
    from rich.markup import escape

    from etesian.kernels.libraries import EXTRAS, installation, installed_version

    ways: dict[str, str | None] = {"torch": None, "torch-geometric": None}
    ways |= {distribution: installation(extra) for distribution, extra in EXTRAS.values()}
    ways["triton"] = f"comes with builds of torch for GPUs, or {ways['triton']}"
    table = _table("libraries", "library", "version")
    for library, way in ways.items():
        missing = f"not installed: {way}" if way else "not installed"
        table.add_row(library, escape(installed_version(library) or missing))
    return table


def _missing_libraries(preset: str) -> list[tuple[str, str]]:
    """Return (distribution, what installs it) of each optional library that a preset names and that is not there."""
    import yaml

    from etesian.kernels.libraries import EXTRAS, installation, installed_version, top_library

    content = yaml.safe_load(preset)
    entries = content.values() if isinstance(content, dict) else []
    targets = [str(entry.get("_target_", "")) for entry in entries if isinstance(entry, dict)]
    used = dict.fromkeys(top_library(target) for target in targets)
    found = [EXTRAS[name] for name in used if name in EXTRAS]
    return [
        (distribution, f"not installed: {installation(extra)}")
        for distribution, extra in found
        if installed_version(distribution) is None
    ]


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, overflow="fold")
    return table
