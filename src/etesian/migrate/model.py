"""Section ``model``: encoder, processor, decoder, their kernels, learnt features, residual connection, bounds."""

from __future__ import annotations

from etesian.checkpoint.peer.translate import Faults, translate_bounds
from etesian.errors import Problem
from etesian.migrate.kernels import translate_kernels
from etesian.migrate.store import Store
from etesian.migrate.theirs import Theirs, target

COMPONENTS = ("encoder", "processor", "decoder")
EDGES = {"encoder": "data2hidden", "processor": "hidden2hidden", "decoder": "hidden2data"}
_CLASSES = {
    "encoder": {"GraphTransformerForwardMapper": "graphtransformer", "GNNForwardMapper": "gnn"},
    "processor": {"GraphTransformerProcessor": "graphtransformer", "TransformerProcessor": "transformer",
                  "GNNProcessor": "gnn", "PointWiseMLPProcessor": "pointwise"},
    "decoder": {"GraphTransformerBackwardMapper": "graphtransformer", "GNNBackwardMapper": "gnn"},
}  # fmt: skip
"""Kind of each class of components."""
_OPTIONS = {"gnn": ("mlp_hidden_ratio", "mlp_extra_layers"), "pointwise": ("mlp_hidden_ratio",)}
"""What components take that have no attention."""
_OFF = {
    "edge_pre_mlp": (False,), "softcap": (0.0, None), "use_alibi_slopes": (False, None), "dropout_p": (0.0,),
    "use_rotary_embeddings": (False,), "qkv_bias": (False,),
}  # fmt: skip
_ELSEWHERE = {
    "graph_attention_backend": "the slot GraphAttention: plain PyTorch; model/layer_kernels=triton for a GPU",
    "attention_implementation": "the slot Attention: PyTorch's; model.layer_kernels.Attention for another",
    "initialise_data_extractor_zero": "the head's first weights are scaled down, for a first forecast near persistence",
}
_IMPLIED = {
    "shard_strategy": "how processes share a model is not chosen",
    "_convert_": "of Hydra's instantiation",
    "_target_": "kind",
    "num_channels": "model.num_channels",
}


def check_kind(theirs: Theirs) -> None:
    """Refuse models that are not there; nothing else of such a config could be said with sense.

    Raises
    ------
    UserError
        Naming the model, mapper or processor.
    """
    _expect_class(theirs, "model.model", ["AnemoiModelEncProcDec"], None)
    mend = "with a model of those kinds: model=graphtransformer, model=transformer, model=gnn"
    for component, classes in _CLASSES.items():
        _expect_class(theirs, f"model.{component}", list(classes), mend)
    theirs.stop()


def _expect_class(theirs: Theirs, key: str, classes: list[str], mend: str | None) -> None:
    if target(theirs.value(key)) not in classes:
        theirs.refuse(f"{key}._target_", " or ".join(classes), mend)


def translate_model(theirs: Theirs, store: Store) -> None:
    """Translate the section ``model``; after ``data``."""
    kinds = {name: classes[target(theirs.value(f"model.{name}"))] for name, classes in _CLASSES.items()}
    theirs.ours["model"] = {"kind": kinds["processor"], **{name: {"kind": kind} for name, kind in kinds.items()}}
    theirs.carry("model.num_channels")
    if theirs.has("model.model.latent_skip"):
        theirs.carry("model.model.latent_skip", "model.latent_skip")
    theirs.imply("model.model", "model.kind")
    for component in COMPONENTS:
        _component(theirs, component, kinds[component])
    translate_kernels(theirs)
    theirs.expect("model.encoders.source_datasets", ([theirs.dataset], None), "one dataset")
    theirs.expect("model.encoders.dataset_fusing_strategy", ("not_supported",), "one dataset")
    theirs.expect("model.decoders.target_datasets", ([theirs.dataset], None), "one dataset")
    theirs.expect("model.decoders.target_node_features", (["encoded_data"],), "the decoder starts from encoded data")
    sums = "anemoi.models.layers.aggregator.SumAggregator"
    theirs.expect("model.latent_aggregator._target_", (sums,), "one encoder")
    hidden = theirs.value("model.model.hidden_nodes_name", "hidden")
    for node, ours in {theirs.dataset: "data", hidden: "hidden", "data": "data"}.items():
        theirs.carry(f"model.node_trainable_parameters.{node}", f"model.node_trainable_parameters.{ours}")
    theirs.imply("model.edge_trainable_parameters", "read through the components")
    theirs.expect("model.attributes.nodes", ([], None), "nodes have coordinates and learnt features")
    theirs.imply("model.attributes", "read through the components")
    _residual(theirs)
    theirs.expect("model.output_mask._target_", ("anemoi.training.utils.masks.NoOutputMask",), "no point is left out")
    theirs.imply("model.output_mask", "no point is left out")
    for key in ("keep_batch_sharded", "cpu_offload", "activation"):
        theirs.imply(f"model.{key}", _IMPLIED["shard_strategy"] if key[0] == "k" else "read through the components")
    theirs.drop("model.compile", "model/compile says what is compiled: none, norms, blocks, components, model")
    _bounding(theirs, store)


