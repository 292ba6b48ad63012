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
    normalizer = Normalizer(variables, statistics, config.data.processors.normalizer)
    fields = ModelFields(
        input_names=variables.input,
        output_names=variables.output,
        num_steps=config.task.multistep_input,
        output_scale=normalizer.scale[variables.data_output],
        output_offset=normalizer.offset[variables.data_output],
    )
    model = build_model(config.model, graph, fields, kernels)
    imputer = Imputer(variables, statistics, config.data.processors.imputer)
    return Forecaster(model, normalizer, imputer, variables, config.task.multistep_input)
