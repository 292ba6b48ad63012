"""What does not go with compilation: some activation checkpointing, and models that processes share.

What would do something else in silence is refused, and so is what the compiler can't see into.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from etesian.errors import Problem
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.kinds.gnn import GraphNetworkProcessor
from etesian.model.processor import Processor
from etesian.model.self_attention import TransformerBlock, TransformerProcessor
from etesian.runtime.checkpointing import checkpointing_of
from etesian.runtime.entries import Entry
from etesian.schema.model import CheckpointingPolicy, ModelSettings

WITH_PRODUCTS = ("Linear", "MLP", "Attention", "GraphAttention")
"""Slots whose kernels compute what selective checkpointing keeps."""


def combination_problems(model: nn.Module, entry: Entry, names: Sequence[str]) -> list[Problem]:
    """Return what is wrong with compiling some modules of a model that is prepared: one problem at most.

    Parameters
    ----------
    model : nn.Module
        The model, compiled and checkpointed.
    entry : Entry
        What is compiled.
    names : sequence of str
        The modules that the entry means.
    """
    for name in names:
        found = _inside(model, entry, name) or _within_selective(model, entry, name)
        if found is not None:
            return [found]
    return []


def sharing_problems(settings: ModelSettings, entries: Sequence[Entry]) -> list[Problem]:
    """Return the entries that compile a module inside of which processes that share a model exchange nodes or heads.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    entries : sequence of Entry
        What is to be compiled.
    """
    attention = settings.uses("processor", "Attention")
    inside: dict[str, tuple[type[nn.Module], ...]] = {
        "": (EncoderProcessorDecoder,),
        "processor": (TransformerProcessor, TransformerBlock) if attention else (Processor, GraphNetworkProcessor),
    }
    problems = []
    for entry in entries:
        places = [place for place in inside if entry.within in (None, place)]
        found = [kind for place in places for kind in inside[place] if entry.kind and issubclass(kind, entry.kind)]
        if not found:
            continue
        what = (
            f"{entry.shown} compiles {found[0].__name__}, in which the processes that share a model exchange "
            f"{'heads' if found[0] is TransformerBlock else 'nodes'}: the compiler can't see into that"
        )
        mend = "component: encoder, and another entry with component: decoder" if attention else "model/compile=blocks"
        allowed = f"what lies between: norms, {'Block in encoder and decoder' if attention else 'blocks, mappers'}"
        problems.append(Problem(what, entry.where, allowed, f"{mend}, or system.hardware.num_gpus_per_model=1"))
    return problems


def _inside(model: nn.Module, entry: Entry, name: str) -> Problem | None:
    """Return what is wrong with the checkpointing inside of a compiled module."""
    for path, child in model.get_submodule(name).named_modules():
        policy = checkpointing_of(child)
        if policy == "none" or (path == "" and policy != "selective"):  # applied around the compiled module
            continue
        place = f"{name}.{path}".strip(".")
        around = f"{entry.shown} compiles {name or 'the whole model'}"
        if policy == "offload":
            what = f"{around}, around {place}, which is to be offloaded: nothing is, inside of what is compiled"
            return Problem(what, entry.where, mend=f"model/compile=blocks, or {_key(place)}=selective, full or none")
        if not entry.options.fullgraph:
            return _loose(around, entry, place, policy)
    return None


def _loose(around: str, entry: Entry, place: str, policy: CheckpointingPolicy) -> Problem:
    what = (
        f"{around} without fullgraph around {place}, which recomputes its activations: where the compiler can't "
        "follow into it, it would stay uncompiled without a word"
    )
    other = "full or none" if policy == "selective" else "none, or model/compile=blocks"
    return Problem(what, entry.where, mend=f"fullgraph: true in {entry.where}, or {_key(place)}={other}")


def _within_selective(model: nn.Module, entry: Entry, name: str) -> Problem | None:
    """Return what is wrong with compiling a part of a selective block: its matrix products can't be seen any more."""
    parents = [name[:end] for end, letter in enumerate(name) if letter == "."]
    block = next((path for path in parents if checkpointing_of(model.get_submodule(path)) == "selective"), None)
    if block is None:
        return None
    inside = [_slot(child) for child in model.get_submodule(name).modules()]
    outside = [_slot(model.get_submodule(path)) for path in [*parents, name]]
    nearest = next((slot for slot in reversed(outside) if slot), None)
    if nearest not in WITH_PRODUCTS and not set(WITH_PRODUCTS) & set(inside):
        return None
    what = (
        f"{entry.shown} compiles {name}, a part of {block}: selective checkpointing can't see into it, so its matrix "
        "products would be computed twice"
    )
    allowed = "compiled with selective: whole blocks, or norms and activations"
    return Problem(what, entry.where, allowed, f"model/compile=blocks, or {_key(block)}=full or none")


def _slot(module: nn.Module) -> str | None:
    made_by = getattr(module, "made_by", None)
    return None if made_by is None else str(made_by[1])


def _key(place: str) -> str:
    """Return the config key of the checkpointing of a block: the first part of its name is the component's."""
    return f"model.{place.partition('.')[0]}.gradient_checkpointing"
