"""What the models of all kinds have in common."""

from __future__ import annotations

from torch import nn


class Model(nn.Module):
    """A whole model: normalised input states [B, T, E, G, V_in] to the normalised next state [B, E, G, V_out]."""
