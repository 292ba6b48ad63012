"""Who asks a run to stop: a signal, or the time that it has. Nothing here needs Lightning, so it is there at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = 75
"""Exit status of a run that SIGUSR1 or ``training.max_time`` ended before its last step; after SIGTERM it is 143."""

SIGNALS = ("SIGUSR1", "SIGTERM")
REASONS = ("training.max_time", *SIGNALS)
"""Who may ask a run to stop; of several the last counts."""

_SIGNALS = tuple(signal.Signals[name] for name in SIGNALS)


class Stopped(SystemExit):
    """The run was asked to stop, and what there is of it is kept.

    Parameters
    ----------
    reason : str
        One of :data:`REASONS`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(128 + signal.SIGTERM if reason == "SIGTERM" else STOPPED)
        self.reason = reason


class StopRequest:
    """Who asked this run to stop, if anyone did.

    Parameters
    ----------
    max_time : float, optional
        Seconds after which the run stops, counted from here.
    """

    def __init__(self, max_time: float | None = None) -> None:
        self.max_time = max_time
        self.began = time.monotonic()
        self.asked: str | None = None
        self.waits = False  # whether a step is under way that is to be finished first
        self._ended = False  # whether a signal is ending the run already

    @property
    def reason(self) -> str | None:
        """Who asked; None while nobody has."""
        if self.asked is None and self.max_time is not None and time.monotonic() - self.began >= self.max_time:
            self.asked = "training.max_time"
        return self.asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGUSR1 and SIGTERM in the body; outside the main thread nothing can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is signal.SIG_IGN:  # the process is about to leave with a status of its own
                    continue
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def listen(self) -> None:
        """Put the handlers in place, instead of those that Lightning has put there."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._take)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number).name
        if not self.waits and not self._ended:
            self._ended = True  # tidying up is not to be cut short by another one
            raise Stopped(self.asked)
