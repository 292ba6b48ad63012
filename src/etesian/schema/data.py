"""Section ``data``: what each variable is for and how it is prepared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etesian.schema.base import Section

Normalisation = Literal["mean-std", "std", "max", "min-max", "none"]


class NormalizerSettings(Section):
    """Normalisation from the statistics of the dataset: a default, and the variables treated otherwise."""

    default: Normalisation = "mean-std"
    """Method of the variables that no list names."""
    mean_std: list[str] = Field(default=[], alias="mean-std")
    """Minus the mean, divided by the standard deviation."""
    std: list[str] = []
    """Divided by the standard deviation."""
    max: list[str] = []
    """Divided by the maximum."""
    min_max: list[str] = Field(default=[], alias="min-max")
    """Scaled to 0 to 1 from minimum to maximum."""
    none: list[str] = []
    """Left as they are."""

    def by_variable(self) -> dict[str, Normalisation]:
        """Return the method of each variable that is named."""
        named: dict[str, list[str]] = {
            "mean-std": self.mean_std, "std": self.std, "max": self.max, "min-max": self.min_max, "none": self.none,
        }  # fmt: skip
        return {variable: method for method, names in named.items() for variable in names}  # type: ignore[misc]


class ImputerSettings(Section):
    """What replaces a NaN: the variable's mean or a constant. A variable that is not named must have none."""

    mean: list[str] = []
    """Variables whose NaNs become their mean."""
    constant: dict[str, float] = {}
    """Variables and the value that their NaNs become, physical units."""


class ProcessorsSettings(Section):
    """Preparation of the fields before the model, undone after it."""

    normalizer: NormalizerSettings = NormalizerSettings()
    """Normalisation."""
    imputer: ImputerSettings = ImputerSettings()
    """Treatment of NaNs."""


class DataSettings(Section):
    """Roles of the variables.

    A variable that is neither forcing nor diagnostic is prognostic: input and output.
    """

    forcing: list[str] | Literal["computed"] = []
    """Input only. ``computed``: those that the dataset's metadata marks as computed forcings."""
    diagnostic: list[str] = []
    """Output only."""
    frequency: str | None = None
    """Spacing of the dates, such as ``6h``; null takes the dataset's own."""
    processors: ProcessorsSettings = ProcessorsSettings()
    """Preparation of the fields."""
