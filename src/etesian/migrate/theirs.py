"""A config of anemoi-training by its keys, each of which is carried over, changed, dropped or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from etesian.errors import Problem, UserError, did_you_mean
from etesian.interpolation import Leaf, Unset
from etesian.migrate.layouts import simplify

PACKAGE = "anemoi-training"


@dataclass(frozen=True)
class Told:
    """What became of a key, or of all keys under one.

    Attributes
    ----------
    kind : {"carried", "changed", "dropped", "implied"}
        What became of it; what is implied is so here without a key.
    key : str
        The key there.
    given : object
        Its value there; of several keys that were left out their number, as ``5 keys``.
    keys : tuple of str
        The keys there, one or more.
    ours : str
        The key here; empty where it was left out.
    value : object
        The value here.
    why : str
        Why it was changed or left out.
    """

    kind: Literal["carried", "changed", "dropped", "implied"]
    key: str
    given: Any
    keys: tuple[str, ...]
    ours: str = ""
    value: Any = None
    why: str = ""


class Theirs:
    """The keys of a config of anemoi-training, in one layout whatever the release, and what became of them.

    Parameters
    ----------
    leaves : iterable of Leaf
        Every value of the composed config, with its path.
    ours : dict
        A config of this package; what is carried over is set in it.

    Attributes
    ----------
    dataset : str
        Name of the one dataset there.

    Notes
    -----
    Keys are asked for in the layout of :mod:`etesian.migrate.layouts`: one dataset, one encoder, one decoder. What
    is reported has the names of the config itself.
    """

    def __init__(self, leaves: Iterable[Leaf], ours: dict[str, Any]) -> None:
        self.ours, self.told, self.problems = ours, list[Told](), list[Problem]()
        self._leaves, self.dataset = simplify(list(leaves))
        self._open = dict.fromkeys(self._leaves)  # keys of which nothing is told yet, in their order

    def has(self, key: str) -> bool:
        """Tell whether there is such a key, or one under it."""
        return any(True for _ in self._under(key))

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value, a section as nested containers; `default` where there is none.

        A value that is ``???``, or an interpolation that can't be resolved, is noted as a problem.
        """
        if key in self._leaves:
            found = self._leaves[key].value
            if isinstance(found, Unset):
                self._unset(key, found)
                return default
            return found
        names = dict.fromkeys(name.removeprefix(f"{key}.").partition(".")[0] for name in self._under(key))
        if not names:
            return default
        section = {name: self.value(f"{key}.{name}") for name in names}
        return list(section.values()) if all(name.isdigit() for name in names) and self._is_list(key) else section

    def number(self, key: str, default: float = 0) -> Any:
        """Return a number; another value is noted as a problem. `default` where there is none, or null."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            self.refuse(key, "a number")
            return default
        return default if value is None else value

    def listed(self, key: str) -> list[Any]:
        """Return a list, empty for null or where there is none; another value is noted as a problem."""
        value = self.value(key)
        if isinstance(value, list | None):
            return value or []
        self.refuse(key, "a list")
        return []

    def section(self, key: str) -> dict[str, Any]:
        """Return a section, empty for null or where there is none; another value is noted as a problem."""
        value = self.value(key)
        if isinstance(value, dict | None):
            return value or {}
        self.refuse(key, "a mapping")
        return {}

    def is_set(self, key: str) -> bool:
        """Tell whether a key has a value, neither missing nor ``???``."""
        return key in self._leaves and not isinstance(self._leaves[key].value, Unset)

    def names(self, key: str) -> list[str]:
        """Return the names of the keys right under a key, in their order."""
        return list(
            dict.fromkeys(name.removeprefix(f"{key}.").partition(".")[0] for name in self._under(key, own=False))
        )

    def original(self, key: str) -> str:
        """Return how the config itself spells a key of the one layout."""
        found = next(self._under(key), None)
        if found is None:
            return key
        leaf, rest = self._leaves[found], len(found.split(".")) - len(key.split("."))
        return leaf.name(len(leaf.path) - rest) if len(leaf.path) > rest else key

    def carry(self, key: str, ours: str | None = None) -> None:
        """Take a value over as it is; where the key is missing, the default here stays."""
        if not self.has(key):
            return
        value = self.value(key)
        if not (key in self._leaves and isinstance(self._leaves[key].value, Unset)):
            self.set(ours or key, value)
        self._tell("carried", key, ours or key, value)

    def change(self, key: str, ours: str, value: Any, why: str) -> None:
        """Take a value over as another one."""
        self.set(ours, value)
        self._tell("changed", key, ours, value, why)

    def carry_as(self, key: str, ours: str, value: Any, why: str = "") -> None:
        """Take a value over that has to be written otherwise here; it is carried where `why` is empty."""
        self.set(ours, value)
        self._tell("changed" if why else "carried", key, ours, value, why)

    def drop(self, key: str, why: str) -> None:
        """Leave out a key, or all that are left under it: what they ask for is not there."""
        if any(name in self._open for name in self._under(key)):
            self._tell("dropped", key, "", None, why)

    def imply(self, key: str, why: str) -> None:
        """Leave out a key, or all that are left under it: it is so here without a key, or another key has it."""
        if any(name in self._open for name in self._under(key)):
            self._tell("implied", key, "", None, why)

    def expect(self, key: str, allowed: Iterable[Any], why: str, default: Any = None) -> Any:
        """Leave out a key that has one of the values `allowed`, which is so here; refuse it otherwise.

        Returns
        -------
        object
            Its value.
        """
        value, allowed = self.value(key, default), list(allowed)
        if self.has(key) and value not in allowed:
            self.refuse(key, " or ".join(_show(entry) for entry in allowed))
        self.imply(key, why)
        return value

    def refuse(self, key: str, allowed: str, mend: str | None = None) -> None:
        """Note a value that can't be represented here."""
        shown = f"={_show(self.value(key))}" if key in self._leaves else ""
        name = self.original(key)
        self.problems.append(Problem(f"{name}{shown} has no counterpart here", name, allowed, mend))
        self._tell("dropped", key, "", None, "refused")

    def only(self, key: str, known: Iterable[str]) -> None:
        """Note the keys right under a key that are none of those known."""
        known = ["_target_", *known]
        for name in self.names(key):
            if name not in known:
                self._unknown(f"{key}.{name}", [f"{self.original(key)}.{one}" for one in known])

    def set(self, ours: str, value: Any) -> None:
        """Set a value of the config of this package."""
        *sections, name = ours.split(".")
        tree = self.ours
        for section in sections:
            if not isinstance(tree.get(section), dict):
                tree[section] = {}
            tree = tree[section]
        tree[name] = value

    def stop(self) -> None:
        """Raise what was noted so far.

        Raises
        ------
        UserError
            With every problem.
        """
        if self.problems:
            raise UserError.collect(dict.fromkeys(self.problems))

    def finish(self) -> None:
        """Tell of the keys that only other keys refer to; note those of which nothing is known.

        Raises
        ------
        UserError
            With every problem.
        """
        for key in [key for key in self._open if self._leaves[key].referred]:
            self._tell("implied", key, "", None, "read by other keys only, which have its value")
        known = sorted({key for told in self.told for key in told.keys} | {told.key for told in self.told})
        for key in self._open:
            self._unknown(key, known)
        self.stop()

    def _under(self, key: str, own: bool = True) -> Iterator[str]:
        return (name for name in self._leaves if (own and name == key) or name.startswith(f"{key}."))

    def _is_list(self, key: str) -> bool:
        first = next(self._under(key, own=False))
        return self._leaves[first].lists[len(key.split(".")) - len(first.split("."))]

    def _unset(self, key: str, unset: Unset) -> None:
        name = unset.source or self.original(key)
        mend = f"{name}=VALUE" if "[" not in name else "give it in its file"
        self.problems.append(Problem(f"{name} has no value: {unset.why}", name, mend=mend))

    def _unknown(self, key: str, known: Iterable[str]) -> None:
        name = self.original(key)
        shown = f"={_show(self._leaves[key].value)}" if key in self._leaves else ""
        what = f"{name}{shown} is no key of {PACKAGE} that is known here"
        leave_out = None if "[" in name else f"~{name} leaves it out"
        mend = " ".join(filter(None, (did_you_mean(name, known), leave_out)))
        self.problems.append(Problem(what, name, mend=mend or None))

    def _tell(self, kind: Any, key: str, ours: str, value: Any, why: str = "") -> None:
        keys = [name for name in self._under(key) if name in self._open]
        alone = self._leaves[keys[0]] if len(keys) == 1 and kind in ("dropped", "implied") else None
        given: Any = f"{len(keys)} keys"
        if alone or key in self._leaves:
            given = (alone or self._leaves[key]).value
        elif kind == "changed":
            given = self.value(key)
        names = tuple(self._leaves[name].name() for name in keys)
        self.told.append(Told(kind, alone.name() if alone else self.original(key), given, names, ours, value, why))
        for name in keys:
            del self._open[name]


def target(section: Any) -> str:
    """Return the last part of the ``_target_`` of a section, its class."""
    named = section.get("_target_") if isinstance(section, Mapping) else section
    return str(named or "").rpartition(".")[2]


def _show(value: Any) -> str:
    return str(value) if isinstance(value, Unset) else repr(value)
