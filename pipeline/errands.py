"""The errand step: at a job's end somebody is told of it (pipeline/notices.py), or the recording is put away.

At least once: a worker that dies between doing and noting it leaves it to another, which does it again. At most once
is promised by nobody. What fails is tried again for a day, and then stays to be seen (`spotscribe notices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from chunking.errors import DatabaseAway, LeaseLost, PermanentError, TransientError, UsageError
from pipeline.notices import Address, Outbox, Webhooks, address_of, notice_of
from pipeline.receivers import Busy, Receivers, Resting, Unanswered
from pipeline.telemetry import Tally
from storage import departures, errands, receivers
from storage.database import Database
from storage.errands import PUTTING_AWAY, Due
from storage.jobs import MediaObject
from storage.leases import Heartbeat, Lease
from storage.putaway import After, PlaceTaken, Shelf, Shelves, after_of, places
from storage.receivers import TOGETHER
from storage.sources import SourceSettings

FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 3600.0
"""Between two tries: twice as long each time."""
LONGEST_S = 3600.0
"""An errand that takes longer hangs: its lease is not renewed any more."""


def errands_of(settings: SourceSettings, url: str) -> tuple[Address | After, ...]:
    """What is to be done for each job of the source at this URL: pairs of kind and target. Raises UsageError."""
    told = tuple(address_of(who) for who in settings.notify)
    return (*told, after_of(settings.after, url)) if settings.after else told


class Errander:
    """A worker's errand step. Safe to share by threads."""

    def __init__(
        self, database: Database, webhooks: Webhooks, outbox: Callable[[], Outbox], shelves: Callable[[], Shelves],
        tally: Tally | None = None,
    ) -> None:  # fmt: skip
        """`outbox`, `shelves`: made when first needed, since most fleets have no need of them."""
        self._db, self._webhooks, self._outbox, self._shelves = database, webhooks, outbox, shelves
        self._tally = tally or Tally()
        self._heart = Heartbeat(database, longest_s=LONGEST_S)
        self._receivers = Receivers(self._others_wait)

    def run(self, lease: Lease) -> None:
        """Do the leased errand, put it off, or give it up."""
        with self._heart.keep(lease):
            with self._db.reading() as tx:
                due = errands.of_lease(tx, lease)
            try:
                with self._receivers.turn(due.receiver):
                    note = self._put_away(lease, due) if due.kind in PUTTING_AWAY else self._tell(due)
            except (DatabaseAway, LeaseLost):
                raise
            except Busy as e:
                self._write(errands.later, lease, e.seconds)
                self._put_off_others(due, e.seconds)
            except Resting as e:
                self._write(errands.put_off, lease, str(e), e.seconds, tried=False)
                self._put_off_others(due, e.seconds, str(e))
            except (UsageError, TransientError, OSError) as e:  # wrong credentials are this machine's fault
                self._write(errands.put_off, lease, str(e), wait_s(due.attempts))
                self._put_off_others(due, self._receivers.rest(due.receiver), str(e))
            except PermanentError as e:
                self._write(errands.dead, lease, str(e))
            else:
                if note is not None:
                    self._write(errands.done, lease, note)
            self._put_off_others(due, self._receivers.stands_back(due.receiver))

    def _write(self, do: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        with self._db.transaction() as tx:
            do(tx, *args, **kwargs)
        if do is errands.put_off:
            self._tally.count("put_off", "errand")

    def _put_off_others(self, due: Due, seconds: float, why: str | None = None) -> None:
        """What else is due of its receiver is left alone so long."""
        while seconds > 0:
            with self._db.transaction() as tx:
                if receivers.put_off_others(tx, due.receiver, seconds, why) < TOGETHER:
                    return

    def _others_wait(self, receiver: str) -> bool:
        with self._db.reading() as tx:
            return receivers.others_wait(tx, receiver)

    def _tell(self, due: Due) -> str:
        with self._db.reading() as tx:
            notice = notice_of(tx, due)
        if due.kind == "webhook":
            self._webhooks.send(due.target, notice.id, notice.body)
        else:
            attributes = {"event": notice.event, "id": notice.id}
            with _about_the_receiver():
                self._outbox().send(f"{due.kind}:{due.target}", notice.body, attributes, key=notice.id)
        return ""

    def _put_away(self, lease: Lease, due: Due) -> str | None:
        """The answer: why there was nothing to do. None: the errand waits for files, or is void by now."""
        with self._db.transaction() as tx:
            if not departures.may_put_away(tx, lease, due):
                return None
        with _about_the_receiver():
            shelf, media = self._shelves().of(due.url), MediaObject(due.url, due.version, due.size_bytes)
            if due.kind == "tag":
                return shelf.tag(media)
            if due.kind == "delete":
                return shelf.delete(media)
        return self._move(lease, due, shelf, media)

    def _move(self, lease: Lease, due: Due, shelf: Shelf, media: MediaObject) -> str:
        with self._db.reading() as tx:
            below = departures.source_url(tx, due)
        for place in dict.fromkeys(p for p in (due.place, *places(media, due.target, below)) if p):
            with self._db.transaction() as tx:
                free = departures.reserve(tx, lease, place)
            if free:
                with suppress(PlaceTaken), _about_the_receiver():
                    return shelf.move(media, place)
        raise PermanentError(f"other files have its name in {due.target}")


@contextmanager
def _about_the_receiver() -> Iterator[None]:
    """What goes wrong with a queue, a topic or a bucket goes wrong with all that is to be done there."""
    try:
        yield
    except (UsageError, TransientError, OSError) as e:
        raise Unanswered(str(e)) from e


def wait_s(attempts: int) -> float:
    """How long an errand rests that was tried so often before this time."""
    return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts, 20)))
