"""A process that fails ends the others soon, one message names it and why, and the last checkpoint is whole."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from processes_of_runs import alive
from ranks_that_fail import KERNEL
from runs import SMALL, command, environment

from etesian.checkpoint.read import load_checkpoint
from small_stores import write_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TWO = [
    *SMALL, "dataloader.batch_size={training: 2, validation: 2, test: 2}", "dataloader.limit_batches.training=6",
    "system.hardware.num_gpus_per_node=2", "training.run_id=ends", "training.strategy.kind=fsdp",
    "training.max_epochs=4",
]  # fmt: skip
FAILING = [f"model.layer_kernels.LayerNorm._target_={KERNEL}", "~model.layer_kernels.LayerNorm.eps"]


def ended(folder: Path, fault: str, *options: str) -> tuple[int, str]:
    """Run two processes of which one fails, and return exit status and what was said once it had begun to train."""
    words = command(*TWO, *options, f"system.input.dataset={folder / 'weather.zarr'}")
    variables = environment(folder / "cache") | {"ETESIAN_TEST_FAULT": fault}
    with subprocess.Popen(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as main:
        assert main.stdout is not None
        for line in main.stdout:
            if line.startswith("epoch"):
                break
        began = time.monotonic()
        _, said = main.communicate(timeout=60)
    assert time.monotonic() - began < 60
    assert alive(str(folder)) == []
    assert "Traceback" not in said, said
    return main.returncode, said


@pytest.mark.parametrize(
    ("fault", "status", "expected"),
    [
        (
            "memory@1",
            2,
            r"error: the memory does not suffice: CUDA out of memory. Tried to allocate 2.00 GiB\n  mend: .*\n"
            r"error: process 1 of 2, on \S+, ended the run\n",
        ),
        ("nan@1", 2, r"error: the training loss after step 10 is nan, in process 1 of 2\n  where: .*\n  mend: .*\n"),
        ("killed@1", 137, r"error: process 1 of 2, on \S+, was ended by SIGKILL: the run ends\n  mend: .*\n"),
    ],
    ids=["memory", "nan", "killed"],
)
def test_a_process_that_fails_ends_all_with_one_message(tmp_path: Path, fault: str, status: int, expected: str) -> None:
    write_store(tmp_path / "weather.zarr")
    got, said = ended(tmp_path, fault, *FAILING)
    assert got == status, said
    assert re.fullmatch(expected, said), said
    last = load_checkpoint(tmp_path / "outputs" / "ends" / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 6


def test_data_that_one_process_cannot_read_end_all(tmp_path: Path) -> None:
    chunk = write_store(tmp_path / "weather.zarr") / "data" / "14.0.0.0"
    assert chunk.is_file()
    chunk.write_bytes(b"no chunk")
    status, said = ended(tmp_path, "")
    assert status == 2
    where = r"  where:   dataloader.training.dataset_config\n"
    assert re.fullmatch(
        rf"error: the training data (from|at) .* cannot be read: .*\n{where}"
        r"error: process [01] of 2, on \S+, ended the run\n", said
    ), said  # fmt: skip
