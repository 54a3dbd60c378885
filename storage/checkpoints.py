"""Chunk results as checkpoints, and finished transcripts: what the model's work turns into, fenced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select

from chunking.stitcher import split_words
from chunking.timeline import (
    ChunkResult,
    Coverage,
    CoverageSpan,
    Segment,
    Span,
    Transcript,
    Word,
)
from storage import leases
from storage.database import upsert
from storage.leases import Lease
from storage.records import from_record, to_record
from storage.tables import Checkpoint, CoverageRow, SegmentRow, TranscriptRow


@dataclass(frozen=True, slots=True)
class Made:
    """How a transcript was made."""

    sha256: str
    options_digest: str
    model: str
    compute_type: str
    task: str


def write(
    tx: Connection,
    lease: Lease,
    job: int,
    worker: str,
    results: Sequence[ChunkResult],
    *,
    spent: Mapping[int, float] | None = None,
    price_per_hour: float = 0.0,
) -> int:
    """Accept results of one leased shard, once each. Raises LeaseLost, and then nothing of them is written.

    `spent`: seconds of the device for each chunk, at that price.
    """
    leases.hold(tx, lease)
    if not results:
        return 0
    rows = [
        {
            "job_id": job,
            "chunk": r.index,
            "shard_id": lease.id,
            "fence": lease.fence,
            "worker": worker,
            "decodes": r.decodes,
            "result": to_record(r),
            "device_s": (device_s := (spent or {}).get(r.index, 0.0)),
            "cost": device_s * price_per_hour / 3600,
        }
        for r in sorted(results, key=lambda r: r.index)
    ]
    leases.got_on(tx, lease)
    # Rows beside the statement, not in it: a statement that has been compiled before is not compiled again.
    written = tx.execute(upsert(tx, Checkpoint).on_conflict_do_nothing().returning(Checkpoint.chunk), rows)
    return len(written.all())


def of_shard(tx: Connection, shard: int) -> set[int]:
    """Chunks of the shard that are done."""
    return set(tx.execute(_OF_SHARD, {"shard": shard}).scalars())


def languages_of_shard(tx: Connection, shard: int) -> dict[int, tuple[str, str]]:
    """Of the shard's chunks that are done: the languages that each begins and ends with."""
    rows = tx.execute(select(Checkpoint.chunk, Checkpoint.result).where(Checkpoint.shard_id == shard))
    found = {r.chunk: [s["language"] for s in r.result["segments"]] or [r.result["language"]] for r in rows}
    return {chunk: (languages[0], languages[-1]) for chunk, languages in found.items()}


def count(tx: Connection, jobs: Sequence[int]) -> int:
    """Accepted results of those jobs."""
    parts = [jobs[first : first + 500] for first in range(0, len(jobs), 500)]
    return sum(
        tx.execute(select(func.count()).select_from(Checkpoint).where(Checkpoint.job_id.in_(part))).scalar_one()
        for part in parts
    )


def of_job(tx: Connection, job: int) -> list[ChunkResult]:
    """All accepted results of a job, in order of their chunks."""
    return [from_record(ChunkResult, r) for r in tx.execute(_OF_JOB, {"job": job}).scalars()]


def spent_on(tx: Connection, job: int) -> dict[str, float]:
    """What the accepted results of a job took: `device_s` and `cost`."""
    row = tx.execute(_SPENT, {"job": job}).one()
    return {"device_s": row.device_s or 0.0, "cost": row.cost or 0.0}


def write_transcript(tx: Connection, transcript: Transcript, made: Made) -> int:
    """The transcript's rows; the answer is its id. Text is cleaned of what Postgres refuses."""
    t = transcript
    row = {
        "sha256": made.sha256,
        "options_digest": made.options_digest,
        "model": made.model,
        "compute_type": made.compute_type,
        "task": made.task,
        "language": t.language,
        "language_probability": t.language_probability,
        "duration_s": t.duration,
        "channels": t.channels,
        "words": len(split_words(t.text)),
        "transcribed_s": t.seconds(Coverage.TRANSCRIBED),
        "no_speech_s": t.seconds(Coverage.NO_SPEECH),
        "failed_s": t.seconds(Coverage.FAILED),
    }
    inserted = tx.execute(_INSERT, row).scalar_one()
    if t.segments:
        tx.execute(insert(SegmentRow), [_segment_row(inserted, i, s) for i, s in enumerate(t.segments)])
    if t.coverage:
        tx.execute(insert(CoverageRow), [_coverage_row(inserted, i, c) for i, c in enumerate(t.coverage)])
    return int(inserted)


