"""The presets of layer kernels that a config chose, as their files have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from omegaconf import OmegaConf

from etesian.schema.presets import Preset

KERNEL_PRESETS = "model/layer_kernels"


def chosen_presets(choices: Mapping[str, str | None], repository: Any) -> dict[str, Preset]:
    """Return the preset of each mapping of layer kernels.

    Parameters
    ----------
    choices : mapping
        The option chosen for each group.
    repository : hydra's config repository
        Reads the file of an option.

    Returns
    -------
    dict
        Key of the mapping, such as ``model.layer_kernels``, to its preset.
    """
    slots = {}
    for choice, option in choices.items():
        group, _, package = choice.partition("@")
        if group == KERNEL_PRESETS and option and (parts := _with_defaults(option, repository)):
            merged = OmegaConf.to_container(OmegaConf.merge(*parts), resolve=False)
            slots[package or group.replace("/", ".")] = Preset(option, cast("dict[str, Any]", merged))
    return slots


def _with_defaults(option: str, repository: Any) -> list[Any]:
    """Return what the file of a preset and the presets of its defaults list hold, in the order of the list."""
    file = repository.load_config(f"{KERNEL_PRESETS}/{option}")
    if file is None:
        return []
    names = [str(getattr(entry, "path", "")) for entry in file.defaults_list or []]
    names = names if "_self_" in names else ["_self_", *names]
    return [
        part for name in names for part in ([file.config] if name == "_self_" else _with_defaults(name, repository))
    ]
