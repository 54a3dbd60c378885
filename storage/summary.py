"""Figures over many jobs, for a report: counted and sorted into bins by the database, whatever their number.

Each answer has a bounded number of rows. Transcripts that several jobs share count for each job where recordings are
counted, and once where their segments are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, and_, case, cast, distinct, func, or_, select, true

from storage.jobs import ENDED
from storage.moments import instant, seconds_between
from storage.tables import CoverageRow, Job, Label, Recording, SegmentRow, TranscriptRow

DURATIONS_S = (10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0)
WAITS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
SPEEDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
LOGPROBS = (-2.0, -1.5, -1.2, -1.0, -0.8, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1)
"""Edges of bins: below the first, between two, from the last on."""
MOST = 12
"""Rows of an answer that has as many kinds as there are reasons, languages, or sets of flags."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which jobs: all, those of a label, those that were submitted since then."""

    label: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """How many of a kind, and how many seconds of recordings they have."""

    name: str
    count: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    """Jobs that ended in one way. `job`: one of them, and what it said."""

    state: str
    code: str
    count: int
    job: int
    error: str


@dataclass(frozen=True, slots=True)
class Doubted:
    """A recording that somebody should look at. Shares are of its seconds, and of its segments."""

    job: int
    url: str
    duration_s: float
    failed_s: float
    logprob: float | None
    """Mean of its segments, weighted by their seconds."""
    segments: int
    flagged: int
    """Segments with a flag that says they may be wrong."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures of a report. Histograms have one count more than their edges."""

    states: dict[str, int]
    ends: tuple[End, ...]
    """Those that did not end well, most first."""
    recorded_s: float
    """Of the recordings whose length is known."""
    device_s: float
    """Of the device, that accepted results took."""
    cost: float
    """At the price of the workers that spent them; 0 where none was told."""
    transcripts: int
    words: int
    first: datetime | None
    last: datetime | None
    """When the first was submitted and the last one ended."""
    coverage_s: dict[str, float]
    """Seconds transcribed, no_speech and failed."""
    reasons: tuple[Count, ...]
    """Why seconds failed. Seconds of channels, most first."""
    languages: tuple[Count, ...]
    """Segments, and the seconds they last, by language."""
    durations: tuple[int, ...]
    waits: tuple[int, ...]
    """Seconds from submission to end, of jobs whose content was decoded for them."""
    speeds: tuple[int, ...]
    """Seconds of recording for each of those."""
    decoded_s: float
    """Of those jobs' recordings."""
    logprobs: tuple[int, ...]
    segments: int
    flags: tuple[Count, ...]
    doubted: tuple[Doubted, ...]


def summary(tx: Connection, scope: Scope, *, doubtful: Sequence[str], most: int = 20) -> Summary:
    """The figures of the scope. `doubtful`: flags that say a segment may be wrong; `most`: recordings to look at."""
    mine = _mine(scope)
    with_transcript = and_(mine, Job.transcript_id.is_not(None))
    theirs = SegmentRow.transcript_id.in_(select(Job.transcript_id).where(with_transcript))
    whole, texts = _whole(tx, mine), _texts(tx, mine)
    took = seconds_between(Job.created_at, Job.finished_at)
    led = and_(with_transcript, Job.leader == 1, took > 0.0)
    return Summary(
        states=_states(tx, mine),
        ends=_ends(tx, mine),
        recorded_s=float(whole.recorded_s),
        device_s=float(whole.device_s),
        cost=float(whole.cost),
        transcripts=texts.n,
        words=int(texts.words),
        first=whole.first,
        last=whole.last,
        coverage_s={k: float(getattr(texts, f"{k}_s")) for k in ("transcribed", "no_speech", "failed")},
        reasons=_reasons(tx, with_transcript),
        languages=_languages(tx, theirs),
        durations=_bins(tx, Job.duration_s, DURATIONS_S, and_(mine, Job.duration_s.is_not(None))),
        waits=_bins(tx, took, WAITS_S, led),
        speeds=_bins(tx, Job.duration_s / took, SPEEDS, led),
        decoded_s=float(tx.execute(select(_sum(Job.duration_s)).where(led)).scalar_one()),
        logprobs=_bins(tx, SegmentRow.avg_logprob, LOGPROBS, theirs),
        segments=tx.execute(select(func.count()).select_from(SegmentRow).where(theirs)).scalar_one(),
        flags=_flags(tx, theirs),
        doubted=_doubted(tx, with_transcript, doubtful, most),
    )


def _mine(scope: Scope) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [true()]
    if scope.label is not None:
        parts.append(Job.id.in_(select(Label.job_id).where(Label.label == scope.label)))
    if scope.since is not None:
        parts.append(instant(Job.created_at) >= instant(scope.since))
    return and_(*parts)


def _whole(tx: Connection, mine: ColumnElement[bool]) -> Any:
    first, last = func.min(Job.created_at).label("first"), func.max(Job.finished_at).label("last")
    sums = (_sum(column).label(name) for name, column in (
        ("recorded_s", Job.duration_s), ("device_s", Job.device_s), ("cost", Job.cost),
    ))  # fmt: skip
    return tx.execute(select(*sums, first, last).where(mine)).one()


def _texts(tx: Connection, mine: ColumnElement[bool]) -> Any:
    sums = (_sum(getattr(TranscriptRow, c)).label(c) for c in ("words", "transcribed_s", "no_speech_s", "failed_s"))
    of = select(func.count(distinct(TranscriptRow.id)).label("n"), *sums)
    return tx.execute(of.join(Job, Job.transcript_id == TranscriptRow.id).where(mine)).one()


