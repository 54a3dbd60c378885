"""Finish: a job's chunk results become one transcript in the database, and the files that somebody wants of it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from chunking.coverage import coverage
from chunking.errors import Code, LeaseLost, PermanentError, TransientError, UsageError
from chunking.sentences import sentences
from chunking.stitcher import stitch
from chunking.timeline import ChunkResult, Plan, Segment, Transcript
from pipeline.exports import CONTENT_TYPES, About, Format, render
from pipeline.telemetry import Tally
from storage import checkpoints, jobs, leases, outputs, plans
from storage.checkpoints import Made
from storage.database import Database
from storage.destinations import Destinations
from storage.jobs import JobView, Verdict
from storage.leases import Heartbeat, Lease
from storage.objects import ObjectStore
from storage.outputs import WantedOutput


class Finisher:
    """A worker's finish step, and delivery. Safe to share by threads."""

    def __init__(
        self, database: Database, store: ObjectStore, tally: Tally, destinations: Destinations | None = None
    ) -> None:
        self._db, self._store, self._tally = database, store, tally
        self._destinations = destinations or Destinations()
        self._heart = Heartbeat(database)

    def finish(self, lease: Lease) -> None:
        """Do the step for the leased job: one transaction holds transcript and end."""
        with self._heart.keep(lease), self._tally.stage("finish"):
            with self._db.reading() as tx:
                job = jobs.view(tx, lease.id)
                plan = plans.plan_of(tx, lease.id)
                results = checkpoints.of_job(tx, lease.id)
                keys = plans.object_keys(tx, lease.id)
            transcript = assemble(job, plan, results)
            state, code = _end(job, plan, results, transcript)
            try:
                with self._db.transaction() as tx:
                    leases.hold(tx, lease)
                    values = self._store_transcript(tx, job, transcript) if state != "failed" else {}
                    jobs.end_job(tx, lease, state, Verdict(code, job.error), **values)
            except LeaseLost:
                return
            with suppress(TransientError):
                for key in keys:  # the transcript stands; what outlives an error or a kill here is swept up later
                    self._store.delete(key)

    def _store_transcript(self, tx: Connection, job: JobView, transcript: Transcript) -> dict[str, Any]:
        """Its rows; the answer is what the job's own row says of it."""
        o = job.options
        made = Made(job.sha256 or "", o.digest, o.model, o.compute_type, o.task)
        return {
            "transcript_id": checkpoints.write_transcript(tx, transcript, made),
            "language": transcript.language,
            "language_probability": transcript.language_probability,
        }

    def deliver(self, wanted: WantedOutput) -> None:
        """Write one file of an ended job's transcript, whole or not at all, and note that it is there."""
        content = self._written(wanted)
        with self._db.transaction() as tx:
            outputs.written(tx, wanted, len(content), hashlib.sha256(content).hexdigest())

    def deliver_leased(self, lease: Lease) -> None:
        """The same for a leased file. What may pass is tried again later, what may not is noted with the file."""
        with self._db.reading() as tx:
            wanted = outputs.of_lease(tx, lease)
        try:
            content = self._written(wanted)
        except (UsageError, TransientError, OSError) as e:
            with self._db.transaction() as tx:
                outputs.put_off(tx, lease, str(e))
            return
        except PermanentError as e:
            with self._db.transaction() as tx:
                outputs.failed(tx, lease, str(e))
            return
        digest = hashlib.sha256(content).hexdigest()
        with self._db.transaction() as tx:
            outputs.delivered(tx, lease, len(content), digest)

    def _written(self, wanted: WantedOutput) -> bytes:
        """Write the file; the answer is its content."""
        content = self.render(wanted.job, Format(wanted.format))
        self._destinations.write(wanted.url, content, CONTENT_TYPES[Format(wanted.format)])
        return content

    def render(self, of: int, kind: Format) -> bytes:
        """An ended job's transcript as a file's content. Raises PermanentError where there is none."""
        with self._db.reading() as tx:
            job = jobs.view(tx, of)
            if job.transcript_id is None:
                raise PermanentError("there is no transcript")
            transcript = checkpoints.read_transcript(tx, job.transcript_id)
            row = jobs.transcript_row(tx, job.transcript_id)
        about = About(
            source_url=job.url, sha256=row.sha256, model=row.model, compute_type=row.compute_type, task=row.task,
            state=job.state, code=job.code or "", job_id=str(job.id), created_at=_utc(row.created_at),
        )  # fmt: skip
        return render(transcript, about, kind).encode("utf-8", "replace")


def sweep(database: Database, store: ObjectStore) -> int:
    """Delete the audio in work of jobs that have ended: what kills, errors and cancelled jobs left. How many objects.

    An attempt that begins after the look writes under keys of its own (they carry its fence), so none of its is hit.
    """
    found = [(int(job), key) for key in store.keys("shards/") if (job := key.split("/")[1]).isdecimal()]
    with database.reading() as tx:
        ended = jobs.ended(tx, sorted({job for job, _ in found}))
    gone = [key for job, key in found if job in ended]
    for key in gone:
        store.delete(key)
    return len(gone)


def assemble(job: JobView, plan: Plan, results: list[ChunkResult]) -> Transcript:
    """Chunk results → the transcript: overlaps stitched, a sentence a segment, every second accounted for."""
    stitched = stitch(results, plan.duration)
    segments: list[Segment] = []
    for _, mine in groupby(sorted(stitched, key=lambda s: (s.channel, s.start)), key=lambda s: s.channel):
        segments += sentences(list(mine))
    if not job.options.word_timestamps:  # some have them because speech was cut there
        segments = [replace(s, words=()) for s in segments]
    language = job.options.language or job.language or (results[0].language if results else "")
    return Transcript(
        duration=plan.duration,
        channels=plan.channels,
        language=language,
        language_probability=1.0 if job.options.language else job.language_probability or 0.0,
        segments=tuple(sorted(segments, key=lambda s: (s.start, s.channel))),
        coverage=coverage(plan, results),
    )


def _end(job: JobView, plan: Plan, results: list[ChunkResult], transcript: Transcript) -> tuple[str, Code]:
    if job.code:
        return ("failed" if plan.chunks and not results else "partial"), Code(job.code)
    return "done", Code.OK if transcript.segments else Code.NO_SPEECH


def _utc(moment: datetime) -> str:
    """ISO 8601 with its zone; SQLite gives the database's UTC without one."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
