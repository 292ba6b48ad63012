"""``tracking.json``: under which names the trackers know a run, so that it goes on there and is uploaded once."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from etesian.errors import UserError
from etesian.files import write_json

NAME = "tracking.json"


@dataclass
class TrackingRecord:
    """What ``tracking.json`` of a run folder holds.

    Attributes
    ----------
    mlflow : dict of str to str
        Id of the run on each MLflow server, by the server's address.
    wandb : str or None
        Id of the run at Weights & Biases.
    started : int or None
        When the run started first, in milliseconds since 1970.
    status : str or None
        How it ended: ``FINISHED``, ``FAILED`` or ``KILLED``; None while it goes on, and after a crash.
    """

    mlflow: dict[str, str] = field(default_factory=dict)
    wandb: str | None = None
    started: int | None = None
    status: str | None = None

    @classmethod
    def read(cls, folder: Path) -> TrackingRecord:
        """Return the record of a run folder; an empty one where there is none.

        Raises
        ------
        UserError
            If the file is not as it was written.
        """
        file = folder / NAME
        try:
            record = cls(**json.loads(file.read_text()))
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError) as cause:
            raise UserError(
                f"{file} can't be read: {' '.join(str(cause).split())}",
                where=str(file),
                mend="delete it: the run then gets new names at the trackers",
            ) from cause
        return record

    def write(self, folder: Path) -> None:
        """Write it into a run folder."""
        write_json(folder / NAME, asdict(self))
