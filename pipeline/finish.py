"""Finish: a job's chunk results become one transcript in the database, and the files that somebody wants of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from chunking.coverage import QUIET, UNREAD, coverage
from chunking.errors import Code, LeaseLost, PermanentError, TransientError, UsageError
from chunking.sentences import sentences
from chunking.stitcher import stitch
from chunking.timeline import ChunkResult, Coverage, Plan, Segment, Transcript, seconds_by_language
from pipeline import tracing
from pipeline.exports import CONTENT_TYPES, About, Format, render
from pipeline.languages import MULTI
from pipeline.telemetry import Tally
from storage import checkpoints, jobs, leases, outputs, plans, recordings, search, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.destinations import Destinations
from storage.jobs import JobView, Verdict
from storage.leases import Heartbeat, Lease
from storage.objects import ObjectStore
from storage.outputs import WantedOutput

LOG = logging.getLogger("spotscribe.finish")
PORTION, PORTION_S = 200, 3600.0
"""Files, and seconds of recordings, whose transcripts are in memory at once where many files are written."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A job's transcript, and what a file says of where it comes from."""

    job: JobView
    transcript: Transcript
    about: About

    def render(self, kind: Format) -> bytes:
        """A file's content."""
        return render(self.transcript, self.about, kind).encode("utf-8", "replace")


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
            state, verdict = ending(job, plan, results, transcript)
            try:
                with self._db.transaction() as tx:  # its own: a new word in hand holds up all others who have it
                    leases.hold(tx, lease)  # else the words of a purged recording would come back
                    search.know(tx, (s.text for s in transcript.segments))
                with self._db.transaction() as tx:
                    leases.hold(tx, lease)
                    search.keep_words(tx)
                    search.know(tx, (s.text for s in transcript.segments))  # again: some may have been forgotten since
                    values = self._store_transcript(tx, job, transcript, results) if state != "failed" else {}
                    jobs.end_job(tx, lease, state, verdict, **values, **checkpoints.spent_on(tx, lease.id))
            except LeaseLost:
                self._tally.count("leases_lost", "finish")
                return
            self._count(job, state, verdict, transcript)
            with suppress(TransientError):
                for key in keys:  # the transcript stands; what outlives an error or a kill here is swept up later
                    self._store.delete(key)

    def _count(self, job: JobView, state: str, verdict: Verdict, transcript: Transcript) -> None:
        said = {"job": job.id, "state": state, "code": verdict.code.value, "audio_s": round(transcript.duration, 1)}
        LOG.info("ended", extra={**said, "error": verdict.error})
        tracing.note(state=state, code=verdict.code.value, audio_s=said["audio_s"])
        self._tally.count("ended", state, verdict.code.value)
        for kind in Coverage:
            self._tally.count("coverage_seconds", kind.value, by=transcript.seconds(kind))
        created = job.created_at if job.created_at.tzinfo else job.created_at.replace(tzinfo=UTC)
        self._tally.observe("job_seconds", max(0.0, (datetime.now(UTC) - created).total_seconds()))

    def _store_transcript(
        self, tx: Connection, job: JobView, transcript: Transcript, results: list[ChunkResult]
    ) -> dict[str, Any]:
        """Its rows; the answer is what the job's own row says of it."""
        o = job.options
        made = Made(job.sha256 or "", o.digest, o.model, computed_in(results) or o.compute_type, o.task)
        return {
            "transcript_id": checkpoints.write_transcript(tx, transcript, made),
            "language": transcript.language,
            "language_probability": transcript.language_probability,
        }

    def deliver(self, wanted: Sequence[WantedOutput]) -> dict[WantedOutput, OSError]:
        """Write files of ended jobs' transcripts, each whole or not at all, and note that they are there.

        The answer is what could not be written, and why.
        """
        failed: dict[WantedOutput, OSError] = {}
        for part in self._portions(wanted):
            contents = self._rendered(part)
            done = []
            for output, content in contents.items():
                try:
                    self._write(output, content)
                    done.append((output, len(content), hashlib.sha256(content).hexdigest()))
                except OSError as e:
                    failed[output] = e
            with self._db.transaction() as tx:
                outputs.written(tx, done)
            self._take_back([output.url for output, _, _ in done])
        return failed

    def deliver_leased(self, lease: Lease) -> None:
        """The same for a leased file. What may pass is tried again later, what may not is noted with the file."""
        with self._db.reading() as tx:
            wanted = outputs.of_lease(tx, lease)
        try:
            content = self._rendered([wanted])[wanted]
            self._write(wanted, content)
        except (UsageError, TransientError, OSError) as e:
            with self._db.transaction() as tx:
                outputs.put_off(tx, lease, str(e))
            self._tally.count("put_off", "deliver")
            return
        except PermanentError as e:
            with self._db.transaction() as tx:
                outputs.failed(tx, lease, str(e))
            return
        digest = hashlib.sha256(content).hexdigest()
        try:
            with self._db.transaction() as tx:
                outputs.delivered(tx, lease, len(content), digest)
        except LeaseLost:
            self._take_back([wanted.url])
            raise

    def _take_back(self, urls: Sequence[str]) -> None:
        """A job may have been purged while its files were written: then they must not stay."""
        with self._db.reading() as tx:
            unwanted = outputs.unwanted(tx, urls)
        for url in unwanted:
            self._destinations.remove(url)

    def render(self, of: int, kind: Format) -> bytes:
        """An ended job's transcript as a file's content. Raises PermanentError where there is none."""
        wanted = WantedOutput(of, kind, "")
        return self._rendered([wanted])[wanted]

    def _write(self, output: WantedOutput, content: bytes) -> None:
        self._destinations.write(output.url, content, CONTENT_TYPES[Format(output.format)])

    def _portions(self, wanted: Sequence[WantedOutput]) -> Iterator[list[WantedOutput]]:
        """So few at once that their transcripts are no burden to memory, in one go for the database."""
        with self._db.reading() as tx:
            seconds = {j.id: j.duration_s or 0.0 for j in jobs.views(tx, sorted({o.job for o in wanted}))}
        part: list[WantedOutput] = []
        for output in wanted:
            if part and (sum(seconds[o.job] for o in part) > PORTION_S or len(part) == PORTION):
                yield part
                part = []
            part.append(output)
        if part:
            yield part

    def read(self, of: Sequence[int]) -> dict[int, Finished]:
        """The transcripts of those of the jobs that have one."""
        with self._db.reading() as tx:
            views = [j for j in jobs.views(tx, sorted(set(of))) if j.transcript_id is not None]
            ids = sorted({j.transcript_id for j in views if j.transcript_id is not None})
            transcripts, rows = checkpoints.read_transcripts(tx, ids), jobs.transcript_rows(tx, ids)
            media = recordings.media_of(tx, [j.id for j in views])
        found = {}
        for job in views:
            if job.transcript_id not in rows or job.transcript_id not in transcripts:  # deleted since we looked
                continue
            row = rows[job.transcript_id]
            about = About(
                source_url=job.url, sha256=row.sha256, model=row.model, compute_type=row.compute_type, task=row.task,
                state=job.state, code=job.code or "", job_id=str(job.id), created_at=_utc(row.created_at),
                media=media[job.id],
            )  # fmt: skip
            found[job.id] = Finished(job, transcripts[job.transcript_id], about)
        return found

    def _rendered(self, wanted: Sequence[WantedOutput]) -> dict[WantedOutput, bytes]:
        """The content of these files. Raises PermanentError where a job has no transcript."""
        found = self.read([o.job for o in wanted])
        contents = {}
        for output in wanted:
            if output.job not in found:
                raise PermanentError("there is no transcript")
            contents[output] = found[output.job].render(Format(output.format))
        return contents


