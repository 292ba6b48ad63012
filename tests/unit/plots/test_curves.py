import numpy as np
import pytest
from matplotlib.image import imread

from etesian.inference.scores import Scores
from etesian.plots.curves import _beyond, _spans_a_decade, plot_losses, plot_scores, read_history


def write(path, text):
    path.write_text(text)
    return path


def test_history_has_the_steps_of_each_column(tmp_path):
    text = "epoch,step,train_loss,val_loss\n0,0,2.5,\n0,10,1.5,1.75\n1,20,nan,\n"
    history = read_history(write(tmp_path / "metrics.csv", text))
    assert history["train_loss"][0].tolist() == [0, 10, 20]
    np.testing.assert_array_equal(history["train_loss"][1], [2.5, 1.5, np.nan])
    assert [column.tolist() for column in history["val_loss"]] == [[10], [1.75]]


def test_a_cut_last_line_is_not_read_and_another_file_is_refused(tmp_path):
    history = read_history(write(tmp_path / "metrics.csv", "epoch,step,train_loss\n0,0,2.5\n0,1"))
    assert history["train_loss"][0].tolist() == [0]
    with pytest.raises(ValueError, match="no column 'step'"):
        read_history(write(tmp_path / "other.csv", "a,b\n1,2\n"))


def series(count, first=0, every=10):
    steps = first + every * np.arange(count, dtype=float)
    return steps, 3 * np.exp(-steps / 300) + 0.1


@pytest.mark.parametrize(
    "history",
    [
        {"train_loss": series(300), "val_loss": series(10, 99, 300), "lr": series(300)},
        {"train_loss": series(1)},
        {"train_loss": series(5), "val_loss": (np.array([]), np.array([])), "lr": series(5)},
    ],
)
def test_losses_are_drawn_for_long_and_short_runs(tmp_path, history):
    image = imread(plot_losses(history, tmp_path / "loss.png"))
    assert image[..., :3].std() > 0.05


def test_a_history_without_the_training_loss_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'train_loss'"):
        plot_losses({"val_loss": series(3)}, tmp_path / "loss.png")
    assert list(tmp_path.iterdir()) == []


def test_the_scale_is_logarithmic_over_a_decade_of_positive_values():
    assert _spans_a_decade(np.array([10.0, 1.0, np.nan]))
    assert not _spans_a_decade(np.array([9.0, 1.0]))
    assert not _spans_a_decade(np.array([10.0, 0.0]))
    assert not _spans_a_decade(np.array([np.nan]))


@pytest.mark.parametrize("lead_times", [("6 h",), ("6 h", "12 h", "18 h")])
def test_scores_are_drawn_for_chosen_variables(tmp_path, lead_times):
    scores = Scores(("model", "persistence", "climatology"), ("t", "u", "v", "w"), lead_times, [1.0], {"t": "K"})
    truth = np.zeros((1, len(lead_times), 1, 1, 4))
    scores.add({name: truth + 1.0 + position for position, name in enumerate(scores.sources)}, truth)
    every = imread(plot_scores(scores.table(), tmp_path / "all.png"))
    one = imread(plot_scores(scores.table(), tmp_path / "one.png", ["u"]))
    assert every.shape[0] > one.shape[0]
    assert every[..., :3].std() > 0.05
    with pytest.raises(ValueError, match="no scores of x"):
        plot_scores(scores.table(), tmp_path / "x.png", ["t", "x"])
    with pytest.raises(ValueError, match="any variable"):
        plot_scores(scores.table(), tmp_path / "x.png", [])


def test_a_source_that_would_squeeze_the_others_is_cut_off():
    values = np.array([[1.0, 1.2], [3.0, 6.0], [1.5, np.nan]])
    assert _beyond(values) == (1, pytest.approx(1.25 * 1.5))
    assert _beyond(values[:, :1] * [[1.0], [0.7], [1.0]]) == (1, None)  # 2.1 beside 1.5
    assert _beyond(values[:1]) == (0, None)
    assert _beyond(np.full((2, 2), np.nan))[1] is None
