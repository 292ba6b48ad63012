"""Rules between sections; those within a section stand in the section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etesian.errors import Problem
from etesian.schema.config import Config
from etesian.schema.model import COMPONENTS
from etesian.schema.registry import kinds
from etesian.schema.slurm import seconds_of


def cross_section_problems(config: Config) -> Iterator[Problem]:
    """Yield what is wrong between sections that are right in themselves."""
    yield from _processes(config)
    yield from _precision(config)
    yield from _pinned_memory(config)
    yield from _offload(config)
    yield from _strategy(config)
    yield from _cuda_graphs(config)
    yield from _fused(config)
    yield from _workers(config)
    yield from _residual(config)
    yield from _roles(config)
    yield from _length(config)
    yield from _average(config)
    yield from _graph(config)
    yield from _levels(config)
    yield from _slurm(config)
    yield from _whole_grid(config)
    if config.diagnostics.scores.climatology == "none" and config.diagnostics.scores.climatology_file is not None:
        yield Problem(
            "diagnostics.scores.climatology_file is not read with diagnostics.scores.climatology='none'",
            "diagnostics.scores.climatology_file",
            "null, or climatology: monthly or daily, as the file's",
        )


def _processes(config: Config) -> Iterator[Problem]:
    """Yield processes that don't make up whole groups of those that share a model."""
    hardware, where = config.system.hardware, "system.hardware.num_gpus_per_model"
    total, each = hardware.processes, hardware.num_gpus_per_model
    if total % each == 0:
        yield from _shared_kinds(config)
        yield from _shared_heads(config)
        return
    devices = "processes" if hardware.accelerator == "cpu" else "GPUs"
    nodes = f"{hardware.num_nodes} node{'s' * (hardware.num_nodes != 1)}"
    made = f"{nodes} x {hardware.num_gpus_per_node} {devices} = {total} processes"
    divisors = [number for number in range(1, total + 1) if total % number == 0]
    yield Problem(
        f"{made}; {total} is not a multiple of num_gpus_per_model={each}",
        where,
        f"a divisor of {total}: {', '.join(map(str, divisors))}",
        f"{where}={max(number for number in divisors if number <= each)}, or other num_gpus_per_node and num_nodes",
    )


def _shared_kinds(config: Config) -> Iterator[Problem]:
    """Yield the components of a kind that processes can't share."""
    where, each = "system.hardware.num_gpus_per_model", config.system.hardware.num_gpus_per_model
    for name in COMPONENTS:
        part = getattr(config.model, name)
        if each > 1 and not part.can_be_shared:
            able = ", ".join(kind for kind, section in kinds(name).items() if getattr(section, "can_be_shared", False))
            yield Problem(
                f"{where}={each} shares a model, and a {name} of model.{name}.kind={part.kind!r} can't be shared",
                where,
                f"with 2 or more, model.{name}.kind: {able}",
                f"{where}=1, or model/{name}=graphtransformer",
            )


def _shared_heads(config: Config) -> Iterator[Problem]:
    """Yield heads that can't be shared by the processes of a model: of attention without edges each has some."""
    processor: Any = config.model.processor
    heads, each = processor.num_heads, config.system.hardware.num_gpus_per_model
    if config.model.uses("processor", "Attention") and heads % each:
        where = "system.hardware.num_gpus_per_model"
        yield Problem(
            f"{where}={each} does not divide model.processor.num_heads={heads}: with model.kind={config.model.kind!r} "
            "each process has some of the heads",
            where,
            f"a divisor of {heads}",
            "model.processor.num_heads=NUMBER, or another num_gpus_per_model",
        )


def _precision(config: Config) -> Iterator[Problem]:
    if config.training.precision == "16-mixed" and config.system.hardware.accelerator == "cpu":
        yield Problem(
            "training.precision='16-mixed' does not run on system.hardware.accelerator='cpu'",
            "training.precision",
            "on a CPU: 32-true, bf16-mixed, 64-true",
            "training.precision=bf16-mixed",
        )


