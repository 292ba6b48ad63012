"""Pictures of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from etesian.data.grids import named_grid
from etesian.inference.evaluation import LeadTime
from etesian.inference.scores import Scores, ScoreTable
from etesian.inference.spectra import RowTransform, Spectra
from etesian.plots.error_maps import plot_error_maps
from etesian.plots.measures import _draw_panel, plot_measures
from etesian.plots.projection import make_frame
from etesian.plots.spectra import _squared, plot_spectra

GRID = named_grid("regular-10deg")


def table(persistence: float, leads: int = 3) -> ScoreTable:
    labels = tuple(f"{6 * lead + 6} h" for lead in range(leads))
    scores = Scores(("model", "persistence", "climatology"), ("t", "u"), labels, np.ones(4), {"t": "K"})
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn((2, leads, 1, 4, 2), generator=generator)
    scores.add({"model": truth + 1.0, "persistence": truth + persistence, "climatology": truth * 0.1 + 1.5}, truth)
    return scores.table()


@pytest.mark.parametrize(("persistence", "cut"), [(40.0, True), (1.6, False)])
def test_persistence_does_not_press_the_other_curves_together(persistence: float, cut: bool) -> None:
    axes = Figure().subplots()
    _draw_panel(axes, table(persistence), "rmse", 0)
    highest_other = float(table(persistence).rmse[[0, 2], :, 0].max())
    assert axes.get_ylim()[0] == 0.0
    assert highest_other < axes.get_ylim()[1] < 2.0 * highest_other
    texts = [text.get_text() for text in axes.texts]
    assert texts == (["persistence: 40.00"] if cut else [])


def test_scores_of_one_and_of_several_lead_times(tmp_path: Path) -> None:
    for leads in (1, 3):
        path = plot_measures(table(3.0, leads), tmp_path / f"{leads}.png", ["t", "u"], "2000")
        assert imread(path).std() > 0.05


def test_error_maps(tmp_path: Path) -> None:
    frame, points = make_frame(GRID.latitudes, GRID.longitudes), GRID.latitudes.size
    bias = np.random.default_rng(0).normal(size=(2, points))
    bias[1, :9] = np.nan
    path = plot_error_maps("t", "K", ["6 h", "12 h"], bias, np.abs(bias), np.ones(points), frame, tmp_path / "t.png")
    assert imread(path).std() > 0.05


def test_spectra(tmp_path: Path) -> None:
    spectra = Spectra(RowTransform(GRID.latitudes, GRID.longitudes), [0], [0])
    truth = torch.randn((1, 1, GRID.latitudes.size, 1), generator=torch.Generator().manual_seed(0))
    spectra.add(LeadTime(0, 0.5 * truth, truth, truth, np.array(["2000-01-01"], dtype="datetime64[s]")))
    assert imread(plot_spectra(spectra, ["t"], ["6 h"], {"t": "K"}, tmp_path / "s.png")).std() > 0.03
    assert [_squared(units) for units in ("K", "m s**-1")] == ["K²", "(m s⁻¹)²"]
