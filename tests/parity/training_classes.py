"""Preparation, bounds, losses and their weights are those of anemoi-models 0.19 and anemoi-training 0.17.

Run by ``test_peers.py``, in a process that has the peers.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peer_configs
import pytest
import torch
import zarr
from anemoi.models.data_indices.collection import IndexCollection
from anemoi.models.layers import bounding as peer_bounding
from anemoi.models.preprocessing.imputer import ConstantImputer, InputImputer
from anemoi.models.preprocessing.normalizer import InputNormalizer
from anemoi.training.losses import HuberLoss, MAELoss, MSELoss
from anemoi.training.losses.base import BaseLoss
from anemoi.training.utils.enums import TensorDim
from anemoi.training.utils.variables_metadata import ExtractVariableGroupAndLevel
from omegaconf import OmegaConf
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.checkpoint.peer.translate import LAYERS, Faults, translate_bounds
from etesian.commands.common import register_kinds
from etesian.compose import compose, compose_foreign
from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.data.open import open_whole
from etesian.data.variables import Variables
from etesian.interpolation import leaves
from etesian.migrate.convert import convert
from etesian.model.bounding import build_bounding
from etesian.model.fields import ModelFields
from etesian.schema.data import ImputerSettings, NormalizerSettings
from etesian.schema.registry import kinds
from etesian.schema.validate import validate_config
from etesian.training.losses import build_loss
from etesian.training.scalers import loss_weights
from small_stores import write_store

NAMES = ("2t", "insolation", "q_500", "tp", "cp", "sst")
VARIABLES = Variables(NAMES, ("insolation",), ("tp", "cp"))
METHODS = {"default": "mean-std", "std": ["tp", "cp"], "max": ["insolation"], "min-max": ["sst"]}
INDICES = IndexCollection(OmegaConf.create({"forcing": ["insolation"], "diagnostic": ["tp", "cp"]}),
                          {name: n for n, name in enumerate(NAMES)})  # fmt: skip


@pytest.fixture
def statistics() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    least, spread = rng.uniform(-3, 3, len(NAMES)), rng.uniform(1, 5, len(NAMES))
    values = {"minimum": least, "maximum": np.abs(least) + spread, "mean": least + spread / 2, "stdev": spread / 3}
    values["stdev"][NAMES.index("cp")] = values["stdev"][NAMES.index("tp")]  # for a fraction of it
    return values


def fields(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["mean-std", "std", "max", "min-max", "none", "mixed"])
def test_normaliser(statistics: dict[str, np.ndarray], method: str) -> None:
    config = METHODS | {"none": ["2t"]} if method == "mixed" else {"default": method}
    theirs = InputNormalizer(OmegaConf.create(config), INDICES, {k: v.copy() for k, v in statistics.items()})
    own = Normalizer(VARIABLES, statistics, NormalizerSettings.model_validate(config))
    x = fields(2, 3, 1, 7, len(NAMES))
    same(own.normalize(x), theirs.transform(x, in_place=False))
    same(own.denormalize(x), theirs.inverse_transform(x, in_place=False))
    y = fields(2, 1, 7, len(VARIABLES.output))
    positions = [NAMES.index(name) for name in VARIABLES.output]
    same(own.denormalize(y, positions), theirs.inverse_transform(y, in_place=False))


@pytest.mark.parametrize(
    ("kind", "config", "settings"),
    [
        (InputImputer, {"default": "none", "mean": ["sst", "tp"]}, {"mean": ["sst", "tp"]}),
        (ConstantImputer, {"default": "none", 0: ["sst"], 1.5: ["tp"]}, {"constant": {"sst": 0.0, "tp": 1.5}}),
    ],
)
def test_imputers(statistics: dict[str, np.ndarray], kind: type, config: dict, settings: dict) -> None:
    statistics = {name: values.astype(np.float32).astype(np.float64) for name, values in statistics.items()}
    theirs = kind(OmegaConf.create(config), INDICES, statistics)
    own = Imputer(VARIABLES, statistics, ImputerSettings.model_validate(settings))
    x = fields(2, 3, 1, 7, len(NAMES))
    for name, points in (("sst", 3), ("tp", 2)):
        x[..., :points, NAMES.index(name)] = torch.nan
    found = own(x)
    same(found, theirs.transform(x, in_place=False))
    observed = ~torch.isnan(x[:, 0, 0])[..., [NAMES.index(name) for name in VARIABLES.output]]
    same(observed.double(), theirs.loss_mask_training.double())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ReluBounding", {"variables": ["tp"]}),
        ("ReluBounding", {"variables": ["2t", "sst"]}),
        ("HardtanhBounding", {"variables": ["2t", "tp"], "min_val": -0.5, "max_val": 0.25}),
        ("FractionBounding", {"variables": ["cp"], "min_val": 0.1, "max_val": 0.9, "total_var": "tp"}),
    ],
)
def test_bounds(statistics: dict[str, np.ndarray], kind: str, options: dict[str, Any]) -> None:
    normal = Normalizer(VARIABLES, statistics, NormalizerSettings.model_validate(METHODS))
    positions, outputs = [NAMES.index(name) for name in VARIABLES.output], VARIABLES.output
    scale, offset = normal.scale[positions].double(), normal.offset[positions].double()
    names = {name: n for n, name in enumerate(outputs)}
    theirs = getattr(peer_bounding, kind)(name_to_index=names, **options)
    entry = {"_target_": f"{LAYERS}.bounding.{kind}", **options}
    numbers = (dict(zip(outputs, values.tolist(), strict=True)) for values in (scale, offset))
    translated = translate_bounds({"bounding": [entry]}, "data", *numbers, Faults("bounding"))
    register_kinds()
    base = compose("own_data", None, ["system.input.dataset=x.zarr"]).tree
    config = validate_config(base | {"model": base["model"] | {"bounding": translated}})
    own = build_bounding(config.model.bounding, ModelFields(VARIABLES.input, outputs, 1, scale, offset), residual=True)
    y = fields(2, 1, 50, len(outputs))
    leaf, other = y.clone().requires_grad_(), y.clone().requires_grad_()
    found, expected = own(leaf), theirs(other * 1.0)
    same(found, expected)
    cotangent = fields(*found.shape)
    same(*(torch.autograd.grad(out, x, cotangent)[0] for out, x in ((found, leaf), (expected, other))))


LOSSES = [({"kind": "mse"}, MSELoss()), ({"kind": "mae"}, MAELoss()), ({"kind": "huber", "delta": 0.7}, HuberLoss(0.7))]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a store, what converts a config of it, and a graph with area weights."""
    folder = tmp_path_factory.mktemp("experiment")
    store = write_store(folder / "s.zarr", variables=peer_configs.VARIABLES, metadata=peer_configs.METADATA)
    peer_configs.nested(folder / "theirs", store)
    register_kinds()
    base = compose("own_data", None, ["system.input.dataset=x.zarr"]).tree
    graph = HeteroData()
    graph["data"].x = torch.rand(24, 2)
    graph["data"].area_weight = torch.rand(24, 1, dtype=torch.float64) + 0.1

    def converted(*overrides: str) -> tuple[Any, Any]:
        theirs, _ = compose_foreign([folder / "theirs"], "config", overrides)
        return theirs, validate_config(
            convert(leaves(theirs), base, lambda options: open_whole(options, folder, "dataset")).tree
        )

    group = zarr.open_group(str(store))
    for kind in ("mean", "stdev", "maximum", "minimum"):
        group.create_dataset(f"statistics_tendencies_6h_{kind}", data=np.linspace(0.5, 1.5, 7))
    dataset = open_whole({"dataset": str(store)}, folder, "dataset")
    return SimpleNamespace(convert=converted, graph=graph, dataset=dataset)


