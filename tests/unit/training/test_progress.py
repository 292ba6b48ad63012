import io
from datetime import timedelta

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Timer
from rich.console import Console
from torch.utils.data import DataLoader

from etesian.training.metrics_csv import MetricsCSV
from etesian.training.progress import RunProgress, format_duration


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0125)


class Clock:
    """Every reading is `tick` seconds after the last."""

    def __init__(self, tick):
        self.tick, self.now = tick, 0.0

    def __call__(self):
        self.now += self.tick
        return self.now


def fit(terminal, tick, folder, steps=20, callbacks=(), samples=32, **options):
    console = Console(file=io.StringIO(), force_terminal=terminal, force_interactive=terminal, width=80)
    progress = RunProgress(samples, console=console, clock=Clock(tick) if isinstance(tick, float) else tick)
    loader = DataLoader(torch.ones(steps, 1), batch_size=1)
    trainer = pl.Trainer(
        accelerator="cpu", callbacks=[progress, *callbacks], logger=MetricsCSV(folder / "metrics.csv"),
        enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=5, limit_train_batches=steps // 2,
        limit_val_batches=4, num_sanity_val_steps=1, default_root_dir=folder, **options,
    )  # fmt: skip
    trainer.fit(Line(), loader, loader)
    return console.file.getvalue()


def test_a_log_file_gets_plain_lines_now_and_then(tmp_path):
    text = fit(False, 1.0, tmp_path, max_epochs=2)
    lines = text.splitlines()
    assert lines[0].startswith("epoch 1/2  step 1/20  loss ")
    assert "lr 1.25e-02" in lines[0]
    assert "\x1b" not in text
    assert "\r" not in text
    steps = [int(line.split("step ")[1].split("/")[0]) for line in lines]
    assert len(lines) <= 6
    assert steps[-1] == 20
    assert "val " in lines[-1]
    assert "samples/s" in lines[-1]
    assert lines[-1].endswith("0 s left")
    assert "sanity" not in text.lower()


def test_the_time_left_is_that_of_the_whole_run(tmp_path):
    lines = fit(False, 10.0, tmp_path, max_epochs=2).splitlines()
    tenth = next(line for line in lines if "step 9/20" in line)
    assert "3.2 samples/s" in tenth  # 10 s a step, 32 samples
    assert "1 min 50 s left" in tenth


def test_a_limit_of_time_that_comes_sooner_counts(tmp_path):
    text = fit(False, 1e6, tmp_path, callbacks=[Timer(duration=timedelta(minutes=30))], max_epochs=2)
    assert "29 min" in text or "30 min" in text


def test_a_run_without_an_end_has_no_time_left_but_a_step(tmp_path):
    text = fit(False, 20.0, tmp_path, max_epochs=-1, max_steps=5)
    assert "step 5/5" in text
    assert text.startswith("epoch 1  step 1/5")


def test_a_terminal_gets_a_bar_and_the_validation_for_as_long_as_it_runs(tmp_path):
    text = fit(True, 1.0, tmp_path, max_epochs=2)
    assert "\x1b" in text
    assert "validating 2/4" in text
    assert "samples/s" in text
    assert "validating" not in text.rsplit("epoch 2/2", 1)[1]


def test_the_samples_of_a_step_are_counted_where_they_are_not_given(tmp_path):
    lines = fit(False, 10.0, tmp_path, samples=None, max_epochs=2, accumulate_grad_batches=2).splitlines()
    assert "step 10/10" in lines[-1]
    speed = float(lines[-1].split(" samples/s")[0].split()[-1])
    assert 0.08 < speed <= 0.1  # two samples a step, which takes 20 s and a few readings of the clock


def test_other_ranks_show_nothing(tmp_path):
    console = Console(file=io.StringIO(), width=80)
    progress = RunProgress(1, console=console)
    progress.disable()
    progress.print("hello")
    assert console.file.getvalue() == ""
    progress.enable()
    progress.print("hello")
    assert console.file.getvalue() == "hello\n"
    with pytest.raises(ValueError, match="samples per step"):
        RunProgress(0)


def test_lightning_and_the_history_agree_on_the_steps(tmp_path):
    fit(False, 1.0, tmp_path, max_epochs=2)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,train_loss,val_loss"
    assert [line.split(",")[:2] for line in lines[1:]] == [["0", "4"], ["0", "9"], ["1", "14"], ["1", "19"]]
    assert [bool(line.split(",")[3]) for line in lines[1:]] == [False, True, False, True]


def test_the_speed_leaves_validation_out_and_the_time_left_does_not(tmp_path):
    clock = Clock(10.0)

    class Pause(pl.Callback):
        def on_validation_batch_end(self, *_):
            clock.now += 1000.0

    lines = fit(False, clock, tmp_path, callbacks=[Pause()], max_epochs=2).splitlines()
    after = next(line for line in lines if "step 10/20" in line and "val" in line)
    assert "samples/s" in after
    assert 2.5 < float(after.split(" samples/s")[0].split()[-1]) <= 3.2
    assert "1 h 1" in after  # 10 steps took 4 000 s of validation: 10 more take as long


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (97200, "1 d 03 h"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
