"""Small trees of config files as anemoi-training has them, in two of its layouts, for a store of small size.

Both describe the same experiment: a graph transformer of 16 channels on an icosahedron refined once, two steps.
"""

from __future__ import annotations

from pathlib import Path

VARIABLES = ("2t", "q_500", "q_850", "z_500", "lsm", "tp", "cp")
METADATA = {
    "2t": {"mars": {"param": "2t", "levtype": "sfc"}}, "lsm": {"constant_in_time": True},
    "q_500": {"mars": {"param": "q", "levtype": "pl", "levelist": 500}},
    "q_850": {"mars": {"param": "q", "levtype": "pl", "levelist": 850}},
}  # fmt: skip
"""Of the other variables nothing is told, so parameter and level are read from their names."""

_ROLES = """\
forcing: [lsm]
diagnostic: [tp, cp]
"""
_METHODS = "{default: mean-std, std: [tp, cp], min-max: null, max: [lsm], none: []}"
_PROCESSORS = f"""\
processors:
  imputer:
    _target_: anemoi.models.preprocessing.imputer.InputImputer
    config: {{default: none, mean: [2t]}}
  normalizer:
    _target_: anemoi.models.preprocessing.normalizer.InputNormalizer
    config: {_METHODS}
"""
_KERNELS = """\
layer_kernels:
  LayerNorm: {_target_: torch.nn.LayerNorm}
  Linear: {_target_: torch.nn.Linear}
  Activation: {_target_: torch.nn.GELU}
  QueryNorm: {_target_: anemoi.models.layers.normalization.AutocastLayerNorm, bias: false}
  KeyNorm: {_target_: anemoi.models.layers.normalization.AutocastLayerNorm, bias: false}
attributes: {edges: [edge_length, edge_dirs], nodes: []}
num_channels: 16
cpu_offload: false
keep_batch_sharded: true
compile: [{module: anemoi.models.layers.conv.GraphTransformerConv}]
"""
_COMMON = """\
{indent}num_chunks: {chunks}
{indent}mlp_hidden_ratio: 2
{indent}num_heads: 2
{indent}qk_norm: true
{indent}cpu_offload: ${{model.cpu_offload}}
{indent}gradient_checkpointing: {checkpointing}
{indent}layer_kernels: ${{model.layer_kernels}}
{indent}shard_strategy: edges
{indent}graph_attention_backend: triton
{indent}edge_pre_mlp: false
{indent}sub_graph_edge_attributes: ${{model.attributes.edges}}
{indent}trainable_size: ${{model.{learnt}.{edges}}}
"""
_BOUNDS = """\
- _target_: anemoi.models.layers.bounding.ReluBounding
  variables: [tp]
- _target_: anemoi.models.layers.bounding.HardtanhBounding
  variables: [2t]
  min_val: -4.0
  max_val: 4.0
"""
_GRAPH = """\
overwrite: true
nodes:
  data:
    node_builder: {{_target_: anemoi.graphs.nodes.AnemoiDatasetNodes, dataset: "{dataset}"}}
    attributes: ${{graph.attributes.nodes}}
  hidden:
    node_builder: {{_target_: anemoi.graphs.nodes.TriNodes, resolution: 1}}
edges:
- source_name: data
  target_name: hidden
  edge_builders:
  - {{_target_: anemoi.graphs.edges.CutOffEdges, cutoff_factor: 1.5, source_mask_attr_name: null}}
  attributes: ${{graph.attributes.edges}}
- source_name: hidden
  target_name: hidden
  edge_builders:
  - _target_: anemoi.graphs.edges.MultiScaleEdges
    x_hops: 1
    scale_resolutions: ${{graph.nodes.hidden.node_builder.resolution}}
  attributes: ${{graph.attributes.edges}}
- source_name: hidden
  target_name: data
  edge_builders: [{{_target_: anemoi.graphs.edges.KNNEdges, num_nearest_neighbours: 3}}]
  attributes: ${{graph.attributes.edges}}
attributes:
  nodes:
    area_weight: {{_target_: anemoi.graphs.nodes.attributes.SphericalAreaWeights, norm: unit-max, fill_value: 0}}
  edges:
    edge_length: {{_target_: anemoi.graphs.edges.attributes.EdgeLength, norm: unit-std}}
    edge_dirs: {{_target_: anemoi.graphs.edges.attributes.EdgeDirection, norm: unit-std}}
post_processors: []
"""
_DIAGNOSTICS = """\
plot:
  parameters: [z_500, tp]
  sample_idx: 0
  callbacks: [{_target_: anemoi.training.diagnostics.callbacks.plot.PlotLoss, every_n_batches: 750}]
callbacks: []
benchmark_profiler: {memory: {enabled: true, steps: 5}}
debug: {anomaly_detection: false}
enable_checkpointing: true
checkpoint:
  every_n_minutes: {save_frequency: 30, num_models_saved: 3}
  every_n_epochs: {save_frequency: 1, num_models_saved: -1}
  every_n_train_steps: {save_frequency: null, num_models_saved: 0}
log:
  interval: 1
  mlflow: {enabled: false, tracking_uri: "???", save_dir: mlflow}
enable_progress_bar: true
print_memory_summary: false
"""
_TRAINING = """\
run_id: null
fork_run_id: null
transfer_learning: false
load_weights_only: false
deterministic: false
precision: 32-true
accum_grad_batches: 1
num_sanity_val_steps: 0
gradient_clip: {val: 32.0, algorithm: value}
strategy: {_target_: anemoi.training.distributed.strategy.DDPGroupStrategy}
loss_gradient_scaling: false
max_epochs: null
max_steps: 2
submodules_to_freeze: []
"""
_SCALERS = """\
general_variable:
  _target_: anemoi.training.losses.scalers.GeneralVariableLossScaler
  weights: {default: 1, q: 0.6, 2t: 2.0, w: 0.001}
pressure_level:
  _target_: anemoi.training.losses.scalers.ReluVariableLevelScaler
  group: pl
  y_intercept: 0.2
  slope: 0.001
nan_mask_weights: {_target_: anemoi.training.losses.scalers.NaNMaskScaler}
stdev_tendency: {_target_: anemoi.training.losses.scalers.StdevTendencyScaler}
node_weights:
  _target_: anemoi.training.losses.scalers.GraphNodeAttributeScaler
  nodes_attribute_name: area_weight
  norm: unit-sum
"""
_SCALER_NAMES = "[pressure_level, general_variable, nan_mask_weights, node_weights]"
_PERIODS = {
    "training": ("null", "2000-01-05"), "validation": ("2000-01-06", "2000-01-07"), "test": ("2000-01-08", "null"),
}  # fmt: skip
_LOADER = """\
prefetch_factor: 2
pin_memory: true
num_workers: {training: 0, validation: 0, test: 0}
batch_size: {training: 2, validation: 4, test: 4}
limit_batches: {training: null, validation: null, test: 20}
read_group_size: ${system.hardware.num_gpus_per_model}
dataset: ${system.input.dataset}
"""


