"""The checkpoint for inference that every run keeps beside its last one, in two forms."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from etesian.checkpoint.anemoi import write_inference
from etesian.checkpoint.content import graph_of, kernels_of, statistics_of, variables_of
from etesian.checkpoint.export import PLAIN, about, plain_or_own, remapped, weights_of
from etesian.inference.assemble import assemble_forecaster
from etesian.inference.forecaster import Forecaster
from etesian.inference.safe import write_forecaster
from etesian.kernels.interchange import differences, named
from etesian.kernels.parity import check_parity
from etesian.kernels.resolve import resolve_kernels
from etesian.schema.validate import validate_config

FILE, FOLDER = "inference-last.ckpt", "inference-last"
"""What anemoi-inference takes, and the same without pickle."""


class InferenceCheckpoint:
    """Writes a run's :data:`FILE` and :data:`FOLDER` from its checkpoints.

    The kernels in them need PyTorch alone wherever the family of the run's kernel has such a one with the same
    constants; the others stay the run's own. Nothing in them is compiled, and no random number of the run is drawn.

    Parameters
    ----------
    folder : Path
        Folder of the checkpoints.
    content : mapping
        What :func:`etesian.checkpoint.content.describe_experiment` returns.
    device : torch.device
        Where kernels are compared.

    Attributes
    ----------
    own : list of KernelRecord
        The kernels that have no counterpart in plain PyTorch: inference needs their libraries.
    written : bool
        Whether anything was written.

    Raises
    ------
    UserError
        If a kernel does not compute what its counterpart does.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any], device: torch.device) -> None:
        self.folder, self.content, self.written = folder, content, False
        stored = kernels_of(content)
        mappings, kept = plain_or_own(stored)
        for record, _ in kept:
            mappings.setdefault(record.component, {})[record.slot] = {"_target_": record.target, **record.arguments}
        used = [(record, reasons) for record, reasons in kept if not record.note.startswith("not used")]
        self.own = [record for record, _ in used]
        self.reasons = [
            f"{record.component}.{record.slot}: {named(record)}, as {' and '.join(reasons)}" for record, reasons in used
        ]
        self.config = validate_config(remapped(content["config"], mappings))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self.kernels = resolve_kernels(self.config.model, preset=PLAIN, overrides=[])
            changed = differences(stored, self.kernels.records, self.config.model)
            self.parities = check_parity(changed, self.kernels, self.config.model, device)
        self._forecaster: Forecaster | None = None

    def write(self, checkpoint: Mapping[str, Any], source: Path) -> None:
        """Write both from a checkpoint of the run.

        Parameters
        ----------
        checkpoint : mapping
            With ``state_dict``, ``global_step``, ``epoch`` and ``etesian``.
        source : Path
            Its file, for the record.
        """
        if self._forecaster is None:
            self._forecaster = self._build()
        forecaster = self._forecaster
        own = forecaster.state_dict()
        forecaster.load_state_dict({name: value for name, value in weights_of(checkpoint).items() if name in own})
        forecaster.about = about(checkpoint["etesian"], checkpoint, source, self.kernels.records, self.parities)
        write_inference(self.folder / FILE, forecaster)
        content = self.content
        write_forecaster(self.folder / FOLDER, forecaster, content["graph"], content["statistics"], uuid.uuid4().hex)
        self.written = True

    def needs(self) -> list[str]:
        """Say in a line which kernels make inference need more than PyTorch; no line where none does."""
        if not self.reasons:
            return []
        libraries = ", ".join(dict.fromkeys(record.library or record.target for record in self.own))
        return [f"{FILE} needs {libraries} where it is to run: {'; '.join(self.reasons)}"]

    def _build(self) -> Forecaster:
        content = self.content
        with torch.random.fork_rng(devices=[]):  # the first weights are random, and replaced
            forecaster = assemble_forecaster(
                self.config, variables_of(content), statistics_of(content), graph_of(content), self.kernels
            )
        forecaster = forecaster.double() if self.config.training.precision == "64-true" else forecaster
        return forecaster.eval().requires_grad_(False)
