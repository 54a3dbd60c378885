"""The errand step: at a job's end somebody is told of it (pipeline/notices.py), or the recording is put away.

At least once: a worker that dies between doing and noting it leaves it to another, which does it again. At most once
is promised by nobody. What fails is tried again for a day, and then stays to be seen (`spotscribe notices`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from chunking.errors import DatabaseAway, LeaseLost, PermanentError, TransientError, UsageError
from pipeline.notices import Address, Outbox, Unanswered, Webhooks, address_of, notice_of
from storage import errands
from storage.database import Database
from storage.errands import PUTTING_AWAY, Due
from storage.jobs import MediaObject
from storage.leases import Heartbeat, Lease
from storage.putaway import After, PlaceTaken, Shelves, after_of, places
from storage.sources import SourceSettings

FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 3600.0
"""Between two tries: twice as long each time."""
LONGEST_REST_S = 300.0
LONGEST_S = 3600.0
"""An errand that takes longer hangs: its lease is not renewed any more."""


def errands_of(settings: SourceSettings, url: str) -> tuple[Address | After, ...]:
    """What is to be done for each job of the source at this URL: pairs of kind and target. Raises UsageError."""
    told = tuple(address_of(who) for who in settings.notify)
    return (*told, after_of(settings.after, url)) if settings.after else told


class Errander:
    """A worker's errand step. Safe to share by threads."""

    def __init__(
        self, database: Database, webhooks: Webhooks, outbox: Callable[[], Outbox], shelves: Callable[[], Shelves]
    ) -> None:
        """`outbox`, `shelves`: made when first needed, since most fleets have no need of them."""
        self._db, self._webhooks, self._outbox, self._shelves = database, webhooks, outbox, shelves
        self._heart = Heartbeat(database, longest_s=LONGEST_S)
        self._rests = Rests()

    def run(self, lease: Lease) -> None:
        """Do the leased errand, put it off, or give it up."""
        with self._heart.keep(lease):
            with self._db.reading() as tx:
                due = errands.of_lease(tx, lease)
            try:
                note = self._put_away(lease, due) if due.kind in PUTTING_AWAY else self._tell(due)
            except (DatabaseAway, LeaseLost):
                raise
            except Resting as e:
                self._put_off(lease, str(e), e.seconds, tried=False)
            except (UsageError, TransientError, OSError) as e:  # wrong credentials are this machine's fault
                self._put_off(lease, str(e), wait_s(due.attempts))
            except PermanentError as e:
                with self._db.transaction() as tx:
                    errands.dead(tx, lease, str(e))
            else:
                if note is not None:
                    with self._db.transaction() as tx:
                        errands.done(tx, lease, note)

    def _put_off(self, lease: Lease, why: str, seconds: float, *, tried: bool = True) -> None:
        with self._db.transaction() as tx:
            errands.put_off(tx, lease, why, seconds, tried=tried)

    def _tell(self, due: Due) -> str:
        with self._db.reading() as tx:
            notice = notice_of(tx, due)
        if due.kind == "webhook":
            with self._rests.asking(urlsplit(due.target).netloc):
                self._webhooks.send(due.target, notice.id, notice.body)
        else:
            attributes = {"event": notice.event, "id": notice.id}
            self._outbox().send(f"{due.kind}:{due.target}", notice.body, attributes, key=notice.id)
        return ""

    def _put_away(self, lease: Lease, due: Due) -> str | None:
        """The answer: why there was nothing to do. None: the errand waits for files, or is void by now."""
        with self._db.transaction() as tx:
            if not errands.may_put_away(tx, lease, due):
                return None
            if errands.needed_elsewhere(tx, due):
                raise TransientError("another job of this recording has not ended")
        shelf, media = self._shelves().of(due.url), MediaObject(due.url, due.version, due.size_bytes)
        if due.kind == "tag":
            return shelf.tag(media)
        if due.kind == "delete":
            return shelf.delete(media)
        with self._db.reading() as tx:
            below = errands.source_url(tx, due)
        for place in dict.fromkeys(p for p in (due.place, *places(media, due.target, below)) if p):
            with self._db.transaction() as tx:
                free = errands.reserve(tx, lease, place)
            try:
                if free:
                    return shelf.move(media, place)
            except PlaceTaken:
                continue
        raise PermanentError(f"other files have its name in {due.target}")


class Resting(TransientError):
    """A receiver that did not answer a moment ago is not asked."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the receiver did not answer a moment ago, and is left alone for a while")
        self.seconds = seconds


class Rests:
    """Receivers that do not answer are left alone, longer each time, so that they hold up nobody else's notices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, tuple[float, int]] = {}
        """Until when, and how often it did not answer."""

    @contextmanager
    def asking(self, who: str) -> Iterator[None]:
        """Around asking. Raises Resting where it is to be left alone."""
        with self._lock:
            until, times = self._until.get(who, (0.0, 0))
        if (left := until - time.monotonic()) > 0:
            raise Resting(left)
        try:
            yield
        except Unanswered:
            with self._lock:
                rest = min(LONGEST_REST_S, FIRST_WAIT_S * 2**times)
                self._until[who] = (time.monotonic() + rest, min(times + 1, 20))
            raise
        with self._lock:
            self._until.pop(who, None)


def wait_s(attempts: int) -> float:
    """How long an errand rests that was tried so often before this time."""
    return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts, 20)))