def nested(folder: Path, store: Path) -> Path:
    """Write a tree in the layout of 0.17, sections by dataset, and return its folder."""
    model = _KERNELS + "model: {_target_: anemoi.models.models.AnemoiModelEncProcDec, hidden_nodes_name: hidden,"
    model += " latent_skip: true}\n" + _component("processor", "  ", learnt="edge_trainable_parameters")
    for name, data in (("encoder", "source"), ("decoder", "target")):
        model += f'{name}s:\n  "0":\n    {data}_datasets: [data]\n'
        model += "    target_node_features: [encoded_data]\n" if name == "decoder" else ""
        model += _indented(_component("mapper", "  ", name, learnt="edge_trainable_parameters"), 4)
    model += "latent_aggregator: {_target_: anemoi.models.layers.aggregator.SumAggregator}\n"
    model += _by_dataset("residual", "{_target_: anemoi.models.layers.residual.SkipConnection, step: -1}")
    model += _by_dataset("output_mask", "{_target_: anemoi.training.utils.masks.NoOutputMask}")
    model += "node_trainable_parameters: {data: 4, hidden: 4}\n"
    model += "edge_trainable_parameters: {data2hidden: 2, hidden2hidden: 2, hidden2data: 2}\n"
    model += "bounding:\n  datasets:\n    data:\n" + _indented(_BOUNDS, 4)
    data = "format: zarr\nfrequency: 6h\ndatasets:\n  data:\n" + _indented(_ROLES + _PROCESSORS, 4)
    loader = _LOADER
    for split, (start, end) in _PERIODS.items():
        loader += f"{split}:\n  datasets:\n    data:\n      dataset_config: {{dataset: '${{dataloader.dataset}}', "
        loader += f"frequency: '${{data.frequency}}'}}\n      start: {start}\n      end: {end}\n"
    training = _TRAINING + "method: {_target_: anemoi.training.train.methods.SingleTraining}\n"
    training += "weight_averaging: null\nscalers:\n  datasets:\n    data:\n" + _indented(_SCALERS, 6)
    training += _by_dataset("training_loss", f"{{_target_: anemoi.training.losses.MSELoss, scalers: {_SCALER_NAMES}}}")
    training += "variable_groups:\n  datasets:\n    data: {default: sfc, pl: {param: [q, z]}}\n"
    training += (
        "optimization:\n  lr: 1.0e-3\n  optimizer: {_target_: torch.optim.AdamW, betas: [0.9, 0.95]}\n"
        "  lr_scheduler: {_target_: timm.scheduler.CosineLRScheduler, lr_min: 3.0e-7, t_in_epochs: false,\n"
        "    t_initial: '${training.max_steps}', warmup_t: 1}\n  pl_lr_scheduler: {interval: step}\n"
    )
    task = (
        "_target_: anemoi.training.tasks.Forecaster\nmultistep_input: 2\nmultistep_output: 1\ntimestep: 6H\n"
        "rollout: {start: 1, epoch_increment: 0, maximum: 1}\nvalidation_rollout: null\n"
    )
    files = {"data": data, "dataloader": loader, "model": model, "training": training, "task": task}
    return _write(folder, files, store, "${dataloader.training.datasets.data.dataset_config.dataset}")


