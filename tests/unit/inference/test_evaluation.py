"""Forecasts over a period with known answers: a constant bias, persistence itself, the truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

from etesian.data.period import Spacing
from etesian.data.sampler import GlobalBatchSampler
from etesian.data.variables import Variables
from etesian.data.windows import WindowDataset
from etesian.inference.climatology import fit_climatology
from etesian.inference.evaluation import FieldErrors, FirstForecast, at_least_float32, score_batches
from etesian.inference.references import ReferenceSet, fit_damped_persistence
from etesian.inference.score_files import About, write_csv, write_maps, write_scores
from etesian.inference.scores import MODEL, Scores, ScoreTable

VARIABLES = Variables(("t", "forcing", "q"), forcing=("forcing",))
LEADS, FIRST, POINTS = 3, 2, 5
WEIGHTS = np.array([1.0, 2.0, 3.0, 2.0, 1.0])


class Store:
    """Thirty months on five points."""

    def __init__(self) -> None:
        self.variables, self.missing = list(VARIABLES.names), {11}
        self.dates = (np.datetime64("2000-01", "M") + np.arange(30)).astype("datetime64[s]")
        self.data = np.random.default_rng(0).normal(280.0, 5.0, (30, 3, 1, POINTS)).astype(np.float32)
        self.shape = self.data.shape
        self.latitudes, self.longitudes = np.linspace(-60, 60, POINTS), np.linspace(0, 300, POINTS)

    def __len__(self) -> int:
        return len(self.dates)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.data[index]


def score(states: Any, observers: Any = (), batch: int = 4) -> tuple[ScoreTable, WindowDataset]:
    """Score what `states` makes of windows x [B, T, E, G, V], beside all references."""
    store: Any = Store()
    windows = WindowDataset(store, FIRST, LEADS)
    climatology = fit_climatology(store, "monthly", VARIABLES.output)
    references = ReferenceSet(climatology, fit_damped_persistence(store, climatology, [1, 2, 3]))
    scores = Scores(
        (MODEL, *references.names), VARIABLES.output, ("1 month", "2 months", "3 months"), WEIGHTS, {"t": "K"}
    )
    order = GlobalBatchSampler(len(windows), batch, 0, 1, seed=0, shuffle=False, pad=True)
    batches = (windows.__getitems__(indices) for indices in order)
    score_batches(batches, windows.dates, states, VARIABLES, FIRST, references, scores, observers)
    return scores.table(), windows


def biased(x: Tensor, bias: float = 2.0) -> Iterator[Tensor]:
    for lead in range(LEADS):
        yield x[:, FIRST + lead][..., VARIABLES.data_output] + bias


def persisted(x: Tensor) -> Iterator[Tensor]:
    for _ in range(LEADS):
        yield x[:, FIRST - 1][..., VARIABLES.data_output]


def test_a_constant_bias_is_every_score() -> None:
    errors, first = FieldErrors([0, 2], [1], POINTS), FirstForecast([0, 2], [1])
    table, windows = score(biased, [errors, first])
    np.testing.assert_allclose([table.rmse[0], table.mae[0], table.bias[0]], 2.0, rtol=1e-6)
    np.testing.assert_allclose(table.acc[0], 1.0, rtol=1e-5)
    assert table.forecasts == len(windows) == 21  # none of the five windows with the missing date, no padding
    assert (table.samples == 21).all()
    np.testing.assert_allclose(errors.bias, np.full((2, 1, POINTS), 2.0), rtol=1e-6)
    np.testing.assert_allclose(errors.rmse, 2.0, rtol=1e-6)
    store = Store()
    np.testing.assert_array_equal(first.truth[2], store.data[4, [2], 0])
    np.testing.assert_array_equal(first.initial[0], store.data[1, [2], 0])
    assert first.dates[2] == store.dates[4]


def test_persistence_scores_as_persistence_and_climatology_correlates_with_nothing() -> None:
    table, _ = score(persisted)
    for name in ("rmse", "mae", "bias", "acc"):
        values = getattr(table, name)
        np.testing.assert_array_equal(values[0], values[table.sources.index("persistence")])
    assert np.isnan(table.acc[table.sources.index("climatology")]).all()
    assert np.isfinite(table.acc[table.sources.index("damped_persistence")]).all()


def test_the_size_of_a_batch_does_not_matter() -> None:
    one, other = score(persisted, batch=1)[0], score(persisted, batch=21)[0]
    for name in ("rmse", "mae", "bias", "acc"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)


def test_states_are_asked_for_one_by_one_and_are_at_least_of_32_bits() -> None:
    made: list[int] = []

    def states() -> Iterator[Tensor]:
        for number, dtype in enumerate((torch.bfloat16, torch.float32, torch.float64)):
            made.append(number)
            yield torch.zeros(1, dtype=dtype)

    found = at_least_float32(states(), nullcontext)
    assert (next(found).dtype, made) == (torch.float32, [0])
    assert [state.dtype for state in found] == [torch.float32, torch.float64]


@pytest.mark.parametrize(("step", "expected"), [(Spacing(months=1), [1, 3]), (Spacing(seconds=21600), [6.0, 18.0])])
def test_the_files_hold_every_score_with_units(tmp_path: Path, step: Spacing, expected: list[float]) -> None:
    errors = FieldErrors([0, 2], [0, 1], POINTS)
    table, windows = score(biased, [errors])
    metadata = {"t": {"units": "K", "mars": {"param": "t", "levtype": "pl", "levelist": 850}}}
    about = About(step, metadata, {"run": "run small", "climatology": "monthly"})
    write_scores(table, about, tmp_path / "scores.nc")
    write_csv(table, tmp_path / "scores.csv")
    write_maps(errors, ("t", "q"), windows.dataset.latitudes, windows.dataset.longitudes, about, tmp_path / "maps.nc")
    with xr.open_dataset(tmp_path / "scores.nc", decode_timedelta=False) as found:
        assert found.attrs["Conventions"] == "CF-1.11"
        assert found.t_bias.attrs["long_name"] == "mean error (forecast minus truth) of t at 850 hPa"
        assert (found.t_rmse.attrs["units"], found.t_acc.attrs["units"]) == ("K", "1")
        assert found.t_rmse.attrs["units_metadata"] == "temperature: difference"
        assert "units" not in found.q_rmse.attrs
        np.testing.assert_array_equal(found.q_mae.sel(source="persistence"), table.mae[1, :, 1])
        assert found.t_forecasts.values.tolist() == [21, 21, 21]
    with xr.open_dataset(tmp_path / "maps.nc", decode_timedelta=False) as found:
        assert found.lead_time.values.tolist() == expected
        assert found.t_bias.dims == ("lead_time", "point")
        np.testing.assert_allclose(found.t_bias, 2.0, rtol=1e-5)
    rows = (tmp_path / "scores.csv").read_text().splitlines()
    assert rows[0] == "variable,units,lead_time,source,rmse,mae,bias,acc,forecasts"
    assert len(rows) == 1 + 2 * LEADS * 4
    assert rows[4].startswith("t,K,1 month,climatology,")
    assert rows[4].endswith(",,21")  # no anomaly correlation
