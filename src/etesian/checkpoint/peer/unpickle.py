"""Reading of pickles that others wrote: tensors, arrays and plain containers come back, everything else as a stand-in.

Nothing of what a file names is imported or called beyond :data:`_TAKEN`; a class or function that is not in it becomes
a :class:`Stub` that keeps what the file says of it.
"""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from etesian.errors import UserError

_TAKEN = {
    "builtins": {"set", "frozenset", "list", "dict", "tuple", "int", "float", "bool", "str", "bytes", "complex",
                 "slice", "bytearray"},
    "collections": {"OrderedDict", "defaultdict"},
    "datetime": {"date", "datetime", "timedelta", "timezone"},
    "_codecs": {"encode"},
    "numpy": {"ndarray", "dtype"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "torch": {"Size", "device", "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
              "uint8", "bool"},
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_parameter"},
    "torch_geometric.data.hetero_data": {"HeteroData"},
    "torch_geometric.data.storage": {"BaseStorage", "NodeStorage", "EdgeStorage"},
}  # fmt: skip
"""Modules and names that are what they say."""


class Stub:
    """Stands for an object whose class is not taken from the file; a subclass for each class that the file names.

    Attributes
    ----------
    path : str
        Dotted path of the class or function.
    state : dict
        Its attributes, as far as they are in the file.
    arguments : tuple
        What the file calls it with.
    items : list
        Entries of a list, or pairs of a mapping.
    """

    path = ""
    state: dict[str, Any]
    arguments: tuple[Any, ...]
    items: list[Any]

    def __new__(cls, *arguments: Any, **_: Any) -> Stub:  # noqa: D102 - called by the unpickler
        made = super().__new__(cls)
        made.__dict__.update(arguments=arguments, state={}, items=[])
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.__dict__["state"].update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["items"].append((key, value))

    def append(self, value: Any) -> None:
        """Keep an entry of a list."""
        self.__dict__["items"].append(value)

    def extend(self, values: Any) -> None:
        """Keep entries of a list."""
        self.__dict__["items"].extend(values)


class _Unpickler(pickle.Unpickler):
    _stubs: dict[str, type[Stub]] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # its name in the second protocol
        if name in _TAKEN.get(module, ()):
            return getattr(importlib.import_module(module), name)
        path = f"{module}.{name}"
        return self._stubs.setdefault(path, type(name.rpartition(".")[2], (Stub,), {"path": path}))


def read_pickle(path: Path) -> Any:
    """Read what `torch.save` wrote, with stand-ins; tensors come to the CPU.

    Raises
    ------
    UserError
        If it can't be read.
    """
    module = ModuleType(__name__)
    module.Unpickler = _Unpickler  # type: ignore[attr-defined]
    try:
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)
    except Exception as cause:  # a broken file fails in the unzipper, the unpickler or a constructor
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise UserError(f"{path} can't be read as a checkpoint: {reason}", where=str(path)) from cause


def module_state(module: Stub, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers of a module that was pickled whole, by name."""
    state: dict[str, torch.Tensor] = {}
    left_out = module.state.get("_non_persistent_buffers_set") or ()
    for kind in ("_parameters", "_buffers"):
        for name, value in (module.state.get(kind) or {}).items():
            if value is not None and not (kind == "_buffers" and name in left_out):
                state[prefix + name] = value
    for name, child in (module.state.get("_modules") or {}).items():
        if isinstance(child, Stub):
            state |= module_state(child, f"{prefix}{name}.")
    return state
