"""The kinds of models and of their components: importing this registers all of them.

A module of this folder is a kind: its section and its code. Nothing else has to name it.
"""

from __future__ import annotations

import importlib
import pkgutil

import etesian.model.graphtransformer
import etesian.model.transformer  # noqa: F401

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
