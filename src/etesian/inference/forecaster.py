"""The forecaster: normalise, one step, roll out, de-normalise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.data.variables import Variables


class Forecaster(nn.Module):
    """A model with what surrounds it: imputer, normaliser and the bookkeeping of a rollout.

    Parameters
    ----------
    model : nn.Module
        Maps normalised input states (B, T_in, E, G, V_in) to the normalised next state (B, E, G, V_out).
    normalizer : Normalizer
        Normalisation of all variables of the dataset.
    imputer : Imputer
        Replacement of NaNs in the variables that may hold some.
    variables : Variables
        Roles and positions of the variables.
    multistep_input : int
        Number of input states, T_in.

    Attributes
    ----------
    about : dict
        Where it comes from: empty, or filled by ``checkpoint export``.

    Notes
    -----
    Shape letters: B batch, T time, E ensemble, G grid points, V variables of the dataset, V_in inputs, V_out outputs.
    """

    def __init__(
        self, model: nn.Module, normalizer: Normalizer, imputer: Imputer, variables: Variables, multistep_input: int
    ) -> None:
        super().__init__()
        self.model = model
        self.normalizer = normalizer
        self.imputer = imputer
        self.variables = variables
        self.multistep_input = multistep_input
        self.about: dict[str, Any] = {}

    def prepare(self, x: Tensor) -> Tensor:
        """Impute and normalise fields.

        Parameters
        ----------
        x : Tensor, shape (..., V)
            Physical units; NaNs only in imputed variables.

        Returns
        -------
        Tensor, shape (..., V)
            Normalised, without NaN.
        """
        return self.normalizer.normalize(self.imputer(x))

    def forecast_normalised(self, x: Tensor, steps: int) -> Iterator[Tensor]:
        """Roll the model out, one state at a time.

        Parameters
        ----------
        x : Tensor, shape (B, T, E, G, V)
            Normalised fields, at least ``multistep_input + steps - 1`` of them: the first ``multistep_input`` are the
            initial states, of the later ones only the forcings are read.
        steps : int
            Number of states to forecast.

        Yields
        ------
        Tensor, shape (B, E, G, V_out)
            The normalised forecast of the next state.

        Raises
        ------
        ValueError
            If `x` holds too few states.
        """
        if x.shape[1] < self.multistep_input + steps - 1:
            raise ValueError(f"{steps} steps need {self.multistep_input + steps - 1} states, not {x.shape[1]}")
        inputs = x[..., self.variables.data_input]  # [B, T, E, G, V_in]
        state = inputs[:, : self.multistep_input]
        for step in range(steps):
            forecast = self.model(state)  # [B, E, G, V_out]
            yield forecast
            if step + 1 < steps:
                state = self._advance(state, forecast, inputs[:, self.multistep_input + step])

    @torch.no_grad()
    def rollout(self, x: Tensor, steps: int) -> Tensor:
        """Forecast in physical units.

        Parameters
        ----------
        x : Tensor, shape (B, T, E, G, V)
            Physical units, as :meth:`forecast_normalised` reads them.
        steps : int
            Number of states to forecast.

        Returns
        -------
        Tensor, shape (B, steps, E, G, V_out)
            Forecasts in physical units.
        """
        forecasts = torch.stack(list(self.forecast_normalised(self.prepare(x), steps)), dim=1)
        return self.normalizer.denormalize(forecasts, self.variables.data_output)

    def _advance(self, state: Tensor, forecast: Tensor, inputs_then: Tensor) -> Tensor:
        """Append the forecast state: prognostic variables from the model, forcings from the data at that time."""
        newest = inputs_then.clone()  # [B, E, G, V_in]
        newest[..., self.variables.input_prognostic] = forecast[..., self.variables.output_prognostic].to(newest.dtype)
        return torch.cat([state[:, 1:], newest[:, None]], dim=1)
