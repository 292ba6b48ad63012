"""Fill the measured figures into README.md and the pages of docs/, from benchmarks/results.

Run: python docs/fill_figures.py

What stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->`` is replaced by what is made of
``benchmarks/results/NAME.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the files that may hold figures."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def fill(text: str) -> str:
    """Return a page with its figures renewed."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{figures(found[2])}\n\n{found[3]}", text)


def figures(name: str) -> str:
    """Return what stands for one file of results."""
    file = RESULTS / f"{name}.json"
    if not file.is_file():
        return f"Not measured yet: `python benchmarks/{name}.py` measures it."
    return RENDERERS[name](json.loads(file.read_text()))


def ncep_monthly(results: dict[str, Any]) -> str:
    """Scores by config and lead time, then a line a config with its times."""
    sources = {"model": "model", "persistence": "persistence", "damped_persistence": "damped persistence",
               "climatology": "climatology"}  # fmt: skip
    rows, notes = [], []
    for config, entry in results["configs"].items():
        for name, variable in entry["variables"].items():
            unit = f", {variable['units']}" if variable["units"] else ""
            for label, lead in variable["lead_times"].items():
                values = [_number(lead["rmse"].get(source)) for source in sources]
                ratio = f"{lead['ratio_to_persistence']:.3f}"
                rows.append([f"`{config}`", f"`{name}`{unit}", label, *values, ratio])
        first, threads = _seconds(entry["seconds_to_first_step"]), _count(entry["threads"], "thread")
        notes.append(
            f"- `{config}`: {_seconds(entry['wall_seconds'])} for the whole command, first optimiser step after "
            f"{first}, {entry['steps']:,} steps; {threads} of {entry['cpu']}, "
            f"torch {entry['versions']['torch']}, {entry['date'][:10]}."
        )
    heads = ["config", "variable", "lead time", *sources.values(), "model / persistence"]
    return f"{_table(heads, rows)}\n\n" + "\n".join(notes)


def graph_build(results: dict[str, Any]) -> str:
    """Seconds of the parts of a large graph."""
    rows = [[part, str(times["best"]), str(min(times["cpu_all"]))] for part, times in results["seconds"].items()]
    edges = ", ".join(f"{count:,} {name}" for name, count in results["edges"].items())
    note = (
        f"Best of {len(results['seconds']['save']['all'])}. {results['data_nodes']:,} data nodes, "
        f"{results['hidden_nodes']:,} hidden nodes; edges: {edges}. "
        f"{_count(results['threads'], 'thread')} of {results['cpu']}, beside other work, {results['date']}."
    )
    return f"{_table(['work', 'wall time, s', 'processor time, s'], rows)}\n\n{note}"


def graph_attention_cpu(results: dict[str, Any]) -> str:
    """Times and memory of the attention backends on a CPU."""
    rows = []
    for case in results["cases"]:
        errors = case["relative_error"]
        worst = max(value for name, value in errors.items() if name != "output")
        rows.append([
            f"`{case['backend']}`", f"{case['heads']} x {case['head_channels']}", f"{case['forward_ms']:.0f}",
            f"{case['backward_ms']:.0f}", f"{case['saved_megabytes']:.1f}", f"{errors['output']:.1e}", f"{worst:.1e}",
        ])  # fmt: skip
    first = results["cases"][0]
    heads = ["backend", "heads x channels", "forward, ms", "backward, ms", "kept for the backward pass, MB",
             "relative error of the output", "largest of the gradients"]  # fmt: skip
    note = (
        f"{first['nodes']:,} nodes, {first['edges']:,} edges, {results['edge_features']} edge features, "
        f"{results['dtype']}, {_count(results['threads'], 'thread')}, {results['statistic']} of {results['repeats']} "
        f"repeats beside other work, torch {results['torch']}, {results['date']}."
    )
    return f"{_table(heads, rows)}\n\n{note}"


def sharding_nodes(results: dict[str, Any]) -> str:
    """Nodes of a process, and those that it fetches, by graph and number of processes."""
    rows = []
    for grid, graph in results["graphs"].items():
        for count, found in graph["processes"].items():
            fetched = [f"{found[component]['fetched']:,}" for component in ("encoder", "processor", "decoder")]
            rows.append([f"{grid}, level {graph['level']}", count, f"{found['data_nodes']:,}",
                         f"{found['hidden_nodes']:,}", *fetched])  # fmt: skip
    heads = ["graph", "processes", "data nodes", "hidden nodes", "fetched by the encoder (data nodes)",
             "by a block of the processor (hidden nodes)", "by the decoder (hidden nodes)"]  # fmt: skip
    return _table(heads, rows)