def flat(folder: Path, store: Path) -> Path:
    """Write a tree in the layout of 0.8, sections of the one dataset, and return its folder."""
    model = _KERNELS + "model: {_target_: anemoi.models.models.AnemoiModelEncProcDec}\n"
    for name in ("processor", "encoder", "decoder"):
        model += _component(name, "  ", learnt="trainable_parameters")
    model += "trainable_parameters: {data: 4, hidden: 4, data2hidden: 2, hidden2hidden: 2, hidden2data: 2}\n"
    model += "residual: {_target_: anemoi.models.layers.residual.SkipConnection, step: -1}\n"
    model += "output_mask: {_target_: anemoi.training.utils.masks.NoOutputMask}\nbounding:\n" + _BOUNDS
    data = "format: zarr\nresolution: o96\nfrequency: 6h\ntimestep: 6h\nnum_features: null\n" + _ROLES
    data += f"normalizer: {_METHODS}\n" + _PROCESSORS.replace(f"config: {_METHODS}", "config: ${data.normalizer}")
    loader = _LOADER + "validation_rollout: 1\n"
    loader += "grid_indices: {_target_: anemoi.training.data.grid_indices.FullGrid, nodes_name: '${graph.data}'}\n"
    for split, (start, end) in _PERIODS.items():
        loader += f"{split}: {{dataset: '${{dataloader.dataset}}', start: {start}, end: {end},"
        loader += " frequency: '${data.frequency}', drop: []}\n"
    training = _TRAINING + "model_task: anemoi.training.train.tasks.GraphForecaster\nmultistep_input: 2\n"
    training += "swa: {enabled: false, lr: 1.0e-4}\nscalers:\n" + _indented(_SCALERS, 2)
    training += f"training_loss: {{_target_: anemoi.training.losses.MSELoss, scalers: {_SCALER_NAMES}}}\n"
    training += "variable_groups: {default: sfc, pl: {param: [q, z]}}\nrecompile_limit: 32\n"
    training += "lr: {rate: 1.0e-3, iterations: '${training.max_steps}', min: 3.0e-7, warmup: 1}\n"
    training += "optimizer: {_target_: torch.optim.AdamW, betas: [0.9, 0.95]}\n"
    training += "rollout: {start: 1, epoch_increment: 0, max: 1}\n"
    files = {"data": data, "dataloader": loader, "model": model, "training": training}
    return _write(folder, files, store, "${dataloader.dataset}")


def _component(key: str, indent: str, name: str | None = None, *, learnt: str) -> str:
    name = name or key
    edges = {"encoder": "data2hidden", "processor": "hidden2hidden", "decoder": "hidden2data"}[name]
    kind = {"encoder": "mapper.GraphTransformerForwardMapper", "decoder": "mapper.GraphTransformerBackwardMapper",
            "processor": "processor.GraphTransformerProcessor"}[name]  # fmt: skip
    text = f"{key}:\n{indent}_target_: anemoi.models.layers.{kind}\n"
    text += f"{indent}num_layers: 1\n" if name == "processor" else ""
    checkpointing = "false" if name == "decoder" else "true"
    return text + _COMMON.format(indent=indent, chunks=2, checkpointing=checkpointing, edges=edges, learnt=learnt)


def _by_dataset(key: str, value: str) -> str:
    return f"{key}:\n  datasets:\n    data: {value}\n"


def _indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


def _write(folder: Path, files: dict[str, str], store: Path, dataset: str) -> Path:
    system = (
        "hardware: {accelerator: cpu, num_gpus_per_node: 1, num_nodes: 1, num_gpus_per_model: 1}\n"
        f"input: {{dataset: {store}, graph: null, warm_start: null}}\n"
        "output: {root: runs, plots: plots, checkpoints: {root: checkpoint}}\n"
    )
    files = files | {"system": system, "graph": _GRAPH.format(dataset=dataset), "diagnostics": _DIAGNOSTICS}
    folder.mkdir(parents=True)
    defaults = "".join(f"- {group}: small\n" for group in files)
    (folder / "config.yaml").write_text(f"defaults:\n{defaults}- _self_\nconfig_validation: true\n")
    for group, text in files.items():
        (folder / group).mkdir()
        (folder / group / "small.yaml").write_text(text)
    return folder
