"""Purging: what is known of a recording goes at once, what is old goes by age, in portions, each whole or not at all.

In each portion objects and files go first and the rows that lead to them last, so a kill leaves nothing that nobody
knows of: the same command finds it again. Output files go only where that is asked for, recordings never.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from chunking.errors import PermanentError, UsageError
from storage import purge, search, sources, traces
from storage.database import Database
from storage.destinations import Destinations
from storage.objects import ObjectStore, path_of
from storage.purge import AT_ONCE, Known, Old, What
from storage.sources import Source

TRIES = 5
"""How often jobs are ended that somebody starts again meanwhile."""
PORTIONS = 20
"""Of one source and kind that the reconciler deletes at once: so long it is not at its other work."""
EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a recording."""

    recordings: list[Known]
    jobs: list[int]
    counts: dict[str, int]
    files: list[str]
    exports: list[str]
    """Names of exports that its transcript is in."""

    @property
    def urls(self) -> list[str]:
        """Addresses of which every trace goes."""
        return sorted({k.url for k in self.recordings if k.named})

    @property
    def equal(self) -> list[str]:
        """Other addresses with the same bytes."""
        return sorted({k.url for k in self.recordings if not k.named})


@dataclass(slots=True)
class Purged:
    """What went, and what could not."""

    jobs: int = 0
    files: int = 0
    objects: int = 0
    words: int = 0
    """Forgotten, since no segment has them any more."""
    stayed: dict[str, str] = field(default_factory=dict)
    """Files that could not be deleted, and why; so the rows of their jobs stayed too."""
    left: dict[str, int] = field(default_factory=dict)
    """Where the recording's URL still stands: table and column, and in how many rows."""