def shallow_water(results: dict[str, Any]) -> str:
    """Processor time of stores."""
    rows = [
        [str(entry["truncation"]), f"`{entry['grid']}`", f"{entry['shape'][3]:,}", str(entry["days"]),
         str(entry["cpu_seconds"])]
        for entry in results["stores"]
    ]  # fmt: skip
    worst = max(entry["depth_error"] for entry in results["williamson_2_after_5_days"])
    order = results["galewsky_jet_time_order"][-1]["order"]
    note = (
        f"The solver keeps Williamson's steady flow (test case 2) to a relative error of {worst:.0e} over five days; "
        f"its time stepping has order {order:.1f} on Galewsky's jet."
    )
    return f"{_table(['truncation', 'grid', 'points', 'days', 'processor time, s'], rows)}\n\n{note}"


def layer_kernels(results: dict[str, Any]) -> str:
    """Times of kernels by slot and shape, then of whole steps by preset; of each run of the benchmark."""
    parts: list[str] = []
    for run in results["runs"].values():
        parts += [f"**{_experiment(run['settings'])}**"]
        parts += [_slot_figures(slot) for slot in run["slots"]]
        if run["end_to_end"] is not None:
            parts.append(_steps_figures(run["end_to_end"]))
        parts.append(_circumstances(run))
    return "\n\n".join(parts)


def _experiment(settings: dict[str, Any]) -> str:
    """Return what was measured: the config with what was changed of its model, or rows by themselves."""
    if settings["rows"] is not None:
        return f"By themselves, {settings['precision']}"
    changed = [override for override in settings["overrides"] if override.partition("=")[0].startswith("model")]
    return " ".join([f"Config {settings['config_name']}", *changed])


def _short(kernel: str) -> str:
    """Return the name of a kernel without its module: `RMSNorm(eps=1e-06)`."""
    path, bracket, arguments = kernel.partition("(")
    return path.rpartition(".")[2] + bracket + arguments


def _slot_figures(slot: dict[str, Any]) -> str:
    heads = ["kernel", "forward, ms", "forward + backward, ms", "spread", "on the device alone, ms", "times the floor",
             "peak memory, GB", "error of the result", "largest of the gradients"]  # fmt: skip
    floor = slot["floor_ms"]["forward_backward"]
    rows, lacking = [], []
    for kernel in slot["kernels"]:
        name = f"`{_short(kernel['kernel'])}`{', compiled' if kernel['compiled'] else ''}"
        both, errors = kernel["forward_backward_ms"], kernel["relative_error"]
        if both is None:
            reason = kernel["reason"].partition(" Explanation:")[0]
            lacking.append(f"`{kernel['kernel']}`{', compiled' if kernel['compiled'] else ''}: {reason}")
            continue
        spread = (both["max"] - both["min"]) / 2 / both["median"]
        alone = both["device"]
        rows.append([
            name, f"{kernel['forward_ms']['median']:.3g}", f"{both['median']:.3g}", f"{100 * spread:.0f}%",
            "" if alone is None else f"{alone:.3g}", f"{min(both['median'], alone or both['median']) / floor:.2f}",
            "" if kernel["peak_bytes"] is None else f"{kernel['peak_bytes'] / 1e9:.2f}",
            "" if errors["output"] is None else f"{errors['output']:.1e}",
            f"{max(errors['gradients'].values()):.1e}" if errors["gradients"] else "",
        ])  # fmt: skip
    inputs = "; ".join(f"{name} {text}" for name, text in slot["inputs"].items())
    caption = f"`{slot['slot']}` on {slot['rows']:,} {slot['shape']} ({inputs}); floor {floor:.3g} ms:"
    lines = [caption, "", _table(heads, rows)]
    return "\n".join([*lines, "", f"Not timed: {'; '.join(lacking)}."] if lacking else lines)


