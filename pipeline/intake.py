"""Intake: from what lies at a source, and what events tell of it, to the ledger.

A full listing is the truth, since a key may appear that sorts before those of the last one. Events only make it faster:
an event is a hint where to look, and what lies there decides (pipeline/hints.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from chunking.errors import Rejected, TransientError
from pipeline import sidecars
from pipeline.companions import Found, paired
from pipeline.events import Event
from pipeline.filters import Filter, Verdict
from pipeline.hints import Hint, look
from storage import arrivals, sources
from storage.arrivals import Seen
from storage.database import Database
from storage.folders import LocalFolders, Place
from storage.jobs import MediaObject
from storage.sources import Source

PAGE = 1000
"""Objects that are looked up in the ledger at once."""
LOOKS = 8
"""Objects that are looked at at the same time: sidecars of new recordings, and what events name."""
MOST_SIDECAR = sidecars.MOST_BYTES + 1


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a listing, or of some events."""

    objects: int
    new: int
    passed: dict[Verdict, int]
    """How many were not taken, by why not."""
    notes: tuple[str, ...] = ()
    """What was wrong with sidecars."""
    problems: tuple[str, ...] = ()
    """What could not be looked at, and is left to the next time."""


class Intake:
    """Safe to share by threads. `s3` is asked for when the first bucket is."""

    def __init__(self, database: Database, s3: Callable[[], Place]) -> None:
        self._db, self._s3, self._folders = database, s3, LocalFolders()
        self._looks = ThreadPoolExecutor(LOOKS, thread_name_prefix="look")

    def listing(self, source: Source, stop: Callable[[], bool] = lambda: False) -> Taken:
        """All that lies at a source now, into the ledger. Raises Rejected, UsageError, TransientError."""
        passed: Counter[Verdict] = Counter()
        problems: list[str] = []
        chosen = self._chosen(source, passed, problems.append)
        taken = new = 0
        notes: list[str] = []
        while not stop() and (page := list(islice(chosen, PAGE))):
            count, said = self._record(source, page, problems.append)
            taken, new, notes = taken + len(page), new + count, notes + said
        return Taken(taken + passed.total(), new, dict(passed), tuple(notes), tuple(problems))

    def preview(self, source: Source) -> tuple[list[MediaObject], dict[Verdict, int]]:
        """What a listing would take that is not known yet, and how much of the rest it would not; writes nothing."""
        passed: Counter[Verdict] = Counter()
        found: list[MediaObject] = []
        chosen = self._chosen(source, passed, lambda why: None)
        while page := list(islice(chosen, PAGE)):
            with self._db.reading() as tx:
                found += [s.media for s in arrivals.news(tx, [_seen(f) for f in page])]
        return found, dict(passed)

    def events(self, events: Sequence[Event], only: int | None = None) -> Taken:
        """What events tell of, into the ledger, as far as it lies at a source (`only`: at that one).

        Raises TransientError, and then the events are to be told again; what could be looked at is recorded.
        """
        with self._db.reading() as tx:
            known = sources.everything(tx, ("active", "paused", "ad_hoc"))
        known = [s for s in known if s.state != "ad_hoc" or s.id == only]
        problems: list[str] = []
        looks = self._looks.map(lambda event: self._look(event, known, problems.append), events)
        hints = [h for found in looks for h in found if only in {None, h.source.id} and h.source.state != "paused"]
        passed: Counter[Verdict] = Counter()
        new, notes = 0, list[str]()
        for source in {h.source.id: h.source for h in hints}.values():
            mine = [h for h in hints if h.source.id == source.id]
            count, said = self._heed(source, mine, passed, problems.append)
            new, notes = new + count, notes + said
        if problems:
            raise TransientError(problems[0])
        return Taken(len(hints), new, dict(passed), tuple(notes))

    def close(self) -> None:
        self._looks.shutdown(cancel_futures=True)

    def _look(self, event: Event, known: Sequence[Source], problem: Callable[[str], None]) -> list[Hint]:
        try:
            return look(event, known, self._s3())
        except TransientError as e:
            problem(str(e))
            return []

    def _chosen(
        self, source: Source, passed: Counter[Verdict], problem: Callable[[str], None]
    ) -> Iterator[Found]:  # fmt: skip
        """What is to be taken from a source. What lies at a more particular one is that one's."""
        with self._db.reading() as tx:
            known = [s for s in sources.everything(tx) if s.id != source.id] + [source]
        place, wanted = self._place(source.url), Filter(source.settings, source.url)
        for found in paired(place.listing(source.url, problem), source.settings.done_marker):
            belongs = sources.owner(known, found.listed.media.url)
            if belongs is None or belongs.id != source.id:
                continue
            verdict = wanted.verdict(found, time.time())
            if verdict is Verdict.TAKE:
                yield found
            else:
                passed[verdict] += 1

    def _heed(
        self, source: Source, hints: Sequence[Hint], passed: Counter[Verdict], problem: Callable[[str], None]
    ) -> tuple[int, list[str]]:
        wanted = Filter(source.settings, source.url)
        verdicts = [(h, wanted.verdict(h.found, time.time())) for h in hints]
        passed.update(v for _, v in verdicts if v is not Verdict.TAKE)
        taken = [h for h, v in verdicts if v is Verdict.TAKE]
        gone = [_seen(h.found, overtaken=True) for h in taken if h.overtaken]
        if source.settings.min_age_s > 0:  # they were never old enough, as far as anybody knows
            gone = []
        new = self._db.again(lambda tx: arrivals.record(tx, source, arrivals.news(tx, gone)))
        count, notes = self._record(source, [h.found for h in taken if not h.overtaken], problem)
        return new + count, notes

    def _record(self, source: Source, found: Sequence[Found], problem: Callable[[str], None]) -> tuple[int, list[str]]:
        """Into the ledger, with their sidecars; how many were new, and what was wrong with sidecars."""
        by_identity = {f.listed.media.identity: f for f in found}
        with self._db.reading() as tx:
            news = arrivals.news(tx, [_seen(f) for f in by_identity.values()])
        if not news:
            return 0, []
        if source.settings.sidecars:
            heeded = self._looks.map(lambda s: self._heeding(source, s, by_identity[s.media.identity], problem), news)
            news = [s for s in heeded if s is not None]
        new = self._db.again(lambda tx: arrivals.record(tx, source, news))
        return new, [f"{s.media.url}: {s.note}" for s in news if s.note]

    def _heeding(self, source: Source, seen: Seen, found: Found, problem: Callable[[str], None]) -> Seen | None:
        """The same with what its sidecar says, if there is one. None: that cannot be read now, and it waits for it."""
        place = self._place(source.url)
        for url in sidecars.candidates(seen.media.url):
            if url not in found.companions:
                continue
            try:
                content = place.small(url, MOST_SIDECAR)
            except TransientError as e:
                problem(f"{url}: {e}")
                return None
            except Rejected as e:
                return replace(seen, note=f"its sidecar could not be read: {e}")
            said, note = sidecars.parse(content, model=source.settings.job.model)
            if said is not None or note is not None:
                return replace(seen, sidecar=sidecars.to_json(said) if said else None, note=note)
        return seen

    def _place(self, url: str) -> Place:
        return self._folders if url.startswith("file://") else self._s3()


def _seen(found: Found, *, overtaken: bool = False) -> Seen:
    return Seen(found.listed.media, found.listed.modified_s, overtaken=overtaken)
