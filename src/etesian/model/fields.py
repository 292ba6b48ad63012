"""What a model has to know of the variables; no dataset reaches it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ModelFields:
    """Variables, steps and the affine map between physical and normalised outputs.

    Attributes
    ----------
    input_names, output_names : tuple of str
        Variables in the order of the last axis. What is in both is prognostic.
    num_steps : int
        Steps in the input, T_in.
    output_scale, output_offset : Tensor, shape (V_out,)
        ``normalised = physical * scale + offset``.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    num_steps: int
    output_scale: Tensor
    output_offset: Tensor

    def __post_init__(self) -> None:
        shape = (len(self.output_names),)
        if self.output_scale.shape != shape or self.output_offset.shape != shape:
            raise ValueError(f"output_scale and output_offset need the shape {shape}")
        if not bool((self.output_scale > 0).all()):
            raise ValueError("output_scale has to be positive")

    @property
    def prognostic(self) -> tuple[str, ...]:
        """Outputs that are inputs too, in the order of the outputs."""
        return tuple(name for name in self.output_names if name in self.input_names)
