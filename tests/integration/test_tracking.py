"""Runs that are logged to a real MLflow server, to Weights & Biases without a network, and to TensorBoard."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tracking_site
from runs import SMALL, rows
from tracking_site import Server

from small_stores import write_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a dataset, in which the runs of this file are."""
    folder = tmp_path_factory.mktemp("tracking")
    write_store(folder / "waves.zarr")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(folder / "server") as server:
        yield server


def options(run_id: str, server: Server | None = None, *more: str) -> list[str]:
    to = [] if server is None else ["diagnostics.log.mlflow.enabled=true",
                                    f"diagnostics.log.mlflow.tracking_uri={server.uri}"]  # fmt: skip
    return ["train", *SMALL, "system.input.dataset=waves.zarr", f"training.run_id={run_id}", *to, *more]


def run(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return tracking_site.run(folder, *arguments, check=check, ETESIAN_CACHE=str(folder / "cache"))


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return tracking_site.start(folder, *arguments, ETESIAN_CACHE=str(folder / "cache"))


def record(run_folder: Path) -> dict:
    return json.loads((run_folder / "tracking.json").read_text())


def mlflow_id(run_folder: Path) -> str:
    (run_id,) = record(run_folder)["mlflow"].values()
    return run_id


def assert_holds_the_csv(server: Server, run_folder: Path) -> None:
    """Compare every metric of ``metrics.csv`` with its history on the server: each step once."""
    table, run_id = rows(run_folder), mlflow_id(run_folder)
    for name in ("train_loss", "val_loss", "lr", "epoch"):
        written = [(int(row["step"]), float(row[name])) for row in table if row[name]]
        assert server.history(run_id, name) == written, name
    assert len(table) > 5


def wait_for_rows(process: subprocess.Popen[str], run_folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not ((run_folder / "metrics.csv").exists() and len(rows(run_folder)) >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_tracker_has_the_run_and_a_fork_is_another(folder: Path, server: Server) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    everywhere = ["diagnostics.plot.enabled=true", "diagnostics.log.wandb.enabled=true",
                  "diagnostics.log.wandb.offline=true", "diagnostics.log.tensorboard.enabled=true",
                  "diagnostics.log.mlflow.experiment_name=all"]  # fmt: skip
    said = run(folder, *options("all", server, *everywhere))
    all_run = folder / "outputs" / "all"
    assert f"MLflow: {server.uri}/#/experiments/" in said.stdout
    assert "Traceback" not in said.stderr
    assert_holds_the_csv(server, all_run)
    found = server.run(mlflow_id(all_run))
    assert (found["info"]["status"], found["info"]["run_name"]) == ("FINISHED", "all")
    parameters = {one["key"]: one["value"] for one in found["data"]["params"]}
    assert parameters["training.max_epochs"] == "2"
    assert parameters["kernels.model.layer_kernels.LayerNorm"] == "torch.nn.LayerNorm(eps=1e-05)"
    metrics = {one["key"]: one["value"] for one in found["data"]["metrics"]}
    scores = json.loads((all_run / "metrics.json").read_text())["variables"]
    for name, of_variable in scores.items():
        ((label, at_lead),) = of_variable["lead_times"].items()
        assert metrics[f"test_rmse/{name}/{label.replace(' ', '')}"] == at_lead["model"]["rmse"]
    assert {"config.yaml", "kernels.json", "kernels.md", "environment.json", "metrics.csv", "metrics.json"} <= set(
        server.files(mlflow_id(all_run))
    )
    drawn = sorted(file.name for file in (all_run / "plots").glob("*.png"))
    assert server.files(mlflow_id(all_run), "plots") == [f"plots/{name}" for name in drawn]

    (offline,) = (all_run / "wandb").glob(f"offline-run-*-{record(all_run)['wandb']}")
    assert f"`wandb sync {offline.relative_to(folder)}` uploads this run" in said.stdout
    (log,) = offline.glob("run-*.wandb")
    written = log.read_bytes()
    for text in (b"train_loss", b"val_loss", b"test_rmse/", b"kernels", b"max_epochs", b"trainer/global_step"):
        assert text in written, text
    shown = [file.name for file in (offline / "files" / "media" / "images").rglob("*.png")]
    assert sorted(name.partition("_" + name.split("_")[-2])[0] for name in shown) == sorted(
        name.removesuffix(".png") for name in drawn
    )
    assert list((offline / "files" / "media" / "table").glob("layer kernels*.json"))

    images, scalars = set(), set()
    for file in (all_run / "tensorboard").glob("events.out.tfevents.*"):
        events = accumulator.EventAccumulator(str(file))
        tags = events.Reload().Tags()
        images |= set(tags["images"])
        scalars |= set(tags["scalars"])
    assert images == {name.removesuffix(".png") for name in drawn}
    assert {"train_loss", "val_loss", "lr"} <= scalars
    assert set(metrics) - scalars == set()

    run(folder, *options("fork", server, "training.fork_run_id=all", "training.max_epochs=3",
                         "diagnostics.log.mlflow.experiment_name=all"))  # fmt: skip
    assert mlflow_id(folder / "outputs" / "fork") != mlflow_id(all_run)
    assert len(server.runs("all")) == 2


def test_a_run_that_was_stopped_goes_on_in_its_own(folder: Path, server: Server) -> None:
    long = options("stopped", server, "training.max_epochs=40", "diagnostics.scores.enabled=false",
                   "diagnostics.checkpoint.every_n_train_steps.save_frequency=5")  # fmt: skip
    process = start(folder, *long)
    stopped = folder / "outputs" / "stopped"
    wait_for_rows(process, stopped, 12)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    first = mlflow_id(stopped)
    assert server.run(first)["info"]["status"] == record(stopped)["status"] == "KILLED"
    process = start(folder, *long)
    wait_for_rows(process, stopped, len(rows(stopped)) + 12)
    process.kill()  # what it did after its checkpoint is done again
    process.communicate()
    assert server.run(first)["info"]["status"] == "RUNNING"
    steps = len(rows(stopped)) + 15
    run(folder, *long, f"training.max_steps={steps}")
    assert mlflow_id(stopped) == first
    found = server.run(first)
    assert found["info"]["status"] == "FINISHED"
    tags = {tag["key"]: tag["value"] for tag in found["data"]["tags"]}
    assert tags["etesian.changed_since"] == f"training.max_steps: null -> {steps}"
    assert_holds_the_csv(server, stopped)


def test_a_server_that_goes_away_holds_nothing_up(folder: Path) -> None:
    with Server(folder / "going") as server:
        process = start(folder, *options("alone", server, "training.max_epochs=15"))
        alone = folder / "outputs" / "alone"
        wait_for_rows(process, alone, 20)
        server.stop()
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert f"the MLflow server {server.uri} does not answer: Connection refused; training goes on" in said
        assert "`anemoi-training mlflow sync outputs/alone` uploads what it lacks" in said
        assert "Traceback" not in said
        assert rows(alone)[-1]["step"] == "104"
        refused = run(folder, "mlflow", "sync", "alone", check=False)
        assert (refused.returncode, "does not answer: Connection refused" in refused.stderr) == (2, True)
        server.start()
        assert len(server.history(mlflow_id(alone), "train_loss")) < 105
        said = run(folder, "mlflow", "sync", "alone").stdout
        assert said.startswith("run alone, there already: ")
        assert not said.startswith("run alone, there already: 0 values")
        assert_holds_the_csv(server, alone)
        assert server.run(mlflow_id(alone))["info"]["status"] == "FINISHED"
        again = run(folder, "mlflow", "sync", "alone").stdout
        assert again.startswith("run alone, there already: 0 values of metrics uploaded, FINISHED\n")
        assert_holds_the_csv(server, alone)


def test_a_server_that_is_not_there(folder: Path) -> None:
    with socket.socket() as silent:  # takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        done = run(folder, *options("none"), "system.input.dataset=none.zarr", "diagnostics.log.mlflow.enabled=true",
                   f"diagnostics.log.mlflow.tracking_uri={uri}", check=False)  # fmt: skip
        assert time.monotonic() - began < 90  # 10 s for the server, the rest for a busy machine
    assert done.returncode == 2
    assert f"error: the MLflow server {uri} does not answer: nothing within 10 s\n" in done.stderr
    assert "where:   diagnostics.log.mlflow.tracking_uri" in done.stderr
    assert "diagnostics.log.mlflow.offline=true" in done.stderr
    assert "Traceback" not in done.stderr
    assert "none.zarr" not in done.stderr
    assert not (folder / "outputs" / "none").exists()


def test_two_processes_are_one_run_which_may_be_uploaded_later(folder: Path, server: Server) -> None:
    two = folder / "outputs" / "two"
    run(folder, *options("two", server, "diagnostics.log.mlflow.experiment_name=two",
                         "system.hardware.num_gpus_per_node=2", "dataloader.batch_size.training=2"))  # fmt: skip
    assert server.runs("two") == [mlflow_id(two)]
    assert_holds_the_csv(server, two)
    (two / "tracking.json").unlink()  # as of a run that was logged nowhere
    said = run(folder, "mlflow", "sync", str(two), "--tracking-uri", f"{server.uri}/", "--experiment-name", "later")
    assert said.stdout.startswith("run two, made: ")
    assert server.runs("later") == [mlflow_id(two)]
    assert_holds_the_csv(server, two)
    assert server.run(mlflow_id(two))["info"]["status"] == "FINISHED"


def test_weights_and_biases_without_an_account(folder: Path) -> None:
    done = run(folder, *options("nobody", None, "diagnostics.log.wandb.enabled=true"), check=False)
    assert done.returncode == 2, done.stdout
    assert "error: Weights & Biases lets nobody in" in done.stderr
    assert "mend:    wandb login, or diagnostics.log.wandb.offline=true" in done.stderr
    assert not (folder / "outputs" / "nobody").exists()
