"""``kernels bench``: which kernel is the fastest for an experiment on this device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.commands import common
from etesian.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from etesian.compose import Composed
    from etesian.kernels.bench.choose import Choice
    from etesian.kernels.bench.results import ShapeResult
    from etesian.kernels.bench.shapes import Shape, Sizes
    from etesian.kernels.bench.timing import Ceilings
    from etesian.kernels.resolve import ComponentKernels
    from etesian.schema.config import Config

HELP = "find out which kernel is the fastest for an experiment on this device"
DESCRIPTION = """\
Time every installed kernel of each slot, and its form compiled by torch, on the shapes, in the precision and on the
device of an experiment. Each is compared with its family's mathematics in float64 first; one that is wrong is not
timed. Nothing is chosen by itself: --write saves the fastest as a preset that an experiment can name."""
EPILOG = (
    """examples:
  anemoi-training kernels bench
  anemoi-training kernels bench --rows 40962,542080 --channels 1024 --slots LayerNorm system=gpu
  anemoi-training kernels bench --config-name my_experiment --write model/layer_kernels/fastest.yaml
  anemoi-training kernels bench --config-name my_experiment --end-to-end --presets torch,rmsnorm

"""
    + common.HYDRA_EPILOG
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    common.add_hydra_arguments(parser)
    parser.add_argument("--slots", metavar="SLOT[,SLOT]", help="only these slots (default: all that the model uses)")
    parser.add_argument("--rows", metavar="N[,N]", help="so many rows instead of the experiment's; opens no dataset")
    parser.add_argument("--channels", metavar="N", help="with --rows: model.num_channels")
    parser.add_argument("--bf16-true", action="store_true", help="with --rows: parameters in bfloat16 too, no autocast")
    parser.add_argument("--repeats", metavar="N", default="9", help="rounds (default: %(default)s)")
    parser.add_argument(
        "--min-time", metavar="SECONDS", default="0.2", help="time of each kernel, all rounds (default: %(default)s)"
    )
    parser.add_argument("--no-compiled", action="store_true", help="leave out the forms compiled by torch")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the results as JSON")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the fastest as a preset, .yaml")
    parser.add_argument("--force", action="store_true", help="let --write and --output replace a file")
    parser.add_argument("--end-to-end", action="store_true", help="time whole training steps with each preset instead")
    parser.add_argument(
        "--presets", metavar="A[,B]", help="with --end-to-end: only these; A+C is preset A with model/compile=C"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Compare kernels, or whole steps."""
    options = Options(args)
    _quieten_torch()
    config, composed = common.load_config(args, [*args.overrides, *options.overrides])
    if args.end_to_end:
        from etesian.commands.kernels_steps import bench_steps

        steps = bench_steps(config, composed, args, options, console)
        _write_results(args, options, config, [], None, steps)
        if args.output is not None:
            print(f"results: {args.output}")
        return 0

    def save(shapes: list[ShapeResult], ceilings: Ceilings) -> None:
        _write_results(args, options, config, shapes, ceilings, None)

    choices = bench_slots(config, composed, options, console, save)
    if args.output is not None:
        print(f"results: {args.output}")
    if args.write is not None:
        _write_preset(args, config, choices)
    return 0


