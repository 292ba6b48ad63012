"""What a dataset tells of its variables: parameter, level and group, as anemoi-training reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from etesian.data.gridded import GriddedDataset
from etesian.data.normalizer import Normalizer
from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.schema.data import DataSettings, NormalizerSettings


class Store:
    """The dataset of a config, opened when something has to be looked up in it.

    Parameters
    ----------
    open_dataset : callable
        Opens the dataset.
    data : mapping
        Section ``data`` of the config here.
    """

    def __init__(self, open_dataset: Callable[[], GriddedDataset], data: Mapping[str, Any]) -> None:
        self._open, self._data = open_dataset, data

    @cached_property
    def dataset(self) -> GriddedDataset:
        """The dataset.

        Raises
        ------
        UserError
            If it can't be opened.
        """
        return self._open()

    @cached_property
    def variables(self) -> Variables:
        """Its variables by role."""
        settings = DataSettings.model_validate(
            {"forcing": self._data["forcing"], "diagnostic": self._data["diagnostic"]}
        )
        return Variables.from_roles(list(self.dataset.variables), settings, self.dataset.variables_metadata)

    def normal(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return scale and offset of each output: ``normalised = physical * scale + offset``."""
        settings = NormalizerSettings.model_validate(self._data["processors"]["normalizer"])
        normal = Normalizer(self.variables, self.dataset.statistics, settings)
        names = self.variables.names
        scale, offset = (
            {name: values[names.index(name)].item() for name in self.variables.output}
            for values in (normal.scale, normal.offset)
        )
        return scale, offset

    def stdev(self, timestep: str | None) -> dict[str, tuple[float, float]]:
        """Return standard deviation and that of the change over a timestep, of each prognostic variable.

        Raises
        ------
        UserError
            If the dataset has no statistics of changes over that time.
        """
        dataset: Any = self.dataset
        try:
            tendencies = dataset.statistics_tendencies(timestep) if timestep else dataset.statistics_tendencies()
        except KeyError as error:
            what = (
                f"the dataset has no statistics of changes over {timestep or 'a step'}, which a tendency scaler reads"
            )
            raise UserError(what, where="training.scalers", mend="a loss without that scaler") from error
        names = self.variables.names
        return {
            name: (float(dataset.statistics["stdev"][n]), float(tendencies["stdev"][n]))
            for n, name in enumerate(names)
            if name in self.variables.prognostic
        }

    def parameter_and_level(self, name: str) -> tuple[str, int | float | None]:
        """Return the parameter of a variable and its level: by its metadata, or by its name, as ``z_500``."""
        mars = self.dataset.variables_metadata.get(name, {}).get("mars") or {}
        level, surface = mars.get("levelist"), mars.get("levtype") == "sfc"
        if mars and surface == (level is None):
            return str(mars.get("param", name)), level
        stem, _, end = name.rpartition("_")
        return (stem, int(end)) if stem and end.isdigit() else (name, None)

    def group(self, name: str, groups: Mapping[str, Any]) -> str:
        """Return the first of the groups that a variable belongs to, or ``groups["default"]``.

        Raises
        ------
        UserError
            If a group asks for more than the parameter and the kind of level.
        """
        mars = self.dataset.variables_metadata.get(name, {}).get("mars") or {}
        facts = {
            "param": self.parameter_and_level(name)[0],
            "is_pressure_level": mars.get("levtype") == "pl",
            "is_model_level": mars.get("levtype") == "ml",
            "is_surface_level": mars.get("levtype") == "sfc",
        }
        for group, told in groups.items():
            wanted = told if isinstance(told, Mapping) else {"param": told}
            if group == "default":
                continue
            if unknown := sorted(set(wanted) - set(facts)):
                where = f"training.variable_groups.{group}"
                raise UserError(f"{where} asks for {', '.join(unknown)}", where=where, allowed=", ".join(facts))
            if all(facts[key] in _as_list(values) for key, values in wanted.items()):
                return str(group)
        return str(groups.get("default"))


def _as_list(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list) else [values]
