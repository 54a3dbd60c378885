"""What a transcript says it was computed in."""

from __future__ import annotations

from chunking.timeline import ChunkResult, Span
from pipeline.finish import computed_in
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
