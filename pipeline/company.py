"""Who is at work in this process: many together, or one alone with something that may kill it.

A fleet's worker has two. Preparing, decoding and finishing share one: media and models are what kills a process.
Errands have their own, though they are in the same process: they are network work, of which an hour-long copy must not
keep a suspect shard waiting, nor a suspect shard a notice. The price: where an errand should kill its process after
all, its first two deaths may be laid at the door of a shard that was alone beside it.
"""

from __future__ import annotations

import threading


class Company:
    """Joined by each thread that takes work. Who wants to be alone keeps others out until all have left.

    Nothing blocks: a thread that may not join, or is not alone yet, asks again at its next turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present = 0
        self._alone: object | None = None

    @property
    def closed(self) -> bool:
        """Somebody is alone, or wants to be: take nothing more."""
        return self._alone is not None

    def join(self) -> bool:
        """Take part. False while somebody is, or wants to be, alone."""
        with self._lock:
            if self._alone is not None:
                return False
            self._present += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._present -= 1

    def alone(self, who: object) -> bool:
        """Ask to be alone: from now on nobody joins. True once all have left, who asks included. One asks at a time."""
        with self._lock:
            if self._alone is None:
                self._alone = who
            return self._alone == who and not self._present

    def end_alone(self, who: object) -> None:
        """Open again, if it was closed for `who`."""
        with self._lock:
            if self._alone == who:
                self._alone = None
