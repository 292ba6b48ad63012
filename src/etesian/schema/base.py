"""What every section of the config has in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

LARGEST = 2**32 - 1
"""The largest whole number that a key takes; a larger one is a slip of the finger, and would overflow somewhere."""


class Section(BaseModel):
    """A section of the config: every key is known, every value has its own type, nothing changes later.

    Numbers are finite and texts not empty.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, populate_by_name=True, protected_namespaces=(),
        allow_inf_nan=False,
    )  # fmt: skip

    @field_validator("*", mode="after")
    @classmethod
    def _sensible(cls, value: Any) -> Any:
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, int) and abs(entry) > LARGEST:
                raise PydanticCustomError("beyond_largest", "beyond the largest whole number")
            if isinstance(entry, str) and not entry.strip():
                raise PydanticCustomError("empty_text", "empty text")
        return value
