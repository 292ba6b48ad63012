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
    if profile.share(DATA) >= WASTE:
        who = "processor" if config.system.hardware.accelerator == "cpu" else "device"
        return f"data: the {who} waited {profile.share(DATA):.0%} of the time for the loader: {_for_data(config)}"
    if profile.share(COPY) >= WASTE:
        helps = "fewer variables or a longer rollout, which copies less for each forecast"
        if config.dataloader.pin_memory is False:
            helps = "dataloader.pin_memory=null"
        return f"copy: {profile.share(COPY):.0%} of the time goes to copying batches to the device: {helps}"
    if profile.share(REST) >= LARGE:
        return (
            f"rest: {profile.share(REST):.0%} of the time goes to what surrounds the model (normalising, residual, "
            "logging, callbacks): a larger model or batch, or a larger diagnostics.log.interval, makes it small"
        )
    if profile.share(OPTIMISER) >= LARGE:
        return (
            f"optimiser: {profile.share(OPTIMISER):.0%} of the time goes to clipping and updating the weights: "
            f"{'more' if config.training.accum_grad_batches > 1 else 'larger'} batches for each step "
            "(dataloader.batch_size.training, training.accum_grad_batches) make it rarer"
        )
    if _waits_for_calls(profile, config):
        return (
            "calls: the device works off its kernels faster than the host calls them: fewer and larger ones "
            f"({_compile(config) or 'a larger dataloader.batch_size.training'})"
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
