"""TensorBoard's files in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger


class TensorBoardFiles(TensorBoardLogger):
    """Lightning's logger, in the folder ``tensorboard`` of a run.

    Parameters
    ----------
    folder : Path
        The run folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="tensorboard", version="", default_hp_metric=False)

    def resume_from(self, step: int) -> None:
        """Hide what an earlier process wrote of this step and later ones, which the run will log again."""
        self._kwargs["purge_step"] = step

    def log_pictures(self, pictures: Sequence[Path], step: int) -> None:
        """Show pictures."""
        for picture in pictures:
            with Image.open(picture) as image:
                pixels = np.asarray(image.convert("RGB"))
            self.experiment.add_image(picture.stem, pixels, step, dataformats="HWC")
