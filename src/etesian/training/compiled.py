"""A run in which something that was to be compiled is not stops after its first batch."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from etesian.runtime.compile import Compilation


class CompiledGraphs(Callback):
    """Counts the graphs of each entry after the first batch, and says how many there are.

    Parameters
    ----------
    compilation : Compilation
        What of the model is compiled.
    """

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        self._checked = False

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check, once, that every entry compiled something.

        Raises
        ------
        UserError
            With each that did not.
        """
        if self._checked:
            return
        self.compilation.check()
        self._checked = True
        if trainer.is_global_zero:
            print(f"the first batch compiled {self.compilation.report()}", flush=True)