def _sum(column: Any) -> Any:
    return func.coalesce(func.sum(column), 0)


def _states(tx: Connection, mine: ColumnElement[bool]) -> dict[str, int]:
    rows = tx.execute(select(Job.state, func.count().label("n")).where(mine).group_by(Job.state))
    return {r.state: r.n for r in rows}


def _ends(tx: Connection, mine: ColumnElement[bool]) -> tuple[End, ...]:
    """One job of each kind stands for all: there are no more kinds than states and codes."""
    badly = and_(mine, Job.state.in_([s for s in ENDED if s != "done"]))
    kinds = select(Job.state, Job.code, func.count().label("n"), func.min(Job.id).label("job"))
    grouped = kinds.where(badly).group_by(Job.state, Job.code).subquery()
    rows = tx.execute(select(grouped, Job.error).join(Job, Job.id == grouped.c.job).order_by(grouped.c.n.desc()))
    return tuple(End(r.state, r.code or "", r.n, r.job, r.error or "") for r in rows)


def _bins(tx: Connection, value: Any, edges: Sequence[float], where: ColumnElement[bool]) -> tuple[int, ...]:
    """How many lie below the first edge, between each two, and from the last one on."""
    which = case(*((value < edge, i) for i, edge in enumerate(edges)), else_=len(edges)).label("bin")
    found = {r.bin: r.n for r in tx.execute(select(which, func.count().label("n")).where(where).group_by(which))}
    return tuple(found.get(i, 0) for i in range(len(edges) + 1))


def _reasons(tx: Connection, with_transcript: ColumnElement[bool]) -> tuple[Count, ...]:
    lost = func.sum(CoverageRow.end_s - CoverageRow.start_s).label("s")
    rows = select(CoverageRow.reason.label("name"), func.count().label("n"), lost)
    theirs = CoverageRow.transcript_id.in_(select(Job.transcript_id).where(with_transcript))
    return _counts(
        tx, rows.where(theirs, CoverageRow.kind == "failed").group_by(CoverageRow.reason).order_by(lost.desc())
    )


def _languages(tx: Connection, theirs: ColumnElement[bool]) -> tuple[Count, ...]:
    spoken = func.sum(SegmentRow.end_s - SegmentRow.start_s).label("s")
    rows = select(SegmentRow.language.label("name"), func.count().label("n"), spoken)
    return _counts(tx, rows.where(theirs).group_by(SegmentRow.language).order_by(spoken.desc()))


def _counts(tx: Connection, rows: Any) -> tuple[Count, ...]:
    return tuple(Count(r.name, r.n, float(r.s or 0.0)) for r in tx.execute(rows.limit(MOST)))


def _flags(tx: Connection, theirs: ColumnElement[bool]) -> tuple[Count, ...]:
    """A segment's flags are one text; of those there are few different ones."""
    found: dict[str, int] = {}
    rows = select(SegmentRow.flags, func.count().label("n")).where(theirs, SegmentRow.flags != "")
    for r in tx.execute(rows.group_by(SegmentRow.flags)):
        for flag in set(r.flags.split()):
            found[flag] = found.get(flag, 0) + r.n
    return tuple(Count(name, n) for name, n in sorted(found.items(), key=lambda x: (-x[1], x[0])))


def _doubted(
    tx: Connection, with_transcript: ColumnElement[bool], doubtful: Sequence[str], most: int
) -> tuple[Doubted, ...]:
    """Most in need of a look: by the share that failed, the share of segments flagged, and a low mean probability.

    Each counts from 0 to 1, a mean log-probability of -2 and less as 1.
    """
    s, t = SegmentRow, TranscriptRow
    padded = " " + s.flags + " "
    flagged = or_(*(padded.contains(f" {flag} ", autoescape=True) for flag in doubtful))
    length = s.end_s - s.start_s + 0.001
    of = select(
        s.transcript_id,
        (func.sum(s.avg_logprob * length) / func.sum(length)).label("logprob"),
        func.count().label("segments"),
        func.sum(case((flagged, 1), else_=0)).label("flagged"),
    )
    theirs = select(Job.transcript_id).where(with_transcript)
    grouped = of.where(s.transcript_id.in_(theirs)).group_by(s.transcript_id).subquery()
    unsure = case((grouped.c.logprob < -2.0, 1.0), (grouped.c.logprob < 0.0, grouped.c.logprob / -2.0), else_=0.0)
    failed = case((t.duration_s > 0.0, t.failed_s / t.duration_s), else_=0.0)
    share = func.coalesce(cast(grouped.c.flagged, Float) / grouped.c.segments, 0.0)
    rows = (
        select(
            Job.id, Recording.url, t.duration_s, t.failed_s, grouped.c.logprob, grouped.c.segments, grouped.c.flagged
        )
        .join(Recording, Recording.id == Job.recording_id)
        .join(t, t.id == Job.transcript_id)
        .outerjoin(grouped, grouped.c.transcript_id == t.id)
        .where(with_transcript)
        .order_by((failed + share + unsure).desc(), Job.id)
        .limit(most)
    )
    return tuple(
        Doubted(r.id, r.url, r.duration_s, r.failed_s, r.logprob, r.segments or 0, int(r.flagged or 0))
        for r in tx.execute(rows)
    )
