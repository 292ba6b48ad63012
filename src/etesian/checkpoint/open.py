"""From any checkpoint to its forecaster: of a run, for inference, or without pickle."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from etesian.checkpoint.content import kernels_of
from etesian.checkpoint.export import about, build, stored_config, uncompiled, weights_of
from etesian.checkpoint.mapping import refuse
from etesian.checkpoint.read import check_about, check_finite, check_format, load_file
from etesian.errors import UserError
from etesian.inference.forecaster import Forecaster
from etesian.inference.safe import read_forecaster
from etesian.kernels.interchange import differences
from etesian.kernels.resolve import resolve_kernels


def open_forecaster(path: Path) -> Forecaster:
    """Return the forecaster of a checkpoint, in evaluation mode, on the CPU, with its ``about``.

    That of a run's checkpoint gets the kernels that trained it; nothing is compiled.

    Parameters
    ----------
    path : Path
        A checkpoint of a run, one for inference, or a folder without pickle. The kinds of models, losses and scalers
        must be registered already.

    Raises
    ------
    UserError
        If it can't be read, or a kernel of it is not installed or has another meaning here.
    """
    if path.is_dir():
        forecaster = read_forecaster(path)
        check_about(path, forecaster.about)
        return forecaster
    loaded = load_file(path)
    if isinstance(loaded, Forecaster) and loaded.about:
        check_about(path, loaded.about)
        return loaded.eval()
    if isinstance(loaded, nn.Module):
        raise UserError(f"{path} holds a {type(loaded).__name__} that tells nothing of itself", where=str(path))
    check_format(path, loaded)
    content = loaded["etesian"]
    config = stored_config(path, uncompiled(content["config"]))
    kernels = resolve_kernels(config.model, preset=None, overrides=[])
    refuse(path, differences(kernels_of(content), kernels.records, config.model))
    weights = weights_of(loaded)
    check_finite(path, weights)
    forecaster = build(path, config, content, kernels, weights)
    forecaster.about = about(content, loaded, path, kernels.records, [])
    return forecaster
