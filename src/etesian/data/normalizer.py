"""Normalisation of the fields from the dataset's statistics, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from etesian.data.variables import Variables, unknown_names
from etesian.errors import Problem, UserError, shell_word
from etesian.schema.data import Normalisation, NormalizerSettings

KEY = "data.processors.normalizer"
"""Config key of the section."""

_STATISTICS: dict[str, tuple[str, ...]] = {
    "mean-std": ("mean", "stdev"), "std": ("stdev",), "max": ("maximum",), "min-max": ("minimum", "maximum"),
    "none": (),
}  # fmt: skip


class Normalizer(nn.Module):
    """Per variable, ``normalised = physical * scale + offset``.

    ========== ================= ======================
    method     scale             offset
    ========== ================= ======================
    mean-std   1 / stdev         -mean / stdev
    std        1 / stdev         0
    max        1 / max           0
    min-max    1 / (max - min)   -min / (max - min)
    none       1                 0
    ========== ================= ======================

    Parameters
    ----------
    variables : Variables
        Names of the last axis, V of them.
    statistics : mapping
        ``mean``, ``stdev``, ``maximum``, ``minimum`` of the dataset, (V,) float64 each, physical units.
    settings : NormalizerSettings
        Section ``data.processors.normalizer``.

    Attributes
    ----------
    scale, offset : Tensor
        Buffers (V,), float32, in the dataset's order.
    methods : dict
        The method of each variable.

    Raises
    ------
    UserError
        For a variable that is not in the dataset or has two methods, and for statistics that cannot be divided by.
    """

    scale: Tensor
    offset: Tensor

    def __init__(
        self, variables: Variables, statistics: Mapping[str, np.ndarray], settings: NormalizerSettings
    ) -> None:
        super().__init__()
        problems = _misnamed(variables.names, settings)
        if problems:
            raise UserError.collect(problems)
        named = settings.by_variable()
        self.methods: dict[str, Normalisation] = {name: named.get(name, settings.default) for name in variables.names}
        scales, offsets = [], []
        for position, (name, method) in enumerate(self.methods.items()):
            values = {key: float(statistics[key][position]) for key in _STATISTICS[method]}
            where = f"{KEY}.{method}" if name in named else f"{KEY}.default"
            problem = _unusable(name, method, values, where)
            if problem is not None:
                problems.append(problem)
                continue
            scale, offset = _coefficients(method, values)
            scales.append(scale)
            offsets.append(offset)
        if problems:
            raise UserError.collect(problems)
        self.register_buffer("scale", torch.tensor(scales, dtype=torch.float32))
        self.register_buffer("offset", torch.tensor(offsets, dtype=torch.float32))

    def normalize(self, x: Tensor, index: Sequence[int] | None = None) -> Tensor:
        """Turn physical values into normalised ones.

        Parameters
        ----------
        x : Tensor
            Physical values, [..., V], or [..., len(index)].
        index : sequence of int, optional
            Positions in the data of the variables on the last axis; all by default.
        """
        scale, offset = self._at(index)
        return torch.addcmul(offset, x, scale)  # [..., V]

    def denormalize(self, x: Tensor, index: Sequence[int] | None = None) -> Tensor:
        """Turn normalised values into physical ones, the inverse of :meth:`normalize`."""
        scale, offset = self._at(index)
        return (x - offset) / scale  # [..., V]

    def forward(self, x: Tensor, index: Sequence[int] | None = None) -> Tensor:
        """Normalise."""
        return self.normalize(x, index)

    def _at(self, index: Sequence[int] | None) -> tuple[Tensor, Tensor]:
        if index is None:
            return self.scale, self.offset
        return self.scale[list(index)], self.offset[list(index)]


def _coefficients(method: Normalisation, values: Mapping[str, float]) -> tuple[float, float]:
    """Return scale and offset, float64."""
    divisor, _ = _divisor(method, values)
    shift = {"mean-std": "mean", "min-max": "minimum"}.get(method)
    return 1 / divisor, -values[shift] / divisor if shift else 0.0


def _unusable(name: str, method: Normalisation, values: Mapping[str, float], where: str) -> Problem | None:
    """Return the problem with statistics that are not finite, or whose divisor is 0 (float32 included) or negative."""
    mend = shell_word(f"{KEY}.none=[{name}]")
    if broken := [f"{key} {value}" for key, value in values.items() if not np.isfinite(value)]:
        return Problem(
            f"the dataset's statistics of {name!r} are not finite ({', '.join(broken)}): {method} cannot use them",
            where=where,
            mend=mend,
        )
    divisor, reason = _divisor(method, values)
    # below the spacing of float32 numbers of the field's size, what varies is rounding
    floor = np.finfo(np.float32).eps * max((abs(value) for value in values.values()), default=0.0)
    if divisor < -floor:
        what = f"variable {name!r} cannot be normalised by {method}: {reason}, {divisor:g}, is negative"
        return Problem(what, where=where, mend=mend)
    if divisor > floor and np.isfinite(np.float32(1 / divisor)):
        return None
    return Problem(
        f"variable {name!r} cannot be normalised by {method}: {reason}, {divisor:g}, cannot be told from 0 in float32",
        where=where,
        mend=mend,
    )


def _divisor(method: Normalisation, values: Mapping[str, float]) -> tuple[float, str]:
    """Return what a method divides by, and its name."""
    match method:
        case "mean-std" | "std":
            return values["stdev"], "its standard deviation"
        case "max":
            return values["maximum"], "its maximum"
        case "min-max":
            return values["maximum"] - values["minimum"], "its maximum minus its minimum"
        case "none":
            return 1.0, "1"


def _misnamed(names: Sequence[str], settings: NormalizerSettings) -> list[Problem]:
    lists = {
        "mean-std": settings.mean_std, "std": settings.std, "max": settings.max, "min-max": settings.min_max,
        "none": settings.none,
    }  # fmt: skip
    problems = [
        problem for method, given in lists.items() for problem in unknown_names(given, names, f"{KEY}.{method}")
    ]
    counts = Counter(name for given in lists.values() for name in set(given))
    for name in (name for name, count in counts.items() if count > 1):
        keys = [f"{KEY}.{method}" for method, given in lists.items() if name in given]
        problems.append(
            Problem(
                f"variable {name!r} has more than one normalisation", where=", ".join(keys), mend="keep one of them"
            )
        )
    return problems
