"""The forecaster: normalise, one step, roll out, de-normalise.

A whole one, pickled, is a checkpoint for inference: unpickling imports this module, and neither Lightning nor Hydra.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.data.variables import Variables

DATASET = "data"
"""Name of the one dataset, where tools can tell several apart."""


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
        Where it comes from: empty, or what :func:`etesian.checkpoint.inference.about` returns.

    Notes
    -----
    Shape letters: B batch, T time, E ensemble, G grid points, V variables of the dataset, V_in inputs, V_out outputs.
    """

    data_input: Tensor
    data_output: Tensor
    input_prognostic: Tensor
    output_prognostic: Tensor

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
        for name in ("data_input", "data_output", "input_prognostic", "output_prognostic"):  # lists would be copied
            positions = torch.tensor(getattr(variables, name), dtype=torch.long)  # to the device at every use
            self.register_buffer(name, positions, persistent=False)

    def prepare(self, x: Tensor) -> Tensor:
        """Impute and normalise fields.

        Parameters
        ----------
        x : Tensor, shape (..., V)
            Physical units; NaNs only in imputed variables. In any order in memory, such as that of a batch, whose
            variables do not stand side by side.

        Returns
        -------
        Tensor, shape (..., V)
            Normalised, without NaN, contiguous.
        """
        return self.normalizer.normalize(self.imputer(x.contiguous()))

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
        inputs = x.index_select(-1, self.data_input)  # [B, T, E, G, V_in]
        state = inputs[:, : self.multistep_input]
        for step in range(steps):
            forecast = self.model(state)  # [B, E, G, V_out]
            yield forecast
            if step + 1 < steps:
                state = self._advance(state, forecast, inputs[:, self.multistep_input + step])

    def forward(self, x: Tensor) -> Tensor:
        """Forecast the next state in physical units: :meth:`rollout` of one step.

        Parameters
        ----------
        x : Tensor, shape (B, T, E, G, V)
            Physical units, the ``multistep_input`` initial states.

        Returns
        -------
        Tensor, shape (B, E, G, V_out)
            The next state in physical units.

        Raises
        ------
        TypeError, ValueError
            As :meth:`rollout`.
        """
        return self.rollout(x, 1)[:, 0]

    @torch.no_grad()
    def rollout(self, x: Tensor, steps: int) -> Tensor:
        """Forecast in physical units.

        Parameters
        ----------
        x : Tensor, shape (B, T, E, G, V)
            Physical units, as :meth:`forecast_normalised` reads them, of any floating-point dtype: it is turned into
            the model's.
        steps : int
            Number of states to forecast.

        Returns
        -------
        Tensor, shape (B, steps, E, G, V_out)
            Forecasts in physical units; variables as ``variables.output`` names them.

        Raises
        ------
        TypeError
            If `x` is not a tensor of floating-point numbers, or `steps` not a whole number.
        ValueError
            If `steps` is below 1, the shape is another, `x` is on another device than the model, or what is read
            of it holds NaNs that no imputer fills.
        """
        return torch.stack(list(self.states(x, steps)), dim=1)

    @torch.no_grad()
    def states(self, x: Tensor, steps: int) -> Iterator[Tensor]:
        """Forecast in physical units, one state at a time; parameters and errors are those of :meth:`rollout`.

        Yields
        ------
        Tensor, shape (B, E, G, V_out)
            The next state in physical units.
        """
        prepared = self.prepare(self._checked(x, steps))
        self._refuse_nan(prepared, steps)
        for forecast in self.forecast_normalised(prepared, steps):
            yield self.normalizer.denormalize(forecast, self.variables.data_output)

    def predict_step(
        self, x: dict[str, Tensor], fcstep: int | None = None, step: Any = None, date: Any = None
    ) -> dict[str, Tensor]:
        """Forecast the next state in physical units, as anemoi-inference asks for it.

        Parameters
        ----------
        x : dict
            Under ``"data"`` the input states (1, T_in, G, V_in), physical units, variables as ``variables.input``
            names them.
        fcstep, step, date : optional
            Number, lead time and date of the step; the model needs none of them.

        Returns
        -------
        dict
            Under ``"data"`` the next state (1, 1, 1, G, V_out), physical units, of the dtype of `x`, variables as
            ``variables.output`` names them.

        Raises
        ------
        ValueError
            If `x` holds other datasets, another shape, or NaNs that no imputer fills.
        """
        if set(x) != {DATASET}:
            raise ValueError(f"the datasets are {', '.join(map(repr, x)) or 'none'}, not {DATASET!r}")
        states, inputs = x[DATASET], self.variables.input
        if states.dim() != 4 or states.shape[1] != self.multistep_input or states.shape[-1] != len(inputs):
            raise ValueError(
                f"x has the shape {tuple(states.shape)}, not (batch, {self.multistep_input} states, grid points, "
                f"{len(inputs)} variables); the variables are {', '.join(inputs)}"
            )
        whole = states.new_zeros(*states.shape[:-1], len(self.variables.names))  # [B, T_in, G, V]
        whole[..., self.variables.data_input] = states
        return {DATASET: self.rollout(whole[:, :, None], 1).to(states.dtype)}

    def _checked(self, x: Tensor, steps: int) -> Tensor:
        """Return `x` in the model's dtype, if it can be rolled out."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__module__}.{type(x).__name__}, not a torch.Tensor: torch.as_tensor(x)")
        if not x.is_floating_point():
            raise TypeError(f"x is of {x.dtype}, not of a floating-point dtype: x.float()")
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(f"steps is {steps!r}, not a whole number")
        if steps < 1:
            raise ValueError(f"steps is {steps}, not 1 or more")
        names = self.variables.names
        if x.dim() != 5 or x.shape[-1] != len(names):
            raise ValueError(
                f"x has the shape {tuple(x.shape)}, not (batch, time, ensemble, grid points, {len(names)} variables);"
                f" the variables are {', '.join(names)}"
            )
        states = self.multistep_input + steps - 1
        if x.shape[1] < states:
            raise ValueError(
                f"x has the shape {tuple(x.shape)}, {x.shape[1]} states: {steps} step(s) need {states},"
                f" {self.multistep_input} initial ones and {steps - 1} later ones for the forcings"
            )
        parameter = next(self.model.parameters(), None)
        if parameter is None:
            return x
        if x.device != parameter.device:
            raise ValueError(f"x is on {x.device}, the model on {parameter.device}: x.to({str(parameter.device)!r})")
        return x.to(parameter.dtype)

    def _refuse_nan(self, prepared: Tensor, steps: int) -> None:
        """Look for NaNs in what is read: the input variables of the initial states, the forcings of the later ones."""
        first, variables = self.multistep_input, self.variables
        read = {
            "initial states": (prepared[:, :first], variables.data_input),
            "later states": (prepared[:, first : first + steps - 1], variables.data_forcing),
        }
        found = []
        for which, (states, columns) in read.items():
            if states.shape[1] and columns:
                counts = torch.isnan(states[..., columns]).sum(dim=(0, 1, 2, 3)).tolist()
                found += [
                    f"{variables.names[i]} ({n} in the {which})" for i, n in zip(columns, counts, strict=True) if n
                ]
        if found:
            raise ValueError(f"x holds NaNs in variables without an imputer: {', '.join(found)}")

    def _advance(self, state: Tensor, forecast: Tensor, inputs_then: Tensor) -> Tensor:
        """Append the forecast state: prognostic variables from the model, forcings from the data at that time."""
        prognostic = forecast.index_select(-1, self.output_prognostic).to(inputs_then.dtype)
        newest = inputs_then.index_copy(-1, self.input_prognostic, prognostic)  # [B, E, G, V_in]
        return torch.cat([state[:, 1:], newest[:, None]], dim=1)