def _steps_figures(steps: dict[str, Any]) -> str:
    rows = [
        [f"`{entry['preset']}`", f"{entry['step_ms']['median']:.1f}",
         f"{entry['step_ms']['min']:.1f} to {entry['step_ms']['max']:.1f}", f"{entry['samples_per_second']:.3g}",
         f"{entry['first_step_seconds']:.1f}",
         "" if entry["peak_bytes"] is None else f"{entry['peak_bytes'] / 1e9:.1f}", str(entry["graphs"])]
        for entry in steps["presets"] if entry["step_ms"] is not None
    ]  # fmt: skip
    heads = ["preset", "step, ms", "fastest to slowest round", "samples a second", "first step, s", "peak memory, GB",
             "compiled graphs"]  # fmt: skip
    batch = " x ".join(f"{size:,} {name.replace('_', ' ')}" for name, size in steps["batch"].items())
    return f"Whole training steps of {batch}; {steps['memory']}:\n\n{_table(heads, rows)}"


def _circumstances(run: dict[str, Any]) -> str:
    here, settings, best = run["environment"], run["settings"], run["measured_on_the_device"]
    card = here["accelerator"]["names"][0] if settings["device"] != "cpu" else here["cpu"]["name"]
    versions = [f"{name} {here['versions'][name]}" for name in ("torch", "triton", "liger-kernel")
                if here["versions"].get(name)]  # fmt: skip
    rates = "" if best is None else f"; a copy moves {best['copy_bytes_per_second'] / 1e12:.2f} TB/s there"
    return (
        f"{card}, `{settings['precision']}`, {settings['channels']:,} channels, median of "
        f"{settings['repeats']} rounds, {', '.join(versions)}, {here['date'][:10]}{rates}."
    )


def graph_attention(results: dict[str, Any]) -> str:
    """Times, memory and errors of graph attention beside the peer's on the graphs of a model, then the sweeps."""
    parts = [_attention_on(work) for work in results["works"] if work["group"] == "graphs"]
    for group, head in (("degree", "edges into each node"), ("channels", "heads x channels")):
        works = [work for work in results["works"] if work["group"] == group]
        if works:
            parts.append(f"{_number_of_nodes(works[0])}, forward + backward, ms:\n\n{_attention_sweep(works, head)}")
    here, settings = results["environment"], results["settings"]
    versions = [f"{name} {here['versions'][name]}" for name in ("torch", "triton", "anemoi-models")
                if here["versions"].get(name)]  # fmt: skip
    copy = results["measured_on_the_device"]["copy_bytes_per_second"] / 1e12
    note = (
        f"{settings['device_name']}, `{settings['precision']}`, {settings['edge_features']} edge features, median of "
        f"{_count(settings['repeats'], 'round')}, {', '.join(versions)}, {here['date'][:10]}; a copy moves "
        f"{copy:.2f} TB/s there. The floor is the time in which that moves the bytes of inputs, output and gradients."
    )
    return "\n\n".join([*parts, note])


_GRAPHS = {"mesh": "Mesh to mesh", "encoder": "Data to mesh", "decoder": "Mesh to data"}


def _attention_on(work: dict[str, Any]) -> str:
    timed = [kernel for kernel in work["kernels"] if kernel["forward_backward_ms"] is not None]
    rows = []
    for kernel in timed:
        both, errors, beside = kernel["forward_backward_ms"], kernel["relative_error"], kernel["beside_peer"] or {}
        best = min(both["median"], both["device"] or both["median"])
        memory = "" if kernel["peak_bytes"] is None else f"{kernel['peak_bytes'] / 1e9:.2f}"
        rows.append([
            f"`{kernel['name']}`",
            *(_beside_peer(kernel, timed, part, which)
              for which in ("median", "device") for part in ("forward_ms", "forward_backward_ms")),
            f"{best / work['floor_ms']['forward_backward']:.1f}",
            f"{memory}{_of_peers(beside.get('memory'))}",
            f"{errors['output']:.1e}", f"{max(errors['gradients'].values()):.1e}", _times(beside.get("worst_error")),
        ])  # fmt: skip
    heads = ["kernel", "forward, ms", "with backward, ms", "forward on the device alone, ms",
             "with backward on the device alone, ms", "times the floor", "peak memory, GB", "error of the output",
             "largest of the gradients", "largest ratio to the peer's"]  # fmt: skip
    nodes = f"{work['num_src']:,} to {work['num_dst']:,} nodes, {work['num_edges']:,} edges"
    caption = f"{_GRAPHS[work['name']]}, {nodes}, {work['heads']} heads x {work['head_channels']} channels:"
    lines = [caption, "", _table(heads, rows)]
    lacking = [f"`{kernel['name']}`: {kernel['reason']}" for kernel in work["kernels"] if kernel not in timed]
    return "\n".join([*lines, "", f"Not timed: {'; '.join(lacking)}."] if lacking else lines)


