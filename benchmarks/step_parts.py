"""The parts of ``training_step.py``: variants composed and checked, and what makes their models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from etesian import cli
from etesian.commands import common
from etesian.compose import compose
from etesian.errors import UserError
from etesian.kernels.resolve import ComponentKernels, resolve_kernels
from etesian.runtime.prepare import prepare_model
from etesian.schema.config import Config
from etesian.training.bench_steps import StepModel, first_batch
from etesian.training.experiment import Experiment, check_experiment
from etesian.training.step_times import Steps
from layer_kernels import SHORT_STORE
from peer_model import PeerOptions, PeerProcessor, take_weights
from step_flops import Shapes, model_flops, processor_flops, step_flops
from step_models import ForecastSteps, OwnProcessor, PeerStepModel, ProcessorSteps, first_weights, mesh_graph

KINDS = ("training", "inference", "processor")

COMPONENTS = ("encoder", "processor", "decoder")
SAME = (
    "data", "graph", "task", "dataloader.batch_size", "training.optimization.lr", "training.optimization.lr_scheduler",
    *(f"training.optimization.optimizer.{key}" for key in ("kind", "betas", "eps", "weight_decay")),
    "training.training_loss",
    "training.scalers", "training.gradient_clip", "training.accum_grad_batches", "training.precision",
    "training.deterministic", "model.kind", "model.num_channels", "model.latent_skip", "model.residual",
    "model.node_trainable_parameters", "model.edge_trainable_parameters", "model.processor.num_layers",
    *(f"model.{part}.{key}" for part in COMPONENTS for key in ("num_heads", "mlp_hidden_ratio", "qk_norm")),
)  # fmt: skip
"""Keys in which the variants of a part agree."""

Makers = Mapping[str, Callable[[], Steps]]


@dataclass(frozen=True)
class Work:
    """An experiment to be timed.

    Attributes
    ----------
    name : str
        Of the store, and in the results.
    config : str
        Name of the config.
    store : tuple of str
        Arguments of ``dataset make synthetic`` for its store.
    overrides : tuple of str
        What is changed of the config in all variants.
    """

    name: str
    config: str
    store: tuple[str, ...]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One of this package's variants, composed and checked."""

    overrides: list[str]
    config: Config
    kernels: ComponentKernels


@dataclass(frozen=True)
class Part:
    """What is measured together.

    Attributes
    ----------
    name : str
        In the results: ``o96``, ``o96 inference``, ``processor``.
    work : Work
        Which experiment.
    kind : str
        Which of `KINDS`.
    base : Variant
        The config itself; all variants differ from it in how the same model is computed.
    own : dict
        This package's variants by name.
    peers : dict
        The peer's.
    """

    name: str
    work: Work
    kind: str
    base: Variant
    own: dict[str, Variant]
    peers: dict[str, PeerOptions]


def compose_variant(work: Work, overrides: list[str], store: Path) -> Variant:
    """Compose and check the config of a variant, and resolve its kernels."""
    lines = [*SHORT_STORE, f"system.input.dataset={store}", *work.overrides, *overrides]
    composed = compose(work.config, None, lines)
    config = common.check_tree(composed)
    preset = composed.choices.get("model/layer_kernels")
    kernels = resolve_kernels(config.model, preset=preset, overrides=lines, preset_slots=composed.preset_slots)
    return Variant(overrides, config, kernels)


def check_comparable(name: str, config: Config, first: Config) -> None:
    """Check that a variant computes the same step as the first one.

    Raises
    ------
    UserError
        If one of `SAME` differs.
    """
    trees = config.model_dump(), first.model_dump()
    if other := [key for key in SAME if _value(trees[0], key) != _value(trees[1], key)]:
        raise UserError(
            f"variant {name!r} can't be compared with the first one: it has another {', '.join(other)}",
            where="OWN in benchmarks/training_step.py",
        )


