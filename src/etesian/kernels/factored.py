"""Graph attention that never forms the edge projection; pure PyTorch, any device: the default.

Placeholder body until the segment operations below are chosen by measurement.
"""

from __future__ import annotations

from etesian.kernels.reference import ReferenceGraphAttention


class FactoredGraphAttention(ReferenceGraphAttention):
    """Graph attention without edge projections."""