def sweep(database: Database, store: ObjectStore) -> int:
    """Delete the audio in work of jobs that have ended, or are purged: what kills, errors and cancelled jobs left. How
    many objects.

    An attempt that begins after the look writes under keys of its own (they carry its fence), so none of its is hit.
    """
    found = [(int(job), key) for key in store.keys("shards/") if (job := key.split("/")[1]).isdecimal()]
    with database.reading() as tx:
        mine = sorted({job for job, _ in found})
        needed = submission.existing(tx, mine) - jobs.ended(tx, mine)
    gone = [key for job, key in found if job not in needed]
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
    language, probability = _language(job, results, segments)
    return Transcript(
        duration=plan.duration,
        channels=plan.channels,
        language=language,
        language_probability=probability,
        segments=tuple(sorted(segments, key=lambda s: (s.start, s.channel))),
        coverage=coverage(plan, results),
    )


def _language(job: JobView, results: list[ChunkResult], segments: list[Segment]) -> tuple[str, float]:
    """The recording's language and its probability; of several, the one that is spoken longest."""
    told = job.options.language
    if told and told != MULTI:
        return told, 1.0
    if job.language:
        return job.language, job.language_probability or 0.0
    most = next(iter(seconds_by_language(segments)), results[0].language if results else "")
    mine = [s for s in segments if s.language == most]
    sure = sum((s.end - s.start) * (s.language_probability or 0.0) for s in mine)
    return most, sure / (sum(s.end - s.start for s in mine) or 1.0)


def computed_in(results: list[ChunkResult]) -> str:
    """What the chunks were computed in: one compute type, or those of all devices that took part, joined by `+`."""
    return "+".join(sorted({r.compute_type for r in results if r.compute_type}))


def ending(job: JobView, plan: Plan, results: list[ChunkResult], transcript: Transcript) -> tuple[str, Verdict]:
    """How the job ends. What the engine failed on counts as the file's own damage does: the rest is worth having."""
    if job.code:
        return ("failed" if plan.chunks and not results else "partial"), Verdict(Code(job.code), job.error)
    explained = {UNREAD, *QUIET}
    failed = [g.reason for r in results for g in r.gaps if g.reason not in explained]
    if failed:
        return ("partial" if transcript.segments else "failed"), Verdict(Code.INTERNAL, failed[0])
    return "done", Verdict(Code.OK if transcript.segments else Code.NO_SPEECH, job.error)


def _utc(moment: datetime) -> str:
    """ISO 8601 with its zone; SQLite gives the database's UTC without one."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
