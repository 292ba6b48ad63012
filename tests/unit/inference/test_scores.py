import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from etesian.inference.score_table import format_value, lead_labels, measures_table, scores_table, scores_to_json
from etesian.inference.scores import Scores

WEIGHTS = np.array([1.0, 2.0, 0.5])
SOURCES = ("model", "persistence", "climatology")


def make(sources=SOURCES, variables=("t", "u"), lead_times=("6 h", "12 h"), units=None):
    return Scores(sources, variables, lead_times, WEIGHTS, units)


def batch(size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (size, 2, 2, 3, 2)
    return {name: torch.randn(shape, generator=generator) for name in SOURCES}, torch.randn(shape, generator=generator)


def test_scores_are_the_weighted_means_of_the_errors():
    scores = make()
    forecasts, truth = batch()
    scores.add(forecasts, truth)
    table = scores.table()
    error = (forecasts["persistence"].double() - truth.double())[:, 1, :, :, 0].numpy()  # [B, E, G]
    weights = np.broadcast_to(WEIGHTS, error.shape)
    assert table.rmse[1, 1, 0] == pytest.approx(np.sqrt(np.average(error**2, weights=weights)), rel=1e-12)
    assert table.mae[1, 1, 0] == pytest.approx(np.average(np.abs(error), weights=weights), rel=1e-12)
    assert table.bias[1, 1, 0] == pytest.approx(np.average(error, weights=weights), rel=1e-12)


def test_the_split_over_batches_ranks_and_grid_does_not_matter():
    forecasts, truth = batch(size=6)
    whole = make()
    whole.add(forecasts, truth)
    halves = [make(), make()]
    for half, rows in zip(halves, (slice(0, 2), slice(2, 6)), strict=True):
        half.add({name: field[rows] for name, field in forecasts.items()}, truth[rows])
    halves[0].merge(halves[1])
    parts = [Scores(SOURCES, ("t", "u"), ("6 h", "12 h"), WEIGHTS[points]) for points in (slice(0, 1), slice(1, 3))]
    for part, points in zip(parts, (slice(0, 1), slice(1, 3)), strict=True):
        part.add({name: field[..., points, :] for name, field in forecasts.items()}, truth[..., points, :])
    reduced = make()
    reduced.load(parts[0].packed() + parts[1].packed())
    for other in (halves[0], reduced):
        np.testing.assert_allclose(other.table().rmse, whole.table().rmse, rtol=1e-13)
        np.testing.assert_allclose(other.table().bias, whole.table().bias, rtol=1e-11)
    assert halves[0].table().forecasts == whole.table().forecasts == 6


def test_padding_counts_for_nothing_even_where_it_is_nan():
    forecasts, truth = batch()
    padded = {name: torch.cat([field, field[:1] * torch.nan]) for name, field in forecasts.items()}
    one, other = make(), make()
    one.add(forecasts, truth)
    other.add(padded, torch.cat([truth, truth[:1]]), [1.0, 1.0, 1.0, 1.0, 0.0])
    np.testing.assert_array_equal(one.table().rmse, other.table().rmse)
    assert other.table().forecasts == 4
    with pytest.raises(ValueError, match="sample weights"):
        other.add(forecasts, truth, [0.5, 1, 1, 1])


def test_all_sources_are_compared_where_truth_and_references_have_a_value():
    forecasts, truth = batch()
    truth[:, :, :, 0] = torch.nan
    forecasts["climatology"][:, :, :, 1, 0] = torch.nan
    scores = make()
    scores.add(forecasts, truth)
    error = (forecasts["model"].double() - truth)[:, 0, :, 2, 0]
    assert scores.table().rmse[0, 0, 0] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-12)
    assert np.isfinite(scores.table().rmse).all()


def test_a_nan_of_the_model_is_not_hidden():
    forecasts, truth = batch()
    forecasts["model"][0, 0, 0, 0, 0] = torch.nan
    scores = make()
    scores.add(forecasts, truth)
    table = scores.table()
    assert np.isnan(table.rmse[0, 0, 0])
    assert np.isfinite(table.rmse).sum() == table.rmse.size - 1
    assert np.isnan(table.skill(0, 0))
    assert np.isfinite(table.skill(1, 0))