def _pinned_memory(config: Config) -> Iterator[Problem]:
    if config.dataloader.pin_memory and config.system.hardware.accelerator == "cpu":
        yield Problem(
            "dataloader.pin_memory=true does nothing with system.hardware.accelerator='cpu'",
            "dataloader.pin_memory",
            "null: with a GPU only; on a CPU false too",
            "dataloader.pin_memory=null",
        )
    if not config.dataloader.prefetch_to_device:
        return
    if config.system.hardware.accelerator == "cpu":
        yield Problem(
            "dataloader.prefetch_to_device=true does nothing with system.hardware.accelerator='cpu'",
            "dataloader.prefetch_to_device",
            "on a CPU: false",
            "dataloader.prefetch_to_device=false, or system=gpu",
        )
    elif config.dataloader.pin_memory is False:
        yield Problem(
            "dataloader.prefetch_to_device=true needs page-locked memory, and dataloader.pin_memory=false",
            "dataloader.prefetch_to_device",
            "with pin_memory null or true",
            "dataloader.pin_memory=true",
        )


def _strategy(config: Config) -> Iterator[Problem]:
    """Yield choices of the strategy that would do nothing, or that don't go together."""
    strategy, hardware = config.training.strategy, config.system.hardware
    if strategy.kind == "fsdp" and hardware.processes == 1:
        yield Problem(
            "training.strategy.kind='fsdp' divides a model among processes, and system.hardware asks for one",
            "training.strategy.kind",
            "with one process: ddp",
            "training.strategy.kind=ddp, or system.hardware.num_gpus_per_node=2",
        )
    if strategy.kind == "fsdp" and hardware.num_gpus_per_model > 1:
        yield Problem(
            "training.strategy.kind='fsdp' divides the weights of whole models, and "
            f"system.hardware.num_gpus_per_model={hardware.num_gpus_per_model} has each compute a part of its grid",
            "training.strategy.kind",
            "with num_gpus_per_model above 1: ddp",
            "training.strategy.kind=ddp, or system.hardware.num_gpus_per_model=1",
        )
    if strategy.kind != "fsdp" and not strategy.reshard_after_forward:
        yield Problem(
            f"training.strategy.reshard_after_forward=false does nothing with training.strategy.kind={strategy.kind!r}",
            "training.strategy.reshard_after_forward",
            "true, or kind: fsdp",
            "training.strategy.reshard_after_forward=true",
        )


def _cuda_graphs(config: Config) -> Iterator[Problem]:
    """Yield what the graph of a step can't be recorded with; the compilers are looked at when they are known."""
    if not config.training.cuda_graphs:
        return
    hardware, where = config.system.hardware, "training.cuda_graphs"
    processes = hardware.processes
    if hardware.accelerator == "cpu":
        yield Problem(
            "training.cuda_graphs=true needs a GPU, and system.hardware.accelerator='cpu'",
            where,
            "on a CPU: false",
            "training.cuda_graphs=false, or system=gpu",
        )
    elif processes > 1:
        yield Problem(
            f"training.cuda_graphs=true is for one GPU, and system.hardware asks for {processes} processes",
            where,
            "with several processes: false",
            "training.cuda_graphs=false",
        )
    if config.diagnostics.debug.anomaly_detection:
        yield Problem(
            "diagnostics.debug.anomaly_detection=true looks at every operation, which a recorded step has none of",
            "diagnostics.debug.anomaly_detection",
            "false with training.cuda_graphs=true",
            "training.cuda_graphs=false while you look for the fault",
        )


def _fused(config: Config) -> Iterator[Problem]:
    training, where = config.training, "training.optimization.optimizer.implementation"
    if training.optimization.optimizer.implementation != "fused" or training.precision != "16-mixed":
        return
    if training.gradient_clip.val is not None:
        yield Problem(
            "the fused optimiser undoes the scaling of training.precision='16-mixed' inside its kernel, after the "
            "gradients would have been clipped",
            where,
            "with 16-mixed: foreach, for_loop, or training.gradient_clip.val=null",
            f"{where}=foreach, or training.precision=bf16-mixed",
        )


