"""For tests beside one's own configs: an experiment made small, its kernels, its model and its first losses.

In a ``conftest.py``, ``pytest_plugins = ["etesian.testing"]``; then a test takes the fixture :func:`experiment`::

    def test_rms_norms(experiment):
        configs = Path(__file__).parent / "configs"
        run = experiment("my_experiment", config_dir=configs, overrides=["model/layer_kernels=rmsnorm"])
        assert run.kernel("LayerNorm", component="processor").target == "torch.nn.RMSNorm"
        losses = run.train(steps=20)
        assert losses[-1] < losses[0]

The config is composed and checked, and the kernels are resolved and tried, as the command does it at the config's own
sizes, and with the same errors (:class:`~etesian.errors.UserError`). Then the experiment is made small
(:class:`Size`), put on a synthetic dataset, and built on one device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.errors import UserError, did_you_mean
from etesian.testing_arguments import STARTS_ANEW, check_type, check_whole, refuse_graph_file, refuse_replaced, strings
from etesian.testing_sizes import at_most, cut_graph, cut_model

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "etesian.testing needs pytest: pip install pytest, or pip install 'etesian[test]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from torch import nn

    from etesian.data.synthetic.catalogue import Field
    from etesian.data.variables import Variables
    from etesian.kernels.record import KernelRecord
    from etesian.schema.config import Config
    from etesian.training.trial import Trial

__all__ = ["ExperimentMaker", "Size", "SmallRun", "experiment"]

COMPONENTS = ("model", "encoder", "processor", "decoder")
_WINDOWS = 24


@dataclass(frozen=True)
class Size:
    """What is made smaller where a config has more; None leaves it.

    Attributes
    ----------
    channels : int or None
        ``model.num_channels``.
    heads : int or None
        ``num_heads`` of each component; the largest number up to it that divides the channels.
    layers : int or None
        ``model.processor.num_layers``.
    resolution : int or None
        ``graph.nodes.hidden.resolution``; refinements and neighbours that are then not there go too, and
        ``graph.edges.data2hidden.cutoff_factor`` is at least 0.8, so that every data node has an edge.
    batch_size : int or None
        ``dataloader.batch_size``.
    grid : str
        The dataset's, such as ``o8`` (544 points); see ``anemoi-training dataset make synthetic``.
    """

    channels: int | None = 32
    heads: int | None = 2
    layers: int | None = 2
    resolution: int | None = 1
    batch_size: int | None = 2
    grid: str = "o8"

    def __post_init__(self) -> None:
        """Check the types and that each limit leaves something."""
        for name in ("channels", "heads", "layers", "resolution", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                check_whole(value, f"Size.{name}", 0 if name == "resolution" else 1, "a whole number from {} or None")
        check_type(self.grid, "Size.grid", str, "a name such as 'o8'")


class SmallRun:
    """A small experiment: its kernels, its model, its training.

    Attributes
    ----------
    config : Config
        The small config.
    full_config : Config
        The config as it was composed.
    kernels : mapping of str to mapping of str to KernelRecord
        By component (``model``, ``encoder``, ``processor``, ``decoder``) and slot: target, arguments, family and so on
        of what the component uses.
    """

    def __init__(self, full_config: Config, trial: Trial) -> None:
        self.full_config = full_config
        self.config: Config = trial.experiment.config
        self.kernels: Mapping[str, Mapping[str, KernelRecord]] = trial.kernels()
        self._trial = trial

    @property
    def model(self) -> nn.Module:
        """The model; untrained, or as the last :meth:`train` left it."""
        return self._trial.forecaster.model

    @property
    def variables(self) -> Variables:
        """The variables of the dataset, by role."""
        return self._trial.experiment.variables

    @property
    def state_names(self) -> list[str]:
        """The names in the model's state dict, in order."""
        return list(self.model.state_dict())

    def kernel(self, slot: str, component: str = "model") -> KernelRecord:
        """Return what fills a slot in a component.

        Raises
        ------
        UserError
            There is no such slot or component.
        """
        return self.kernels[_one_of(component, COMPONENTS, "component")][
            _one_of(slot, self.kernels["model"], "layer kernel slot")
        ]

    def layers(self, slot: str, component: str | None = None) -> dict[str, nn.Module]:
        """Return the layers of the model that a slot made, by their names in the model.

        Parameters
        ----------
        slot : str
            The slot.
        component : str, optional
            Those of one component only: ``encoder``, ``processor`` or ``decoder``.

        Raises
        ------
        UserError
            There is no such slot or component.
        """
        _one_of(slot, self.kernels["model"], "layer kernel slot")
        chosen = COMPONENTS if component is None else [_one_of(component, COMPONENTS, "component")]
        made = {id(layer) for name in chosen for layer in self._trial.layers(slot, name)}
        return {name: module for name, module in self.model.named_modules() if id(module) in made}

    def training_config(self, steps: int) -> Config:
        """Return the config of a run of so many steps: :attr:`config`, with the warm-up in the first tenth of them.

        Raises
        ------
        UserError
            `steps` is no whole number from 1.
        """
        check_whole(steps, "steps", 1)
        training = self.config.training
        schedule = training.optimization.lr_scheduler
        schedule = schedule.model_copy(update={"warmup_t": min(schedule.warmup_t, steps // 10), "t_initial": None})
        optimization = training.optimization.model_copy(update={"lr_scheduler": schedule})
        update = {"max_steps": steps, "max_epochs": None, "optimization": optimization}
        return self.config.model_copy(update={"training": training.model_copy(update=update)})

    def train(self, steps: int = 20) -> list[float]:
        """Train the untrained model and return the training loss of each step.

        It is the computation of ``anemoi-training train`` with :meth:`training_config`: the same batches, loss,
        scalers, precision, clipping, accumulation, optimiser and schedule. The same call gives the same losses.

        Raises
        ------
        UserError
            `steps` is no whole number from 1, or a loss is no number.
        """
        config = self.training_config(steps)
        return self._trial.train(config)


class ExperimentMaker:
    """Makes small experiments; what the fixture :func:`experiment` is.

    Parameters
    ----------
    cache_dir : Path
        Where synthetic datasets and graphs are kept.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir

    def __call__(
        self,
        config_name: str = "train",
        *,
        config_dir: str | Path | None = None,
        overrides: Sequence[str] = (),
        size: Size = Size(),
        variables: Sequence[str] | None = None,
        device: str = "cpu",
        probe: bool = True,
    ) -> SmallRun:
        """Make a small experiment of a config.

        Parameters
        ----------
        config_name, config_dir, overrides
            As ``--config-name``, ``--config-dir`` and the overrides of the command line; relative paths are relative
            to the folder that pytest was started in. What the fixture sets itself can't be overridden: the dataset,
            graph, accelerator, run and periods.
        size : Size
            What is made smaller.
        variables : sequence of str, optional
            The dataset's variables. Left out: those that the config names, with some to be forecast where it names
            none. Then a misspelt name of a variable is not found out.
        device : str
            ``cpu`` or ``cuda``. A kernel that does not run there is an error, as in training.
        probe : bool
            False does not run the kernels: for a look at what fills which slot where they can't run. Their libraries
            have to be installed all the same.

        Raises
        ------
        UserError
            As the command would.
        """
        from etesian.commands.common import check_tree
        from etesian.compose import compose
        from etesian.data.synthetic.options import check_names
        from etesian.training.experiment import check_experiment, check_kernels
        from etesian.training.trial import Trial

        _one_of(device, ("cpu", "cuda"), "device")
        check_type(config_name, "config_name", str, "the name of a config, such as 'train'")
        check_type(size, "size", Size, "a Size: Size(channels=64)")
        check_type(probe, "probe", bool, "True or False")
        overrides = strings(overrides, "overrides", '["training.seed=2"]')
        refuse_replaced(overrides)
        if variables is not None:
            variables = strings(variables, "variables", '["2t", "msl"]')
            check_names(variables, "variables")
        if config_dir is not None and not Path(config_dir).expanduser().is_dir():
            folder = Path(config_dir).expanduser().absolute()
            mend = "config_dir=Path(__file__).parent / 'configs', which does not depend on where pytest was started"
            raise UserError(f"there is no folder {folder}", where="config_dir", allowed="a folder", mend=mend)
        try:
            composed = compose(config_name, config_dir, [*overrides, "system.input.dataset=synthetic.zarr"])
        except UserError as error:
            raise _in_python(error) from error
        full, preset = check_tree(composed), composed.choices.get("model/layer_kernels")
        here = _on_device(full, device)
        slots = composed.preset_slots
        check_kernels(here, preset=preset, overrides=overrides, preset_slots=slots, probe=probe)
        small = _make_small(here, size, *self._dataset(full, size, variables))
        checked = check_experiment(
            small, self.cache_dir, preset=preset, overrides=overrides, preset_slots=slots, probe=False
        )
        return SmallRun(full, Trial(checked))

    def _dataset(self, config: Config, size: Size, names: Sequence[str] | None) -> tuple[Path, dict[str, list[str]]]:
        """Return a synthetic store that the config fits, and the first and last date of each of its splits."""
        from etesian.data.period import seconds_of
        from etesian.data.synthetic.options import SyntheticStore
        from etesian.data.synthetic.store import plan_store

        task, frequency = config.task, config.data.frequency or config.task.timestep or "6h"
        stride = 1
        if task.timestep is not None:
            stride = seconds_of(task.timestep, "task.timestep") // seconds_of(frequency, "data.frequency")
        batch = at_most(config.dataloader.batch_size.training, size.batch_size)
        training = (task.multistep_input + task.rollout.maximum) * stride + max(_WINDOWS, 4 * batch)
        held = (task.multistep_input + task.validation_rollout) * stride + 2
        lengths = {"training": training, "validation": held, "test": held}
        variables = _variables(config, names)
        options = SyntheticStore(grid=size.grid, dates=sum(lengths.values()), frequency=frequency)
        key = hashlib.sha256(repr((options, variables)).encode()).hexdigest()[:16]
        path = self.cache_dir / "datasets" / f"{key}.zarr"
        if not path.exists():
            plan_store(path, options, fields=variables).write()
        times, splits, begin = options.times(), {}, 0
        for name, length in lengths.items():
            splits[name] = [str(times[begin]), str(times[begin + length - 1])]
            begin += length
        return path, splits


@pytest.fixture
def experiment(tmp_path_factory: pytest.TempPathFactory) -> ExperimentMaker:
    """Return the :class:`ExperimentMaker` of the session: ``experiment("my_experiment", overrides=[...])``."""
    return ExperimentMaker(tmp_path_factory.getbasetemp() / "etesian-cache")


def _on_device(config: Config, device: str) -> Config:
    """Return the config of one process on a device."""
    hardware = {"accelerator": device, "num_gpus_per_node": 1, "num_nodes": 1, "num_gpus_per_model": 1}
    system = config.system.model_copy(update={"hardware": config.system.hardware.model_copy(update=hardware)})
    graphs, whole = config.training.cuda_graphs and device == "cuda", type(config.training.strategy)()
    training = config.training.model_copy(update={"cuda_graphs": graphs, "strategy": whole})
    return config.model_copy(update={"system": system, "training": training})


def _variables(config: Config, names: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the dataset's variables: those given, or those that the config names and some to be forecast."""
    from etesian.data.forcings import OF_PLACE, OF_SEASON
    from etesian.data.synthetic.catalogue import by_name

    if names is not None:
        return by_name(names)
    forcing = [*OF_PLACE, *OF_SEASON] if config.data.forcing == "computed" else config.data.forcing
    named = dict.fromkeys((*forcing, *_named(config)))
    fields = by_name(list(named))
    input_only = set(forcing) | set(config.data.diagnostic)
    if config.data.forcing == "computed":
        input_only |= {field.name for field in fields if field.computed or field.constant}
    if input_only >= set(named):
        fields += by_name([name for name in ("2t", "msl", "z_500") if name not in named])
    return fields


def _named(config: Config) -> Iterator[str]:
    """Yield every variable that a config names outside ``data.forcing``."""
    yield from config.data.diagnostic
    yield from config.data.processors.normalizer.by_variable()
    yield from (*config.data.processors.imputer.mean, *config.data.processors.imputer.constant)
    for bound in config.model.bounding:
        yield from getattr(bound, "variables", ())
        yield from filter(None, [getattr(bound, "total_variable", None)])
    for scaler in config.training.scalers.values():
        yield from getattr(scaler, "weights_by_name", ())
    yield from config.diagnostics.plot.named
    for split in (config.dataloader.training, config.dataloader.validation, config.dataloader.test):
        chosen = split.dataset_config.get("select", ())
        yield from [chosen] if isinstance(chosen, str) else chosen


def _make_small(config: Config, size: Size, dataset: Path, splits: Mapping[str, Sequence[str]]) -> Config:
    """Return a config cut to a size, on a dataset, that writes nothing."""
    from etesian.schema.validate import validate_config

    tree = config.model_dump(mode="json", by_alias=True)
    cut_model(tree["model"], size.channels, size.heads, size.layers)
    refuse_graph_file(config.graph.existing)
    cut_graph(tree["graph"], size.resolution)
    loader = tree["dataloader"]
    for name, (start, end) in splits.items():
        loader[name] = {"dataset_config": {"dataset": str(dataset)}, "start": start, "end": end}
        loader["num_workers"][name], loader["limit_batches"][name] = 0, None
        loader["batch_size"][name] = at_most(loader["batch_size"][name], size.batch_size)
    loader["pin_memory"], loader["workers"], loader["prefetch_to_device"] = None, "processes", False
    tree["system"]["input"] = {"dataset": str(dataset), "graph": None}
    tree["training"] |= STARTS_ANEW
    tree["diagnostics"]["plot"]["enabled"] = tree["diagnostics"]["scores"]["enabled"] = False
    tree["diagnostics"]["log"]["tensorboard"]["enabled"] = False
    return validate_config(tree)


def _in_python(error: UserError) -> UserError:
    """Name the arguments of the fixture instead of the options of the command."""
    problems = []
    for problem in error.problems:
        texts = {name: text for name, text in vars(problem).items() if text is not None}
        for option, argument in (("--config-name", "config_name"), ("--config-dir", "config_dir")):
            texts = {name: text.replace(option, argument) for name, text in texts.items()}
        problems.append(replace(problem, **texts))
    return UserError.collect(problems)


def _one_of(name: str, known: Iterable[str], what: str) -> str:
    if name not in known:
        raise UserError(f"unknown {what} {name!r}", allowed=", ".join(known), mend=did_you_mean(name, known))
    return name
