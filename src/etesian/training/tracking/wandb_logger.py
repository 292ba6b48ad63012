"""A run of Weights & Biases, whose library has a process of its own: training never waits for the server."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger

from etesian.errors import UserError
from etesian.schema.diagnostics import WandbSettings
from etesian.training.tracking.record import TrackingRecord

TIMEOUT = 15
"""Seconds in which the server has to answer when a run starts."""

_KEY = "diagnostics.log.wandb"


class WandbRun(WandbLogger):
    """Lightning's logger, which goes on in the same run.

    Parameters
    ----------
    settings : WandbSettings
        The section of the config.
    folder : Path
        The run folder, where the library writes.
    record : TrackingRecord
        Keeps the id of the run.
    patience : float
        Seconds to upload what is left at the end.

    Raises
    ------
    UserError
        If the server does not answer, or lets nobody in.
    """

    def __init__(self, settings: WandbSettings, folder: Path, record: TrackingRecord, patience: float) -> None:
        import wandb

        run_id, is_first = record.wandb or secrets.token_hex(4), not (folder / "wandb").exists()
        own = {"init_timeout": TIMEOUT, "finish_timeout": patience, "finish_timeout_raises": True}
        super().__init__(
            name=settings.run_name or folder.name,
            save_dir=str(folder),
            id=run_id,
            project=settings.project,
            entity=settings.entity,
            mode="offline" if settings.offline else "online",
            settings=wandb.Settings(**own, console="off", silent=True),
        )
        self._wandb_init.pop("anonymous")  # the library warns of this one, which Lightning passes on unset
        try:
            _ = self.experiment
        except (wandb.errors.Error, OSError) as cause:
            if is_first:
                shutil.rmtree(folder / "wandb", ignore_errors=True)
            raise _error(cause, settings) from cause
        record.wandb = run_id
        record.write(folder)
        where = f"`{self._sync()}` uploads this run" if settings.offline else self.experiment.url
        print(f"Weights & Biases: {where}", flush=True)

    def _sync(self) -> str:
        return f"wandb sync {Path(self.experiment.dir).parent}"

    def log_kernels(self, columns: Sequence[str], rows: list[list[str]]) -> None:
        """Show the table of layer kernels."""
        self.log_table("layer kernels", columns=list(columns), data=rows)

    def log_pictures(self, pictures: Sequence[Path], step: int) -> None:
        """Show pictures."""
        for picture in pictures:
            self.log_image(picture.stem, [str(picture)], step=step)

    def close(self, status: str) -> str | None:
        """Upload what is left; a run that was stopped, and may go on, is `preempted`.

        Returns
        -------
        str or None
            What uploads the rest; None if the server has everything.
        """
        if status == "KILLED":
            self.experiment.mark_preempting()
        try:
            self.experiment.finish(exit_code=int(status != "FINISHED"))
        except TimeoutError:
            return self._sync()
        return None


def _error(cause: Exception, settings: WandbSettings) -> UserError:
    import wandb

    text = " ".join(str(cause).split())
    text = text if len(text) <= 300 else text[:297] + "..."
    known: dict[str, Any] = {"where": f"{_KEY}.enabled"}
    if isinstance(cause, wandb.errors.UsageError | wandb.errors.AuthenticationError):
        return UserError(
            f"Weights & Biases lets nobody in: {text}", **known, mend=f"wandb login, or {_KEY}.offline=true"
        )
    mend = f"{_KEY}.offline=true writes into the run folder, and `wandb sync` uploads it"
    return UserError(f"Weights & Biases does not start: {text}", **known, mend=mend)