def _workers(config: Config) -> Iterator[Problem]:
    loader = config.dataloader
    if loader.workers == "threads" and not any(loader.num_workers.model_dump().values()):
        yield Problem(
            "dataloader.workers='threads' does nothing with dataloader.num_workers of 0",
            "dataloader.workers",
            "processes, or a number of workers above 0",
            "dataloader.num_workers.training=2",
        )


def _offload(config: Config) -> Iterator[Problem]:
    """Yield where blocks can't be offloaded: to the memory that they lie in, or in a step of fixed addresses."""
    for component in ("encoder", "processor", "decoder"):
        key = f"model.{component}.gradient_checkpointing"
        if getattr(config.model, component).gradient_checkpointing != "offload":
            continue
        if config.system.hardware.accelerator == "cpu":
            yield Problem(
                f"{key}='offload' does nothing with system.hardware.accelerator='cpu', whose memory is the host's",
                key,
                "on a CPU: none, full, selective",
                f"{key}=full, or system=gpu",
            )
        elif config.training.cuda_graphs:
            yield Problem(
                f"{key}='offload' takes other memory of the host in every step, and training.cuda_graphs=true records "
                "a step with its addresses",
                key,
                "with training.cuda_graphs=true: none, full, selective",
                f"{key}=selective or full, or training.cuda_graphs=false",
            )


def _residual(config: Config) -> Iterator[Problem]:
    step, steps = config.model.residual.step, config.task.multistep_input
    if config.model.residual.kind == "skip" and -step > steps:
        yield Problem(
            f"model.residual.step={step} asks for an input step that task.multistep_input={steps} does not hold",
            "model.residual.step",
            f"a whole number from {-steps} to -1",
        )
    if config.model.residual.kind == "none" and step != -1:
        yield Problem(
            f"model.residual.step={step} does nothing with model.residual.kind='none'",
            "model.residual.step",
            "-1, or model.residual.kind=skip",
        )


def _roles(config: Config) -> Iterator[Problem]:
    both = sorted(set(config.data.forcing) & set(config.data.diagnostic)) if config.data.forcing != "computed" else []
    if both:
        yield Problem(
            f"{', '.join(both)}: both in data.forcing and in data.diagnostic", "data.forcing", "one role each"
        )
    named: dict[str, str] = {}
    settings = config.data.processors.normalizer
    for method in ("mean_std", "std", "max", "min_max", "none"):
        for variable in getattr(settings, method):
            shown = method.replace("_", "-")
            if variable in named:
                yield Problem(
                    f"{variable} is under both {named[variable]!r} and {shown!r}",
                    "data.processors.normalizer",
                    "one method a variable",
                )
            named[variable] = shown
    imputer = config.data.processors.imputer
    if twice := sorted(set(imputer.mean) & set(imputer.constant)):
        yield Problem(f"{', '.join(twice)}: both imputed by mean and by constant", "data.processors.imputer")


def _length(config: Config) -> Iterator[Problem]:
    schedule, steps = config.training.optimization.lr_scheduler, config.training.max_steps
    if schedule.t_initial is not None and schedule.t_initial <= schedule.warmup_t and schedule.kind == "cosine":
        yield Problem(
            f"training.optimization.lr_scheduler.t_initial={schedule.t_initial} is not after"
            f" warmup_t={schedule.warmup_t}",
            "training.optimization.lr_scheduler.t_initial",
            f"more than {schedule.warmup_t}, or null for the length of the run {steps or ''}".rstrip(),
        )
    if schedule.t_initial is not None and schedule.kind == "constant":
        yield Problem(
            f"training.optimization.lr_scheduler.t_initial={schedule.t_initial} does nothing with kind='constant'",
            "training.optimization.lr_scheduler.t_initial",
            "null, or kind: cosine",
        )
    if schedule.lr_min > config.training.optimization.lr:
        yield Problem(
            f"training.optimization.lr_scheduler.lr_min={schedule.lr_min} is above"
            f" training.optimization.lr={config.training.optimization.lr}",
            "training.optimization.lr_scheduler.lr_min",
            f"at most {config.training.optimization.lr}",
        )


