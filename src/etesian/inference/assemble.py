"""From a config, its variables and statistics, a graph and kernels to a forecaster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch_geometric.data import HeteroData

from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.data.variables import Variables
from etesian.inference.forecaster import Forecaster
from etesian.kernels.resolve import ComponentKernels
from etesian.model.build import ModelFields, build_model
from etesian.schema.config import Config
from etesian.schema.data import DataSettings
from etesian.schema.model import ModelSettings


def assemble_forecaster(
    config: Config,
    variables: Variables,
    statistics: Mapping[str, np.ndarray],
    graph: HeteroData,
    kernels: ComponentKernels,
) -> Forecaster:
    """Make an untrained forecaster.

    Parameters
    ----------
    config : Config
        The config.
    variables : Variables
        The dataset's variables by role.
    statistics : mapping
        The dataset's ``mean``, ``stdev``, ``maximum``, ``minimum``, (V,) each, physical units.
    graph : HeteroData
        The graph.
    kernels : ComponentKernels
        The layer kernels.
    """
    return assemble(config.model, config.data, config.task.multistep_input, variables, statistics, graph, kernels)


def assemble(
    model: ModelSettings,
    data: DataSettings,
    multistep_input: int,
    variables: Variables,
    statistics: Mapping[str, np.ndarray],
    graph: HeteroData,
    kernels: ComponentKernels,
) -> Forecaster:
    """Make an untrained forecaster from the sections ``model`` and ``data`` and the number of input states alone.

    The other arguments are those of :func:`assemble_forecaster`.
    """
    normalizer = Normalizer(variables, statistics, data.processors.normalizer)
    fields = ModelFields(
        input_names=variables.input,
        output_names=variables.output,
        num_steps=multistep_input,
        output_scale=normalizer.scale[variables.data_output],
        output_offset=normalizer.offset[variables.data_output],
    )
    imputer = Imputer(variables, statistics, data.processors.imputer)
    return Forecaster(build_model(model, graph, fields, kernels), normalizer, imputer, variables, multistep_input)
