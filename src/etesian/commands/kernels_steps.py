"""``kernels bench --end-to-end``: whole training steps with each preset of layer kernels."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etesian.commands import common
from etesian.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from etesian.commands.kernels_bench import Options
    from etesian.compose import Composed
    from etesian.kernels.resolve import ComponentKernels
    from etesian.schema.config import Config
    from etesian.training.bench_steps import StepsBench, StepsResult
    from etesian.training.experiment import Experiment

KERNELS, COMPILE = "model/layer_kernels", "model/compile"
AS_CONFIGURED = "as configured"
OUTWEIGHED = "what the config itself sets under model.layer_kernels outweighs a preset"


def bench_steps(
    config: Config, composed: Composed, args: argparse.Namespace, options: Options, console: Console
) -> dict[str, Any]:
    """Time training steps of every preset that runs here, print them, and return them in plain values."""
    from etesian.kernels.record import to_json
    from etesian.runtime.device import DeviceClock, device_of_process
    from etesian.training.bench_steps import StepsResult, bench_steps, steps_json

    device = device_of_process(config.system.hardware.accelerator, 0)
    if config.training.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses
    usable, unusable = _variants(config, composed, args, options)
    missing = [StepsResult(name, reason=reason, mend=mend) for name, (reason, mend) in unusable.items()]
    if not usable:
        raise UserError(
            "no preset runs here: " + "; ".join(f"{result.name}: {result.reason}" for result in missing),
            where="--presets", mend=missing[0].mend or None,
        )  # fmt: skip
    own, variants = _experiments(config, composed, usable)
    console.print(options.circumstances(config, DeviceClock(device).name), highlight=False)
    bench = bench_steps(
        variants, own=own, repeats=options.repeats, min_seconds=options.min_seconds, device=device,
        say=lambda text: console.print(text, style="dim", highlight=False, markup=False),
    )  # fmt: skip
    bench.results.extend(missing)
    console.print(steps_table(bench), highlight=False)
    for line in _remarks(bench):
        console.print(line, highlight=False, markup=False)
    content = steps_json(bench)
    kernels = {name: to_json(experiment.kernels.records) for name, experiment in variants}
    for entry in content["presets"]:
        entry["kernels"] = kernels.get(entry["preset"])
    return content


def _variants(
    config: Config, composed: Composed, args: argparse.Namespace, options: Options
) -> tuple[dict[str, tuple[Config, ComponentKernels]], dict[str, tuple[str, str]]]:
    """Return the presets that resolve and run here, and the reasons why the others don't."""
    from etesian.kernels.bench.candidates import brief
    from etesian.kernels.probe import probe_kernels
    from etesian.kernels.resolve import resolve_kernels
    from etesian.runtime.checkpointing_trial import try_checkpointing
    from etesian.runtime.device import device_of_process
    from etesian.runtime.trial import try_compilation

    device = device_of_process(config.system.hardware.accelerator, 0)
    usable: dict[str, tuple[Config, ComponentKernels]] = {}
    unusable: dict[str, tuple[str, str]] = {}
    seen: dict[str, str] = {}
    for name, overrides in _items(args, options, composed).items():
        try:
            chosen, made = common.load_config(args, overrides)
            kernels = resolve_kernels(
                chosen.model, preset=made.choices.get(KERNELS), overrides=made.overrides, preset_slots=made.preset_slots
            )
            same = seen.setdefault(_meaning(chosen, kernels), name)
            if same != name:
                twice = name.partition("+")[0] == same.partition("+")[0]
                unusable[name] = f"the same kernels as {same}" + ("" if twice else f": {OUTWEIGHED}"), ""
                continue
            probe_kernels(kernels, chosen.model, device, chosen.training.precision)
            try_checkpointing(chosen.model, kernels, device, chosen.training.precision)
            try_compilation(chosen.model, kernels, device, chosen.training.precision)
            usable[name] = (chosen, kernels)
        except UserError as error:
            problem = error.problems[0]
            unusable[name] = (brief(problem.what), problem.mend or "")
    return _with_own(config, composed, options, usable, unusable), unusable


def _with_own(
    config: Config, composed: Composed, options: Options, usable: dict[str, tuple[Config, ComponentKernels]],
    unusable: dict[str, tuple[str, str]],
) -> dict[str, tuple[Config, ComponentKernels]]:  # fmt: skip
    """Put the experiment as configured in, unless presets were named, or one of them is the same."""
    from etesian.kernels.resolve import resolve_kernels

    if options.presets is not None:
        return usable
    try:
        own = resolve_kernels(
            config.model,
            preset=composed.choices.get(KERNELS),
            overrides=composed.overrides,
            preset_slots=composed.preset_slots,
        )
    except UserError as error:
        unusable[AS_CONFIGURED] = (error.problems[0].what, error.problems[0].mend or "")
        return usable
    meaning = _meaning(config, own)
    outweighed = any(reason.endswith(OUTWEIGHED) for reason, _ in unusable.values())
    for name, (chosen, kernels) in usable.items():
        if _meaning(chosen, kernels) != meaning:
            continue
        if not outweighed:
            return usable
        same = [name, *(preset for preset, (reason, _) in unusable.items() if reason.endswith(OUTWEIGHED))]
        unusable.update(dict.fromkeys(same, (f"the same kernels {AS_CONFIGURED}: {OUTWEIGHED}", "")))
        return {AS_CONFIGURED if kept == name else kept: usable[kept] for kept in usable}
    return {AS_CONFIGURED: (config, own), **usable}