def peer_scalers() -> Any:
    """Return the peer's classes of scalers.

    Its package ``scalers`` imports plots, and with them libraries of 200 MB; so its modules are imported without what
    the package itself does on import.
    """
    name = "anemoi.training.losses.scalers"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        losses = importlib.import_module("anemoi.training.losses")
        spec.submodule_search_locations = [str(Path(losses.__path__[0]) / "scalers")]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    modules = [importlib.import_module(f"{name}.{part}") for part in
               ("variable", "variable_level", "variable_tendency", "node_attributes")]  # fmt: skip
    return SimpleNamespace(**{key: value for module in modules for key, value in vars(module).items()})


def peer_scaling(theirs: Any, experiment: SimpleNamespace, indices: IndexCollection) -> list[tuple]:
    """Return dimensions and values of each scaler that the peer's loss names, by the peer's classes."""
    classes, training = peer_scalers(), theirs.training
    groups = OmegaConf.to_container(training.variable_groups.datasets.data)
    extractor = ExtractVariableGroupAndLevel(groups, experiment.dataset.variables_metadata)
    statistics = {name: np.asarray(values) for name, values in experiment.dataset.statistics.items()}
    tendencies = {"lead_times": ["6h"], "6h": {"stdev": np.linspace(0.5, 1.5, 7)}}
    specs = []
    for name in training.training_loss.datasets.data.scalers:
        options = dict(training.scalers.datasets.data[name])
        kind = options.pop("_target_").rpartition(".")[2]
        if kind == "NaNMaskScaler":
            continue
        scaler = getattr(classes, kind)(
            data_indices=indices, metadata_extractor=extractor, graph_data=experiment.graph, nodes_name="data",
            statistics=statistics, statistics_tendencies=tendencies, **options,
        )  # fmt: skip
        specs.append(scaler.get_scaling())
    return specs