class Purger:
    """`store`: audio in work; `places`: where files are written. Safe beside live workers."""

    def __init__(self, database: Database, store: ObjectStore, places: Destinations) -> None:
        self._db, self._store, self._places = database, store, places

    def find(self, url: str | None, sha256: str | None, *, equal: bool) -> Found:
        """All that is known of a recording, by its URL or its bytes; `equal`: and of equal bytes at other URLs."""
        with self._db.reading() as tx:
            known = purge.find(tx, url, sha256, equal=equal)
            jobs = purge.jobs_of(tx, [k.id for k in known])
            counts = {"recordings": len(known), **purge.counts(tx, jobs, What.RECORDINGS)}
            files = [u for part in purge.parts(jobs) for _, u in purge.files(tx, part)]
            return Found(known, jobs, counts, files, traces.exports_of(tx, jobs))

    def recording(self, url: str | None, sha256: str | None, *, equal: bool) -> Purged:
        """Delete all of that. Raises UsageError where its jobs are started again as fast as they are ended."""
        done = Purged()
        for _ in range(TRIES):
            self._db.again(partial(purge.forget_arrivals_at, url=url))
            found = self.find(url, sha256, equal=equal)
            self._db.again(partial(purge.forget_arrivals, recordings=found.recordings))
            found = self.find(url, sha256, equal=equal)  # no arrival becomes a job of it any more
            for named in (False, True):  # last those by which the others are found
                self._all_of([k for k in found.recordings if k.named is named], done)
            if done.stayed or not self.find(url, sha256, equal=equal).recordings:
                break
        else:
            raise UsageError("its jobs are started again as fast as they are ended: see who submits them")
        done.words = search.forget_unsaid(self._db)
        done.left = self._mentions(url or sha256 or "")
        traces.scrub(self._db)
        return done

    def _all_of(self, recordings: Sequence[Known], done: Purged) -> None:
        for sha in sorted({k.sha256 for k in recordings if k.sha256}):  # which a retry left behind
            self._db.again(partial(purge.drop_transcripts, which=purge.of_bytes(sha)))
        with self._db.reading() as tx:
            jobs = purge.jobs_of(tx, [k.id for k in recordings])
        for part in purge.parts(jobs):
            self._db.again(partial(purge.stop, jobs=part))
            self._portion(part, What.RECORDINGS, done, files=True, all_objects=True)
        self._db.again(partial(purge.drop_recordings, recordings=[k.id for k in recordings]))

    def counts(self, old: Old, *, files: bool) -> tuple[dict[str, int], int]:
        """How much there is of that age, and how many jobs stay because something of theirs is still to come."""
        with self._db.reading() as tx:
            stay = purge.unsettled(tx, old) if old.what is not What.WORK else 0
            return purge.counts_of_old(tx, old, files=files), stay

    def names(self, old: Old, most: int, *, files: bool) -> list[str]:
        """URLs of some recordings of that age."""
        with self._db.reading() as tx:
            return purge.names_of_old(tx, old, most, files=files)

    def old(self, old: Old, *, files: bool = False, portions: int | None = None) -> Purged:
        """Delete so much of the jobs of that age, in so many portions at most. `files`: their output files as well."""
        done = Purged()
        for part in self._portions(old, files=files, most=portions):
            self._portion(part, old.what, done, files=files)
        if old.what is not What.WORK and old.label is None and old.source is None:
            self._db.again(partial(purge.drop_transcripts, which=purge.left_behind(old.older_s)))
        return done

    def forget_words(self) -> int:
        """The words that nobody says any more. It looks through all segments, so it is done once, at the end."""
        return search.forget_unsaid(self._db)

    def _portions(self, old: Old, *, files: bool, most: int | None) -> Iterator[list[int]]:
        after = 0
        while most != 0:
            with self._db.reading() as tx:
                part = purge.candidates(tx, old, after, files=files)
            if not part:
                return
            yield part
            after, most = part[-1], None if most is None else most - 1

    def _portion(
        self, jobs: Sequence[int], what: What, done: Purged, *, files: bool, all_objects: bool = False
    ) -> None:
        """`all_objects`: also those that no shard tells of, which costs a listing for each job."""
        mine = list(jobs)
        if files:
            mine = self._without_files(self._db.again(partial(purge.retire, jobs=mine)), done)
        with self._db.reading() as tx:
            keys = set(purge.object_keys(tx, mine))
        if all_objects:
            keys.update(key for job in mine for key in self._store.keys(f"shards/{job}/"))
        for key in sorted(keys):
            self._store.delete(key)
        gone = self._db.again(partial(purge.erase, jobs=mine, what=what, files=files))
        done.jobs, done.objects = done.jobs + len(gone), done.objects + len(keys)

    def _without_files(self, jobs: Sequence[int], done: Purged) -> list[int]:
        """Those of the jobs whose files are gone."""
        with self._db.reading() as tx:
            files = purge.files(tx, jobs)
        kept: set[int] = set()
        for job, url in files:
            try:
                self._places.remove(url)
                done.files += 1
            except (PermanentError, OSError) as e:
                done.stayed[url] = str(e)
                kept.add(job)
        return [job for job in jobs if job not in kept]

    def _mentions(self, name: str) -> dict[str, int]:
        names = [name, str(path_of(name))] if name.startswith("file:") else [name]
        for one in names:
            self._db.again(partial(traces.forget_words_of, url=one))
        with self._db.reading() as tx:
            return {where: n for one in names for where, n in traces.mentions(tx, one).items()}


def carry_out(database: Database, store: ObjectStore) -> None:
    """What the sources' retention asks for, of each source once an hour and by one process; files stay.

    A source with more than `PORTIONS` of `AT_ONCE` jobs goes on with the next call.
    """
    with database.reading() as tx:
        kept = [s for s in sources.everything(tx, ("active", "paused", "ad_hoc")) if s.settings.keeps]
    purger = Purger(database, store, Destinations())
    for source in kept:
        if database.again(partial(sources.claim_purge, source=source, every_s=EVERY_S)):
            full = [purger.old(old, portions=PORTIONS).jobs >= PORTIONS * AT_ONCE for old in policies(source)]
            if any(full):
                database.again(partial(sources.purge_soon, source=source))


def policies(source: Source) -> list[Old]:
    """What of this source's jobs goes, and when: what is least first."""
    s = source.settings
    times = ((What.WORK, s.keep_work_s), (What.RESULTS, s.keep_results_s), (What.RECORDINGS, s.keep_recordings_s))
    return [Old(what, seconds, source=source.id) for what, seconds in times if seconds is not None]
