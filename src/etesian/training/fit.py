"""One run of training, from a checked experiment to scores and pictures."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from torch_geometric.data import HeteroData

from etesian.checkpoint.atomic import write_json
from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.errors import Problem, UserError
from etesian.graph.store import load_or_build
from etesian.inference.forecaster import Forecaster
from etesian.model.build import ModelFields, build_model
from etesian.schema.config import Config
from etesian.training.checkpoints import AtomicCheckpointIO, RunState, checkpoint_callbacks, position_in_data
from etesian.training.datamodule import ForecastDataModule
from etesian.training.environment import environment
from etesian.training.experiment import Experiment
from etesian.training.losses import build_loss
from etesian.training.metrics_csv import MetricsCSV
from etesian.training.module import ForecastModule
from etesian.training.progress import RunProgress
from etesian.training.run_folder import RunFolder, find_checkpoint, resolved
from etesian.training.scalers import loss_weights


def build_forecaster(experiment: Experiment, graph: HeteroData) -> Forecaster:
    """Make the untrained forecaster of an experiment.

    Parameters
    ----------
    experiment : Experiment
        A checked experiment.
    graph : HeteroData
        Its graph.
    """
    config, variables = experiment.config, experiment.variables
    statistics = experiment.splits.training.statistics
    normalizer = Normalizer(variables, statistics, config.data.processors.normalizer)
    fields = ModelFields(
        input_names=variables.input,
        output_names=variables.output,
        num_steps=config.task.multistep_input,
        output_scale=normalizer.scale[variables.data_output],
        output_offset=normalizer.offset[variables.data_output],
    )
    model = build_model(config.model, graph, fields, experiment.kernels)
    imputer = Imputer(variables, statistics, config.data.processors.imputer)
    return Forecaster(model, normalizer, imputer, variables, config.task.multistep_input)
