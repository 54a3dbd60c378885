"""A page's layout: all text once and in order, and each stretch without text where it is."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript, Word
from pipeline.paragraphs import FINEST, Paragraph, Stretch, layout, stretches, strip

KINDS = st.sampled_from(
    [(Coverage.TRANSCRIBED, ""), (Coverage.NO_SPEECH, ""), (Coverage.NO_SPEECH, "unsure"), (Coverage.FAILED, "unread")]
)


def covered(channel: int, parts: list[tuple[float, tuple[Coverage, str]]], end: float) -> list[CoverageSpan]:
    """A channel's stretches from 0 to `end`."""
    edges = [0.0, *(at for at, _ in parts), end]
    kinds = [(Coverage.TRANSCRIBED, ""), *(kind for _, kind in parts)]
    return [
        CoverageSpan(Span(a, b), *kind, channel) for a, b, kind in zip(edges, edges[1:], kinds, strict=False) if b > a
    ]


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    channels = draw(st.integers(1, 3))
    segments, coverage = [], []
    for channel in range(channels):
        times = sorted(draw(st.lists(st.floats(0, 90), max_size=8)))
        for i, at in enumerate(times):
            words = tuple(Word(at, at + 1, f" w{channel}.{i}.{n}", 0.5) for n in range(draw(st.integers(0, 2))))
            segments.append(
                Segment(at, at + 1, "".join(w.text for w in words) or f"s{channel}.{i}", "en", channel, words=words)
            )
        cuts = sorted(draw(st.lists(st.tuples(st.floats(0, 100), KINDS), max_size=6)), key=lambda x: x[0])
        coverage += covered(channel, cuts, 100.0)
    segments.sort(key=lambda s: (s.start, s.channel))
    return Transcript(100.0, channels, "en", 1.0, tuple(segments), tuple(coverage))


@given(transcripts())
def test_all_text_is_there_once_in_the_order_of_time(heard: Transcript) -> None:
    items = layout(heard)
    shown = [p.text for i in items if isinstance(i, Paragraph) for line in i.lines for p in line.pieces]
    assert shown == [w for s in heard.segments for w in s.text.split()]
    starts = [i.start if isinstance(i, Paragraph) else i.span.start for i in items]
    assert starts == sorted(starts)
    for item in items:
        if isinstance(item, Paragraph):
            assert item.lines


@given(transcripts())
def test_each_second_that_failed_is_shown_and_each_silence_of_all_channels(heard: Transcript) -> None:
    found = stretches(heard)
    failed = [c for c in heard.coverage if c.kind is Coverage.FAILED]
    assert sorted((s.span, s.reason) for s in found if s.kind is Coverage.FAILED) == sorted(
        (c.span, c.reason) for c in failed
    )
    for silence in (s for s in found if not s.reason):
        assert silence.span.duration >= 2.0
        for channel in range(heard.channels):
            quiet = [
                c.span for c in heard.coverage if c.channel == channel and c.kind is Coverage.NO_SPEECH and not c.reason
            ]
            assert math.isclose(sum(silence.span.overlap(q) for q in quiet), silence.span.duration, abs_tol=1e-6)
    assert all((s.channel is None) == (heard.channels == 1) for s in found if s.reason)


def test_a_stretch_stands_between_what_is_before_and_after_it() -> None:
    segments = tuple(Segment(at, at + 1, f"at {at}", "en") for at in (0.0, 1.2, 10.0))
    spans = (CoverageSpan(Span(0, 3), Coverage.TRANSCRIBED), CoverageSpan(Span(3, 10), Coverage.FAILED, "unread"))
    first, gap, last = layout(Transcript(11.0, 1, "en", 1.0, segments, spans))
    assert isinstance(first, Paragraph)
    assert isinstance(last, Paragraph)
    assert gap == Stretch(Span(3, 10), Coverage.FAILED, "unread", None)
    assert [len(first.lines), len(last.lines)] == [2, 1]


def test_doubt_is_by_words_where_they_have_times_and_else_by_the_segment() -> None:
    words = tuple(Word(i, i + 1, " x", p) for i, p in enumerate((0.8, 0.79, 0.49, 0.29, math.nan)))
    segments = (
        Segment(0, 5, "x x x x x", "en", avg_logprob=-9.0, words=words),
        *(Segment(6 + i, 7 + i, "y", "en", avg_logprob=x) for i, x in enumerate((-0.3, -0.6, -0.9, -1.1, math.nan))),
    )
    (paragraph,) = layout(Transcript(12.0, 1, "en", 1.0, segments, ()))
    assert isinstance(paragraph, Paragraph)
    assert [p.doubt for line in paragraph.lines for p in line.pieces] == [0, 1, 2, 3, 3, 0, 1, 2, 3, 3]


def test_a_piece_keeps_the_space_before_it_or_that_there_is_none() -> None:
    words = (Word(0, 1, "今", 1.0), Word(1, 2, "日", 1.0), Word(2, 3, " OK", 1.0))
    (paragraph,) = layout(Transcript(3.0, 1, "ja", 1.0, (Segment(0, 3, "今日 OK", "ja", words=words),), ()))
    assert isinstance(paragraph, Paragraph)
    assert [p.spaced for p in paragraph.lines[0].pieces] == [True, False, True]


@given(transcripts())
def test_a_strip_leaves_out_nothing(heard: Transcript) -> None:
    for channel in range(heard.channels):
        for kind in Coverage:
            spans = strip(heard.coverage, channel, kind, heard.duration)
            mine = [c.span for c in heard.coverage if c.channel == channel and c.kind is kind]
            for span in mine:
                assert any(s.start <= span.start and span.end <= s.end for s in spans)
            assert all(b.start - a.end > heard.duration * FINEST for a, b in pairwise(spans))
