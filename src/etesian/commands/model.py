"""``model``: what the parts of an experiment's model cost."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from etesian.commands import common
from etesian.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from etesian.runtime.costs import Cost
    from etesian.training.experiment import Experiment

DESCRIPTION = "Describe the model of an experiment."
EPILOG = """examples:
  anemoi-training model summary
  anemoi-training model summary --json model=gnn
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action and its arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    summary = actions.add_parser(
        "summary",
        help="print parameters, memory and operations of encoder, processor and decoder",
        description="Print what encoder, processor and decoder of an experiment cost in a training step: parameters, "
        "what is kept for the backward pass, operations. Nothing is trained, and no GPU is needed.",
        epilog=f"example:\n  anemoi-training model summary model=gnn\n\n{common.HYDRA_EPILOG}",
    )
    summary.add_argument("--json", action="store_true", help="print JSON")
    common.add_hydra_arguments(summary)


def run(args: argparse.Namespace) -> int:
    """Print the summary."""
    config, composed = common.load_config(args)
    from etesian.training.experiment import check_experiment

    experiment = check_experiment(
        config, common.cache_dir(), preset=composed.choices.get("model/layer_kernels"), overrides=composed.overrides,
        preset_slots=composed.preset_slots, probe=False, here=False,
    )  # fmt: skip
    shapes, costs = summarise(experiment)
    if args.json:
        print(json.dumps({**shapes, "parts": [asdict(cost) for cost in costs]}, indent=2))
        return 0
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(costs_table(config.model.kind, costs))
    console.print(
        f"a step of {shapes['copies']} x {shapes['data_nodes']:,} data nodes and {shapes['hidden_nodes']:,} hidden "
        f"nodes, {shapes['channels']:,} channels, training.precision={shapes['precision']}, not compiled",
        highlight=False,
    )
    return 0


def summarise(experiment: Experiment) -> tuple[dict[str, Any], list[Cost]]:
    """Count what an experiment's model costs in a step of one lead time.

    Raises
    ------
    UserError
        If a kernel without a counterpart in plain PyTorch can't be counted.
    """
    import torch

    from etesian.inference.assemble import assemble
    from etesian.kernels.machine import Machine
    from etesian.runtime.costs import model_costs

    config, data = experiment.config, experiment.splits.training
    graph, steps = experiment.load_graph(), config.task.multistep_input
    settings, kernels = plain_kernels(experiment)
    members, batch = int(data.shape[2]), config.dataloader.batch_size.training
    forecaster = assemble(settings, config.data, steps, experiment.variables, data.statistics, graph, kernels)
    shape = (batch, steps, members, graph["data"].num_nodes, len(experiment.variables.input))
    machine = Machine(torch.device("cpu"), config.training.precision)
    try:
        costs = model_costs(forecaster.model, settings, shape, machine)
    except Exception as cause:  # of a kernel that is called with tensors without numbers
        what = f"the model can't be counted with these kernels: {type(cause).__name__}: {cause}"
        raise UserError(what, where="model.layer_kernels", mend="model/layer_kernels=torch") from cause
    nodes = {f"{name}_nodes": graph[name].num_nodes for name in graph.node_types}
    shapes = {
        "kind": settings.kind, "channels": settings.num_channels, "copies": batch * members, **nodes,
        "precision": config.training.precision,
    }  # fmt: skip
    return shapes, costs


def plain_kernels(experiment: Experiment) -> tuple[Any, Any]:
    """Return settings and kernels with those of PyTorch in the place of every kernel of the same family."""
    from etesian.checkpoint.export import plain_or_own, remapped
    from etesian.kernels.resolve import resolve_kernels
    from etesian.schema.validate import validate_config

    mappings, own = plain_or_own(experiment.kernels.records)
    for record, _ in own:
        mappings.setdefault(record.component, {})[record.slot] = {"_target_": record.target, **record.arguments}
    config = experiment.config.model_dump(mode="json", by_alias=True)
    settings = validate_config(remapped(config, mappings)).model
    return settings, resolve_kernels(settings, preset=None, overrides=[])


def costs_table(kind: str, costs: list[Cost]) -> Table:
    """Lay out the costs, a row for each part and one for all."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"model of kind {kind}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )  # fmt: skip
    for number, heading in enumerate(
        ("part", "kind", "parameters", "kept for backward", "forward", "forward + backward")
    ):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for cost in costs:
        table.add_row(cost.part, cost.kind, *_numbers(cost))
    sums = [
        sum(getattr(cost, name) for cost in costs) for name in ("parameters", "kept_bytes", "forward_flops", "flops")
    ]
    table.add_section()
    table.add_row("all", "", f"{sums[0]:,}", _unit(sums[1], "B"), _unit(sums[2], "FLOP"), _unit(sums[3], "FLOP"))
    return table


def _numbers(cost: Cost) -> list[str]:
    if not cost.kind:
        return [f"{cost.parameters:,}", "", "", ""]
    counted = (cost.kept_bytes, "B"), (cost.forward_flops, "FLOP"), (cost.flops, "FLOP")
    return [f"{cost.parameters:,}", *(_unit(value, unit) for value, unit in counted)]


def _unit(value: int, unit: str) -> str:
    """Return a number with three digits and the prefix that it takes."""
    prefixes, scaled = iter(("", "k", "M", "G", "T", "P")), float(value)
    prefix = next(prefixes)
    while scaled >= 999.5 and (further := next(prefixes, None)):
        scaled, prefix = scaled / 1000, further
    return f"{scaled:.3g} {prefix}{unit}"
