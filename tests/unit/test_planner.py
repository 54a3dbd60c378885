"""The plan holds all speech, in order, in chunks that fit a window, and overlaps only where speech was cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.planner import PlanOptions, Track, plan
from chunking.timeline import Plan, Span

FRAME_S = 0.032
seconds = st.floats(0.05, 70.0, allow_nan=False)
pauses = st.one_of(st.floats(0.1, 1.5), st.floats(0.1, 60.0))


@st.composite
def tracks(draw: st.DrawFn, channel: int = 0) -> tuple[Track, float]:
    """Speech as the VAD reports it: spans in order and apart, probabilities that say the same."""
    at, spans = draw(st.floats(0.0, 40.0)), []
    for pause, length in draw(st.lists(st.tuples(pauses, seconds), max_size=25)):
        spans.append(Span(at + pause, at + pause + length))
        at += pause + length
    duration = at + draw(st.floats(0.0, 30.0))
    seed = draw(st.integers(0, 2**16))
    probabilities = np.random.default_rng(seed).random(int(duration / FRAME_S) + 1)
    return Track(channel, tuple(spans), probabilities.tolist(), FRAME_S), duration


def cut(track: Track, duration: float, options: PlanOptions | None = None) -> Plan:
    return plan([track], duration, options)


@given(tracks(), st.floats(8.0, 29.0))
def test_plan_keeps_its_promises(made: tuple[Track, float], chunk_s: float) -> None:
    track, duration = made
    options = PlanOptions(chunk_s=chunk_s)
    found = cut(track, duration, options)
    chunks = found.chunks
    assert [c.index for c in chunks] == list(range(len(chunks)))

    for span in track.speech:  # every moment of speech lies in a chunk
        at = span.start
        for chunk in chunks:
            if chunk.span.start <= at + 1e-6 and chunk.span.end > at:
                at = max(at, chunk.span.end)
        assert at >= span.end - 1e-6

    for chunk in chunks:
        assert 0.0 <= chunk.span.start < chunk.span.end <= duration
        assert chunk.span.duration <= chunk_s + 1e-6
        assert chunk.span.duration <= chunk.window <= 30.0
        assert chunk.speech
        assert all(chunk.span.start <= s.start < s.end <= chunk.span.end for s in chunk.speech)

    for a, b in itertools.pairwise(chunks):
        assert a.span.start < b.span.start
        assert a.span.end < b.span.end
        assert a.cut_after == b.cut_before
        if a.cut_after:
            shared = Span(b.span.start, a.span.end)
            assert shared.duration == pytest.approx(options.overlap_s)
            assert any(s.start <= shared.start and shared.end <= s.end for s in track.speech)  # it was speech
        else:
            assert a.span.end <= b.span.start + 1e-6
            edge = (a.span.end + b.span.start) / 2
            assert not any(s.start + 1e-6 < edge < s.end - 1e-6 for s in track.speech)  # it was a pause


@given(tracks(), st.floats(60.0, 700.0))
def test_shards_hold_their_chunks_and_are_not_too_long(made: tuple[Track, float], shard_s: float) -> None:
    track, duration = made
    found = cut(track, duration, PlanOptions(shard_s=shard_s))
    assert [s.index for s in found.shards] == list(range(len(found.shards)))
    for shard in found.shards:
        assert shard.chunks
        assert shard.span == Span(shard.chunks[0].span.start, shard.chunks[-1].span.end)
        assert shard.span.duration <= shard_s + 1e-6


@given(tracks(), tracks(channel=1))
def test_channels_are_planned_one_by_one(left: tuple[Track, float], right: tuple[Track, float]) -> None:
    duration = max(left[1], right[1])
    found = plan([left[0], right[0]], duration)
    alone = [cut(left[0], duration), cut(right[0], duration)]
    spans = [[c.span for s in found.shards if s.channel == ch for c in s.chunks] for ch in (0, 1)]
    assert spans == [[c.span for c in one.chunks] for one in alone]
    assert [c.index for c in found.chunks] == list(range(len(found.chunks)))


def test_chunks_end_in_the_longest_pauses() -> None:
    speech = (Span(0.5, 8.0), Span(8.15, 14.0), Span(15.0, 24.0), Span(24.2, 30.0))
    found = cut(Track(0, speech, [1.0] * 1000, FRAME_S), 31.0)
    assert [(round(c.span.start, 2), round(c.span.end, 2)) for c in found.chunks] == [(0.1, 14.4), (14.6, 30.4)]


def test_speech_without_a_pause_is_cut_where_the_vad_was_least_sure() -> None:
    probabilities = [1.0] * 1300
    for weak in (450, 800):
        probabilities[weak] = 0.6
    found = cut(Track(0, (Span(0.0, 40.0),), probabilities, FRAME_S), 40.0)
    cuts = [(a.span.end + b.span.start) / 2 for a, b in zip(found.chunks, found.chunks[1:], strict=False)]
    assert cuts[0] == pytest.approx(450.5 * FRAME_S)
    assert cuts[1] == pytest.approx(800.5 * FRAME_S)


def test_no_speech_no_shards() -> None:
    assert cut(Track(0, (), [0.0] * 100, FRAME_S), 3.2).shards == ()


@pytest.mark.parametrize(("duration", "window"), [(0.2, 10), (9.0, 10), (9.1, 15), (18.9, 20), (28.9, 30), (29.5, 30)])
def test_window_belongs_to_the_length(duration: float, window: float) -> None:
    assert PlanOptions().window(duration) == window
