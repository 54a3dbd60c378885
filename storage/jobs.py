"""Jobs: what content they turn out to have, how they end, and how they stand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, case, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased

from chunking.errors import Code, PermanentError
from storage import errands, leases, recordings
from storage.leases import Lease
from storage.moments import now_plus
from storage.tables import Job, Output, Recording, ShardRow, TranscriptRow

ENDED = ("done", "partial", "rejected", "failed", "cancelled")
"""States that a job does not leave by itself."""
WITH_TRANSCRIPT = ("done", "partial")
OF_THE_MOMENT = (Code.TOO_LONG, Code.TOO_LARGE, Code.GONE, Code.DENIED)
"""Rejections that hang on a limit or on the moment, not on the bytes: asked for again, they are looked at again."""
LONGEST = 1000
"""Characters of a URL and its version beyond which their digest stands for them."""
LATER = ("hotwords", "initial_prompt", "track")
"""Options that came later: left out where they are not used, so that digests stay and an older worker reads the job."""
TRY_AGAIN_S = 10.0
"""How long work rests after an error that may pass."""


def digest_of(identity: str) -> str:
    """What stands for an identity where it is too long, or must not be readable any more. Of itself it is itself."""
    return identity if identity.startswith("sha256:") else f"sha256:{hashlib.sha256(identity.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class MediaObject:
    """A media object that somebody wants transcribed. `version`: what changes when its bytes do."""

    url: str
    version: str
    size_bytes: int

    @property
    def identity(self) -> str:
        """What is unique to these bytes at this place; of bounded length, since an index takes no more."""
        named = f"{self.url}#{self.version}"
        return named if len(named) <= LONGEST else digest_of(named)


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing or a look at it found it."""

    media: MediaObject
    modified_s: int
    """When it was written, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What may change the words of a transcript. Where and in which formats it is delivered does not belong here."""

    model: str = "tiny.en"
    compute_type: str = "int8"
    language: str | None = None
    """None: detected."""
    task: str = "transcribe"
    channels: str = "mix"
    word_timestamps: bool = False
    beam_size: int = 1
    hotwords: str | None = None
    """Words that may be said, and how they are spelt."""
    initial_prompt: str | None = None
    """A text in the style that is wanted."""
    track: int | None = None
    """Position among the recording's audio tracks, from 0; None: the one flagged default, else the first."""

    @property
    def prompt(self) -> str:
        """What the model reads before each chunk."""
        return " ".join(filter(None, (self.hotwords, self.initial_prompt)))

    @property
    def stored(self) -> dict[str, Any]:
        """As a job's row has them; `JobOptions(**stored)` is the way back."""
        unused = {f.name for f in fields(self) if f.name in LATER and getattr(self, f.name) == f.default}
        return {name: value for name, value in asdict(self).items() if name not in unused}

    @property
    def engine(self) -> str:
        """What a worker must have loaded to decode the job."""
        return f"{self.model} {self.compute_type} beam {self.beam_size}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.stored, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job ended, or will end, as it does: for programs and in words."""

    code: Code
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as others may see it."""

    id: int
    url: str
    version: str
    size_bytes: int
    sha256: str | None
    state: str
    code: str | None
    error: str | None
    options: JobOptions
    language: str | None
    language_probability: float | None
    duration_s: float | None
    channels: int | None
    transcript_id: int | None
    force: bool
    assigned: str | None
    priority: int
    meta: dict[str, Any] | None
    created_at: datetime
    finished_at: datetime | None
    superseded: bool
    """Other bytes lie at its URL by now."""
    purged_at: datetime | None = None
    """When its result was deleted."""
    trace: str | None = None
    """What its spans hang on (pipeline/tracing.py)."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def view(tx: Connection, job: int) -> JobView:
    return views(tx, [job])[0]


