"""Power spectra of truth, forecast and error: a row for each variable, a column for each lead time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from etesian.inference.spectra import Spectra
from etesian.plots import style

_STYLES = {
    "truth": {"color": "0.15", "linewidth": 2.6}, "forecast": {"color": "#0072B2", "linewidth": 1.6},
    "error": {"color": "#D55E00", "linewidth": 1.4, "linestyle": (0, (4, 2))},
}  # fmt: skip
_FEW = 40  # wavenumbers that can be labelled 1, 2, 5, 10, 20


def plot_spectra(
    spectra: Spectra, names: Sequence[str], lead_times: Sequence[str], units: Mapping[str, str], path: Path
) -> Path:
    """Draw the mean power by total wavenumber, from 1: the mean over the sphere is left out.

    Parameters
    ----------
    spectra : Spectra
        Of the variables `names` at the lead times `lead_times`.
    names, lead_times : sequence of str
        Labels of rows and columns.
    units : mapping of str to str
        Units of the variables.
    path : Path
        The PNG, replaced if it is there.
    """
    mean, truncation = spectra.mean, spectra.transform.truncation
    wavenumbers = np.arange(1, truncation + 1)
    with style.figure(max(6.5, 4.0 * len(lead_times)), 2.7 * len(names) + 1.2) as drawing:
        grid = drawing.subplots(len(names), len(lead_times), squeeze=False, sharex=True, sharey="row")
        for column, (row, name) in enumerate(zip(grid, names, strict=True)):
            for lead, axes in enumerate(row):
                style.tidy(axes)
                for which, field in enumerate(Spectra.NAMES):
                    power = mean[which, lead, column, 1:]
                    axes.loglog(wavenumbers, np.where(power > 0, power, np.nan), label=field, **_STYLES[field])
                axes.set_title(f"{name}, {lead_times[lead]}", loc="left")
                if truncation <= _FEW:
                    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                    axes.xaxis.set_minor_formatter(NullFormatter())
                    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            row[0].set_ylabel(f"power [{_squared(units[name])}]" if units.get(name) else "power")
        for axes in grid[-1]:
            axes.set_xlabel("total wavenumber n")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3)
        drawing.suptitle(f"Power spectra on the sphere, spherical harmonics to n = {truncation}")
        return style.save(drawing, path)


def _squared(units: str) -> str:
    pretty = style.pretty_units(units)
    return f"({pretty})²" if not pretty.isalpha() else f"{pretty}²"