def read_transcript(tx: Connection, transcript: int) -> Transcript:
    """The transcript again, from its rows."""
    return read_transcripts(tx, [transcript])[transcript]


def read_transcripts(tx: Connection, transcripts: Sequence[int]) -> dict[int, Transcript]:
    """These transcripts again, up to some hundred, by their ids."""
    which = {"transcripts": list(transcripts)}
    segments: dict[int, list[Segment]] = {}
    for s in tx.execute(_SEGMENTS, which):
        segments.setdefault(s.transcript_id, []).append(_segment(s))
    coverage: dict[int, list[CoverageSpan]] = {}
    for c in tx.execute(_COVERAGE, which):
        stretch = CoverageSpan(Span(c.start_s, c.end_s), Coverage(c.kind), c.reason, c.channel)
        coverage.setdefault(c.transcript_id, []).append(stretch)
    return {
        row.id: Transcript(
            duration=row.duration_s,
            channels=row.channels,
            language=row.language,
            language_probability=row.language_probability,
            segments=tuple(segments.get(row.id, ())),
            coverage=tuple(coverage.get(row.id, ())),
        )
        for row in tx.execute(_TRANSCRIPTS, which)
    }


_INSERT = insert(TranscriptRow).returning(TranscriptRow.id)
_OF_JOB = select(Checkpoint.result).where(Checkpoint.job_id == bindparam("job")).order_by(Checkpoint.chunk)
_SPENT = select(func.sum(Checkpoint.device_s).label("device_s"), func.sum(Checkpoint.cost).label("cost")).where(
    Checkpoint.job_id == bindparam("job")
)
_OF_SHARD = select(Checkpoint.chunk).where(Checkpoint.shard_id == bindparam("shard"))
_IDS: Any = bindparam("transcripts", expanding=True)
_TRANSCRIPTS = select(TranscriptRow).where(TranscriptRow.id.in_(_IDS))
_SEGMENTS = select(SegmentRow).where(SegmentRow.transcript_id.in_(_IDS)).order_by(SegmentRow.position)
_COVERAGE = select(CoverageRow).where(CoverageRow.transcript_id.in_(_IDS)).order_by(CoverageRow.position)


def clean(text: str) -> str:
    """Without NUL and lone surrogates: Postgres refuses both."""
    return text.replace("\x00", "").encode("utf-8", "ignore").decode("utf-8")


def _segment_row(transcript: int, position: int, s: Segment) -> dict[str, object]:
    return {
        "transcript_id": transcript,
        "position": position,
        "channel": s.channel,
        "start_s": s.start,
        "end_s": s.end,
        "text": clean(s.text),
        "language": s.language,
        "avg_logprob": s.avg_logprob,
        "no_speech_prob": s.no_speech_prob,
        "compression_ratio": s.compression_ratio,
        "temperature": s.temperature,
        "flags": " ".join(s.flags),
        "words": [[w.start, w.end, clean(w.text), w.probability] for w in s.words] or None,
        "language_probability": s.language_probability,
    }


def _coverage_row(transcript: int, position: int, c: CoverageSpan) -> dict[str, object]:
    return {
        "transcript_id": transcript,
        "position": position,
        "channel": c.channel,
        "start_s": c.span.start,
        "end_s": c.span.end,
        "kind": c.kind.value,
        "reason": c.reason,
    }


def _segment(row: Row[Any]) -> Segment:
    return Segment(
        start=row.start_s,
        end=row.end_s,
        text=row.text,
        language=row.language,
        channel=row.channel,
        avg_logprob=row.avg_logprob,
        no_speech_prob=row.no_speech_prob,
        compression_ratio=row.compression_ratio,
        temperature=row.temperature,
        flags=tuple(row.flags.split()),
        words=tuple(Word(*w) for w in row.words or ()),
        language_probability=row.language_probability,
    )
