"""Turns: of each receiver one errand is in hand in a process, so that a slow one holds one thread and never both.

Who does not answer is left alone, longer each time. Who takes long stands back while others wait, for as long as it
took. Nobody stands back, and nothing is put off, where there is nobody else: then all threads wait for the slow one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chunking.errors import TransientError

FIRST_REST_S, LONGEST_REST_S = 10.0, 300.0
"""For one that does not answer: twice as long each time."""
LOOK_S = 1.0
"""How long who meets a busy receiver waits before it looks whether others wait; and then between two looks."""
TURN_S = 5.0
"""What a receiver may take of the threads' time, in one errand or in many, before others go first."""
SHORT_S, LONG_S = 2.0, 60.0
"""Bounds of how long it stands back."""


class Unanswered(TransientError):
    """The receiver does not answer, or not to us: what is to be said to it would fail alike, whatever it is."""


class StandsBack(TransientError):
    """The receiver is not asked now."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.seconds = seconds


class Resting(StandsBack):
    """It did not answer a moment ago."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the receiver did not answer a moment ago, and is left alone for a while", seconds)


class Busy(StandsBack):
    """It has another errand in hand here, and others wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the receiver is slow, and others go first", seconds)


class Receivers:
    """Those that this process asks. Safe to share by threads."""

    def __init__(self, others_wait: Callable[[str], bool]) -> None:
        """`others_wait`: whether there is anything to do for another receiver than this one."""
        self._others_wait = others_wait
        self._free = threading.Condition()
        self._since: dict[str, float] = {}
        """Those in hand."""
        self._spent: dict[str, float] = {}
        """What each has taken of the threads' time since it last stood back."""
        self._rests: dict[str, tuple[float, int]] = {}
        """Until when, and how often it did not answer."""

    @contextmanager
    def turn(self, who: str) -> Iterator[None]:
        """Around asking, once it is free. Raises Resting, Busy."""
        self._wait(who)
        answered = True
        try:
            yield
        except Unanswered:
            answered = False
            raise
        finally:
            self._end(who, answered=answered)

    def rest(self, who: str) -> float:
        """How long to leave it alone; not above 0: it may be asked."""
        with self._free:
            return self._left(who)

    def stands_back(self, who: str) -> float:
        """After a turn: for how long its other errands are to be put off, as it took its time and others wait; or 0."""
        with self._free:
            spent = self._spent.get(who, 0.0)
            if spent < TURN_S:
                return 0.0
            del self._spent[who]
        return min(spent, LONG_S) if self._others_wait(who) else 0.0

    def _wait(self, who: str) -> None:
        while (since := self._taken(who)) is not None:
            held = time.monotonic() - since
            if held >= LOOK_S and self._others_wait(who):
                raise Busy(min(max(held, SHORT_S), LONG_S))
            with self._free:
                self._free.wait_for(lambda: who not in self._since, LOOK_S)

    def _taken(self, who: str) -> float | None:
        """Take it, if it is free. Else since when it is in hand."""
        with self._free:
            if (left := self._left(who)) > 0:
                raise Resting(left)
            since = self._since.get(who)
            if since is None:
                self._since[who] = time.monotonic()
            return since

    def _end(self, who: str, *, answered: bool) -> None:
        with self._free:
            now = time.monotonic()
            self._spent[who] = self._spent.get(who, 0.0) + now - self._since.pop(who)
            if answered:
                self._rests.pop(who, None)
            else:
                times = self._rests.get(who, (0.0, 0))[1]
                self._rests[who] = (now + min(LONGEST_REST_S, FIRST_REST_S * 2**times), min(times + 1, 20))
            self._free.notify_all()

    def _left(self, who: str) -> float:
        return self._rests.get(who, (0.0, 0))[0] - time.monotonic()