def _component(theirs: Theirs, name: str, kind: str) -> None:
    key = f"model.{name}"
    for option in _OPTIONS.get(kind, ("num_heads", "mlp_hidden_ratio", "qk_norm")):
        theirs.carry(f"{key}.{option}")
    if name == "processor":
        theirs.carry(f"{key}.num_layers")
        theirs.drop(f"{key}.num_chunks", "gradient_checkpointing recomputes block by block")
        if kind == "transformer":
            theirs.carry(f"{key}.window_size")
            theirs.set(f"{key}.node_order", "graph")
    policy = _checkpointing(theirs, key)
    if name != "processor":
        _chunks(theirs, f"{key}.num_chunks", policy)
    if name != "processor" or kind in ("graphtransformer", "gnn"):
        edges = (["edge_length", "edge_dirs"],)
        theirs.expect(f"{key}.sub_graph_edge_attributes", edges, "what an edge carries")
        theirs.carry(f"{key}.trainable_size", f"model.edge_trainable_parameters.{EDGES[name]}")
    for option, off in _OFF.items():
        theirs.expect(f"{key}.{option}", off, "off there, not there here")
    for option, why in _IMPLIED.items():
        theirs.imply(f"{key}.{option}", why)
    for option, why in _ELSEWHERE.items():
        theirs.drop(f"{key}.{option}", why)


def _checkpointing(theirs: Theirs, key: str) -> str:
    """Set what a component keeps for the backward pass, and return it."""
    recompute, offload = theirs.value(f"{key}.gradient_checkpointing"), theirs.value(f"{key}.cpu_offload", False)
    ours = f"{key}.gradient_checkpointing"
    if recompute not in (True, False, None):
        theirs.refuse(ours, "true, false")
    policy = "offload" if offload else "none" if recompute is False else "full"
    theirs.set(ours, policy)
    if offload:
        theirs.change(f"{key}.cpu_offload", ours, policy, "what a block keeps lies in the host's memory")
        theirs.drop(f"{key}.gradient_checkpointing", "see cpu_offload")
    elif recompute is None:
        theirs.set(ours, policy)  # releases before 0.9 have no such key, and recompute
        theirs.imply(f"{key}.cpu_offload", "off")
    else:
        theirs.carry_as(f"{key}.gradient_checkpointing", ours, policy)
        theirs.imply(f"{key}.cpu_offload", "off")
    return policy


def _chunks(theirs: Theirs, key: str, policy: str) -> None:
    if policy == "none" and theirs.number(key, 1) > 1:
        theirs.change(key, key, 1, "chunks save nothing without gradient_checkpointing")
    else:
        theirs.carry(key)


def _residual(theirs: Theirs) -> None:
    kind = target(theirs.value("model.residual")) or "SkipConnection"
    if kind not in ("SkipConnection", "NoConnection"):
        theirs.refuse("model.residual._target_", "SkipConnection, NoConnection")
        theirs.drop("model.residual", "refused")
        return
    theirs.set("model.residual", {"kind": "none" if kind == "NoConnection" else "skip", "step": -1})
    if theirs.has("model.residual"):
        theirs.carry_as("model.residual._target_", "model.residual.kind", theirs.ours["model"]["residual"]["kind"])
        theirs.carry("model.residual.step")


_BOUNDS = {"HardtanhBounding": ("min_val", "max_val"), "FractionBounding": ("min_val", "max_val", "total_var")}
"""What bounds take beside the variables."""


def _check_bound(theirs: Theirs, key: str, kind: str) -> None:
    """Note keys that the bound does not take, and those that it lacks."""
    wanted = _BOUNDS.get(kind, ())
    if kind in ("ReluBounding", *_BOUNDS):
        theirs.only(key, ["variables", *wanted])
    for name in wanted:
        if not theirs.has(f"{key}.{name}"):
            theirs.refuse(key, f"{kind} with {', '.join(wanted)}")


def _bounding(theirs: Theirs, store: Store) -> None:
    """Translate the bounds: those there are of normalised values, those here in physical units."""
    theirs.set("model.bounding", [])
    entries = theirs.listed("model.bounding")
    if not all(isinstance(entry, dict) for entry in entries):
        theirs.refuse("model.bounding", "a list of bounds")
        entries = []
    if not entries:
        theirs.imply("model.bounding", "no bounds")
        return
    for place, entry in enumerate(entries):
        _check_bound(theirs, f"model.bounding.{place}", target(entry))
        entry["variables"] = list(map(str, theirs.listed(f"model.bounding.{place}.variables")))
        for end in {"min_val", "max_val"} & set(entry):
            entry[end] = theirs.number(f"model.bounding.{place}.{end}")
    theirs.stop()
    named = [name for entry in entries for name in entry["variables"]]
    absent = [name for name in named if name not in store.variables.output]
    if absent:
        names = ", ".join(dict.fromkeys(absent))
        what = f"model.bounding names {names}: no output of the model"
        theirs.problems.append(Problem(what, "model.bounding", ", ".join(store.variables.output)))
        theirs.drop("model.bounding", "refused")
        return
    faults = Faults("model.bounding", "config")
    scale, offset = store.normal()
    bounds = translate_bounds({"bounding": entries}, "data", scale, offset, faults)
    theirs.carry_as("model.bounding", "model.bounding", bounds, "bounds are in physical units here")
