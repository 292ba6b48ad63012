"""Configs of anemoi-training in two layouts, and what becomes of their keys."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peer_configs
import pytest
import zarr
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

from etesian.commands.common import register_kinds
from etesian.compose import compose, compose_foreign
from etesian.data.open import open_whole
from etesian.errors import UserError
from etesian.interpolation import leaves
from etesian.migrate.convert import Converted, convert
from small_stores import write_store

Convert = Callable[..., Converted]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    store = write_store(folder / "s.zarr", variables=peer_configs.VARIABLES, metadata=peer_configs.METADATA)
    group = zarr.open_group(str(store))
    for kind in ("mean", "stdev", "maximum", "minimum"):
        changes = np.linspace(0.5, 1.5, len(peer_configs.VARIABLES))
        group.create_dataset(f"statistics_tendencies_6h_{kind}", data=changes)
    peer_configs.nested(folder / "nested", store)
    peer_configs.flat(folder / "flat", store)
    return folder


@pytest.fixture(scope="module")
def translate(trees: Path) -> Convert:
    """Return what translates a tree with overrides, which are applied to what was composed once."""
    register_kinds()
    base = compose("own_data", None, ["system.input.dataset=x.zarr"]).tree
    composed = {name: compose_foreign([trees / name], "config")[0] for name in ("nested", "flat")}
    parser = OverridesParser.create()

    def translate(*overrides: str | tuple[str, Any], layout: str = "nested") -> Converted:
        theirs = copy.deepcopy(composed[layout])
        for key, value in (override for override in overrides if isinstance(override, tuple)):
            OmegaConf.update(theirs, key, value, merge=False, force_add=True)
        for override in parser.parse_overrides([override for override in overrides if isinstance(override, str)]):
            if override.is_delete():
                section, _, name = override.key_or_group.rpartition(".")
                with open_dict(theirs):
                    del (OmegaConf.select(theirs, section) if section else theirs)[name]
            else:
                OmegaConf.update(theirs, override.key_or_group, override.value(), merge=False, force_add=True)
        return convert(leaves(theirs), base, lambda options: open_whole(options, trees, "dataset"))

    return translate


def at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


def refused(translate: Convert, *overrides: str, layout: str = "nested") -> str:
    with pytest.raises(UserError) as error:
        translate(*overrides, layout=layout)
    return str(error.value)


def test_both_layouts_are_the_same_experiment(translate: Convert) -> None:
    one, other = translate(), translate(layout="flat")
    assert one.tree == other.tree
    assert one.tree["data"]["processors"] == {
        "normalizer": {"default": "mean-std", "std": ["tp", "cp"], "max": ["lsm"], "min-max": [], "none": [],
                       "mean-std": []},
        "imputer": {"mean": ["2t"], "constant": {}},
    }  # fmt: skip


def test_something_is_told_of_every_key_once(translate: Convert, trees: Path) -> None:
    for layout in ("nested", "flat"):
        told = [key for entry in translate(layout=layout).told for key in entry.keys]
        there = [leaf.name() for leaf in leaves(compose_foreign([trees / layout], "config")[0])]
        assert sorted(told) == sorted(there)


def test_weights_by_parameter_and_level_are_written_out(translate: Convert) -> None:
    scalers = translate().tree["training"]["scalers"]
    assert scalers["general_variable"] == {"kind": "variable", "default": 1.0,
                                           "weights": {"2t": 2.0, "q_500": 0.6, "q_850": 0.6},
                                           "parameters": {}}  # fmt: skip
    assert scalers["pressure_level"]["weights"] == {"q_500": 0.5, "q_850": 0.85, "z_500": 0.5}
    assert scalers["node_weights"] == {"kind": "node_attribute", "attribute": "area_weight"}
    assert translate().tree["training"]["training_loss"]["scalers"] == [
        "pressure_level", "general_variable", "node_weights",
    ]  # fmt: skip


def test_all_scalers_but_one(translate: Convert) -> None:
    chosen = "training.training_loss.datasets.data.scalers=['*','!stdev_tendency']"
    assert set(translate(chosen).tree["training"]["scalers"]) == {"general_variable", "pressure_level", "node_weights"}


def test_it_says_that_imputed_points_have_no_weight(translate: Convert) -> None:
    key = "training.training_loss.datasets.data.scalers"
    for scalers, said in (("[node_weights,nan_mask_weights]", 0), ("[node_weights]", 1)):
        told = [entry for entry in translate(f"{key}={scalers}").told if entry.key == key]
        assert [entry.why.count("imputed have no weight") for entry in told] == [said]


@pytest.mark.parametrize(("kind", "power"), [("Stdev", 1), ("Var", 2)])
def test_weights_by_the_size_of_changes(translate: Convert, trees: Path, kind: str, power: int) -> None:
    weights = translate(
        "training.training_loss.datasets.data.scalers=[node_weights,stdev_tendency]",
        f"training.scalers.datasets.data.stdev_tendency._target_=anemoi.training.losses.scalers.{kind}TendencyScaler",
    ).tree["training"]["scalers"]["stdev_tendency"]["weights"]
    stdev = zarr.open_group(str(trees / "s.zarr"))["stdev"][:]
    assert list(weights) == ["2t", "q_500", "q_850", "z_500"]
    assert weights["q_850"] == pytest.approx((stdev[2] / np.linspace(0.5, 1.5, 7)[2]) ** power)


def test_bounds_become_physical(translate: Convert, trees: Path) -> None:
    mean, stdev = (zarr.open_group(str(trees / "s.zarr"))[name][0] for name in ("mean", "stdev"))
    relu, hardtanh = translate().tree["model"]["bounding"]
    assert relu == {"kind": "relu", "variables": ["tp"], "min_val": 0.0}
    assert (hardtanh["min_val"], hardtanh["max_val"]) == pytest.approx((mean - 4 * stdev, mean + 4 * stdev), rel=1e-6)


def test_kernels_of_one_component(translate: Convert) -> None:
    target = "liger_kernel.transformers.rms_norm.LigerRMSNorm"
    model = translate(
        "model.processor.layer_kernels={LayerNorm:{_target_:" + target + ",eps:1e-6,_partial_:true},"
        "Activation:{_target_:torch.nn.SiLU}}",
        "+model.processor.mlp_implementation=swiglu",
    ).tree["model"]
    assert model["processor"]["layer_kernels"] == {
        "LayerNorm": {"_target_": target, "eps": 1e-6}, "Activation": {"_target_": "torch.nn.SiLU"},
        "MLP": {"_target_": "etesian.kernels.glu.SwiGLU"},
    }  # fmt: skip
    assert "LayerNorm" not in model["layer_kernels"]
    assert model["encoder"]["layer_kernels"]["LayerNorm"] == {"_target_": "torch.nn.LayerNorm", "eps": 1e-5}
    assert model["layer_kernels"]["QueryNorm"]["_target_"] == "etesian.kernels.norms.AutocastLayerNorm"


TRANSFORMER = [
    "model.processor._target_=anemoi.models.layers.processor.TransformerProcessor", "+model.processor.window_size=8",
    "+model.processor.softcap=0.0", "+model.processor.attention_implementation=flash_attention",
    "~model.processor.sub_graph_edge_attributes", "~model.processor.trainable_size", "~model.processor.edge_pre_mlp",
]  # fmt: skip


def test_the_kind_transformer_keeps_the_order_of_the_nodes(translate: Convert) -> None:
    model = translate(*TRANSFORMER).tree["model"]
    assert model["kind"] == "transformer"
    assert (model["processor"]["window_size"], model["processor"]["node_order"]) == (8, "graph")


def without_attention(section: str, kind: str, *, edges: bool = True) -> list[str]:
    gone = ["num_heads", "qk_norm", "graph_attention_backend", "shard_strategy", "edge_pre_mlp"]
    gone += [] if edges else ["sub_graph_edge_attributes", "trainable_size"]
    return [f"{section}._target_=anemoi.models.layers.{kind}", *(f"~{section}.{name}" for name in gone)]


def test_the_kind_gnn(translate: Convert) -> None:
    mappers = {"encoders": "mapper.GNNForwardMapper", "decoders": "mapper.GNNBackwardMapper"}
    changes = [f"+model.{name}.0.mapper.mlp_extra_layers=1" for name in mappers]
    for name, kind in mappers.items():
        changes += without_attention(f"model.{name}.0.mapper", kind)
    model = translate(*without_attention("model.processor", "processor.GNNProcessor"), *changes).tree["model"]
    assert model["kind"] == model["encoder"]["kind"] == model["processor"]["kind"] == model["decoder"]["kind"] == "gnn"
    assert [model[name]["mlp_extra_layers"] for name in ("encoder", "processor", "decoder")] == [1, 0, 1]
    assert model["edge_trainable_parameters"]["hidden2hidden"] == 2


def test_a_processor_without_edges(translate: Convert) -> None:
    changes = without_attention("model.processor", "processor.PointWiseMLPProcessor", edges=False)
    model = translate(*changes).tree["model"]
    assert (model["kind"], model["encoder"]["kind"]) == ("pointwise", "graphtransformer")


def test_loggers_elsewhere(translate: Convert) -> None:
    key = "diagnostics.log.mlflow"
    converted = translate(f"{key}.enabled=true", f"{key}.tracking_uri=http://localhost:5000", f"+{key}.system=true")
    assert at(converted.tree, key)["tracking_uri"] == "http://localhost:5000"
    assert [entry.key for entry in converted.told if entry.kind == "dropped" and key in entry.key] == [key]
    assert not at(translate().tree, key)["enabled"]


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["system.hardware.num_gpus_per_node=4", "system.hardware.num_nodes=2"], "training.optimization.lr", 8e-3),
        (["system.hardware.num_gpus_per_node=4", "system.hardware.num_gpus_per_model=2"],
         "training.optimization.lr", 2e-3),
        (["system.hardware.num_gpus_per_node=4", "system.hardware.num_gpus_per_model=2"],
         "system.hardware.num_gpus_per_model", 2),
        (["system.hardware.accelerator=auto"], "system.hardware.accelerator", "cuda"),
        (["system.hardware.accelerator=cuda"], "dataloader.pin_memory", True),
        (["training.precision=32"], "training.precision", "32-true"),
        (["training.precision=bf16"], "training.precision", "bf16-mixed"),
        (["training.gradient_clip.val=0"], "training.gradient_clip.val", None),
        (["training.max_epochs=-1"], "training.max_epochs", None),
        (["task.rollout.maximum=3"], "task.rollout.maximum", 1),
        (["task.rollout.epoch_increment=2"], "task.rollout.epoch_increment", 0),
        (["task.rollout.maximum=3", "task.rollout.epoch_increment=2"], "task.rollout.epoch_increment", 2),
        (["model.cpu_offload=true", "system.hardware.accelerator=cuda"], "model.encoder.gradient_checkpointing",
         "offload"),
        (["model.processor.gradient_checkpointing=false"], "model.processor.gradient_checkpointing", "none"),
        (["training.optimization.lr_scheduler=null"], "training.optimization.lr_scheduler.kind", "constant"),
        (["+training.optimization.optimizer.fused=true"], "training.optimization.optimizer.implementation", "fused"),
        (["~training.optimization.optimizer.betas"], "training.optimization.optimizer.betas", [0.9, 0.999]),
        (["training.training_loss.datasets.data._target_=anemoi.training.losses.HuberLoss",
          "+training.training_loss.datasets.data.delta=0.5"], "training.training_loss.delta", 0.5),
        (["model.residual.datasets.data._target_=anemoi.models.layers.residual.NoConnection",
          "~model.residual.datasets.data.step"], "model.residual.kind", "none"),
        (["graph.nodes=null"], "graph.existing.data_nodes", "data"),
    ],
)  # fmt: skip
def test_what_is_written_otherwise(translate: Convert, overrides: list[str], key: str, value: Any) -> None:
    extra = (
        ["system.input.graph=g.pt", "graph.edges=null", "graph.attributes=null"]
        if "graph.nodes=null" in overrides
        else []
    )
    assert at(translate(*overrides, *extra).tree, key) == value


def test_datasets_side_by_side(translate: Convert, trees: Path) -> None:
    options = f"{{join:[{{dataset:{trees}/s.zarr,select:[2t,q_500,q_850,z_500]}},{{dataset:{trees}/s.zarr,"
    options = f"dataloader.dataset={options}select:[lsm,tp,cp]}}]}}"
    tree = translate(options, "system.input.dataset=???", "graph.nodes.data.node_builder.dataset=null").tree
    assert tree["system"]["input"]["dataset"] == str(trees / "s.zarr")
    assert [part["select"] for part in tree["dataloader"]["test"]["dataset_config"]["dataset"]["join"]] == [
        ["2t", "q_500", "q_850", "z_500"], ["lsm", "tp", "cp"],
    ]  # fmt: skip


def test_constants_for_nans(translate: Convert) -> None:
    imputer = "data.datasets.data.processors.imputer"
    constant = "anemoi.models.preprocessing.imputer.ConstantImputer"
    tree = translate(f"{imputer}={{_target_:{constant},config:{{default:none,0:[2t],1.5:[cp]}}}}").tree
    assert tree["data"]["processors"]["imputer"]["constant"] == {"2t": 0.0, "cp": 1.5}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.processor._target_=anemoi.models.layers.processor.NoOpProcessor"], "GraphTransformerProcessor or"),
        (["model.model._target_=anemoi.models.models.AnemoiEnsModelEncProcDec"], "allowed: AnemoiModelEncProcDec"),
        (["training.method._target_=anemoi.training.train.methods.EnsembleTraining"], "allowed: SingleTraining"),
        (["task.multistep_output=2"], "task.multistep_output=2 has no counterpart here"),
        (["+system.hardware.num_gpus_per_ensemble=4"], "system.hardware.num_gpus_per_ensemble=4 has no counterpart"),
        (["system.hardware.accelerator=tpu"], "allowed: cuda, cpu"),
        (["model.processor.edge_pre_mlp=true"], "model.processor.edge_pre_mlp=True"),
        (["+model.processor.mlp_implementation=mixture"], "allowed: mlp, glu"),
        (["model.layer_kernels.LayerNorm._target_=anemoi.models.layers.normalization.ConditionalLayerNorm"],
         "LayerNorm._target_='anemoi.models.layers.normalization.ConditionalLayerNorm' has no counterpart"),
        (["graph.nodes.hidden.node_builder._target_=anemoi.graphs.nodes.HEALPixNodes"], "allowed: TriNodes"),
        (["graph.edges=[]", "+graph.nodes.coarse.node_builder=null"], "graph.nodes.coarse"),
        (["graph.attributes.edges.edge_length.norm=l2"], "allowed: unit-std, unit-max, null"),
        (["training.training_loss.datasets.data._target_=anemoi.training.losses.CRPS"], "allowed: MSELoss"),
        (["training.training_loss.datasets.data.scalers=[node_weight]"], "names under training.scalers"),
        (["+training.scalers.datasets.data.general_variable.norm=unit-sum"], "general_variable.norm='unit-sum'"),
        (["training.run_id=abc"], "checkpoint import"),
        (["training.precision=8"], "training.precision=8 has no counterpart"),
        (["training.weight_averaging={decay:0.9}"], "training.weight_averaging"),
        (["training.optimization.optimizer._target_=anemoi.training.optimizers.AdEMAMix.AdEMAMix"], "allowed: AdamW"),
        (["data.datasets.data.processors.imputer.config={default:none,minimum:[2t]}"], "the mean of a variable"),
        (["+data.datasets.data.processors.normalizer.config.remap={cp:tp}"], "normalizer.config.remap"),
        (["+data.datasets.data.processors.r={_target_:anemoi.models.preprocessing.remapper.Remapper}"],
         "allowed: InputNormalizer, InputImputer, ConstantImputer"),
        (["model.bounding.datasets.data=[{_target_:anemoi.models.layers.bounding.LeakyReluBounding,variables:[tp]}]"],
         "LeakyReluBounding"),
        (["model.bounding.datasets.data=[{_target_:anemoi.models.layers.bounding.ReluBounding,variables:[ro]}]"],
         "model.bounding names ro"),
        (["+data.datasets.other.forcing=[]"], "data.datasets has 2: data, other"),
        (["training.precision=16-mixed"], "does not run on system.hardware.accelerator='cpu'"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(translate: Convert, overrides: list[str], said: str) -> None:
    assert said in refused(translate, *overrides)


@pytest.mark.slow
def test_any_odd_value_is_a_mistake_that_is_told(translate: Convert, trees: Path) -> None:
    """It is converted, or refused with a message; nothing else happens."""
    theirs, _ = compose_foreign([trees / "nested"], "config")
    keys = list(dict.fromkeys(leaf.name(length) for leaf in leaves(theirs) for length in (2, len(leaf.path))))
    outcomes = {"converted": 0, "refused": 0}
    for key in keys:
        try:
            translate((key, {"word": 1}))
            outcomes["converted"] += 1
        except UserError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


def test_a_key_that_nobody_knows_is_named_with_the_nearest(translate: Convert) -> None:
    said = refused(translate, "+model.processor.gradient_checkpoint=true")
    assert "model.processor.gradient_checkpoint=True is no key of anemoi-training that is known here" in said
    assert "did you mean 'model.processor.gradient_checkpointing'" in said
    assert "~model.processor.gradient_checkpoint leaves it out" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("+training.scalers.datasets.data.pressure_level.slop=2.0", "did you mean 'training.scalers.datasets.data.pre"),
        ("+training.scalers.datasets.data.node_weights.attribute=x", "node_weights.attribute='x' is no key of anemoi"),
        ("model.bounding.datasets.data=[{_target_:a.HardtanhBounding,variables:[tp],min_val:0,maxval:1}]",
         "model.bounding.datasets.data[0].maxval=1 is no key"),
        ("model.bounding.datasets.data=[{_target_:a.FractionBounding,variables:[cp],min_val:0,max_val:1}]",
         "allowed: FractionBounding with min_val, max_val, total_var"),
    ],
)  # fmt: skip
def test_so_is_one_within_a_scaler_or_a_bound(translate: Convert, override: str, said: str) -> None:
    assert said in refused(translate, override)


def test_a_key_that_only_others_read_is_known(translate: Convert) -> None:
    told = translate("+mine.width=8", "model.num_channels=${mine.width}").told
    assert [(entry.kind, entry.why) for entry in told if entry.key == "mine.width"] == [
        ("implied", "read by other keys only, which have its value")
    ]


def test_a_value_that_is_missing_is_asked_for_where_it_is_missing(translate: Convert) -> None:
    said = refused(translate, "system.input.dataset=???")
    assert "system.input.dataset has no value: it is '???'" in said
    assert "system.input.dataset=VALUE" in said
    said = refused(translate, "system.hardware.num_nodes=${oc.env:NO_SUCH_VARIABLE}")
    assert "system.hardware.num_nodes has no value: ${oc.env:NO_SUCH_VARIABLE}" in said


def test_a_dataset_that_is_not_there_is_named(translate: Convert) -> None:
    assert "nowhere.zarr" in refused(translate, "system.input.dataset=nowhere.zarr")


def test_weights_as_before_0_5(translate: Convert) -> None:
    losses = "anemoi.training.losses"
    tree = translate(
        "~training.scalers", "~training.variable_groups",
        "+training.variable_loss_scaling={default:1,pl:{q:0.6},sfc:{2t:2.0}}",
        "+training.pressure_level_scaler={_target_:anemoi.training.data.scaling.ReluPressureLevelScaler,minimum:0.2,"
        "slope:0.001}",
        f"+training.node_loss_weights={{_target_:{losses}.nodeweights.GraphNodeAttribute,node_attribute:area_weight}}",
        f"training.training_loss={{_target_:{losses}.mse.WeightedMSELoss,scalars:[variable,loss_weights_mask]}}",
        layout="flat",
    ).tree["training"]  # fmt: skip
    assert tree["scalers"]["variable"]["weights"] == {"2t": 2.0, "q_500": 0.3, "q_850": 0.51}
    assert tree["training_loss"]["scalers"] == ["variable", "node_weights"]


def test_paths_as_before_0_7(translate: Convert, trees: Path) -> None:
    parts = f"paths:{{data:{trees},output:runs/,graph:graphs}},files:{{dataset:s.zarr,graph:g.pt,checkpoint:{{a:b}}}}"
    tree = translate(
        "~system", f"+hardware={{accelerator:cpu,num_gpus_per_node:1,num_nodes:1,num_gpus_per_model:1,{parts}}}",
        "dataloader.dataset=${hardware.paths.data}/${hardware.files.dataset}", "dataloader.read_group_size=1",
        layout="flat",
    ).tree["system"]  # fmt: skip
    assert tree["input"] == {"dataset": str(trees / "s.zarr"), "graph": None}
    assert tree["output"] == {"root": "runs/"}
