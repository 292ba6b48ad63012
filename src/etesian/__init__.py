"""Etesian: training of graph-transformer weather models with layer kernels chosen in the config."""

__version__ = "0.1.0"
