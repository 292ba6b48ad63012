"""On a GPU: a step that is launched as one CUDA graph is the step of single launches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compiled_models import BLOCK, entry
from runs import curve, run, weights
from small_model import make_model, make_settings
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.device import BatchCopies, GraphRecorder
from etesian.runtime.graph_trial import try_step_graphs
from etesian.runtime.prepare import prepare_model
from etesian.runtime.step_graphs import StepGraphs
from etesian.schema.model import ModelSettings
from etesian.schema.training import OptimizationSettings
from etesian.training.optimizer import build_optimizer, clip_gradients

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

INDUCTOR = {"fullgraph": True, "dynamic": False}
TINY = ["--config-name", "debug", "system=gpu", "system.input.dataset=embedded:ncep-monthly-5deg",
        "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false"]  # fmt: skip
CASES = {
    "factored": {},
    "transformer": {"kind": "transformer"},
    "checkpointed": {"policy": "full"},
    "selective": {"policy": "selective"},
    "compiled": {"compile": [entry(BLOCK, **INDUCTOR)]},
    "compiled and checkpointed": {"compile": [entry(BLOCK, **INDUCTOR)], "policy": "full"},
    "compiled and selective": {"compile": [entry(BLOCK, **INDUCTOR)], "policy": "selective"},
    "triton": {"kernel": "etesian.kernels.triton_kernels.attention.TritonGraphAttention"},
    "triton and selective": {
        "kernel": "etesian.kernels.triton_kernels.attention.TritonGraphAttention",
        "policy": "selective",
    },
}


def settings_of(
    kind: str = "graphtransformer", *, policy: str = "none", compile: list | None = None, kernel: str = ""
) -> ModelSettings:
    block = {"num_heads": 2, "gradient_checkpointing": policy}
    processor = block | {"num_layers": 2} | ({"window_size": 1} if kind == "transformer" else {})
    slots = {"GraphAttention": {"_target_": kernel}} if kernel else {}
    return make_settings(
        kind, num_channels=64, compile=compile or [], layer_kernels=slots, encoder=block, processor=processor,
        decoder=block,
    )  # fmt: skip


class Trained:
    """A small model in mixed precision, with accumulation, clipping and the fused optimiser."""

    def __init__(self, settings: ModelSettings, *, recorded: bool, accumulates: bool = True) -> None:
        self.model = make_model(settings).cuda()
        prepare_model(self.model, settings, resolve_kernels(settings, preset=None, overrides=[]))
        optimization = {"lr": 1e-3, "optimizer": {"implementation": "fused"}}
        self.optimizer = build_optimizer(OptimizationSettings.model_validate(optimization), self.model.parameters())
        self.graphs = None
        if recorded:
            recorder = GraphRecorder(torch.device("cuda:0"))
            self.graphs = StepGraphs(
                self.model, self.loss, lambda loss: loss.backward(), recorder, accumulates=accumulates
            )

    def loss(self, x: Tensor) -> Tensor:
        """Return the mean square of what is rolled out over all steps of x but the first."""
        with torch.autocast("cuda", torch.bfloat16):
            state, losses = x[:, :2], []
            for step in range(1, x.shape[1] - 1):
                y = self.model(state)
                losses.append((y - x[:, step + 1]).float().square().mean())
                state = torch.stack([state[:, 1], y], 1)
            return torch.stack(losses).mean()

    def steps(self, groups: list[list[Tensor]]) -> list[float]:
        losses = []
        for group in groups:
            if self.graphs is None:
                self.optimizer.zero_grad()
            else:
                self.graphs.zero_grad()
            for x in group:
                if self.graphs is None:
                    loss = self.loss(x)
                    loss.backward()
                else:
                    loss = self.graphs.run(x)
                losses.append(loss.item())
            clip_gradients(self.model.parameters(), 0.5, "norm")
            self.optimizer.step()
        return losses


def groups() -> list[list[Tensor]]:
    """Two batches a step; the rollout grows and shrinks again, and one batch is smaller."""
    generator = torch.Generator().manual_seed(0)
    shapes = [[(2, 3), (2, 3)], [(2, 4), (1, 3)], [(2, 3), (2, 4)], [(2, 3), (2, 3)]]
    return [
        [torch.randn(batch, states, 1, 14, 3, generator=generator).cuda() for batch, states in group]
        for group in shapes
    ]


@pytest.mark.parametrize("accumulates", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_are_those_of_single_launches(case: str, accumulates: bool) -> None:
    settings = settings_of(**CASES[case])
    plain, recorded = (Trained(settings, recorded=recorded, accumulates=accumulates) for recorded in (False, True))
    steps = groups() if accumulates else [[x] for group in groups() for x in group]
    assert recorded.steps(steps) == pytest.approx(plain.steps(steps), rel=1e-3)
    assert recorded.graphs is not None
    assert len(recorded.graphs.shapes) == 3
    for (name, one), other in zip(plain.model.named_parameters(), recorded.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-4, msg=name)


def test_one_launch_is_quicker_than_many() -> None:
    settings = settings_of()
    (x,) = (group[0] for group in groups()[:1])

    def milliseconds(trained: Trained) -> float:
        trained.steps([[x]] * 5)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            if trained.graphs is None:
                trained.loss(x).backward()
            else:
                trained.graphs.run(x)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 20

    plain, recorded = (milliseconds(Trained(settings, recorded=recorded)) for recorded in (False, True))
    print(f"{plain:.2f} ms in single launches, {recorded:.2f} ms in one")
    assert recorded < 0.5 * plain


class Waiting(nn.Linear):
    """A layer that reads its result on the host."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum().item() > float("-inf") else x


