"""The stretches of a channel add up to the recording, each second once."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.coverage import DAMAGED, INVENTED, UNHEARD, UNREAD, coverage
from chunking.planner import Track, plan
from chunking.timeline import Chunk, ChunkResult, Coverage, Gap, Plan, Segment, Shard, Span, Transcript
from tests.unit.test_planner import tracks


@given(tracks(), st.data())
def test_every_second_has_one_end(made: tuple[Track, float], data: st.DataObject) -> None:
    track, duration = made
    cut = plan([track], duration)
    results = []
    for c in cut.chunks:
        kind = data.draw(st.sampled_from(["read", "gap", "quiet", "missing"]))
        if kind == "missing":
            continue
        segments = (Segment(c.span.start, c.span.end, "x", "en"),) if kind != "quiet" else ()
        gaps = (Gap(c.speech[-1], "unread"),) if kind == "gap" else ()
        results.append(ChunkResult(c.index, 0, c.span, c.cut_before, c.cut_after, "en", segments, gaps))
    spans = coverage(cut, results)
    if duration == 0.0:
        assert not spans
        return
    assert spans[0].span.start == 0.0
    assert spans[-1].span.end == duration
    assert all(a.span.end == b.span.start for a, b in itertools.pairwise(spans))
    assert all(s.span.duration > 0 for s in spans)
    done = Transcript(duration, 1, "en", 1.0, (), spans)
    assert sum(done.seconds(k) for k in Coverage) == pytest.approx(duration)


def test_what_the_file_could_not_give_is_failed() -> None:
    cut = replace(plan([Track(0, (), [0.0] * 400, 0.032)], 10.0), lost=(Span(4.0, 5.0),))
    found = [(s.span.start, s.span.end, s.kind.value, s.reason) for s in coverage(cut, [])]
    assert found == [(0.0, 4.0, "no_speech", ""), (4.0, 5.0, "failed", DAMAGED), (5.0, 10.0, "no_speech", "")]


def test_failed_speech_says_why_and_unheard_speech_is_no_speech() -> None:
    speech = (Span(1.0, 5.0), Span(20.0, 24.0))
    cut = plan([Track(0, speech, [1.0] * 1000, 0.032)], 30.0)
    a, b = cut.chunks
    results = [
        ChunkResult(0, 0, a.span, False, False, "en", (Segment(1, 3, "x", "en"),), (Gap(Span(3.0, 5.0), "unread"),)),
        ChunkResult(1, 0, b.span, False, False, "en", ()),
    ]
    found = [(s.span.start, s.span.end, s.kind.value) for s in coverage(cut, results)]
    assert found == [
        (0.0, 1.0, "no_speech"),
        (1.0, 3.0, "transcribed"),
        (3.0, 5.0, "failed"),
        (5.0, 20.0, "no_speech"),
        (20.0, 24.0, "no_speech"),
        (24.0, 30.0, "no_speech"),
    ]


def ends(result: ChunkResult, *more: ChunkResult) -> list[tuple[float, float, str, str]]:
    """What becomes of 20 s, of which the first chunk has speech from 1 to 11 and, cut, the second from 9 to 19."""
    chunks = (
        Chunk(0, Span(0.5, 11.0), (Span(1.0, 11.0),), 15.0, cut_after=bool(more)),
        Chunk(1, Span(9.0, 19.5), (Span(9.0, 19.0),), 15.0, cut_before=True),
    )[: 1 + len(more)]
    cut = Plan(20.0, 1, (Shard(0, 0, Span(0.5, 19.5), chunks),))
    return [(s.span.start, s.span.end, s.kind.value, s.reason) for s in coverage(cut, [result, *more])]


def read(index: int, *spans: tuple[float, float], gaps: tuple[Gap, ...] = ()) -> ChunkResult:
    segments = tuple(Segment(a, b, "x", "en") for a, b in spans)
    return ChunkResult(index, 0, Span(0.5, 11.0) if not index else Span(9.0, 19.5), False, False, "en", segments, gaps)


def test_speech_without_text_in_a_chunk_that_has_text_is_failed() -> None:
    assert ends(read(0, (1.0, 4.0), (7.0, 11.0)))[1:4] == [
        (1.0, 4.0, "transcribed", ""),
        (4.0, 7.0, "failed", UNREAD),
        (7.0, 11.0, "transcribed", ""),
    ]
    assert ends(read(0, (1.0, 8.0)))[2] == (8.0, 11.0, "failed", UNREAD)


def test_loose_timestamps_are_no_failure() -> None:
    assert ends(read(0, (1.8, 5.0), (5.9, 10.6)))[1] == (1.0, 11.0, "transcribed", "")


def test_a_reason_stands_for_its_speech() -> None:
    gap = Gap(Span(4.0, 7.0), UNHEARD)
    assert ends(read(0, (1.0, 4.0), (7.0, 11.0), gaps=(gap,)))[2] == (4.0, 7.0, "no_speech", UNHEARD)
    made_up = Gap(Span(15.0, 17.0), INVENTED)
    assert ends(read(0, (1.0, 11.0), gaps=(made_up,)))[3] == (15.0, 17.0, "no_speech", INVENTED)


def test_what_the_neighbour_read_of_cut_speech_is_read() -> None:
    assert ends(read(0, (1.0, 9.5)), read(1, (9.0, 19.0)))[1] == (1.0, 19.0, "transcribed", "")
    assert ends(read(0, (1.0, 8.0)), read(1, (10.5, 19.0)))[2] == (8.0, 10.5, "failed", UNREAD)