def _items(args: argparse.Namespace, options: Options, composed: Composed) -> dict[str, list[str]]:
    """Return the overrides of each preset that is asked for.

    Raises
    ------
    UserError
        For a name that no file has.
    """
    from etesian.places import options_of, search_path

    places = search_path(args.config_dir)
    known = {group: list(options_of(group, places)) for group in (KERNELS, COMPILE)}
    kept = [o for o in composed.overrides if o.lstrip("+").partition("=")[0] not in (KERNELS, COMPILE)]
    compiled = [o for o in composed.overrides if o.lstrip("+").partition("=")[0] == COMPILE]
    items = {}
    for item in known[KERNELS] if options.presets is None else options.presets:
        preset, plus, compile_preset = item.partition("+")
        for group, name in ((KERNELS, preset), *([(COMPILE, compile_preset)] if plus else [])):
            if name not in known[group]:
                raise UserError(
                    f"there is no preset {name!r} in {group}", where="--presets",
                    allowed=", ".join(known[group]) or "none: this group has no files",
                    mend=did_you_mean(name, known[group]),
                )  # fmt: skip
        chosen = [_override(KERNELS, preset, composed)]
        chosen += [_override(COMPILE, compile_preset, composed)] if plus else compiled
        items[item] = [*kept, *chosen]
    return items


def _override(group: str, option: str, composed: Composed) -> str:
    return f"{'' if group in composed.choices else '+'}{group}={option}"


def _meaning(config: Config, kernels: ComponentKernels) -> str:
    """Return a text that two experiments share if their kernels and what is compiled are the same."""
    parts = [(r.component, r.slot, r.target, sorted(r.arguments.items()), r.compile)
             for r in kernels.records]  # fmt: skip
    return repr((parts, config.model.compile))


def _experiments(
    config: Config, composed: Composed, usable: dict[str, tuple[Config, ComponentKernels]]
) -> tuple[str, list[tuple[str, Experiment]]]:
    """Open the dataset once, and return the name of the experiment's own preset and an experiment for each."""
    from etesian.kernels.resolve import resolve_kernels
    from etesian.training.experiment import check_experiment

    first, _ = next(iter(usable.values()))
    checked = check_experiment(first, common.cache_dir(), preset=composed.choices.get(KERNELS))
    variants = [(name, replace(checked, config=c, kernels=kernels)) for name, (c, kernels) in usable.items()]
    try:
        mine = _meaning(config, resolve_kernels(config.model, preset=None, overrides=[]))
    except UserError:  # the experiment's own kernels are not there: it is among those that are not timed
        return "", variants
    return next((name for name, (c, kernels) in usable.items() if _meaning(c, kernels) == mine), ""), variants


def steps_table(bench: StepsBench) -> Table:
    """Lay out the steps of each preset, the fastest first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title="whole training steps", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1),
                  pad_edge=False, show_edge=False)  # fmt: skip
    table.add_column("preset", overflow="fold", max_width=30)
    on_device = any(result.peak_bytes is not None for result in bench.results)
    columns = ["step ms", "min..max", "samples/s", "first s", *(["peak GB"] if on_device else []), "graphs", "loss 1"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for result in _timed(bench):
        assert result.step is not None
        peak = [f"{result.peak_bytes / 1e9:.2f}" if result.peak_bytes is not None else ""] if on_device else []
        table.add_row(
            ("* " if result.own else "  ") + result.name,
            Text(f"{result.step.median:.4g}", style="bold"),
            f"{result.step.low:.4g}..{result.step.high:.4g}",
            f"{result.samples_per_second:.4g}",
            f"{result.first_step_seconds:.1f}",
            *peak,
            str(result.graphs),
            f"{result.first_loss:.6g}",
        )
    return table


def _timed(bench: StepsBench) -> list[StepsResult]:
    return [result for result in bench.results if result.step is not None]


def _remarks(bench: StepsBench) -> list[str]:
    shape = " x ".join(f"{size:,}" for size in bench.batch)
    lines = [
        f"A step: {bench.accumulated} batch of {shape} (batch, time, ensemble, points, variables), rollout of "
        f"{bench.rollout}; forward, loss, backward, clipping, optimiser. Models take steps in turns, round by round; "
        f"{bench.memory}. first s: the first step, with compilation. loss 1: of the first step. *: the experiment as "
        "configured.",
    ]
    timed = _timed(bench)
    if len(timed) > 1:
        one, two = timed[0].step, timed[1].step
        assert one is not None
        assert two is not None
        if one.high >= two.low:
            lines.append(f"{timed[0].name} and {timed[1].name} overlap: the difference is within the spread.")
    missing = [result for result in bench.results if result.step is None]
    lines += ["not timed"] * bool(missing)
    return lines + [f"  {r.name}: {r.reason}{f'; {r.mend}' if r.mend else ''}" for r in missing]
