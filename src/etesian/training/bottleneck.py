"""What holds a training step up, in one sentence with what helps."""

from __future__ import annotations

import os

from etesian.runtime.checkpointing import COMPONENTS
from etesian.schema.config import Config
from etesian.training.step_clock import BACKWARD, COPY, DATA, GRAPH, LOSS, MODEL, OPTIMISER, REST
from etesian.training.step_profile import StepProfile

WASTE = 0.1
"""Share of the step from which waiting for data, or copying them, is what holds it up."""
LARGE = 0.3
"""Share from which the optimiser or the rest is."""
HOST_BOUND = 0.5
"""Share of the steps in which the device must have waited for the host's calls."""
LESS_TO_COPY = "fewer variables or a longer rollout, which copies less for each forecast"
_COMPUTED = (*COMPONENTS, MODEL, LOSS, BACKWARD, GRAPH)


def bottleneck(profile: StepProfile, config: Config) -> str:
    """Return the sentence.

    Parameters
    ----------
    profile : StepProfile
        The timed steps.
    config : Config
        The experiment.
    """
    if _waits_for_copies(profile, config):
        return f"copy: the device waited {profile.share(DATA):.0%} of the time for batches on their way: {LESS_TO_COPY}"
    if profile.share(DATA) >= WASTE:
        who = "processor" if config.system.hardware.accelerator == "cpu" else "device"
        return f"data: the {who} waited {profile.share(DATA):.0%} of the time for the loader: {_for_data(config)}"
    if profile.share(COPY) >= WASTE:
        share = f"{profile.share(COPY):.0%} of the time goes to copying batches to the device"
        return f"copy: {share}: {_for_copies(config)}"
    if profile.share(REST) >= LARGE:
        return (
            f"rest: {profile.share(REST):.0%} of the time goes to what surrounds the model (normalising, residual, "
            "logging, callbacks): a larger model or batch, or a larger diagnostics.log.interval, makes it small"
        )
    if profile.share(OPTIMISER) >= LARGE:
        return (
            f"optimiser: {profile.share(OPTIMISER):.0%} of the time goes to clipping and updating the weights: "
            f"{_for_the_optimiser(config)}"
        )
    if _waits_for_calls(profile, config):
        return (
            "calls: the device works off its kernels faster than the host calls them: fewer and larger ones "
            f"({_for_calls(config)})"
        )
    return _computing(profile, config)


def _for_data(config: Config) -> str:
    workers, processes = config.dataloader.num_workers.training, config.system.hardware.num_gpus_per_node
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = cores // processes
    if workers >= room:
        return (
            f"{workers} workers for each process fill the {cores} processor cores, so more of these, faster storage "
            "or a store with one date a chunk"
        )
    more = min(room, max(2, 2 * workers))
    return f"raise dataloader.num_workers.training, which is {workers}, to {more}"


def _waits_for_copies(profile: StepProfile, config: Config) -> bool:
    """Tell whether the device waits for copies that were begun ahead: the host, which has its batch, does not wait."""
    if not config.dataloader.prefetch_to_device or profile.share(DATA) < WASTE:
        return False
    waits = next(part for part in profile.parts if part.name == DATA)
    return waits.host_mean_ms < waits.mean_ms / 2


def _for_copies(config: Config) -> str:
    if config.system.hardware.accelerator == "cpu" or config.dataloader.prefetch_to_device:
        return LESS_TO_COPY
    ahead = "dataloader.prefetch_to_device=true"
    return f"dataloader.pin_memory=null and {ahead}" if config.dataloader.pin_memory is False else ahead


def _for_the_optimiser(config: Config) -> str:
    training, implementation = config.training, config.training.optimization.optimizer.implementation
    clips_scaled = training.precision == "16-mixed" and training.gradient_clip.val is not None
    if config.system.hardware.accelerator == "cuda" and implementation != "fused" and not clips_scaled:
        return "training.optimization.optimizer.implementation=fused"
    return (
        f"{'more' if training.accum_grad_batches > 1 else 'larger'} batches for each step "
        "(dataloader.batch_size.training, training.accum_grad_batches) make it rarer"
    )


def _for_calls(config: Config) -> str:
    hardware = config.system.hardware
    alone = hardware.processes == 1 and not config.diagnostics.debug.anomaly_detection
    helps = ["training.cuda_graphs=true"] if alone else []
    helps += [compiled] if (compiled := _compile(config)) else []
    return " or ".join(helps) or "a larger dataloader.batch_size.training"


def _waits_for_calls(profile: StepProfile, config: Config) -> bool:
    """Tell whether launches hold the device up; with 16-mixed the host waits for the device in each step."""
    return (profile.host_bound or 0.0) >= HOST_BOUND and config.training.precision != "16-mixed"


def _computing(profile: StepProfile, config: Config) -> str:
    share = sum(profile.share(name) for name in _COMPUTED)
    forward = {name: profile.share(name) for name in COMPONENTS if profile.share(name)}
    text = f"computing: forward and backward pass take {share:.0%} of the time"
    if forward:
        largest = max(forward, key=lambda name: forward[name])
        text += f", the {largest} {forward[largest] / sum(forward.values()):.0%} of the forward pass"
    return f"{text}: {_for_computing(config)}"


def _for_computing(config: Config) -> str:
    if config.training.precision == "32-true" and config.system.hardware.accelerator == "cuda":
        return "training.precision=bf16-mixed"
    recomputed = [name for name in COMPONENTS if getattr(config.model, name).gradient_checkpointing != "none"]
    if recomputed:
        return f"model.{recomputed[0]}.gradient_checkpointing=none, where the memory suffices"
    return _compile(config) or "anemoi-training kernels bench compares kernels"


def _compile(config: Config) -> str:
    """Return the override that compiles blocks; empty where something is compiled already."""
    return "" if config.model.compile else "model/compile=blocks"
