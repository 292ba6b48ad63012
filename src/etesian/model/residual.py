"""The residual connection: the model predicts a change of the prognostic variables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.model.fields import ModelFields
from etesian.schema.model import ResidualSettings


class Residual(nn.Module):
    """Adds the prognostic variables of one input step to the output; or, with kind ``none``, nothing.

    Parameters
    ----------
    settings : ResidualSettings
        Section ``model.residual``.
    fields : ModelFields
        Variables and steps.

    Raises
    ------
    UserError
        If the input has no such step.
    """

    input_index: Tensor
    output_index: Tensor

    def __init__(self, settings: ResidualSettings, fields: ModelFields) -> None:
        super().__init__()
        if -settings.step > fields.num_steps:
            raise UserError(
                f"the residual starts from step {settings.step}, but the input has {fields.num_steps} step(s)",
                where="model.residual.step",
                allowed=f"-{fields.num_steps} to -1",
            )
        self.step = settings.step
        names = fields.prognostic if settings.kind == "skip" else ()
        input_index = torch.tensor([fields.input_names.index(name) for name in names], dtype=torch.long)
        output_index = torch.tensor([fields.output_names.index(name) for name in names], dtype=torch.long)
        self.register_buffer("input_index", input_index, persistent=False)
        self.register_buffer("output_index", output_index, persistent=False)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Add to y [B, E, G, V_out] what the input x [B, T, E, G, V_in] holds of the same variables."""
        if not self.input_index.numel():
            return y
        start = x[:, self.step].index_select(-1, self.input_index)  # [B, E, G, V_prognostic]
        return y.index_add(-1, self.output_index, start)