def views(tx: Connection, jobs: Sequence[int]) -> list[JobView]:
    """Those jobs, in the order asked for. Raises PermanentError where one of them is not there any more."""
    found: dict[int, JobView] = {}
    for first in range(0, len(jobs), 500):
        for r in tx.execute(_view_query(), {"jobs": jobs[first : first + 500]}):
            found[r.id] = JobView(
                **{
                    **r._mapping,
                    "options": JobOptions(**r.options),
                    "force": bool(r.force),
                    "superseded": bool(r.superseded),
                }
            )
    if gone := set(jobs) - found.keys():
        raise PermanentError(f"job {min(gone)} is not there any more: it was purged")
    return [found[j] for j in jobs]


def trace_of(tx: Connection, lease: Lease) -> str | None:
    """What the spans of the leased row's job hang on."""
    if lease.step.table is Job.__table__:
        return tx.execute(select(Job.trace).where(Job.id == lease.id)).scalar()
    t = lease.step.table.c
    return tx.execute(select(Job.trace).join(lease.step.table, t.job_id == Job.id).where(t.id == lease.id)).scalar()


def leader_trace(tx: Connection, copy: int) -> str | None:
    """What the spans of the job hang on that has, or will have, the transcript of this one with equal bytes."""
    key = select(Job.content_key).where(Job.id == copy).scalar_subquery()
    return tx.execute(select(Job.trace).where(Job.content_key == key, Job.leader == 1)).scalar()


def ended(tx: Connection, jobs: Sequence[int]) -> set[int]:
    """Those of the jobs that have ended."""
    done: set[int] = set()
    for first in range(0, len(jobs), 500):
        part = jobs[first : first + 500]
        done.update(tx.execute(select(Job.id).where(Job.id.in_(part), Job.state.in_(ENDED))).scalars())
    return done


def claim_content(tx: Connection, lease: Lease, sha256: str) -> str:
    """The bytes are known now: `lead` (decode them), `wait` (another job does) or `end` (it has been done).

    Ends the lease unless the answer is `lead`. Of all jobs with equal bytes and options one leads at a time.
    """
    leases.hold(tx, lease)
    job = view(tx, lease.id)
    key = f"{sha256}:{job.options.digest}"
    tx.execute(update(Recording).where(Recording.id == _recording(lease.id)).values(sha256=sha256))
    leading = select(Job).where(Job.content_key == key, Job.leader == 1, Job.id != lease.id)
    leader = tx.execute(leading.with_for_update()).first()  # it must not end between this look and our waiting
    if leader is not None:
        rejected = leader.state == "rejected" and leader.code not in OF_THE_MOMENT
        reusable = rejected or leader.state in WITH_TRANSCRIPT
        if not job.force and reusable:
            values = {k: getattr(leader, k) for k in _SHARED}
            leases.end(tx, lease, leader.state, content_key=key, **values)
            recordings.alike(tx, leader.id, [lease.id])
            ended_now(tx, lease.id)
            return "end"
        if not job.force and leader.state not in ENDED:
            assign(tx, [leader.id], job.assigned)
            leases.end(tx, lease, "waiting", content_key=key, follows=leader.id)
            return "wait"
        tx.execute(update(Job).where(Job.id == leader.id).values(leader=0))
    try:
        with tx.begin_nested():
            tx.execute(update(Job).where(Job.id == lease.id).values(content_key=key, leader=1, follows=None))
    except IntegrityError:  # somebody else became the leader since we looked
        return claim_content(tx, lease, sha256)
    return "lead"


def end_job(tx: Connection, lease: Lease, state: str, verdict: Verdict, **values: Any) -> None:
    """The leased job ends, and with it all that waited for it."""
    leases.end(tx, lease, state, code=verdict.code.value, error=verdict.error, **values)
    ended_now(tx, lease.id)


