"""How jobs end, and what a transcript says it was computed in."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from chunking.coverage import UNHEARD, UNREAD
from chunking.timeline import Chunk, ChunkResult, Gap, Plan, Segment, Shard, Span
from pipeline.finish import assemble, computed_in, ending
from storage.jobs import JobOptions, JobView
from storage.records import from_record, to_record


def chunk(index: int, compute_type: str) -> ChunkResult:
    return ChunkResult(index, 0, Span(0.0, 1.0), False, False, "en", (), compute_type=compute_type)


def test_the_compute_types_of_all_devices_that_took_part() -> None:
    assert computed_in([chunk(0, "int8_float16"), chunk(1, "int8_float16")]) == "int8_float16"
    assert computed_in([chunk(0, "int8_float32"), chunk(1, "int8_float16")]) == "int8_float16+int8_float32"
    assert computed_in([]) == ""


def test_checkpoints_from_before_it_was_noted_can_be_read() -> None:
    record = to_record(chunk(0, "float16"))
    assert from_record(ChunkResult, record) == chunk(0, "float16")
    del record["compute_type"]
    old = from_record(ChunkResult, record)
    assert computed_in([old]) == ""
    assert computed_in([old, chunk(1, "float16")]) == "float16"


SPEECH = Span(0.0, 5.0)
PLAN = Plan(6.0, 1, (Shard(0, 0, SPEECH, (Chunk(0, SPEECH, (SPEECH,), 10.0),)),))


@pytest.mark.parametrize(
    ("text", "reason", "state", "code"),
    [
        ("Hello there.", "", "done", "ok"),
        ("", UNHEARD, "done", "no_speech"),
        ("", UNREAD, "done", "no_speech"),
        ("", "the engine failed: broken", "failed", "internal"),
        ("Hello there.", "the engine failed: broken", "partial", "internal"),
    ],
)
def test_what_the_engine_failed_on_is_not_taken_for_silence(text: str, reason: str, state: str, code: str) -> None:
    segments = (Segment(0.0, 3.0, text, "en"),) if text else ()
    gaps = (Gap(Span(3.0, 5.0), reason),) if reason else ()
    results = [ChunkResult(0, 0, SPEECH, False, False, "en", segments, gaps)]
    job = replace(JOB, options=JobOptions(language="en"))
    ended, verdict = ending(job, PLAN, results, assemble(job, PLAN, results))
    assert (ended, verdict.code) == (state, code)
    assert (verdict.error == reason) == (code == "internal")


JOB = JobView(
    id=1, url="file:///a.wav", version="", size_bytes=1, sha256=None, state="finishing", code=None, error=None,
    options=JobOptions(), language=None, language_probability=None, duration_s=6.0, channels=1, transcript_id=None,
    force=False, assigned=None, priority=0, meta=None, created_at=datetime.now(UTC), finished_at=None,
    superseded=False,
)  # fmt: skip
