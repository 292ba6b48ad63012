"""A config of anemoi-training, section by section, as one of this package."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from etesian.data.gridded import GriddedDataset
from etesian.interpolation import Leaf
from etesian.migrate.data import translate_data
from etesian.migrate.diagnostics import translate_diagnostics
from etesian.migrate.graph import translate_graph
from etesian.migrate.loss import translate_loss
from etesian.migrate.model import check_kind, translate_model
from etesian.migrate.store import Store
from etesian.migrate.system import translate_dataloader, translate_system
from etesian.migrate.theirs import Theirs, Told
from etesian.migrate.training import check_method, translate_task, translate_training
from etesian.schema.validate import validate_config, validate_section


@dataclass(frozen=True)
class Converted:
    """A config of this package, and what became of each key of the one it was made of.

    Attributes
    ----------
    tree : dict
        The whole config, checked.
    told : list of Told
        What became of each key.
    """

    tree: dict[str, Any]
    told: list[Told]


def convert(
    leaves: list[Leaf], base: Mapping[str, Any], open_dataset: Callable[[Mapping[str, Any]], GriddedDataset]
) -> Converted:
    """Translate a config of anemoi-training.

    Parameters
    ----------
    leaves : list of Leaf
        Its values.
    base : mapping
        A config of this package; what the other has no key for stays its own.
    open_dataset : callable
        Opens the dataset of the arguments of ``open_dataset``. It is called where weights or bounds are by variable.

    Raises
    ------
    UserError
        With everything that has no counterpart here, and every key that is not known.
    """
    theirs = Theirs(leaves, copy.deepcopy(dict(base)))
    check_kind(theirs)
    check_method(theirs)
    theirs.expect("config_validation", (True, False), "a config is always validated here")
    theirs.drop("datamodule", "there is one data module")
    translate_data(theirs)
    translate_system(theirs)
    translate_dataloader(theirs)
    translate_graph(theirs)
    theirs.stop()
    for section in ("data", "dataloader"):
        validate_section(section, theirs.ours[section])
    options = theirs.ours["dataloader"]["training"]["dataset_config"]
    store = Store(lambda: open_dataset(options), theirs.ours["data"])
    translate_model(theirs, store)
    translate_task(theirs)
    translate_training(theirs)
    translate_loss(theirs, store)
    translate_diagnostics(theirs)
    theirs.finish()
    checked = validate_config(theirs.ours)
    return Converted(checked.model_dump(mode="json", by_alias=True), theirs.told)
