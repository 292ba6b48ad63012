"""Names, units and sizes of the variables of a synthetic store: those that reanalyses have, and as many as asked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from etesian.data.forcings import OF_HOUR, OF_PLACE, OF_SEASON

Role = Literal["prognostic", "forcing", "diagnostic"]


@dataclass(frozen=True)
class Field:
    """One variable.

    Attributes
    ----------
    name : str
        Name in the store.
    role : str
        ``prognostic``, ``forcing`` or ``diagnostic``.
    units : str
        As the store's metadata give them.
    mean, stdev : float
        Of the field before it is cut off at `low` and `high`.
    low, high : float
        What it never goes beyond.
    computed : bool
        A forcing that follows from place and date.
    constant : bool
        The same at every date.
    level : int or None
        Pressure level, hPa.
    """

    name: str
    role: Role
    units: str = "1"
    mean: float = 0.0
    stdev: float = 1.0
    low: float = -math.inf
    high: float = math.inf
    computed: bool = False
    constant: bool = False
    level: int | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """What the store says of it."""
        entry: dict[str, Any] = {"units": self.units, "constant_in_time": self.constant}
        if self.computed:
            return entry | {"computed_forcing": True}
        if self.level is not None:
            return entry | {"mars": {"param": self.name.partition("_")[0], "levtype": "pl", "levelist": self.level}}
        entry["mars"] = {"param": self.name, "levtype": "sfc"}
        if self.name in _ACCUMULATED:
            entry |= {"process": "accumulation", "period": [0, 6]}
        return entry


_LEVELS = (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000)
_MORE_LEVELS = (1, 2, 3, 5, 7, 10, 20, 30, 70, 125, 175, 225, 350, 450, 550, 650, 750, 775, 800, 825, 875, 900)
_UPPER_AIR = {"q": "kg kg-1", "t": "K", "u": "m s-1", "v": "m s-1", "w": "Pa s-1", "z": "m2 s-2"}
_ACCUMULATED = ("tp", "cp", "sf", "ro", "ssrd", "strd")

_SURFACE = (
    Field("10u", "prognostic", "m s-1", 0.0, 5.5), Field("10v", "prognostic", "m s-1", 0.0, 4.8),
    Field("2d", "prognostic", "K", 274.0, 20.0), Field("2t", "prognostic", "K", 279.0, 21.0),
    Field("msl", "prognostic", "Pa", 101_000.0, 1_300.0), Field("skt", "prognostic", "K", 279.0, 22.0),
    Field("sp", "prognostic", "Pa", 97_000.0, 6_000.0),
    Field("tcw", "prognostic", "kg m-2", 18.0, 16.0, low=0.0),
)  # fmt: skip
_CONSTANT = (
    Field("lsm", "forcing", "1", 0.3, 1.5, 0.0, 1.0, constant=True),
    Field("z", "forcing", "m2 s-2", 500.0, 8_000.0, low=0.0, constant=True),
    Field("sdor", "forcing", "m", 20.0, 60.0, low=0.0, constant=True),
    Field("slor", "forcing", "1", 0.003, 0.01, low=0.0, constant=True),
    Field("anor", "forcing", "rad", 0.0, 1.0, constant=True),
    Field("isor", "forcing", "1", 0.5, 0.25, 0.0, 1.0, constant=True),
    Field("sdfor", "forcing", "m", 10.0, 30.0, low=0.0, constant=True),
    Field("slt", "forcing", "1", 2.0, 2.0, 0.0, 7.0, constant=True),
    Field("cl", "forcing", "1", 0.1, 0.5, 0.0, 1.0, constant=True),
    Field("dl", "forcing", "m", 500.0, 1_500.0, low=0.0, constant=True),
    Field("cvh", "forcing", "1", 0.2, 0.5, 0.0, 1.0, constant=True),
    Field("cvl", "forcing", "1", 0.2, 0.5, 0.0, 1.0, constant=True),
    Field("tvh", "forcing", "1", 6.0, 8.0, low=0.0, constant=True),
    Field("tvl", "forcing", "1", 4.0, 6.0, low=0.0, constant=True),
)
_DIAGNOSTIC = (
    Field("tp", "diagnostic", "m", 0.0006, 0.0017, low=0.0), Field("cp", "diagnostic", "m", 0.0003, 0.0009, low=0.0),
    Field("sf", "diagnostic", "m", 0.0001, 0.0004, low=0.0), Field("tcc", "diagnostic", "1", 0.6, 0.4, 0.0, 1.0),
    Field("ro", "diagnostic", "m", 0.0001, 0.0006, low=0.0),
    Field("ssrd", "diagnostic", "J m-2", 4.0e6, 5.0e6, low=0.0), Field("strd", "diagnostic", "J m-2", 6.5e6, 1.8e6),
    Field("hcc", "diagnostic", "1", 0.3, 0.4, 0.0, 1.0), Field("mcc", "diagnostic", "1", 0.3, 0.4, 0.0, 1.0),
    Field("lcc", "diagnostic", "1", 0.4, 0.4, 0.0, 1.0), Field("100u", "diagnostic", "m s-1", 0.0, 7.5),
    Field("100v", "diagnostic", "m s-1", 0.0, 6.5),
)  # fmt: skip


def choose(prognostic: int, forcing: int, diagnostic: int) -> tuple[Field, ...]:
    """Return so many variables of each role, the usual ones first."""
    counts = ((_prognostic(), prognostic), (_forcing(), forcing), (_diagnostic(), diagnostic))
    return tuple(chain.from_iterable(islice(fields, count) for fields, count in counts))


def by_name(names: Sequence[str], roles: dict[str, Role] | None = None) -> tuple[Field, ...]:
    """Return variables by their names, in that order; one that is not known is prognostic, of mean 0.

    Parameters
    ----------
    names : sequence of str
        Any names.
    roles : dict, optional
        Roles of those that are not known.
    """
    known = {field.name: field for field in (*_SURFACE, *_computed(), *_CONSTANT, *_DIAGNOSTIC)}
    return tuple(known.get(name) or _level_of(name) or Field(name, (roles or {}).get(name, "prognostic"))
                 for name in names)  # fmt: skip


def _prognostic() -> Iterator[Field]:
    yield from _SURFACE
    for levels in (_LEVELS, _MORE_LEVELS):
        for name in _UPPER_AIR:
            yield from (_upper_air(name, level) for level in levels)
    yield from _numbered("prognostic")


def _forcing() -> Iterator[Field]:
    yield from _computed()
    yield from _CONSTANT
    for number in _count():
        yield Field(f"constant_{number}", "forcing", constant=True)


def _diagnostic() -> Iterator[Field]:
    yield from _DIAGNOSTIC
    yield from _numbered("diagnostic")


def _computed() -> tuple[Field, ...]:
    names = (*OF_PLACE, *OF_SEASON, *OF_HOUR)
    return tuple(Field(name, "forcing", computed=True, constant=name in OF_PLACE) for name in names)


def _numbered(role: Role) -> Iterator[Field]:
    for number in _count():
        yield Field(f"{role}_{number}", role)


def _count() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def _level_of(name: str) -> Field | None:
    """Return the variable of a name such as ``t_850``."""
    found = re.fullmatch(r"([a-z]+)_([1-9][0-9]{0,3})", name)
    if found is None or found[1] not in _UPPER_AIR or int(found[2]) > 1100:
        return None
    return _upper_air(found[1], int(found[2]))


def _upper_air(name: str, level: int) -> Field:
    """Return a variable on a pressure level, of about the size that it has there."""
    depth = level / 1000.0
    sizes = {
        "q": (7e-3 * depth**3, 5e-3 * depth**3 + 1e-7),
        "t": (210.0 + 72.0 * depth**1.5, 8.0 + 8.0 * depth),
        "u": (10.0 * (1.0 - depth) + 0.5, 6.0 + 10.0 * (1.0 - depth)),
        "v": (0.0, 5.0 + 6.0 * (1.0 - depth)),
        "w": (0.0, 0.15),
        "z": (9.81 * 7500.0 * math.log(1.0 / depth) + 800.0, 1_000.0 + 3_000.0 * (1.0 - depth)),
    }
    mean, stdev = sizes[name]
    low = 0.0 if name == "q" else -math.inf
    return Field(f"{name}_{level}", "prognostic", _UPPER_AIR[name], mean, max(stdev, 1e-8), low, level=level)
