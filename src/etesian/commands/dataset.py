"""``dataset``: make a store to try things on, and say what is in a store."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.commands import common
from etesian.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

DESCRIPTION = "Make a dataset store, or describe one."
EPILOG = """examples:
  anemoi-training dataset make shallow-water flow.zarr
  anemoi-training dataset describe flow.zarr
"""
NARROWEST = 100
"""Columns that the table of variables needs; a narrower terminal wraps its lines."""
_MAKE_EPILOG = """examples:
  anemoi-training dataset make shallow-water flow.zarr
  anemoi-training dataset make shallow-water coarse.zarr --truncation 21 --grid regular --degrees 5 --days 90
  anemoi-training train --config-name shallow_water system.input.dataset=flow.zarr
  anemoi-training dataset make synthetic large.zarr --grid n320 --dates 60
  anemoi-training train --config-name n320 system.input.dataset=large.zarr
"""
_ROLES = ("prognostic", "forcing", "diagnostic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    make = actions.add_parser("make", help="make a store", description="Make a store.", epilog=_MAKE_EPILOG,
                              formatter_class=parser.formatter_class)  # fmt: skip
    kinds = make.add_subparsers(dest="kind", metavar="<kind>", title="kinds", required=True)
    text = "a forced shallow-water flow on the rotating sphere: wind, height, vorticity"
    flow = kinds.add_parser("shallow-water", help=text, description=f"{text[0].upper()}{text[1:]}.",
                            epilog=_MAKE_EPILOG, formatter_class=parser.formatter_class)  # fmt: skip
    _add_shallow_water(flow)
    text = "smooth moving fields of any grid, variables and length, named like the weather's"
    synthetic = kinds.add_parser("synthetic", help=text, description=f"{text[0].upper()}{text[1:]}.",
                                 epilog=_MAKE_EPILOG, formatter_class=parser.formatter_class)  # fmt: skip
    _add_synthetic(synthetic)
    text = "print a store's dates, grid, variables, units and statistics"
    describe_parser = actions.add_parser("describe", help=text, description=f"{text[0].upper()}{text[1:]}.",
                                         epilog="example:\n  anemoi-training dataset describe flow.zarr\n",
                                         formatter_class=parser.formatter_class)  # fmt: skip
    describe_parser.add_argument("path", metavar="PATH", help="a store: a .zarr folder, a .zip, or embedded:NAME")


def _add_shallow_water(parser: argparse.ArgumentParser) -> None:
    from etesian.data.shallow_water.options import GRIDS, Simulation

    default = Simulation()
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="the store to write; ends in .zarr")
    add("--truncation", metavar="T", type=_whole, default=default.truncation,
        help="largest wavenumber of the solver (default: %(default)s)")  # fmt: skip
    add("--grid", choices=GRIDS, default=default.grid, help="points of the store (default: %(default)s)")
    add("--degrees", metavar="D", type=_number, help="spacing of a regular grid (default there: 5)")
    add("--start", metavar="DATE", default=default.start, help="first date (default: %(default)s)")
    add("--days", metavar="N", type=_number, default=default.days, help="length (default: %(default)g)")
    add("--frequency", metavar="F", default=default.frequency, help="spacing of the dates (default: %(default)s)")
    add("--seed", metavar="N", type=_whole, default=default.seed, help="another flow for each (default: %(default)s)")
    add("--spinup-days", metavar="N", type=_number, default=default.spinup_days,
        help="simulated first, not written (default: %(default)g)")  # fmt: skip
    add("--overwrite", action="store_true", help="replace the store that is there")


def _add_synthetic(parser: argparse.ArgumentParser) -> None:
    from etesian.data.synthetic.options import SyntheticStore

    default = SyntheticStore()
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="the store to write; ends in .zarr")
    add("--grid", metavar="G", default=default.grid,
        help="o96, n320, any oN, regular-5deg (default: %(default)s)")  # fmt: skip
    for role in _ROLES:
        add(f"--{role}", metavar="N", type=_whole, help=f"{role} variables (default: {getattr(default, role)})")
    add("--variables", metavar="NAME", nargs="+", default=(), help="their names, in place of the three numbers")
    add("--dates", metavar="N", type=_whole, default=default.dates, help="number of dates (default: %(default)s)")
    add("--start", metavar="DATE", default=default.start, help="first date (default: %(default)s)")
    add("--frequency", metavar="F", default=default.frequency, help="spacing of the dates (default: %(default)s)")
    add("--seed", metavar="N", type=_whole, default=default.seed, help="other fields for each (default: %(default)s)")
    add("--overwrite", action="store_true", help="replace the store that is there")


def _whole(text: str) -> int:
    """Read a whole number, in ASCII digits."""
    try:
        return int(text if text.isascii() else "none")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error


def _number(text: str) -> float:
    """Read a number, in ASCII digits."""
    try:
        return float(text if text.isascii() else "none")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    if args.action == "describe":
        return describe(args.path)
    return make_synthetic(args) if args.kind == "synthetic" else make_shallow_water(args)


def make_shallow_water(args: argparse.Namespace) -> int:
    """Simulate and write, with a progress bar on standard error."""
    from etesian.data.shallow_water.options import Simulation
    from etesian.data.shallow_water.simulation import make_store

    simulation = Simulation(
        truncation=args.truncation,
        grid=args.grid,
        degrees=args.degrees,
        start=args.start,
        days=args.days,
        frequency=args.frequency,
        seed=args.seed,
        spinup_days=args.spinup_days,
    )
    began = time.monotonic()
    total = len(simulation.dates())
    with _progress(total) as written:
        make_store(args.path, simulation, overwrite=args.overwrite, progress=written)
    print(f"wrote {args.path}: {total} dates, {time.monotonic() - began:.1f} s")
    return 0


def make_synthetic(args: argparse.Namespace) -> int:
    """Write fields that are made up, with a progress bar on standard error, and say how large they are."""
    from etesian.data.synthetic.options import SyntheticStore
    from etesian.data.synthetic.store import plan_store, size_of

    counts = {role: count for role in _ROLES if (count := getattr(args, role)) is not None}
    if args.variables and counts:
        raise UserError(
            f"--variables and --{next(iter(counts))} both say which variables",
            where="--variables",
            mend="keep one of them",
        )
    store = SyntheticStore(
        grid=args.grid,
        variables=tuple(args.variables),
        dates=args.dates,
        start=args.start,
        frequency=args.frequency,
        seed=args.seed,
        **counts,
    )
    began = time.monotonic()
    plan = plan_store(args.path, store, overwrite=args.overwrite)
    with _progress(store.dates) as written:
        plan.write(written)
    shape = f"{store.dates} dates, {len(plan.fields)} variables, {plan.num_points:,} points"
    print(f"wrote {args.path}: {shape}, {size_of(args.path) / 1e6:,.1f} MB, {time.monotonic() - began:.1f} s")
    for role in _ROLES:
        print(f"  {role}: {', '.join(field.name for field in plan.fields if field.role == role) or 'none'}")
    return 0


def describe(path: str) -> int:
    """Print what is in a store.

    Raises
    ------
    UserError
        It can't be opened, or lacks something that training needs.
    """
    from rich.console import Console

    from etesian.data.embedded.registry import PREFIX, embedded_store

    store = embedded_store(path, common.cache_dir(), "PATH") if path.startswith(PREFIX) else path
    facts, variables = describe_store(str(store))
    console = Console()
    console.width = max(console.width, NARROWEST)
    console.print(_facts_table(path, facts))
    console.print(_variables_table(variables))
    return 0


def describe_store(path: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Read what :func:`describe` prints.

    Returns
    -------
    facts : dict
        Dates, grid and missing dates, as text.
    variables : list of dict
        For each variable ``name``, ``units``, ``role``, ``mean``, ``stdev``, ``minimum``, ``maximum``, ``tendency``
        (standard deviation of the change over one step; None where the store does not hold it).

    Raises
    ------
    UserError
        It can't be opened, or lacks something that training needs.
    """
    from anemoi.datasets import open_dataset

    if not Path(path).exists():
        raise UserError(f"there is no store at {path}", where=path, allowed="a .zarr folder or a .zip")
    try:
        dataset = open_dataset(path)
        dates, names, metadata = dataset.dates, dataset.variables, dataset.variables_metadata
        latitudes, longitudes, statistics = dataset.latitudes, dataset.longitudes, dataset.statistics
        facts = {
            "dates": f"{len(dates)}, {_minutes(dates[0])} to {_minutes(dates[-1])}",
            "frequency": str(dataset.frequency),
            "missing dates": str(len(dataset.missing)),
            "grid": f"{len(latitudes)} points {_shape(dataset.field_shape)}".rstrip(),
            "latitudes": f"{latitudes.min():g} to {latitudes.max():g}",
            "longitudes": f"{longitudes.min():g} to {longitudes.max():g}",
        }
    except Exception as error:
        reason = f"no {error.args[0]!r} in it" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{path} can't be read as an anemoi dataset: {reason}",
            where=path,
            allowed="a store with data, dates, latitudes, longitudes, mean, stdev, maximum, minimum "
            "and the attribute variables",
        ) from error
    try:
        tendencies: Any = dataset.statistics_tendencies()["stdev"]
    except KeyError:  # the store may leave them out
        tendencies = [None] * len(names)
    variables = []
    for index, name in enumerate(names):
        known = metadata.get(name, {})
        marks = {"computed": "computed_forcing", "constant": "constant_in_time"}
        role = " ".join(word for word, mark in marks.items() if known.get(mark))
        entry = {"name": name, "units": known.get("units", ""), "role": role, "tendency": tendencies[index]}
        variables.append(entry | {key: values[index] for key, values in statistics.items()})
    return facts, variables


def _facts_table(path: str, facts: dict[str, str]) -> Table:
    from rich.table import Table

    table = Table(title=path, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 1))
    for label, text in facts.items():
        table.add_row(label, text)
    return table


def _variables_table(variables: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("variable", "units", "role"):
        table.add_column(column, no_wrap=True)
    numbers = {"mean": "mean", "stdev": "st. dev.", "minimum": "minimum", "maximum": "maximum",
               "tendency": "step st. dev."}  # fmt: skip
    if all(entry["tendency"] is None for entry in variables):
        del numbers["tendency"]
    for title in numbers.values():
        table.add_column(title, justify="right", no_wrap=True)
    for entry in variables:
        values = ["" if entry[key] is None else f"{entry[key]:.3g}" for key in numbers]
        table.add_row(entry["name"], entry["units"], entry["role"], *values)
    return table


def _minutes(date: Any) -> str:
    return str(date.astype("datetime64[m]")).replace("T", " ")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({' x '.join(map(str, shape))})" if len(shape) > 1 else ""


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error; yields what is called with the number done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("dates"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("dates", total=total)
        yield lambda done: bar.update(task, completed=done)