def test_a_climatology_of_one_member_is_broadcast_and_nothing_at_all_is_nan():
    forecasts, truth = batch()
    forecasts["climatology"] = forecasts["climatology"][:, :, :1]
    scores = make()
    assert np.isnan(scores.table().rmse).all()
    scores.add({name: field.numpy() for name, field in forecasts.items()}, truth.numpy())
    error = (forecasts["climatology"].double() - truth)[:, 0, :, :, 1].numpy()
    expected = np.sqrt(np.average(error**2, weights=np.broadcast_to(WEIGHTS, error.shape)))
    assert scores.table().rmse[2, 0, 1] == pytest.approx(expected, rel=1e-12)


def test_small_errors_of_large_values_keep_their_digits():
    truth = torch.full((1, 1, 1, 3, 1), 101325.0)
    scores = Scores(("model",), ("p",), ("6 h",), WEIGHTS)
    for _ in range(1000):
        scores.add({"model": truth + 0.125}, truth)
    assert scores.table().rmse.item() == pytest.approx(0.125, rel=1e-12)


def test_what_does_not_fit_is_refused():
    forecasts, truth = batch()
    with pytest.raises(ValueError, match="expected forecasts of"):
        make().add({"model": forecasts["model"]}, truth)
    with pytest.raises(ValueError, match="the truth must be"):
        make().add(forecasts, truth[..., :2, :])
    with pytest.raises(ValueError, match="cannot be merged"):
        make().merge(make(variables=("t", "v")))
    with pytest.raises(ValueError, match="other sources"):
        make().load(torch.zeros(3))
    with pytest.raises(ValueError, match="area weights"):
        Scores(("model",), ("t",), ("6 h",), [1.0, np.nan])


def known():
    scores = make(units={"t": "K"})
    truth = torch.zeros(1, 2, 1, 3, 2)
    scores.add({"model": truth + 1.5, "persistence": truth + 3.0, "climatology": truth + 2.0}, truth)
    return scores.table()


def test_skill_is_measured_against_the_best_reference():
    table = known()
    assert table.best_reference(0, 0) == "climatology"
    assert table.skill(0, 0) == pytest.approx(0.25)
    alone = Scores(("model",), ("t",), ("6 h",), WEIGHTS).table()
    assert alone.best_reference(0, 0) is None
    assert np.isnan(alone.skill(0, 0))


def test_the_table_fits_80_columns_with_every_column_whole():
    scores = Scores(
        ("model", "persistence", "damped_persistence", "climatology"),
        ("air_temperature_at_sigma_0995", "q_850"), ("1 month", "12 months"), WEIGHTS,
        {"air_temperature_at_sigma_0995": "K", "q_850": "kg kg**-1"},
    )  # fmt: skip
    truth = torch.zeros(1, 2, 1, 3, 2)
    scores.add({name: truth + 1.2345e-5 * 10**row for row, name in enumerate(scores.sources)}, truth)
    console = Console(width=80, color_system=None, file=io.StringIO())
    console.print(scores_table(scores.table()))
    text = console.file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for word in (
        "1.234e-05",
        "0.001234",
        "12 months",
        "persistence",
        "climatology",
        "damped",
        "+90.0%",
        "over 1 forecast;",
    ):
        assert word in text
    assert "…" not in text


def test_json_holds_every_score_and_no_nan():
    tree = json.loads(json.dumps(scores_to_json(known()), allow_nan=False))
    entry = tree["variables"]["t"]["lead_times"]["12 h"]
    assert entry["model"] == {"rmse": 1.5, "mae": 1.5, "bias": 1.5, "acc": None}
    assert entry["best_reference"] == "climatology"
    assert entry["skill"] == pytest.approx(0.25)
    assert tree["variables"]["t"]["units"] == "K"
    assert tree["variables"]["u"]["units"] is None
    assert tree["forecasts"] == 1
    empty = scores_to_json(make().table())
    assert empty["variables"]["t"]["lead_times"]["6 h"]["model"]["rmse"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.43123, "1.431"), (98765.4, "98765"), (123456.0, "1.235e+05"), (0.0, "0"), (0.00123456, "0.001235"),
     (1.5e-6, "1.500e-06"), (float("nan"), "nan"), (9.9996, "10.00")],
)  # fmt: skip
def test_four_significant_digits(value, text):
    assert format_value(value) == text


