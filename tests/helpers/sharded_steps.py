"""Steps of a small model that is divided among processes, beside those of one that is not.

``python sharded_steps.py FOLDER DEVICE RANK PROCESSES CASE ...`` is one process; :func:`run_cases` starts all.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compiled_models import AOT, entry
from small_model import make_model, make_settings
from torch import Tensor, nn

from etesian.kernels.machine import Machine
from etesian.kernels.resolve import resolve_kernels
from etesian.runtime import offload
from etesian.runtime.prepare import prepare_model
from etesian.runtime.shards import shard_model, sharded_state, whole
from etesian.schema.training import OptimizationSettings
from etesian.training.optimizer import build_optimizer, clip_gradients

STEPS, BATCH = 3, 4
TRITON = {
    "num_channels": 128,
    "layer_kernels": {
        "LayerNorm": {"_target_": "etesian.kernels.norms.AutocastLayerNorm"},
        "GraphAttention": {"_target_": "etesian.kernels.triton_kernels.attention.TritonGraphAttention"},
    },
}
ON_GPUS = ("compiled", "offload", "float16", "triton", "triton, compiled")
"""Cases for GPUs alone."""

BLOCK = {"num_heads": 2, "mlp_hidden_ratio": 2.0}


@dataclass(frozen=True)
class Case:
    """What is computed.

    Attributes
    ----------
    settings : dict
        Changes of the model's settings, beside its kind.
    precision : str
        ``training.precision``.
    clip : tuple of (float, str) or None
        Clipping of the gradients.
    rollout : int
        Forward passes before one backward pass.
    micro : int
        Backward passes before a step.
    keeps : bool
        Whether weights stay gathered between forward and backward pass.
    implementation : str
        Of the optimiser.
    scaled : bool
        Whether the loss is scaled as with 16-mixed.
    """

    settings: dict[str, Any]
    precision: Any = "64-true"
    clip: tuple[float, str] | None = None
    rollout: int = 1
    micro: int = 1
    keeps: bool = False
    implementation: str = "foreach"
    scaled: bool = False


def _policy(name: str) -> dict[str, Any]:
    own = BLOCK | {"gradient_checkpointing": name}
    return {"encoder": own, "processor": own | {"num_layers": 2}, "decoder": own}


CASES = {
    "plain": Case({}),
    "transformer": Case({"kind": "transformer"}),
    "gnn": Case({"kind": "gnn"}, rollout=2),
    "pointwise": Case({"kind": "pointwise"}),
    "hierarchical": Case({"kind": "hierarchical"}, rollout=2),
    "rollout": Case({}, rollout=2),
    "kept": Case({}, rollout=2, keeps=True),
    "accumulated": Case({}, micro=2),
    "norm": Case({}, clip=(1e-3, "norm")),
    "value": Case({}, clip=(1e-5, "value")),
    "for_loop": Case({}, implementation="for_loop"),
    "fused": Case({}, implementation="fused"),
    "full": Case(_policy("full"), rollout=2),
    "selective": Case(_policy("selective"), rollout=2),
    "chunks": Case({"encoder": BLOCK | {"num_chunks": 2, "gradient_checkpointing": "full"}}),
    "one product": Case({"processor": BLOCK | {"num_layers": 2, "fuse_projections": True}}),
    "no learnt features": Case({"node_trainable_parameters": {"data": 0, "hidden": 0}}, rollout=2),
    "blocks": Case({"compile": [entry("etesian.model.block.Block", **AOT)]}),
    "norms": Case({"compile": [entry("LayerNorm", **AOT)]}),
    "components": Case({"compile": [
        entry("etesian.model.encoder.Encoder", **AOT), entry("etesian.model.decoder.Decoder", **AOT)]}),
    "blocks and full": Case({"compile": [entry("etesian.model.block.Block", **AOT)], **_policy("full")}),
    "blocks and selective": Case({"compile": [entry("etesian.model.block.Block", **AOT)], **_policy("selective")}),
    "32 bits": Case({}, precision="32-true"),
    "bfloat16": Case({}, precision="bf16-mixed", clip=(1e-3, "norm")),
    "bfloat16, full": Case(_policy("full"), precision="bf16-mixed", rollout=2),
    "bfloat16, kept": Case({}, precision="bf16-mixed", keeps=True),
    "scaled": Case({}, precision="32-true", scaled=True, clip=(1e-3, "norm")),
    "compiled": Case({"compile": [entry("etesian.model.block.Block", fullgraph=True, dynamic=False)]}),
    "offload": Case(_policy("offload"), rollout=2),
    "float16": Case({}, precision="16-mixed", scaled=True, clip=(1e-3, "norm")),
    "triton": Case(TRITON, precision="bf16-mixed"),
    "triton, compiled": Case(
        TRITON | {"compile": [entry("etesian.model.block.Block", fullgraph=True, dynamic=False)]},
        precision="bf16-mixed", implementation="fused"),
}  # fmt: skip


class Steps:
    """The steps of a case, by a model that is whole or divided.

    Parameters
    ----------
    case : Case
        The case.
    rank, processes : int
        The part of each batch; 0 and 1 for the whole of it.
    device : torch.device
        Where it is computed.
    """

    def __init__(self, case: Case, rank: int, processes: int, device: torch.device) -> None:
        self.case, self.rank, self.processes, self.device = case, rank, processes, device
        self.machine = Machine(device, case.precision)
        settings = make_settings(**case.settings)
        self.model = make_model(settings).to(device, self.machine.parameters)
        prepare_model(self.model, settings, resolve_kernels(settings, preset=None, overrides=[]))
        if processes > 1:
            group = torch.distributed.group.WORLD
            assert group is not None
            shard_model(self.model, group, self.machine.device, case.precision, reshard_after_forward=not case.keeps)
        optimizer = {"implementation": case.implementation}
        self.optimizer = build_optimizer(
            OptimizationSettings.model_validate({"lr": 1e-3, "optimizer": optimizer}), self.model.parameters()
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=case.scaled)

    def loss(self, number: int) -> Tensor:
        """Return the mean loss of this process's part of a batch."""
        drawn = torch.Generator().manual_seed(number)
        x = torch.randn(BATCH, 2, 1, 14, 3, generator=drawn, dtype=torch.float64).to(self.machine.parameters)
        x = x.chunk(self.processes)[self.rank].to(self.device)
        total = torch.zeros((), device=self.device)
        for _ in range(self.case.rollout):
            y = self.model(x)
            total = total + y.float().square().mean() if self.case.precision != "64-true" else total + (y**2).mean()
            x = torch.cat([x[:, 1:], y[:, None].to(x.dtype)], dim=1)
        return total

    def run(self, first: int = 0, end: int = STEPS) -> list[float]:
        """Train, and return the losses, means over all processes."""
        losses = []
        for step in range(first, end):
            mean = torch.zeros((), dtype=torch.float64, device=self.device)
            for part in range(self.case.micro):
                with self.machine.context():
                    loss = self.loss(step * self.case.micro + part)
                self.scaler.scale(loss / self.case.micro).backward()
                mean += loss.detach().double() / self.case.micro
            self.scaler.unscale_(self.optimizer)
            if self.case.clip is not None:
                clip_gradients(self.model.parameters(), *self.case.clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            if self.processes > 1:
                torch.distributed.all_reduce(mean)
            losses.append(float(mean) / self.processes)
            if "compile" in self.case.settings:
                continue  # which would take seconds more for each graph
            with torch.no_grad(), self.machine.context():
                self.model(
                    torch.zeros(1, 2, 1, 14, 3, dtype=self.machine.parameters, device=self.device)
                )  # as a validation does
        return losses

    def state(self) -> dict[str, Any]:
        """Return whole weights and the whole state of the optimiser."""
        state = whole({"weights": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, keep=True)
        return copy.deepcopy(state)


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of two states, relative to the largest number of each tensor."""
    if isinstance(one, Tensor):
        one, other = one.cpu(), other.cpu()
        assert one.shape == other.shape
        return float((one - other).abs().max() / one.abs().max().clamp(min=1e-12)) if one.numel() else 0.0
    if isinstance(one, dict):
        assert list(one) == list(other)
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    if isinstance(one, list | tuple):
        return max((difference(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    return abs(one - other) / max(1e-12, abs(one)) if isinstance(one, float) else 0.0


def compare(case: Case, rank: int, processes: int, device: torch.device) -> dict[str, float]:
    """Return how far the divided model is from the whole one, and one that goes on in its middle from both."""
    alone, divided = Steps(case, 0, 1, device), Steps(case, rank, processes, device)
    held = sum(parameter.to_local().numel() for parameter in divided.model.parameters())
    found = {"losses": difference(alone.run(), divided.run()), "held": held / sum(p.numel() for p in _all(alone.model))}
    states = alone.state(), divided.state()
    found["weights"] = difference(*(state["weights"] for state in states))
    found["moments"] = difference(*(state["optimizer"]["state"] for state in states))
    if "compile" in case.settings:
        return found
    again = Steps(case, rank, processes, device)
    load(again, states[1])
    found["resumed"] = difference(divided.run(STEPS, 2 * STEPS), again.run(STEPS, 2 * STEPS))
    return found


def load(steps: Steps, state: dict[str, Any]) -> None:
    """Go on from a whole state."""
    parameters = dict(steps.model.named_parameters())
    whole_model = make_model(make_settings(**steps.case.settings)).to(steps.machine.parameters)
    whole_model.load_state_dict(state["weights"])
    for name, value in whole_model.named_parameters():
        moved = sharded_state({"state": {0: {"value": value.detach()}}}, iter([parameters[name]]))
        with torch.no_grad():
            parameters[name].copy_(moved["state"][0]["value"])
    steps.optimizer.load_state_dict(sharded_state(state["optimizer"], steps.model.parameters()))


def _all(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


def main(folder: Path, device: str, rank: int, processes: int, names: Sequence[str]) -> None:
    """Compare cases, and write what was found."""
    own, backend = torch.device("cpu"), "gloo"
    if device == "cuda":
        own, backend = torch.device("cuda", rank), "nccl"
        torch.cuda.set_device(own)
        offload.SMALLEST = 1  # as small as these tensors are
    torch.distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
    found = {name: compare(CASES[name], rank, processes, own) for name in names}
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def run_cases(folder: Path, processes: int, names: Sequence[str], device: str = "cpu") -> dict[str, dict[str, float]]:
    """Start the processes, wait for them, and return what they found."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), device, str(rank), str(processes), *names],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [process.communicate(timeout=500)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes, "\n".join(said)
    return json.loads((folder / "found.json").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
