"""The ingester: lists sources, hears events, and lets go on what has arrived. Any number of them may run at once.

Nothing is kept here. The ledger says what is known, the source's row says when it was listed last, and an event is told
again until it has been written down; so one that is killed at any moment costs a listing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from chunking.errors import DatabaseAway, SpotscribeError, TransientError
from pipeline import admission
from pipeline.events import Event, Unreadable, parse
from pipeline.filters import Verdict
from pipeline.intake import Intake, Taken
from storage import sources
from storage.database import Database
from storage.queues import Inbox, Message
from storage.sources import Source
from workers.celery_app import CPU
from workers.nudges import Nudges
from workers.receiver import Receiver

TICK_S = 0.5
"""How often the watch looks whether a source is due."""
ADMIT_S = 2.0
"""How often what is held is looked at, whatever the listings bring."""
LONG_POLL_S = 20.0
AWAY_S = 2.0
"""How long to wait before what did not answer is asked again."""
NUDGES = 64
NOTES = 5
"""Complaints about sidecars that are shown of one listing."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """What an ingester was started for."""

    every_s: float = 30.0
    listen: str | None = None
    """HOST:PORT for a bucket's webhooks."""
    token: str = ""


class Ingester:
    """`once`, or `watch`. Raises only what is wrong with the set-up; what goes wrong later is told and tried again."""

    def __init__(
        self, database: Database, intake: Intake, nudges: Nudges, options: IngestOptions, say: Callable[[str], None],
        inboxes: Sequence[Inbox] = (),
    ) -> None:  # fmt: skip
        self._db, self._intake, self._nudges, self._options, self._say = database, intake, nudges, options, say
        self._inboxes = inboxes
        self._receiver = Receiver(options.listen, options.token, self._hear) if options.listen is not None else None
        self._only: int | None = None
        self._stop = threading.Event()
        self._broken: BaseException | None = None
        self._problems: dict[str, str] = {}
        """What was said last to be wrong, and with whom."""

    def stop(self) -> None:
        """May be called from a signal's handler."""
        self._stop.set()

    def once(self, only: int | None = None) -> bool:
        """List each source once (`only`: that one), and admit. Whether all could be listed."""
        self._only, well = only, True
        for source in self._sources():
            well = self._list(source) and well
        self._admit()
        self._nudges.flush(5.0)
        return well

    def watch(self, only: int | None = None) -> None:
        """Until `stop`: all sources that are kept and not paused, or `only` that one."""
        self._only, receiver = only, self._receiver
        if receiver is not None:
            receiver.start()
            self._say(f"listening for events on port {receiver.port}")
        threads = [self._aside("admission", self._admitting)]
        threads += [self._aside("events", lambda inbox=inbox: self._listen(inbox)) for inbox in self._inboxes]  # type: ignore[misc]
        try:
            while not self._stop.wait(TICK_S):
                self._turn()
        finally:
            self._stop.set()
            if receiver is not None:
                receiver.close()
            for thread in threads:
                thread.join(AWAY_S)
        if self._broken is not None:
            raise self._broken

    def _turn(self) -> None:
        """List those sources that are due."""
        with suppress(TransientError):  # the database is away: asked again at the next tick
            for source in self._sources():
                with self._db.transaction() as tx:
                    mine = sources.claim_listing(tx, source, self._options.every_s)
                if mine and not self._stop.is_set():
                    self._list(source)

    def _sources(self) -> list[Source]:
        with self._db.reading() as tx:
            return sources.everything(tx, sources.WATCHED) if self._only is None else sources.by_id(tx, [self._only])

    def _list(self, source: Source) -> bool:
        """List a source. One that cannot be listed, for whatever reason, rests and stands in nobody else's way."""
        try:
            taken = self._intake.listing(source, self._stop.is_set)
        except DatabaseAway:  # no fault of the source
            raise
        except Exception as e:
            why = str(e) if isinstance(e, SpotscribeError) else f"{type(e).__name__}: {e}"
            with self._db.transaction() as tx:
                sources.refused(tx, source, why)
            self._complain(source.name, f"{why}; it rests, 5 s at first")
            return False
        if taken.problems:
            more = f", and {len(taken.problems) - 1} more" if len(taken.problems) > 1 else ""
            with self._db.transaction() as tx:
                sources.refused(tx, source, f"{taken.problems[0]}{more}")
            self._complain(source.name, f"{taken.problems[0]}{more}; the rest was taken")
        else:
            with self._db.transaction() as tx:
                sources.listed(tx, source)
            self._praise(source.name, "all of it can be listed again")
        self._report(source.name, taken)
        if taken.new:
            self._admit()
        return not taken.problems

    def _report(self, name: str, taken: Taken) -> None:
        for note in taken.notes[:NOTES]:
            self._say(f"{name}: {note}")
        if len(taken.notes) > NOTES:
            self._say(f"{name}: and {len(taken.notes) - NOTES} more sidecars with something wrong")
        if taken.new:
            self._say(f"{name}: {taken.new} new of {taken.objects} objects{passed_over(taken.passed)}")

    def _hear(self, events: Sequence[Event]) -> None:
        """Of a receiver or a queue. Raises TransientError: then they are to be told again."""
        if not events:
            return
        taken = self._intake.events(events, self._only)
        if taken.new:
            self._report("events", taken)
            self._admit()

    def _listen(self, inbox: Inbox) -> None:
        """One queue: what cannot be read is told and let go, since the listing finds what it meant."""
        while not self._stop.is_set():
            try:
                messages = inbox.receive(LONG_POLL_S)
                self._praise("events", "the queue answers again")
                if not self._heard(inbox, messages):  # one at a time: what cannot be looked at keeps back no other
                    for message in messages:
                        self._heard(inbox, [message])
            except SpotscribeError as e:
                self._complain("events", str(e))
                self._stop.wait(AWAY_S)

    def _heard(self, inbox: Inbox, messages: Sequence[Message]) -> bool:
        """Whether all that these tell of could be looked at. If not they come again by themselves."""
        try:
            self._hear([e for m in messages for e in self._parsed(m)])
        except SpotscribeError as e:
            self._complain("events", str(e))
            return False
        inbox.done(messages)
        return True

    def _parsed(self, message: Message) -> tuple[Event, ...]:
        try:
            return parse(message.body)
        except Unreadable as e:
            self._say(f"an event could not be read: {e}")
            return ()

    def _complain(self, who: str, what: str) -> None:
        """Say it once, and not each time."""
        if self._problems.get(who) != what:
            self._say(f"{who}: {what}")
        self._problems[who] = what

    def _praise(self, who: str, what: str) -> None:
        if self._problems.pop(who, None):
            self._say(f"{who}: {what}")

    def _admitting(self) -> None:
        """What a share or a budget held back goes on as soon as there is room."""
        while not self._stop.wait(ADMIT_S):
            with suppress(TransientError):
                self._admit()

    def _admit(self) -> None:
        admitted = admission.admit(self._db)
        for new in [d for d in admitted if d.state == "queued"][:NUDGES]:
            self._nudges.send(CPU, new.job)

    def _aside(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """In a thread whose unforeseen end ends the whole."""

        def guarded() -> None:
            try:
                run()
            except BaseException as e:
                self._broken = self._broken or e
                self._stop.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread


def passed_over(passed: dict[Verdict, int]) -> str:
    """`; 3 are no media by their name, 1 excluded` or nothing."""
    return "; " + ", ".join(f"{n} {v}" for v, n in sorted(passed.items())) if passed else ""
