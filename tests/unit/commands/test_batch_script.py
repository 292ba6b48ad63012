"""The text of a batch script."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from etesian.commands.batch_script import Job, batch_script
from etesian.schema.slurm import SlurmSettings
from etesian.schema.system import HardwareSettings

RUN = Job("one", Path("/work place"), Path("/out/one/slurm-%j.out"), ["anemoi-training", "train"],
          [["model.layer_kernels.Linear._target_=torch.nn.Linear", "training.run_id=one"]])  # fmt: skip


def script(job: Job = RUN, accelerator: str = "cpu", gpus: int = 1, nodes: int = 1, **settings: Any) -> str:
    hardware = HardwareSettings(accelerator=accelerator, num_gpus_per_node=gpus, num_nodes=nodes)
    text = batch_script(hardware, SlurmSettings(**{"time": "12:00:00", **settings}), job)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    return text


def test_the_whole_of_it() -> None:
    said = script(
        nodes=2, gpus=4, accelerator="cuda", partition="gpu", account="a1", qos="normal", cpus_per_task=8,
        memory="120G", options={"exclusive": "user"}, modules=["cuda/12.4"], environment={"NCCL_DEBUG": "IN FO"},
        setup=["ulimit -l unlimited"],
    )  # fmt: skip
    assert said == (
        "#!/bin/bash\n#SBATCH --job-name=one\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"
        "#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n#SBATCH --mem=120G\n#SBATCH --time=12:00:00\n"
        "#SBATCH --partition=gpu\n#SBATCH --account=a1\n#SBATCH --qos=normal\n#SBATCH --exclusive=user\n"
        "#SBATCH --chdir='/work place'\n#SBATCH --output=/out/one/slurm-%j.out\n#SBATCH --open-mode=append\n"
        "#SBATCH --signal=USR1@180\n#SBATCH --requeue\nset -euo pipefail\n\nmodule purge\nmodule load cuda/12.4\n\n"
        "export NCCL_DEBUG='IN FO'\n\nulimit -l unlimited\n\n"
        "exec srun --kill-on-bad-exit=1 --cpus-per-task=8 anemoi-training train \\\n"
        "  model.layer_kernels.Linear._target_=torch.nn.Linear \\\n  training.run_id=one\n"
    )


def test_no_gpu_is_asked_for_on_a_cpu() -> None:
    assert "gpu" not in script()


def test_other_ways() -> None:
    said = script(accelerator="cuda", gpus=4, gpu_option="gres", requeue=False, signal_seconds=60)
    for line in ("#SBATCH --gres=gpu:4", "#SBATCH --no-requeue", "#SBATCH --signal=USR1@60"):
        assert line in said.splitlines()


def test_a_container() -> None:
    said = script(accelerator="cuda", container="image.sif", container_options=["--bind=/data"])
    assert "srun --kill-on-bad-exit=1 apptainer exec --nv --bind=/data image.sif anemoi-training train " in said


def test_an_array_runs_the_overrides_of_its_task() -> None:
    job = Job("s", Path("/"), Path("/o"), ["anemoi-training", "train"], [["a=[1, 2]", "b=1"], ["a=3"]], is_array=True)
    said = script(job)
    assert "#SBATCH --array=0-1\n" in said
    body = said[said.index("case") :].replace("exec srun --kill-on-bad-exit=1 anemoi-training train", "printf '<%s>'")
    for task, words in (("0", "<a=[1, 2]><b=1>"), ("1", "<a=3>")):
        done = subprocess.run(["bash", "-c", body], env={"SLURM_ARRAY_TASK_ID": task}, capture_output=True, text=True)
        assert done.stdout == words