@pytest.mark.parametrize(("settings", "theirs"), LOSSES, ids=["mse", "mae", "huber"])
def test_losses(settings: dict[str, Any], theirs: BaseLoss) -> None:
    points, variables = fields(24).abs(), fields(6).abs()
    own = build_loss(kinds("loss")[settings["kind"]].model_validate(settings), torch.ones(24, 6))
    own.weights = points[:, None] * variables  # build_loss keeps them in 32 bits
    theirs.add_scaler(TensorDim.GRID, points / 24, name="points")
    theirs.add_scaler(TensorDim.VARIABLE, variables, name="variables")
    forecast, target = fields(2, 3, 24, 6).requires_grad_(), 2 * fields(3, 3, 24, 6)[1:]
    found, expected = own(forecast, target).mean(), theirs(forecast[:, None], target[:, None])
    same(found, expected)
    same(*(torch.autograd.grad(loss, forecast)[0] for loss in (found, expected)))


SCALERS = [
    *(("[node_weights]", "pressure_level", "Relu"), ("[general_variable,node_weights]", "pressure_level", "Relu")),
    *(("[pressure_level,general_variable,node_weights]", "pressure_level", f"{kind}VariableLevel")
      for kind in ("Relu", "Linear", "Polynomial", "No")),
    *(("[stdev_tendency,node_weights]", "stdev_tendency", f"{kind}Tendency") for kind in ("Stdev", "Var", "No")),
]  # fmt: skip


@pytest.mark.parametrize(("scalers", "changed", "kind"), SCALERS, ids=str)
def test_weights(experiment: SimpleNamespace, scalers: str, changed: str, kind: str) -> None:
    """The weights that a converted config has; the peer's are in 32 bits."""
    kind = "ReluVariableLevel" if kind == "Relu" else kind
    theirs, config = experiment.convert(
        f"training.training_loss.datasets.data.scalers={scalers}",
        f"training.scalers.datasets.data.{changed}._target_=anemoi.training.losses.scalers.{kind}Scaler",
    )
    outputs = [name for name in peer_configs.VARIABLES if name != "lsm"]
    roles = {"forcing": ["lsm"], "diagnostic": ["tp", "cp"]}
    indices = IndexCollection(OmegaConf.create(roles), {name: n for n, name in enumerate(peer_configs.VARIABLES)})
    expected = torch.ones(24, len(outputs), dtype=torch.float64)
    for (dimension,), values in peer_scaling(theirs, experiment, indices):
        expected *= values.double()[:, None] if dimension == TensorDim.GRID else values.double()[: len(outputs)]
    found = loss_weights(config.training, experiment.graph, outputs) / 24  # a mean here, a sum there
    torch.testing.assert_close(found, expected, rtol=5e-7, atol=0)