def _quieten_torch() -> None:
    """Keep what torch remarks on single kernels out of the tables: that one is slow is what they show."""
    import logging
    import warnings

    for name in ("torch._higher_order_ops.triton_kernel_wrap", "liger_kernel.backends.registry"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (".*Cannot dispatch to fused implementation.*", ".*This DataLoader will create.*",
                    ".*TensorFloat32 tensor cores.*"):  # fmt: skip
        warnings.filterwarnings("ignore", message=message)


class Options:
    """The options of the command, checked.

    Raises
    ------
    UserError
        For a number that is none or too small, and for options that need or exclude each other.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.rows = None if args.rows is None else [_whole(text, "--rows") for text in args.rows.split(",")]
        self.slots = None if args.slots is None else args.slots.split(",")
        self.repeats = _whole(args.repeats, "--repeats")
        self.min_seconds = _seconds(args.min_time)
        self.compiled = not args.no_compiled
        self.writes = args.write is not None
        self.presets = None if args.presets is None else args.presets.split(",")
        self.overrides: list[str] = []
        if args.channels is not None:
            if self.rows is None:
                channels = f"model.num_channels={args.channels}"
                raise UserError("--channels goes with --rows", where="--channels", mend=f"the override {channels}")
            self.overrides = [f"model.num_channels={_whole(args.channels, '--channels')}"]
            _refuse_conflict(args.channels, args.overrides)
        self.bf16_true = args.bf16_true
        if args.bf16_true and (self.rows is None or self.writes):
            what = "--bf16-true is no precision of a run: it goes with --rows, without --write"
            raise UserError(what, where="--bf16-true", mend="the override training.precision=bf16-mixed")
        if args.force and args.write is None and args.output is None:
            raise UserError("--force goes with --write or --output", where="--force", mend="leave it out")
        if self.presets is not None and not args.end_to_end:
            raise UserError("--presets goes with --end-to-end", where="--presets", mend="add --end-to-end")
        if args.end_to_end:
            for name in ("rows", "slots", "write", "no_compiled", "bf16_true"):
                if getattr(args, name) not in (None, False):
                    option = f"--{name.replace('_', '-')}"
                    raise UserError(f"{option} says nothing to --end-to-end", where=option, mend="leave it out")
        _check_files(args.output, args.write, force=args.force)

    def circumstances(self, config: Config, device: str) -> str:
        """Return a line on where and how things are timed."""
        from etesian.kernels.machine import BF16_TRUE

        rounds = f"{self.repeats} round{'s' * (self.repeats > 1)}"
        precision = BF16_TRUE if self.bf16_true else f"training.precision={config.training.precision}"
        return f"{device}, {precision}, {config.model.num_channels:,} channels; {rounds}"


def _check_files(output: Path | None, write: Path | None, *, force: bool) -> None:
    """Check, before anything is measured, that what is asked for can be written."""
    from etesian.kernels.bench.choose import PRESETS, check_preset_path
    from etesian.kernels.bench.results import check_results_path
    from etesian.places import options_of, package_config_dir

    if output is not None and write is not None and output.resolve() == write.resolve():
        raise UserError(f"--output and --write both name {write}", where="--output", mend="--output results.json")
    if output is not None:
        check_results_path(output, force=force)
    if write is not None:
        check_preset_path(write, force=force, shipped=options_of(str(PRESETS), [package_config_dir()]))


def _refuse_conflict(channels: str, overrides: list[str]) -> None:
    """Refuse an override of what ``--channels`` says."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key == "model.num_channels":
            what = f"--channels {channels} and {override} both set model.num_channels"
            raise UserError(what, where="--channels", mend="leave one of them out")


def _whole(text: str, option: str) -> int:
    """Return a whole number of at least 1."""
    if not (text.isascii() and text.strip().isdecimal()) or int(text) < 1:
        raise UserError(f"{option} got {text!r}", where=option, allowed="whole numbers from 1, separated by commas"
                        if option == "--rows" else "a whole number from 1")  # fmt: skip
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 3600:
        raise UserError(f"--min-time got {text!r}", where="--min-time", allowed="seconds, more than 0, under 3600")
    return seconds


def bench_slots(
    config: Config, composed: Composed, options: Options, console: Console,
    save: Callable[[list[ShapeResult], Ceilings], None],
) -> list[Choice]:  # fmt: skip
    """Compare the kernels of the slots; print a table for each slot and shape, and save what there is after each."""
    from etesian.kernels.bench.candidates import candidates, chosen_slots
    from etesian.kernels.bench.cases import make_case, returned_dtypes
    from etesian.kernels.bench.choose import choose
    from etesian.kernels.bench.show import ceilings_line, legend, shape_table
    from etesian.kernels.bench.slot import Plan, bench_case
    from etesian.kernels.bench.timing import measure_ceilings
    from etesian.kernels.machine import BF16_TRUE, Machine
    from etesian.kernels.resolve import resolve_kernels
    from etesian.runtime.device import DeviceClock, device_of_process

    slots = chosen_slots(options.slots, config.model)
    if options.writes:
        _check_compiled_elsewhere(slots, config)
    device = device_of_process(config.system.hardware.accelerator, 0)
    preset = composed.choices.get("model/layer_kernels")
    kernels = resolve_kernels(
        config.model, preset=preset, overrides=composed.overrides, preset_slots=composed.preset_slots
    )
    shapes = _shapes(slots, config, kernels, options, console)
    machine = Machine(device, BF16_TRUE if options.bf16_true else config.training.precision)
    clock = DeviceClock(device)
    ceilings = measure_ceilings(clock, machine.products, products=bool({"Linear", "MLP", "Attention"} & set(slots)))
    plan = Plan(options.repeats, options.min_seconds, options.compiled)
    console.print(options.circumstances(config, clock.name), highlight=False)
    console.print(ceilings_line(ceilings), highlight=False)
    console.print(legend(on_device=device.type != "cpu"), style="dim", highlight=False)
    returned = returned_dtypes(kernels.processor, config.model, machine)
    results, choices = [], []
    for slot in slots:
        named = candidates(slot, config.model, kernels)
        for shape in shapes[slot]:
            case = make_case(slot, shape, config.model, kernels.processor, returned, machine)
            results.append(bench_case(case, named, machine, clock, ceilings, plan))
            save(results, ceilings)
            console.print(shape_table(results[-1], with_missing=shape is shapes[slot][0]), highlight=False)
        if shapes[slot]:
            choices.append(choose(slot, results))
    console.print("\nfwd+bwd, each shape times the calls of a step:", style="bold")
    for choice in choices:
        console.print(f"  {choice}", highlight=False, markup=False)
    return choices


def _check_compiled_elsewhere(slots: list[str], config: Config) -> None:
    """Refuse to write a preset for a slot that ``model.compile`` compiles: whatever it says would be compiled again."""
    for number, entry in enumerate(config.model.compile):
        if entry.kernel in slots:
            raise UserError(
                f"model.compile compiles slot {entry.kernel}: a preset could not say whether it is compiled",
                where=f"model.compile[{number}]",
                mend="model/compile=none; a compiled form that wins is written with its _compile_",
            )


def _shapes(
    slots: list[str], config: Config, kernels: ComponentKernels, options: Options, console: Console
) -> dict[str, list[Shape]]:
    from etesian.kernels.bench.shapes import shapes_of_experiment, shapes_of_rows

    if options.rows is not None:
        return {slot: shapes_of_rows(slot, config.model, options.rows) for slot in slots}
    sizes, source = sizes_of(config, with_edges="GraphAttention" in slots)
    nodes = f"{sizes.data:,} data nodes, {sizes.hidden:,} hidden nodes, times {sizes.copies} (batch x ensemble)"
    console.print(f"{nodes}, {source}", highlight=False, markup=False)
    return {slot: shapes_of_experiment(slot, config.model, sizes) for slot in slots}


def sizes_of(config: Config, *, with_edges: bool) -> tuple[Sizes, str]:
    """Return the nodes of an experiment, on request with its edges, and what they were taken from.

    A graph file that is there suffices. Else the dataset is opened, of which the coordinates are read only.
    """
    from etesian.data.open import open_split
    from etesian.graph.existing import adapt
    from etesian.graph.icosphere import build_icosphere
    from etesian.graph.store import load_graph, load_or_build
    from etesian.kernels.bench.shapes import Sizes

    batch, path = config.dataloader.batch_size.training, config.system.input.graph
    file = Path(path).expanduser() if path is not None else None
    if file is not None and (file.is_file() or config.graph.existing):
        graph = load_graph(file)
        if config.graph.existing:
            graph = adapt(graph, config.graph.existing, str(file))
        members, source = 1, f"of {path}; no dataset is opened, one ensemble member is assumed"
    else:
        data = open_split("training", config.dataloader.training, common.cache_dir())
        members, source = int(data.shape[2]), "of the dataset and section graph"
        if not with_edges:
            hidden = build_icosphere(config.graph.resolution).xyz.shape[0]
            return Sizes(len(data.latitudes), hidden, batch * members, {}), source
        graph = load_or_build(data.latitudes, data.longitudes, config.graph, file, common.cache_dir())
    edges = edges_of(graph) if with_edges else {}
    return Sizes(graph["data"].num_nodes, graph["hidden"].num_nodes, batch * members, edges), source


def edges_of(graph: Any) -> dict[str, Any]:
    """Return the edges of a graph by ``source2destination``."""
    from etesian.graph.edges import Edges

    return {f"{src}2{dst}": Edges.of_graph(graph, src, dst, tiled=True) for src, _, dst in graph.edge_types}


def _write_results(
    args: argparse.Namespace, options: Options, config: Config, shapes: list[ShapeResult],
    ceilings: Ceilings | None, steps: dict[str, Any] | None,
) -> None:  # fmt: skip
    if args.output is None:
        return
    from etesian.kernels.bench.results import results_json, write_results
    from etesian.training.environment import environment

    settings = {
        "config_name": args.config_name,
        "overrides": list(args.overrides),
        "device": config.system.hardware.accelerator,
        "precision": "bf16-true" if options.bf16_true else config.training.precision,
        "channels": config.model.num_channels,
        "rows": options.rows,
        "repeats": options.repeats,
        "min_seconds": options.min_seconds,
        "compiled_forms": options.compiled,
    }
    content = results_json(
        shapes, ceilings, environment=environment(["anemoi-training", *sys.argv[1:]]), settings=settings,
        end_to_end=steps,
    )  # fmt: skip
    write_results(args.output, content)


def _write_preset(args: argparse.Namespace, config: Config, choices: list[Choice]) -> None:
    from etesian.kernels.bench.choose import check_choices, preset_text, write_preset
    from etesian.kernels.libraries import installed_version
    from etesian.runtime.device import DeviceClock, device_of_process
    from etesian.training.environment import environment

    check_choices(choices)
    here = environment([])
    versions = [f"{name} {version}" for name in ("torch", "triton", "liger-kernel", "transformer-engine")
                if (version := installed_version(name))]  # fmt: skip
    name = DeviceClock(device_of_process(config.system.hardware.accelerator, 0)).name
    about = [
        f"On {name}, {here['date'][:10]}, training.precision={config.training.precision}, "
        f"{config.model.num_channels} channels; {', '.join(versions)}.",
        f"Command: {' '.join(['anemoi-training', *sys.argv[1:]])}",
        "Another card, another size or another version may turn the order round: measure again then.",
    ]
    write_preset(args.write, preset_text(config.model.layer_kernels, choices, about))
    folder = args.write.parent.parent.parent
    found = "" if folder.resolve() == Path.cwd() else f" --config-dir {folder}"
    print(f"preset: {args.write}; use it with model/layer_kernels={args.write.stem}{found}")