def _average(config: Config) -> Iterator[Problem]:
    """Yield averages that nothing is averaged for, and what does not go with a model that is divided."""
    ema, steps = config.training.ema, config.training.max_steps
    chosen = [key for key, value in (("ema", ema), ("freeze", config.training.freeze)) if value]
    if config.training.strategy.kind == "fsdp":
        for key in chosen:
            yield Problem(
                f"training.{key} works on whole weights, and training.strategy.kind='fsdp' divides them",
                f"training.{key}",
                f"{'null' if key == 'ema' else 'an empty list'} with fsdp",
                "training.strategy.kind=ddp",
            )
    if ema is not None and steps is not None and ema.start_step >= steps:
        yield Problem(
            f"training.ema.start_step={ema.start_step} is not before the end of the run, training.max_steps={steps}: "
            "nothing would be averaged",
            "training.ema.start_step",
            f"less than {steps}, or training.ema=null",
        )


def _levels(config: Config) -> Iterator[Problem]:
    """Yield where the levels of the graph are not those that the processor works on."""
    kind, count = config.model.processor.kind, config.graph.num_levels
    key = "graph.nodes.hidden.levels" if config.graph.existing is None else "graph.existing.coarser_nodes"
    if config.model.processor.has_levels and count == 1:
        yield Problem(
            f"model.processor.kind={kind!r} works on several levels of hidden nodes, and {key} gives one",
            key,
            "two levels at least",
            "graph=hierarchical, or model/processor=graphtransformer",
        )
    elif not config.model.processor.has_levels and count > 1:
        yield Problem(
            f"{key} gives {count} levels of hidden nodes, and model.processor.kind={kind!r} works on one",
            key,
            "one level but for the kind hierarchical",
            "graph=multi_scale, or model/processor=hierarchical",
        )


def _slurm(config: Config) -> Iterator[Problem]:
    slurm = config.system.slurm
    if slurm is None:
        return
    if slurm.signal_seconds >= seconds_of(slurm.time):
        yield Problem(
            f"system.slurm.signal_seconds={slurm.signal_seconds} leaves nothing of system.slurm.time={slurm.time}",
            "system.slurm.signal_seconds",
            f"less than the time limit, {seconds_of(slurm.time)} s",
        )
    if slurm.container_options and slurm.container is None:
        yield Problem(
            "system.slurm.container_options do nothing with system.slurm.container=null",
            "system.slurm.container_options",
            "an empty list, or a container",
        )


def _whole_grid(config: Config) -> Iterator[Problem]:
    """Yield losses that need all points where several processes hold a part of the grid each."""
    if config.system.hardware.num_gpus_per_model == 1:
        return
    for part in config.training.training_loss.parts:
        if part.whole_grid:
            yield Problem(
                f"the loss {part.kind} needs the whole grid, which system.hardware.num_gpus_per_model divides",
                "training.training_loss.kind",
                "with a model on several GPUs: mse, mae, huber, log_cosh, crps, combinations of them",
                "system.hardware.num_gpus_per_model=1",
            )


def _graph(config: Config) -> Iterator[Problem]:
    if config.graph.existing is not None:
        if config.system.input.graph is None:
            yield Problem(
                "graph.existing uses the file system.input.graph, which is null",
                "system.input.graph",
                "the path of a graph file, *.pt",
                "system.input.graph=graph.pt, or graph=multi_scale builds one",
            )
        return
    resolution, levels = config.graph.resolution, config.graph.edges.hidden2hidden.scale_resolutions
    if wrong := [level for level in levels or () if not 0 <= level <= resolution]:
        yield Problem(
            f"graph.edges.hidden2hidden.scale_resolutions names {', '.join(map(str, wrong))}:"
            f" graph.nodes.hidden.resolution={resolution} has no such level",
            "graph.edges.hidden2hidden.scale_resolutions",
            f"whole numbers from 0 to {resolution}",
        )