def ended_now(tx: Connection, job: int) -> None:
    """The job has just ended: so have those that waited for it, since equal bytes and options have equal ends.

    But that one object is gone or out of reach says nothing of the others, which have a place of their own.
    """
    row = tx.execute(_FINISHED, {"ended": job}).one()
    shared = {k: getattr(row, k) for k in _SHARED}
    if row.state == "rejected" and row.code in {Code.GONE, Code.DENIED}:
        waiting = update(Job).where(Job.follows == job, Job.state == "waiting")
        tx.execute(waiting.values(state="queued", follows=None))
    followers = list(tx.execute(_FOLLOWED, {"leader_id": job, "state": row.state, **shared}).scalars())
    recordings.alike(tx, job, followers)
    ended = [job, *followers]
    if row.state in WITH_TRANSCRIPT:
        tx.execute(_DUE, {"ended": ended})
    errands.settle(tx, ended)


def assigned(tx: Connection, jobs: Sequence[int]) -> dict[int, str | None]:
    """Which worker alone may take each of the jobs that have not ended; for one that waits, the one it waits for."""
    found: dict[int, str | None] = {}
    leader = aliased(Job)
    worker = case((Job.state == "waiting", leader.assigned), else_=Job.assigned)
    for first in range(0, len(jobs), 500):
        part = select(Job.id, worker.label("worker")).outerjoin(leader, leader.id == Job.follows)
        part = part.where(Job.id.in_(jobs[first : first + 500]), Job.state.not_in(ENDED))
        found.update({r.id: r.worker for r in tx.execute(part)})
    return found


def assign(tx: Connection, jobs: Sequence[int], worker: str | None) -> None:
    """From now on only `worker` takes these jobs, those they wait for, and their shards.

    What is leased stays where it is until it ends.
    """
    for first in range(0, len(jobs), 500):
        part = jobs[first : first + 500]
        leaders = select(Job.follows).where(Job.id.in_(part), Job.state == "waiting")
        meant = {*part, *tx.execute(leaders).scalars()}
        tx.execute(update(Job).where(Job.id.in_(meant), Job.state.not_in(ENDED)).values(assigned=worker))
        tx.execute(update(ShardRow).where(ShardRow.job_id.in_(meant), ShardRow.state != "done").values(assigned=worker))


_JOBS: Any = Job.__table__
# Kept: to build a statement takes longer than to run it.
_FINISHED = update(_JOBS).where(_JOBS.c.id == bindparam("ended")).values(finished_at=now_plus()).returning(*_JOBS.c)
_FOLLOWED = (
    update(_JOBS)
    .where(_JOBS.c.follows == bindparam("leader_id"), _JOBS.c.state == "waiting")
    .values(finished_at=now_plus())
    .returning(_JOBS.c.id)
)
_DUE = (
    update(Output.__table__)  # type: ignore[arg-type]
    .where(Output.job_id.in_(bindparam("ended", expanding=True)), Output.state == "wanted")
    .values(state="due")
)
_SHARED = ("code", "error", "language", "language_probability", "duration_s", "channels", "transcript_id")


@cache
def _view_query() -> Any:
    """Kept: to build it takes longer than to run it."""
    j = Job
    return select(
        j.id, Recording.url, Recording.version, Recording.size_bytes, Recording.sha256, j.state, j.code, j.error,
        j.options, j.language, j.language_probability, j.duration_s, j.channels, j.transcript_id, j.force, j.assigned,
        j.priority, j.meta.label("meta"), j.created_at, j.finished_at, j.purged_at, j.trace,
        Recording.superseded_by.is_not(None).label("superseded"),
    ).join(Recording, Recording.id == j.recording_id).where(j.id.in_(bindparam("jobs", expanding=True)))  # fmt: skip


def _recording(job: int) -> Any:
    return select(Job.recording_id).where(Job.id == job).scalar_subquery()


def transcript_rows(tx: Connection, transcripts: Sequence[int]) -> dict[int, Any]:
    """The transcripts' own rows, by their ids."""
    found: dict[int, Any] = {}
    for first in range(0, len(transcripts), 500):
        found.update({r.id: r for r in tx.execute(_TRANSCRIPTS, {"transcripts": transcripts[first : first + 500]})})
    return found


_TRANSCRIPTS = select(TranscriptRow).where(TranscriptRow.id.in_(bindparam("transcripts", expanding=True)))
