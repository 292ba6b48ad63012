"""Section ``training``: loss, optimisation and the length of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from etesian.errors import did_you_mean
from etesian.schema.base import Section
from etesian.schema.slurm import seconds_of

Precision = Literal["64-true", "32-true", "bf16-mixed", "16-mixed"]


class GradientClip(Section):
    """Clipping of the gradients; a null value clips nothing."""

    val: float | None = Field(default=32.0, gt=0)
    """Largest value, or norm."""
    algorithm: Literal["value", "norm"] = "value"
    """Clip each value, or the norm of all."""


class LossSettings(Section):
    """A loss; kinds are registered beside their code."""

    whole_grid: ClassVar[bool] = False
    """Whether the loss is no mean over points, so that no part of the grid has one of its own."""

    kind: str
    """Which loss."""
    scalers: list[str] = []
    """Names under ``training.scalers``, multiplied together."""

    @property
    def parts(self) -> Sequence[LossSettings]:
        """The losses that this one is made of: itself, or those of a combination."""
        return (self,)


class ScalerSettings(Section):
    """A weight of the loss; kinds are registered beside their code."""

    kind: str
    """Which scaler."""


class OptimizerSettings(Section):
    """AdamW of torch.optim."""

    kind: Literal["adamw"] = "adamw"
    """Which optimiser."""
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(default=[0.9, 0.95], min_length=2, max_length=2)
    """Decay rates of the running means of the gradient and its square."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    implementation: Literal["for_loop", "foreach", "fused"] = "foreach"
    """How a step is computed: parameter by parameter, an operation for many at once, or one kernel for many."""


class SchedulerSettings(Section):
    """Linear warm-up over ``warmup_t`` steps, then a cosine from ``lr`` to ``lr_min`` at ``t_initial``."""

    kind: Literal["cosine", "constant"] = "cosine"
    """``constant`` keeps ``lr`` after the warm-up."""
    lr_min: float = Field(default=3e-7, ge=0)
    """Last learning rate."""
    warmup_t: int = Field(default=1000, ge=0)
    """Steps of the warm-up."""
    t_initial: int | None = Field(default=None, ge=1)
    """Step at which ``lr_min`` is reached; null takes the length of the run."""


