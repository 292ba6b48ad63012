"""What a file of the group ``model/layer_kernels`` holds, beside what a config made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A preset of layer kernels that was chosen.

    Attributes
    ----------
    name : str
        The option of the group.
    slots : mapping
        Slot to its entry, as the file and those of its defaults list have it; interpolations are not resolved.
    """

    name: str
    slots: Mapping[str, Any]

    def has(self, slot: str, entry: Any) -> bool:
        """Tell whether the preset itself fills a slot with an entry of the composed config."""
        return slot in self.slots and is_same(self.slots[slot], entry)


def is_same(written: Any, composed: Any) -> bool:
    """Tell whether a value of a file is what stands in the composed config; an interpolation may be anything."""
    if isinstance(written, str) and "${" in written:
        return True
    if isinstance(written, dict) and isinstance(composed, dict):
        return written.keys() == composed.keys() and all(is_same(written[key], composed[key]) for key in written)
    return bool(written == composed)
