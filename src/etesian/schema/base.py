"""What every section of the config has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the config: every key is known, every value has its own type, nothing changes later."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, populate_by_name=True, protected_namespaces=()
    )
