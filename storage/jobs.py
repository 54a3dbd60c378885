"""Jobs: submitting them, what content they turn out to have, how they end, and how they stand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, and_, case, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased

from chunking.errors import Code
from storage import leases
from storage.database import now_plus, upsert
from storage.leases import Lease
from storage.tables import Checkpoint, Job, Output, Recording, ShardRow, TranscriptRow

ENDED = ("done", "partial", "rejected", "failed", "cancelled")
"""States that a job does not leave by itself."""
WITH_TRANSCRIPT = ("done", "partial")
OF_THE_MOMENT = (Code.TOO_LONG, Code.TOO_LARGE, Code.GONE, Code.DENIED)
"""Rejections that hang on a limit or on the moment, not on the bytes: asked for again, they are looked at again."""
TRY_AGAIN_S = 10.0
"""How long work rests after an error that may pass."""


@dataclass(frozen=True, slots=True)
class Source:
    """A media object that somebody wants transcribed. `version`: what changes when its bytes do."""

    url: str
    version: str
    size_bytes: int

    @property
    def identity(self) -> str:
        return f"{self.url}#{self.version}"


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

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


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

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def submit(tx: Connection, source: Source, options: JobOptions, *, force: bool = False) -> int:
    """The job for this recording and these options: a new one, or the one there is. With `force` it starts again."""
    recording = _row_id(
        tx, Recording, {"identity": source.identity}, {"url": source.url, "size_bytes": source.size_bytes}
    )
    key = {"recording_id": recording, "options_digest": options.digest}
    job = _row_id(tx, Job, key, {"options": asdict(options), "model": options.model, "state": "queued"})
    passing = or_(Job.state == "failed", and_(Job.state == "rejected", Job.code.in_(OF_THE_MOMENT)))
    if force or tx.execute(select(Job.id).where(Job.id == job, passing)).first() is not None:
        _start_again(tx, job, force=force)
    return job


def view(tx: Connection, job: int) -> JobView:
    return views(tx, [job])[0]


def views(tx: Connection, jobs: Sequence[int]) -> list[JobView]:
    """Those jobs, in the order asked for."""
    found: dict[int, JobView] = {}
    for first in range(0, len(jobs), 500):
        for r in tx.execute(_view_query().where(Job.id.in_(jobs[first : first + 500]))):
            found[r.id] = JobView(**{**r._mapping, "options": JobOptions(**r.options), "force": bool(r.force)})
    return [found[j] for j in jobs]


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
            leases.end(tx, lease, leader.state, content_key=key, finished_at=now_plus(), **values)
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


def describe(tx: Connection, job: int, **media: Any) -> None:
    """Note what the decoder said of the recording: container, codec, channels, durations, errors."""
    tx.execute(update(Recording).where(Recording.id == _recording(job)).values(media))


def end_job(tx: Connection, lease: Lease, state: str, verdict: Verdict, **values: Any) -> None:
    """The leased job ends, and with it all that waited for it."""
    leases.end(tx, lease, state, code=verdict.code.value, error=verdict.error, **values)
    ended_now(tx, lease.id)


def ended_now(tx: Connection, job: int) -> None:
    """The job has just ended: so have those that waited for it, since equal bytes and options have equal ends."""
    tx.execute(update(Job).where(Job.id == job).values(finished_at=now_plus()))
    row = tx.execute(select(Job).where(Job.id == job)).one()
    shared = {k: getattr(row, k) for k in _SHARED}
    followers = update(Job).where(Job.follows == job, Job.state == "waiting")
    tx.execute(followers.values(state=row.state, finished_at=now_plus(), **shared))


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


_SHARED = ("code", "error", "language", "language_probability", "duration_s", "channels", "transcript_id")


def _view_query() -> Any:
    j = Job
    return select(
        j.id, Recording.url, Recording.size_bytes, Recording.sha256, j.state, j.code, j.error, j.options, j.language,
        j.language_probability, j.duration_s, j.channels, j.transcript_id, j.force, j.assigned,
    ).join(Recording, Recording.id == j.recording_id)  # fmt: skip


def _recording(job: int) -> Any:
    return select(Job.recording_id).where(Job.id == job).scalar_subquery()


def _row_id(tx: Connection, table: Any, key: dict[str, Any], values: dict[str, Any]) -> int:
    """The id of the row with that unique key, inserted if it is not there."""
    match = select(table.id).where(*[getattr(table, k) == v for k, v in key.items()])
    found: int | None = tx.execute(match).scalar()
    if found is None:
        insert = upsert(tx, table).values(**key, **values).on_conflict_do_nothing().returning(table.id)
        found = tx.execute(insert).scalar()
    return found if found is not None else int(tx.execute(match).scalar_one())


def _start_again(tx: Connection, job: int, *, force: bool) -> None:
    """Back to the start, whatever stood. A worker that is at it finds its fence gone."""
    tx.execute(delete(Checkpoint).where(Checkpoint.job_id == job))
    tx.execute(delete(ShardRow).where(ShardRow.job_id == job))
    tx.execute(
        update(Job)
        .where(Job.id == job)
        .values(
            state="queued", fence=Job.fence + 1, worker=None, lease_until=None, next_run_at=None, leader=0,
            follows=None, force=int(force), code=None, error=None, language=None, transcript_id=None, finished_at=None,
        )
    )  # fmt: skip
    tx.execute(update(Output).where(Output.job_id == job).values(written_at=None))


def transcript_row(tx: Connection, transcript: int) -> Any:
    """The transcript's own row."""
    return tx.execute(select(TranscriptRow).where(TranscriptRow.id == transcript)).one()
