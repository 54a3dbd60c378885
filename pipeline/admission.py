"""Admission: what has arrived at the sources becomes jobs, each source within its share and its budget of the day.

Of each source only so many recordings are in the queue at a time. A million files at one source are a million rows of
the ledger, and behind them another source's ten wait no longer than its share takes. Ingesters admit, and so does every
fleet's reconciler: what is held goes on when nobody watches any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from chunking.errors import DatabaseAway
from pipeline import layout, tracing
from pipeline.errands import errands_of
from pipeline.sidecars import candidates, from_json
from storage import arrivals, errands, sources, submission
from storage.arrivals import Held
from storage.database import Database
from storage.jobs import ENDED, JobOptions
from storage.sources import Source
from storage.submission import Request, Submitted

AT_ONCE = 500
"""Recordings of one transaction."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a recording is submitted with."""

    job: JobOptions
    request: Request
    formats: tuple[str, ...]

    @property
    def key(self) -> str:
        r = self.request
        return json.dumps([self.job.digest, r.label, r.priority, dict(r.metadata or {}), r.current], sort_keys=True)


def admit(database: Database, *, rounds: int | None = None) -> list[Submitted]:
    """Let go on what may, a transaction's worth of each source in turn; `rounds`: at most so often.

    It goes on with those sources that filled a transaction, so it ends while jobs end as fast as they come. One that
    cannot be admitted says why (`sources list`), and stands in nobody's way.
    """
    with database.reading() as tx:
        waiting = arrivals.waiting(tx)
    done: list[Submitted] = []
    while waiting and rounds != 0:
        some = {source: _guarded(database, source) for source in waiting}
        done += [d for admitted in some.values() for d in admitted]
        waiting = [source for source, admitted in some.items() if len(admitted) == AT_ONCE]
        rounds = None if rounds is None else rounds - 1
    return done


def _guarded(database: Database, source: int) -> list[Submitted]:
    try:
        return database.again(lambda tx: admit_some(tx, source))
    except DatabaseAway:
        raise
    except Exception as e:
        why = f"what arrived cannot be admitted: {type(e).__name__}: {str(e).splitlines()[0]}"
        with database.transaction() as tx:
            sources.complain(tx, source, why)
        return []


def admit_some(tx: Connection, source: int, limit: int = AT_ONCE) -> list[Submitted]:
    """Up to `limit` of one source's held arrivals, as its share and its budget allow."""
    if not arrivals.lock_source(tx, source):
        return []
    [at] = sources.by_id(tx, [source])
    arrivals.note_ends(tx, source)
    room = min(limit, at.settings.at_once - arrivals.in_queue(tx, source))
    if room <= 0:
        return []
    chosen = _affordable(tx, at, arrivals.held(tx, source, room))
    terms = {h.id: _terms(at, h) for h in chosen}
    done: dict[int, Submitted] = {}
    for some in _alike(chosen, terms):
        t = terms[some[0].id]
        submitted = submission.submit_all(tx, [h.media for h in some], t.job, t.request, tracing.submitted)
        done.update(zip([h.id for h in some], submitted, strict=True))
    _want(tx, at, [h for h in chosen if not h.overtaken], terms, done)
    for ended in (False, True):
        mine = {a: d.job for a, d in done.items() if (d.state in ENDED) is ended}
        arrivals.admitted(tx, mine, ended=ended)
    return [done[h.id] for h in chosen]


def _affordable(tx: Connection, source: Source, held: Sequence[Held]) -> list[Held]:
    """Those that the day's budget has room for, in order. The first of a day is taken whatever its length."""
    if source.settings.daily_hours is None or not held:
        return list(held)
    rate = arrivals.seconds_per_byte(tx, source.id)
    used, budget = arrivals.used_today(tx, source.id, rate), source.settings.daily_hours * 3600
    found: list[Held] = []
    for h in held:
        cost = h.media.size_bytes * rate
        if used > 0 and used + cost > budget:
            break
        used += cost
        found.append(h)
    return found


def _terms(source: Source, held: Held) -> _Terms:
    """The source's settings, and over them what a sidecar says."""
    s, said = source.settings, from_json(held.sidecar or {})
    label = said.label or layout.label(s.label, source.url, source.name, held.media.url, held.modified_s)
    request = Request(
        label=label or None,
        priority=said.priority if said.priority is not None else s.priority,
        metadata=said.metadata or None,
        current=not held.overtaken,
    )
    options: dict[str, Any] = dict(said.options)
    return _Terms(replace(s.job, **options), request, said.formats or s.formats)


def _alike(held: Sequence[Held], terms: Mapping[int, _Terms]) -> Iterable[list[Held]]:
    """Groups that one submission can take: equal terms, and no URL twice, since of two the later one counts."""
    groups: dict[tuple[str, int], list[Held]] = {}
    times: dict[str, int] = {}
    for h in held:
        turn = times[h.media.url] = times.get(h.media.url, -1) + 1
        groups.setdefault((terms[h.id].key, turn), []).append(h)
    return [groups[k] for k in sorted(groups, key=lambda k: k[1])]


def _want(
    tx: Connection, source: Source, held: Sequence[Held], terms: Mapping[int, _Terms], done: Mapping[int, Submitted]
) -> None:
    """The files, and what is to be done afterwards."""
    s = source.settings
    files = [(done[h.id].job, kind, _places(source, h, kind)) for h in held if s.out for kind in terms[h.id].formats]
    layout.want_files(tx, files, missing=True)
    kinds = errands_of(s, source.url)
    errands.want_all(tx, [errands.Wanted(done[h.id].job, kind, target) for h in held for kind, target in kinds])


def _places(source: Source, held: Held, kind: str) -> Iterator[str]:
    """Where a file may go. The user's sidecar beside the recording is never written over."""
    s, m = source.settings, held.media
    theirs = candidates(m.url) if held.has_sidecar else ()
    found = layout.places(m.url, source.url, source.name, s.key, s.out, kind, held.modified_s)
    return (place for place in found if place not in theirs)
