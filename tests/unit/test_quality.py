"""Answers that cannot be believed are told from those that can, and a loop is cut to what was said."""

import pytest

from chunking.timeline import Span
from pipeline import quality
from pipeline.engine import Answer, Piece


def answer(text: str, end: float = 5.0, *, logprob: float = -0.3, silence: float = 0.01, **more: bool) -> Answer:
    pieces = (Piece(0.0, end, text),) if text else ()
    return Answer(pieces, len(text.split()), logprob, silence, **more)


SPEECH = (Span(0.2, 4.8),)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer("it was a bright cold day in April"), ()),
        (answer(""), ("empty",)),
        (answer("", silence=0.9), ()),
        (answer("it was a bright cold day", logprob=-1.4), ("low_confidence",)),
        (answer("it was a bright cold day", hit_limit=True), ("loop",)),
        (answer("press one " * 60), ("loop",)),
        (answer("thank you so much " * 12, end=1.0), ("loop",)),
    ],
)
def test_doubts(given: Answer, expected: tuple[str, ...]) -> None:
    assert quality.doubts(given, SPEECH, 5.0) == expected


def test_what_was_truly_said_thirty_times_is_no_loop() -> None:
    pieces = tuple(Piece(i * 2.0, i * 2.0 + 1.8, "press the star key now") for i in range(8))
    said = Answer(pieces, 60, -0.2, 0.0)
    assert "loop" not in quality.doubts(said, (Span(0.0, 16.0),), 17.0)


def test_text_that_is_too_little_for_its_speech_is_doubted() -> None:
    speech = (Span(0.0, 12.0),)
    assert quality.doubts(answer("by King", 11.0), speech, 12.0) == ("sparse",)
    assert quality.doubts(answer("你好我们今天去北京看长城。", 6.0), (Span(0.0, 6.0),), 7.0) == ()
    full = answer("by King Merneptah. The testimony of the oldest narratives", 11.0, logprob=-0.9)
    assert quality.best([answer("by King", 11.0), full], speech, 12.0) is full


def test_ladder_ends_in_full_windows() -> None:
    assert [(r.window, r.temperature) for r in quality.ladder(10.0)] == [(10.0, 0.0), (30.0, 0.0), (30.0, 0.4)]
    assert [(r.window, r.temperature) for r in quality.ladder(30.0)] == [(30.0, 0.0), (30.0, 0.4)]


def test_best_prefers_no_loop_then_confidence() -> None:
    loop, unsure, sure = answer("a b " * 90, logprob=-0.1), answer("a b", logprob=-0.9), answer("a b", logprob=-0.5)
    assert quality.best([loop, unsure, sure], SPEECH, 5.0) is sure


def test_unread_tail_begins_at_the_speech_after_the_last_word() -> None:
    speech = (Span(0.0, 4.0), Span(6.0, 9.0))
    assert quality.unread(answer("x", 4.1), speech, 10.0) == Span(5.9, 10.0)
    assert quality.unread(answer("x", 8.7), speech, 10.0) is None
    assert quality.unread(answer("x", 4.1, closed=False), speech, 10.0) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c", (0, 0)),
        ("x a b a b a b", (2, 3)),
        ("no no no no", (1, 4)),
        ("Say it. say it, say it", (2, 3)),
        ("", (0, 0)),
    ],
)
def test_periodic_tail(text: str, expected: tuple[int, int]) -> None:
    period, repeats = quality.periodic_tail(text.split())
    assert (period, repeats) == expected


def test_a_loop_is_cut_to_its_first_period() -> None:
    cut = quality.without_loop(answer("for sales press one " + "press one " * 40))
    assert cut.text == "for sales press one"
    assert cut.pieces[0].end < 1.0


def test_compression_ratio_is_whispers() -> None:
    assert quality.compression_ratio("ha " * 100) > 10
    assert quality.compression_ratio("the quick brown fox") < 1.1