def test_a_kernel_that_waits_for_the_device_is_refused_and_leaves_it_usable() -> None:
    layer = Waiting(3, 3).cuda()

    def loss(x: Tensor) -> Tensor:
        return layer(x).square().mean()

    graphs = StepGraphs(layer, loss, lambda loss: loss.backward(), GraphRecorder(torch.device("cuda:0")))
    with pytest.raises(UserError, match=r"can't be recorded as a CUDA graph: Waiting at .*test_gpu_cuda_gr") as error:
        graphs.run(torch.randn(4, 3, device="cuda"))
    assert error.value.problems[0].where == "training.cuda_graphs"
    assert torch.isfinite(layer(torch.randn(4, 3, device="cuda"))).all()


@pytest.mark.parametrize("case", ["factored", "transformer", "checkpointed", "selective", "triton and selective"])
def test_the_door_lets_it_pass(case: str) -> None:
    settings = settings_of(**CASES[case])
    try_step_graphs(
        settings, resolve_kernels(settings, preset=None, overrides=[]), torch.device("cuda:0"), "bf16-mixed"
    )


def test_batches_are_copied_beside_the_work() -> None:
    copies, device = BatchCopies(torch.device("cuda:0")), torch.device("cuda:0")
    batches = [torch.full((1024, 1024), float(i)).pin_memory() for i in range(6)]
    coming, sums = copies.begin([batches[0]]), []
    for following in [*batches[1:], batches[0]]:
        here, coming = coming, copies.begin([following])
        (x,) = here()
        assert x.device == device
        sums.append((x * 2).mean())
    assert [float(total) for total in sums] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def metrics_of(folder: Path, name: str, *more: str) -> tuple[list[float], Path]:
    run(folder, folder / "cache", *TINY, *more, f"training.run_id={name}")
    return curve(folder / "outputs" / name), folder / "outputs" / name


RUNS: dict[str, Callable[[], list[str]]] = {
    "bf16, growing, accumulated": lambda: [
        "training.precision=bf16-mixed", "training.accum_grad_batches=2", "training.max_epochs=3",
        "task.rollout={start: 1, epoch_increment: 1, maximum: 2}",
        "training.gradient_clip={val: 0.1, algorithm: norm}",
    ],
    "16 bits": lambda: ["training.precision=16-mixed", "training.deterministic=false"],
    "compiled and checkpointed": lambda: ["training.precision=bf16-mixed", "model/compile=blocks",
                                          "training.deterministic=false",
                                          "model.processor.gradient_checkpointing=true"],
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
def test_a_run(case: str, tmp_path: Path) -> None:
    options = RUNS[case]()
    plain, plain_folder = metrics_of(tmp_path, "plain", *options)
    fused = [] if options[0].endswith("=16-mixed") else [
        "training.optimization.optimizer.implementation=fused"]  # fmt: skip
    recorded, folder = metrics_of(
        tmp_path, "recorded", *options, *fused, "training.cuda_graphs=true", "dataloader.prefetch_to_device=true"
    )
    assert recorded == pytest.approx(plain, rel=2e-2)
    assert curve(folder, "val_loss") == pytest.approx(curve(plain_folder, "val_loss"), rel=2e-2)
    assert list(weights(folder)) == list(weights(plain_folder))
