import csv
import os
import signal
import subprocess
import sys

import pytest

from etesian.errors import UserError
from etesian.training.metrics_csv import MetricsCSV


def rows(path):
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_row_is_on_disk_as_soon_as_it_is_logged(tmp_path):
    path = tmp_path / "run" / "metrics.csv"
    logger = MetricsCSV(path)
    logger.log_metrics({"train_loss": 0.1 + 0.2, "epoch": 0}, step=9)
    assert path.read_text() == "epoch,step,train_loss\n0,9,0.30000000000000004\n"
    logger.log_metrics({"train_loss": float("nan"), "epoch": 1}, step=19)
    assert rows(path)[1] == {"epoch": "1", "step": "19", "train_loss": "nan"}
    assert (logger.name, logger.version, logger.save_dir) == ("metrics", "", str(path.parent))


def test_columns_are_added_as_they_come_without_losing_rows(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = MetricsCSV(path)
    for step in range(3):
        logger.log_metrics({"train_loss": step, "epoch": 0}, step=step)
    logger.log_metrics({"val_loss": 7.0, "epoch": 0}, step=3)
    logger.log_metrics({"train_loss": 4, "epoch": 1}, step=4)
    assert [row["train_loss"] for row in rows(path)] == ["0.0", "1.0", "2.0", "", "4.0"]
    assert [row["val_loss"] for row in rows(path)] == ["", "", "", "7.0", ""]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.csv"]


def test_the_values_of_one_step_share_a_row_whether_it_grows_or_shrinks(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = MetricsCSV(path)
    logger.log_metrics({"train_loss": 1.0, "val_loss": 0.123456789}, step=0)
    logger.log_metrics({"train_loss": 2.0}, step=1)
    logger.log_metrics({"val_loss": 0.123456789, "epoch": 0}, step=1)
    logger.log_metrics({"val_loss": 0.5}, step=1)
    logger.log_metrics({"train_loss": 3.0}, step=2)
    assert path.read_text() == "epoch,step,train_loss,val_loss\n,0,1.0,0.123456789\n0,1,2.0,0.5\n,2,3.0,\n"


def test_a_resumed_run_drops_the_rows_it_will_log_again(tmp_path):
    path = tmp_path / "metrics.csv"
    first = MetricsCSV(path)
    for step in (9, 19, 29, 39):
        first.log_metrics({"train_loss": step, "epoch": 0}, step=step)
    second = MetricsCSV(path)
    second.resume_from(25)
    assert [row["step"] for row in rows(path)] == ["9", "19"]
    second.log_metrics({"train_loss": -1, "epoch": 0}, step=29)
    third = MetricsCSV(path)
    third.log_metrics({"train_loss": -2, "val_loss": 1, "epoch": 0}, step=29)
    assert [(row["step"], row["train_loss"]) for row in rows(path)] == [("9", "9.0"), ("19", "19.0"), ("29", "-2.0")]


def test_a_half_written_last_line_is_dropped_at_resume(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss\n0,0,1.0\n0,1,2.")
    logger = MetricsCSV(path)
    logger.log_metrics({"train_loss": 3.0, "epoch": 0}, step=2)
    assert path.read_text() == "epoch,step,train_loss\n0,0,1.0\n0,2,3.0\n"
    path.write_text("epoch,st")
    MetricsCSV(path).log_metrics({"epoch": 0}, step=0)
    assert path.read_text() == "epoch,step\n0,0\n"


def test_every_row_survives_a_kill(tmp_path):
    path = tmp_path / "metrics.csv"
    script = (
        "import sys, itertools, pathlib\n"
        "from etesian.training.metrics_csv import MetricsCSV\n"
        "logger = MetricsCSV(pathlib.Path(sys.argv[1]))\n"
        "for step in itertools.count():\n"
        "    logger.log_metrics({'train_loss': step, 'epoch': 0}, step=step)\n"
        "    print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    seen = [int(process.stdout.readline()) for _ in range(50)]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    MetricsCSV(path).resume_from(10**9)
    steps = [int(row["step"]) for row in rows(path)]
    assert steps == list(range(len(steps)))
    assert len(steps) >= len(seen)


def test_a_file_that_is_no_history_is_left_alone(tmp_path):
    path = tmp_path / "metrics.csv"
    for text, message in (("a,b\n1,2\n", "no history"), ("epoch,step,x\n0,0\n0,1,2\n", "line 2")):
        path.write_text(text)
        with pytest.raises(UserError, match=message) as caught:
            MetricsCSV(path).log_metrics({"x": 1.0}, step=5)
        assert caught.value.problems[0].where == str(path)
        assert path.read_text() == text


def test_steps_are_needed_and_do_not_go_back(tmp_path):
    logger = MetricsCSV(tmp_path / "metrics.csv")
    with pytest.raises(ValueError, match="needs the step"):
        logger.log_metrics({"x": 1.0})
    logger.log_metrics({"x": 1.0}, step=5)
    with pytest.raises(ValueError, match="step 4 comes after step 5"):
        logger.log_metrics({"x": 1.0}, step=4)