def _beside_peer(kernel: dict[str, Any], all_kernels: list[dict[str, Any]], part: str, which: str) -> str:
    """Return a time, and how many times faster than the peer's that is."""
    time = kernel[part].get(which)
    peers = [other[part].get(which) for other in all_kernels if other["beside_peer"] is None and other is not kernel]
    if kernel["beside_peer"] is None or time is None or not peers or peers[0] is None:
        return _three_digits(time)
    return f"{time:.3g} ({peers[0] / time:.2f}x)"


def _of_peers(ratio: float | None) -> str:
    return "" if ratio is None else f" ({ratio:.2f} of the peer's)"


def _attention_sweep(works: list[dict[str, Any]], head: str) -> str:
    timed = [kernel["name"] for work in works for kernel in work["kernels"] if kernel["forward_backward_ms"]]
    names = list(dict.fromkeys(timed))
    rows = []
    for work in works:
        times = {kernel["name"]: kernel["forward_backward_ms"] for kernel in work["kernels"]}
        row = [_three_digits((times.get(name) or {}).get(which)) for which in ("median", "device") for name in names]
        rows.append([work["name"], *row, f"{work['floor_ms']['forward_backward']:.3g}"])
    alone = [f"`{name}`, on the device alone" for name in names]
    return _table([head, *(f"`{name}`" for name in names), *alone, "floor"], rows)


