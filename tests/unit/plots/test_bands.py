import numpy as np
import pytest
from matplotlib.image import imread

from etesian.plots.bands import plot_loss_bands


@pytest.mark.parametrize("names", [1, 12])
def test_bands_are_drawn_with_few_and_many_curves(tmp_path, names):
    low = np.exp(-np.arange(20) / 5)
    curves = {f"setting {number}": low * (1.1 + number / 100) for number in range(names)}
    drawn = plot_loss_bands(
        tmp_path / "bands.png", low=low, high=1.3 * low, window=5, room=0.1, tolerance=1e-5, curves=curves,
        differences={"setting 0": np.array([0.0, 1e-7, 2e-3])},
    )  # fmt: skip
    assert imread(drawn)[..., :3].std() > 0.05
