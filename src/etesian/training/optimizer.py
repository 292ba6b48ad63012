"""Optimiser and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from etesian.runtime.shards import local_shard
from etesian.schema.training import OptimizationSettings, SchedulerSettings


def build_optimizer(settings: OptimizationSettings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).

    Biases, norms and learnt node and edge features take part in the weight decay like every other parameter. One
    that is frozen (without ``requires_grad``) is left out.
    """
    adamw = settings.optimizer
    return torch.optim.AdamW(
        [parameter for parameter in parameters if parameter.requires_grad],
        lr=settings.lr,
        betas=(adamw.betas[0], adamw.betas[1]),
        eps=adamw.eps,
        weight_decay=adamw.weight_decay,
        **flags(adamw.implementation),
    )


def flags(implementation: str) -> dict[str, bool]:
    """Return the arguments of an optimiser of torch for ``implementation``; one left out would depend on the device."""
    return {"foreach": implementation == "foreach", "fused": implementation == "fused"}


def adopt(state: dict[str, Any], implementation: str) -> None:
    """Let the state of an optimiser, as a checkpoint holds it, go on under an implementation, in place.

    The moments are the same for all. Torch restores the implementation too, and keeps the count of steps on the CPU or
    beside the parameters as it asks.
    """
    for group in state["param_groups"]:
        group.update(flags(implementation))


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float | None, algorithm: str | None) -> None:
    """Clip gradients in place, each ``value`` or the ``norm`` of all; where `largest` is None, nothing is done.

    Of gradients that are divided among processes, each clips its part, by the norm of the whole.
    """
    if largest is None:
        return
    if algorithm == "norm":
        nn.utils.clip_grad_norm_(parameters, largest)
        return
    gradients = [local_shard(parameter.grad) for parameter in parameters if parameter.grad is not None]
    torch._foreach_clamp_min_(gradients, -largest)
    torch._foreach_clamp_max_(gradients, largest)


def learning_rate_factor(settings: SchedulerSettings, lr: float, run_steps: int) -> Callable[[int], float]:
    """Return the factor on ``lr`` at each optimiser step, counted from 0.

    Parameters
    ----------
    settings : SchedulerSettings
        Kind, warm-up and end of the schedule.
    lr : float
        Peak learning rate.
    run_steps : int
        Optimiser steps of the whole run, the end of the cosine where ``t_initial`` is null.

    Notes
    -----
    With W = ``warmup_t`` and T the end, the factor is (t + 1) / (W + 1) for t < W, then
    f + (1 - f) (1 + cos(pi (t - W) / (T - W))) / 2 with f = lr_min / lr (Loshchilov & Hutter 2017, arXiv:1608.03983),
    and f from T on.
    """
    warmup, end, floor = settings.warmup_t, settings.t_initial or run_steps, settings.lr_min / lr

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if settings.kind == "constant":
            return 1.0
        if step >= end:
            return floor
        progress = (step - warmup) / max(1, end - warmup)
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return factor