def test_lead_times_are_named_in_the_units_of_the_dates():
    months = np.arange(np.datetime64("2000-01", "M"), np.datetime64("2001-01", "M"))
    hours = np.datetime64("2000-01-01T00") + np.arange(5) * np.timedelta64(6, "h")
    days = np.datetime64("2000-01-01") + np.arange(40)
    assert lead_labels(months, 1, 2) == ("1 month", "2 months")
    assert lead_labels(hours, 2, 3) == ("12 h", "24 h", "36 h")
    assert lead_labels(days, 1, 2) == ("1 day", "2 days")


def reference_acc(forecast, truth, climatology, weights):
    """The centred anomaly correlation of one forecast (G,) in float64, as the formula is written."""
    f, o, w = (np.asarray(field, dtype=np.float64) for field in (forecast - climatology, truth - climatology, weights))
    f, o = f - np.average(f, weights=w), o - np.average(o, weights=w)
    return np.sum(w * f * o) / np.sqrt(np.sum(w * f**2) * np.sum(w * o**2))


def test_the_anomaly_correlation_is_the_mean_of_that_of_each_forecast():
    forecasts, truth = batch(size=3)
    forecasts["climatology"] = forecasts["climatology"][:1, :, :1].expand(3, 2, 1, 3, 2)
    scores = make()
    scores.add(forecasts, truth)
    values = [
        reference_acc(forecasts["model"][b, 1, e, :, 0].double().numpy(), truth[b, 1, e, :, 0].double().numpy(),
                      forecasts["climatology"][b, 1, 0, :, 0].double().numpy(), WEIGHTS)
        for b in range(3) for e in range(2)
    ]  # fmt: skip
    table = scores.table()
    assert table.acc[0, 1, 0] == pytest.approx(np.mean(values), rel=1e-12)
    assert (table.samples == 3).all()


def test_the_anomaly_correlation_of_truth_is_one_and_that_of_climatology_none():
    forecasts, truth = batch()
    scores = make()
    scores.add(forecasts | {"model": truth + 5.0, "persistence": 2 * forecasts["climatology"] - truth}, truth)
    acc = scores.table().acc
    np.testing.assert_allclose(acc[0], 1.0, rtol=1e-6)  # a bias that is the same everywhere does not count
    np.testing.assert_allclose(acc[1], -1.0, rtol=1e-6)
    assert np.isnan(acc[2]).all()
    alone = Scores(("model",), ("t", "u"), ("6 h", "12 h"), WEIGHTS)
    alone.add({"model": truth}, truth)
    assert np.isnan(alone.table().acc).all()


def test_anomalies_that_are_rounding_have_no_correlation():
    climatology = torch.full((1, 2, 1, 3, 2), 280.0)
    truth = climatology + torch.tensor([0.0, 3e-5, -3e-5])[:, None]
    scores = make()
    scores.add({"model": truth, "persistence": truth, "climatology": climatology}, truth)
    assert np.isnan(scores.table().acc).all()


def test_samples_are_counted_where_there_is_something_to_compare():
    forecasts, truth = batch()
    truth[:3, 1, :, :, 0] = torch.nan
    scores = make()
    scores.add(forecasts, truth)
    assert scores.table().samples.tolist() == [[4, 4], [1, 4]]
    one = scores.table().select(["u"], [1])
    assert (one.variables, one.lead_times, one.samples.tolist()) == (("u",), ("12 h",), [[4]])
    assert one.rmse.tolist() == scores.table().rmse[:, 1:, 1:].tolist()


def test_the_second_table_fits_80_columns_and_tells_how_many_forecasts():
    forecasts, truth = batch()
    scores = make(
        ("model", "persistence", "climatology"), ("air_temperature_at_sigma_0995", "q"), units={"q": "kg kg**-1"}
    )
    scores.add(forecasts, truth)
    console = Console(width=80, color_system=None, file=io.StringIO())
    console.print(measures_table(scores.table()))
    text = console.file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for word in ("MAE", "bias", "ACC", "persist.", "climat.", "n: forecasts behind each score"):
        assert word in text
    assert "…" not in text