def _value(tree: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def model_makers(
    part: Part, stores: Path, cache: Path, device: torch.device, say: Callable[[str], None]
) -> tuple[Makers, dict[str, Any]]:
    """Return what makes the models of a part, all on one graph and one batch, and what they compute."""
    store = stores / f"{part.work.name}.zarr"
    if not store.exists():
        say(f"{part.name}: makes {store}")
        with contextlib.redirect_stdout(sys.stderr):
            status = cli.main(["dataset", "make", "synthetic", str(store), *part.work.store])
        if status:
            raise SystemExit(status)
    checked = check_experiment(part.base.config, cache, probe=False)
    graph, batch = checked.load_graph(), first_batch(checked)
    on_device = batch.to(device)
    weights = first_weights(checked, graph)
    forward_only = part.kind == "inference"

    def finished(model: StepModel) -> Steps:
        return ForecastSteps(model) if forward_only else model

    def own(variant: Variant) -> Steps:
        experiment = replace(checked, config=variant.config, kernels=variant.kernels)
        return finished(StepModel(experiment, graph, on_device, weights))

    def peer(how: PeerOptions) -> Steps:
        return finished(PeerStepModel(checked, graph, on_device, weights, how))

    makers: dict[str, Callable[[], Steps]] = {
        name: lambda variant=variant: own(variant) for name, variant in part.own.items()
    }
    makers |= {name: lambda how=how: peer(how) for name, how in part.peers.items()}
    return makers, about_model(checked, graph, tuple(batch.shape), weights, forward_only=forward_only)


def about_model(
    experiment: Experiment, graph: Any, batch: tuple[int, ...], weights: Mapping[str, Any], *, forward_only: bool
) -> dict[str, Any]:
    """Return sizes of a model and the operations of a step."""
    config, variables = experiment.config, experiment.variables
    copies, learnt = batch[0] * batch[2], config.model.node_trainable_parameters
    inputs = config.task.multistep_input * len(variables.input)
    shapes = Shapes(
        copies * graph["data"].num_nodes, copies * graph["hidden"].num_nodes, inputs + 4 + learnt.data,
        4 + learnt.hidden, len(variables.output),
    )  # fmt: skip
    forward = model_flops(config.model, shapes)
    batches, rollout = config.training.accum_grad_batches, config.task.rollout.start
    return {
        "samples": batch[0] if forward_only else batch[0] * batches,
        "flops": forward if forward_only else batches * rollout * step_flops(forward),
        "data_nodes": graph["data"].num_nodes,
        "hidden_nodes": graph["hidden"].num_nodes,
        "edges": {f"{src}2{dst}": graph[src, to, dst].edge_index.shape[1] for src, to, dst in graph.edge_types},
        "inputs": inputs,
        "outputs": len(variables.output),
        "channels": config.model.num_channels,
        "heads": config.model.processor.num_heads,
        "layers": config.model.processor.num_layers,
        "parameters": sum(weight.numel() for weight in weights.values()),
    }


def processor_makers(part: Part) -> tuple[Makers, dict[str, Any]]:
    """Return what makes the processors of a part, all on one graph with the same weights, and what they compute."""
    settings: Any = part.base.config.model
    graph = mesh_graph(part.base.config.graph)
    torch.manual_seed(part.base.config.training.seed)
    weights = dict(OwnProcessor(settings, graph, part.base.kernels).named_parameters())
    x = torch.randn(graph["hidden"].num_nodes, settings.num_channels)
    precision = part.base.config.training.precision

    def own(variant: Variant) -> Steps:
        module = OwnProcessor(variant.config.model, graph, variant.kernels)
        module.load_state_dict(weights)
        return ProcessorSteps(module, prepare_model(module, variant.config.model, variant.kernels), x, precision)

    def peer(how: PeerOptions) -> Steps:
        module = PeerProcessor(settings, graph, how)
        take_weights(module, weights)
        return ProcessorSteps(module, module.compilation, x, precision)

    makers: dict[str, Callable[[], Steps]] = {
        name: lambda variant=variant: own(variant) for name, variant in part.own.items()
    }
    makers |= {name: lambda how=how: peer(how) for name, how in part.peers.items()}
    edges = graph["hidden", "to", "hidden"].edge_index.shape[1]
    return makers, {
        "samples": 1,
        "flops": step_flops(processor_flops(settings, len(x))),
        "hidden_nodes": len(x),
        "edges": {"hidden2hidden": edges},
        "channels": settings.num_channels,
        "heads": settings.processor.num_heads,
        "layers": settings.processor.num_layers,
        "parameters": sum(weight.numel() for weight in weights.values()),
    }
