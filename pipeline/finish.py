"""Finish: a job's chunk results become one transcript in the database, and the files that somebody wants of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from chunking.coverage import coverage
from chunking.errors import Code, LeaseLost
from chunking.sentences import sentences
from chunking.stitcher import stitch
from chunking.timeline import ChunkResult, Plan, Segment, Transcript
from pipeline.exports import About, Format, render
from pipeline.telemetry import Tally
from storage import checkpoints, jobs, leases, outputs, plans
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import JobView, Verdict
from storage.leases import Lease
from storage.objects import ObjectStore, path_of, write_atomically
from storage.outputs import WantedOutput


class Finisher:
    """A worker's finish step, and delivery. Safe to share by threads."""

    def __init__(self, database: Database, store: ObjectStore, tally: Tally) -> None:
        self._db, self._store, self._tally = database, store, tally

    def finish(self, lease: Lease) -> None:
        """Do the step for the leased job: one transaction holds transcript and end."""
        with self._tally.stage("finish"):
            with self._db.reading() as tx:
                job = jobs.view(tx, lease.id)
                plan = plans.plan_of(tx, lease.id)
                results = checkpoints.of_job(tx, lease.id)
                keys = plans.object_keys(tx, lease.id)
            transcript = assemble(job, plan, results)
            made = Made(
                job.sha256 or "", job.options.digest, job.options.model, job.options.compute_type, job.options.task
            )
            state, code = _end(job, transcript)
            try:
                with self._db.transaction() as tx:
                    leases.hold(tx, lease)
                    row = checkpoints.write_transcript(tx, transcript, made)
                    jobs.end_job(
                        tx, lease, state, Verdict(code, job.error), transcript_id=row,
                        language=transcript.language, language_probability=transcript.language_probability,
                    )  # fmt: skip
            except LeaseLost:
                return
            for key in keys:  # the transcript stands; a shard that outlives a kill here is only waste
                self._store.delete(key)

    def deliver(self, wanted: WantedOutput) -> None:
        """Write one file of an ended job's transcript, whole or not at all, and note that it is there."""
        with self._db.reading() as tx:
            job = jobs.view(tx, wanted.job)
            if job.transcript_id is None:
                return
            transcript = checkpoints.read_transcript(tx, job.transcript_id)
            row = jobs.transcript_row(tx, job.transcript_id)
        about = About(
            source_url=job.url, sha256=row.sha256, model=row.model, compute_type=row.compute_type, task=row.task,
            state=job.state, code=job.code or "", job_id=str(job.id), created_at=_utc(row.created_at),
        )  # fmt: skip
        content = render(transcript, about, Format(wanted.format)).encode("utf-8", "replace")
        write_atomically(path_of(wanted.url), content)
        with self._db.transaction() as tx:
            outputs.written(tx, wanted, len(content), hashlib.sha256(content).hexdigest())


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


def _end(job: JobView, transcript: Transcript) -> tuple[str, Code]:
    if job.code:
        return "partial", Code(job.code)
    return "done", Code.OK if transcript.segments else Code.NO_SPEECH


def _utc(moment: datetime) -> str:
    """ISO 8601 with its zone; SQLite gives the database's UTC without one."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