class OptimizationSettings(Section):
    """Optimiser and learning rate. ``lr`` is taken as it is, whatever the number of processes."""

    lr: float = Field(gt=0)
    """Learning rate after the warm-up."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """Optimiser."""
    lr_scheduler: SchedulerSettings = SchedulerSettings()
    """Learning rate over the run."""


class EMASettings(Section):
    """Exponential moving average of the weights: a <- decay a + (1 - decay) w after each optimiser step."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    """Share of the average that is kept in a step."""
    start_step: int = Field(default=0, ge=0)
    """Optimiser steps after which the average begins; up to then it is the weights themselves."""


class EarlyStoppingSettings(Section):
    """End of a run whose validation loss no longer falls."""

    patience: int = Field(default=5, ge=1)
    """Validations in a row without a lower loss after which the run ends."""
    min_delta: float = Field(default=0.0, ge=0)
    """A loss counts as lower where it is by more than this."""


class StrategySettings(Section):
    """How several processes share the work of a step; each has a part of every batch."""

    kind: Literal["ddp", "fsdp"] = "ddp"
    """``ddp``: each process holds the whole model; ``fsdp``: a part of weights, gradients and optimiser state."""
    reshard_after_forward: bool = True
    """fsdp: give gathered weights up after the forward pass and gather them again; false keeps them until backward."""


class TrainingSettings(Section):
    """One run of training."""

    run_id: str | None = None
    """Name of the run folder; an existing one is resumed. Null makes a new one."""
    fork_run_id: str | None = None
    """Run (or checkpoint file) that a new run starts from."""
    load_weights_only: bool = False
    """With ``fork_run_id``: take the weights, start optimiser, schedule and epochs afresh."""
    transfer_from: str | None = None
    """Run (or checkpoint file) for other variables or another grid, whose weights a new run takes where they fit."""
    transfer_allow: list[str] = []
    """Tensors and variables, by name or pattern, that may start anew or be left out then."""
    allow_other_kernels: bool = False
    """Go on from a checkpoint of other layer kernels, of the same families with the same constants."""
    seed: int = Field(default=1234, ge=0, le=2**32 - 1)
    """Seed of the weights and of the order of the samples."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time."""
    precision: Precision = "32-true"
    """Of the computation; weights and optimiser stay in 32 bits (``64-true``: 64)."""
    strategy: StrategySettings = StrategySettings()
    """How several processes share the work."""
    cuda_graphs: bool = False
    """Record forward, loss and backward of a training step once, then launch it as one piece; one GPU."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Epochs; null leaves it to ``max_steps``."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps; null leaves it to ``max_epochs``."""
    max_time: str | None = None
    """Time after which the run stops with a checkpoint, ``HH:MM:SS`` or ``D-HH:MM:SS``; null sets none."""
    accum_grad_batches: int = Field(default=1, ge=1)
    """Batches whose gradients are added up for one optimiser step."""
    num_sanity_val_steps: int = Field(default=0, ge=0)
    """Validation batches run before the training."""
    gradient_clip: GradientClip = GradientClip()
    """Clipping."""
    ema: EMASettings | None = None
    """Average of the weights, for validation and inference; null makes none."""
    freeze: list[str] = []
    """Modules of the model that are not trained, by name or pattern (``encoder``, ``processor.blocks.[01]``)."""
    early_stopping: EarlyStoppingSettings | None = None
    """When the run ends before its length; null never."""
    training_loss: SerializeAsAny[LossSettings]
    """Loss."""
    scalers: dict[str, SerializeAsAny[ScalerSettings]] = {}
    """Weights of the loss over points, variables and steps of a rollout, by a name of your choice."""
    optimization: OptimizationSettings
    """Optimiser and learning rate."""

    @field_validator("run_id")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is None:
            return None
        if {"/", "\\"} & set(name) or name in (".", ".."):
            raise ValueError(f"training.run_id={name!r} is no name: it becomes a folder under system.output.root")
        if not name.isprintable() or name != name.strip() or len(name.encode()) > 200:
            raise ValueError(
                f"training.run_id={name[:60]!r} is no name: up to 200 bytes without line breaks or outer spaces"
            )
        return name

    @field_validator("max_time")
    @classmethod
    def _is_a_time(cls, time: str | None) -> str | None:
        if time is not None and not seconds_of(time):
            raise ValueError(f"training.max_time={time!r} is no time: HH:MM:SS or D-HH:MM:SS, more than nothing")
        return time

    @property
    def max_seconds(self) -> float | None:
        """``max_time`` in seconds."""
        return None if self.max_time is None else seconds_of(self.max_time)

    @model_validator(mode="after")
    def _cross_fields(self) -> TrainingSettings:
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("training.max_epochs and training.max_steps are both null: one must end the run")
        if self.load_weights_only and self.fork_run_id is None:
            raise ValueError("training.load_weights_only=true needs training.fork_run_id, the run to take them from")
        if self.transfer_from is not None and self.fork_run_id is not None:
            raise ValueError("training.transfer_from and training.fork_run_id both say what the run starts from")
        if self.transfer_allow and self.transfer_from is None:
            raise ValueError("training.transfer_allow does nothing with training.transfer_from=null")
        if self.run_id is not None and self.run_id == self.transfer_from:
            raise ValueError(f"training.run_id and training.transfer_from are both {self.run_id!r}")
        if self.run_id is not None and self.run_id == self.fork_run_id:
            raise ValueError(f"training.run_id and training.fork_run_id are both {self.run_id!r}")
        named = [self.training_loss.scalers, *(part.scalers for part in self.training_loss.parts)]
        for name in (name for names in named for name in names):
            if name not in self.scalers:
                hint = did_you_mean(name, self.scalers)
                raise ValueError(
                    f"training.training_loss.scalers names {name}, not under training.scalers"
                    f" (there: {', '.join(self.scalers) or 'none'}){f'; {hint}' if hint else ''}"
                )
        return self
