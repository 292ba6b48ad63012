"""What Lightning says that does not help here is kept out of the terminal."""

from __future__ import annotations

import logging
import warnings


def quieten_lightning() -> None:
    """Keep Lightning's advice on settings that are chosen here out of the terminal; its errors stay."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (".*does not have many workers.*", ".*The number of training batches.*", ".*dataloader is not res.*",
                    ".*exists and is not empty.*", ".*LeafSpec.*", ".*sync_dist=True.*",
                    ".*suggested max number of worker.*",
                    ".*`srun` command is available.*", "FSDP2-wrapped module .* returned a view tensor.*",
                    ".*could not find the monitored key.*", ".*dirpath has changed.*"):  # fmt: skip
        warnings.filterwarnings("ignore", message=message)