def _three_digits(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def _number_of_nodes(work: dict[str, Any]) -> str:
    return f"{work['num_dst']:,} nodes, {work['num_edges']:,} edges" if work["group"] == "channels" else (
        f"{work['num_dst']:,} nodes with equally many edges each"
    )  # fmt: skip


def training_step(results: dict[str, Any]) -> str:
    """Steps of each variant beside the peer's, a table for each part of the benchmark."""
    return "\n\n".join(_step_part(name, part) for name, part in results["parts"].items())


_STEP_KINDS = {
    "training": "Training steps", "inference": "Forward passes without gradients",
    "processor": "Forward and backward passes of the processor",
}  # fmt: skip


def _step_part(name: str, part: dict[str, Any]) -> str:
    rows, lacking = [], []
    about, settings, here = part["work"], part["settings"], part["environment"]
    for variant in sorted(part["variants"], key=lambda v: v["step_ms"]["median"] if v["step_ms"] else float("inf")):
        step = variant["step_ms"]
        if step is None:
            lacking.append(f"`{variant['name']}`: {variant['reason']}")
            continue
        rows.append([
            f"`{variant['name']}`", f"{step['median']:.1f}", f"{step['min']:.1f} to {step['max']:.1f}",
            f"{variant['samples_per_second']:.3g}", f"{variant['flops_per_second'] / 1e12:.3g}",
            f"{100 * variant['share_of_ceiling']:.0f}%",
            "" if variant["peak_bytes"] is None else f"{variant['peak_bytes'] / 1e9:.1f}",
            f"{variant['first_step_seconds']:.1f}", _times(variant["speed"]),
        ])  # fmt: skip
    heads = ["variant", "ms", "fastest to slowest round", "samples a second", "TFLOP/s", "share of the ceiling",
             "peak memory, GB", "first step, s", "speed, the fastest peer's = 1"]  # fmt: skip
    sizes = f"{about['hidden_nodes']:,} hidden nodes"
    if "data_nodes" in about:
        sizes = f"{about['data_nodes']:,} data nodes, {sizes}, {about['inputs']} to {about['outputs']} channels"
    caption = (
        f"**{name}**: {_STEP_KINDS[settings['kind']]} of config `{settings['config']}`, {sizes}, {about['layers']} "
        f"layers of {about['channels']:,} channels, {about['flops'] / 1e12:.4g} TFLOP each:"
    )
    ceiling = part["measured_on_the_device"]["flops_per_second"] / 1e12
    versions = [f"{name} {here['versions'][name]}" for name in ("torch", "triton", "anemoi-models")
                if here["versions"].get(name)]  # fmt: skip
    note = (
        f"{settings['device_name']}, `{settings['precision']}`, median of {_count(settings['repeats'], 'round')}, "
        f"{', '.join(versions)}, {here['date'][:10]}; ceiling: a large matrix product runs at {ceiling:.0f} TFLOP/s "
        f"there; {part['memory']}."
    )
    lines = [caption, _table(heads, rows), *([f"Not timed: {'; '.join(lacking)}."] if lacking else []), note]
    return "\n\n".join(lines)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def loss_bands(results: dict[str, Any]) -> str:
    """How far each setting's losses are from the band of seeds, and from those in 32 bits."""
    control, rows = results["eager in 32 bits"], []
    for entry in [{"name": "eager in 32 bits", **control}, *results["fast"]]:
        band, exact = entry["band"], entry.get("exact")
        rows.append([
            entry["name"], " ".join(f"`{line}`" for line in entry.get("overrides", [])),
            "yes" if band["inside"] else "**no**", f"{band['furthest']:.3f}", f"{band['apart']:.3f}",
            "" if exact is None else f"{exact['largest']:.1e}",
            "" if exact is None else "yes" if entry["same"] else "**no**",
        ])  # fmt: skip
    heads = ["setting", "overrides", "in the band", "furthest outside, band = 1",
             "from the same seed's `eager`, band = 1", "32 bits: largest difference", "trains the same"]  # fmt: skip
    settings, here = results["settings"], results["environment"]
    versions = [f"{name} {here['versions'][name]}" for name in ("torch", "triton") if here["versions"].get(name)]
    note = (
        f"{settings['device_name']}, {settings['steps']} steps, {_count(settings['exact_steps'], 'step')} in 32 bits, "
        f"seed {settings['seed']} of {len(results['seeds'])}, {_seconds(settings['seconds'])} in all, "
        f"{', '.join(versions)}, {here['date'][:10]}."
    )
    picture = "![Curves of every setting, their place in the band, and differences in 32 bits](images/loss_bands.png)"
    return f"{picture}\n\n{_table(heads, rows)}\n\n{note}"


def activation_checkpointing(results: dict[str, Any]) -> str:
    """Step time and memory by policy and compilation; each beside those of the policy none, compiled alike."""
    models, settings, here = results["steps"]["models"], results["settings"], results["environment"]
    plain = {model["compile"]: model for model in models if model["policy"] == "none"}
    rows, lacking = [], []
    for model in models:
        own = plain[model["compile"]]
        if model["step_ms"] is None:
            lacking.append(f"`{model['policy']}` with `model/compile={model['compile']}`: {model['reason']}")
            continue
        peak = [""] * 2 if model["peak_bytes"] is None else [
            f"{model['peak_bytes'] / 1e9:.1f}", _share(model["peak_bytes"], own["peak_bytes"]),
        ]  # fmt: skip
        time = model["step_ms"]["median"]
        time_share = _share(time, (own["step_ms"] or {}).get("median"))
        rows.append([f"`{model['policy']}`", f"`{model['compile']}`", f"{time:.1f}", time_share, *peak,
                     f"{model['first_step_seconds']:.1f}"])  # fmt: skip
    heads = ["policy", "`model/compile`", "step, ms", "`none` = 1", "peak memory, GB", "`none` = 1", "first step, s"]
    versions = ", ".join(f"{name} {here['versions'][name]}" for name in ("torch", "triton") if here["versions"][name])
    batch = " x ".join(f"{size:,} {name.replace('_', ' ')}" for name, size in results["steps"]["batch"].items())
    note = (
        f"Config {settings['config_name']}, `model/layer_kernels={settings['layer_kernels']}`, "
        f"`{settings['precision']}`, {settings['channels']:,} channels, {settings['layers']} layers, one policy for "
        f"all components, batches of {batch}; {settings['device_name']}, median of "
        f"{_count(settings['repeats'], 'round')}, "
        f"{versions}, {here['date'][:10]}. Peak memory holds weights and optimiser too."
    )
    parts = [_table(heads, rows), f"Not timed: {'; '.join(lacking)}." if lacking else "", note]
    return "\n\n".join(part for part in parts if part)


def kept_by_a_block(results: dict[str, Any]) -> str:
    """Numbers that a block keeps, by kind, compilation and policy."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for block in results["blocks"]:
        rows.setdefault((block["kind"], block["compile"]), {})[block["policy"]] = block["numbers"]
    policies = list(dict.fromkeys(block["policy"] for block in results["blocks"]))
    lines = [
        [f"`{kind}`", f"`{way}`", *(f"{kept[policy]:.1f}" for policy in policies)] for (kind, way), kept in rows.items()
    ]
    settings, here = results["settings"], results["environment"]
    note = (
        f"{settings['channels']} channels, an MLP of {settings['mlp_hidden_ratio']:g} times as many, "
        f"{settings['nodes']:,} nodes, `{settings['precision']}`, on a CPU, torch {here['versions']['torch']}, "
        f"{here['date'][:10]}."
    )
    heads = ["kind of model", "`model/compile`", *(f"`{policy}`" for policy in policies)]
    return f"{_table(heads, lines)}\n\n{note}"


def _share(value: float, whole: float | None) -> str:
    return "" if whole is None else f"{value / whole:.2f}"


def dataloader(results: dict[str, Any]) -> str:
    """Times of reading a sample, then memory, and the fastest step beside them."""
    heads = ["grid", "reader", "workers", "processor time, ms", "raw = 1", "time, ms", "raw = 1"]
    rows, notes = [], []
    for case in results["cases"]:
        for entry in case["readers"]:
            wall, processor = (entry[f"{kind}seconds_a_sample"]["median"] for kind in ("", "processor_"))
            rows.append([
                f"`{case['grid']}`", entry["reader"], str(entry["workers"]), f"{1e3 * processor:,.0f}",
                _ratio(entry["processor_ratio_to_raw"]), f"{1e3 * wall:,.0f}", _ratio(entry["ratio_to_raw"]),
            ])  # fmt: skip
        notes.append(f"- `{case['grid']}`: {_sample_read(case)}{_step_beside(case)}.")
        notes += [f"    - {_memory_kept(kind)}." for kind in case["memory"]]
        notes.append(f"    - {_measured_on(case)}.")
    return f"{_table(heads, rows)}\n\n" + "\n".join(notes)


def _ratio(spread: dict[str, float]) -> str:
    return "1" if spread["min"] == spread["max"] == 1 else "{median:.2f} ({min:.2f} to {max:.2f})".format(**spread)


def _measured_on(case: dict[str, Any]) -> str:
    here = case["environment"]
    libraries = ("torch", "zarr", "numcodecs", "anemoi-datasets")
    versions = ", ".join(f"{name} {here['versions'][name]}" for name in libraries)
    cores, load = _count(here["cpu"]["cores"], "core"), case["load_average_at_end"][0]
    return (
        f"median of {case['rounds']} rounds in turns, ranges in brackets; {cores} with a load of {load:.0f} from other "
        f"work, {here['cpu']['name']}, {versions}, {here['date'][:10]}"
    )


def _sample_read(case: dict[str, Any]) -> str:
    dates, variables, _, points = case["shape"]
    return (
        f"{points:,} points, {variables} variables, {dates} dates; {case['states']} states, "
        f"{case['megabytes_a_sample']:,.0f} MB, make a sample"
    )


def _step_beside(case: dict[str, Any]) -> str:
    step = case["fastest_step"]
    if step is None:
        return ""
    return (
        f"; the fastest step of `{step['config']}` that was measured ({step['variables']} variables, {step['device']}) "
        f"takes {step['samples_per_second']:.2f} samples a second, on another machine"
    )


def _memory_kept(kind: dict[str, Any]) -> str:
    main, workers = kind["main"], kind["worker_processes"]
    return (
        f"{_count(kind['workers'], 'worker')}, {kind['reader']}: at most {main['largest_megabytes']:,.0f} MB in the "
        f"training process and {workers['largest_megabytes']:,.0f} MB in workers; over {kind['batches']} batches the "
        f"line through them rises by {main['growth_megabytes']:,.0f} and {workers['growth_megabytes']:,.0f} MB "
        f"(limit {kind['limit_of_growth_megabytes']:,.0f} MB)"
    )


RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "activation_checkpointing": activation_checkpointing,
    "dataloader": dataloader,
    "ncep_monthly": ncep_monthly,
    "graph_build": graph_build,
    "graph_attention": graph_attention,
    "graph_attention_cpu": graph_attention_cpu,
    "kept_by_a_block": kept_by_a_block,
    "layer_kernels": layer_kernels,
    "loss_bands": loss_bands,
    "sharding_nodes": sharding_nodes,
    "shallow_water": shallow_water,
    "training_step": training_step,
}
"""What makes Markdown of each file of results."""


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.0f} min"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def main() -> None:
    """Fill every page."""
    for page in pages():
        text = page.read_text()
        renewed = fill(text)
        if renewed != text:
            page.write_text(renewed)
            print(f"filled {page.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
