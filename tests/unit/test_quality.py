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


def test_a_loop_in_a_script_without_spaces_is_cut_like_any_other() -> None:
    looping = answer("今日は雨です" + "ありがとう" * 30)
    assert "loop" in quality.doubts(looping, (Span(0.0, 4.0),), 4.0)
    assert quality.without_loop(looping).text == "今日は雨ですありがとう"
    calm = answer("今日はとても天気がいいので公園に行きました")
    assert quality.doubts(calm, (Span(0.0, 4.0),), 4.0) == ()


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
    assert [(r.window, r.temperature) for r in quality.ladder(10.0)] == [(10.0, 0.0), (15.0, 0.0), (30.0, 0.4)]
    assert [(r.window, r.temperature) for r in quality.ladder(30.0)] == [(30.0, 0.0), (30.0, 0.4)]


def test_best_prefers_no_loop_then_confidence() -> None:
    loop, unsure, sure = answer("a b " * 90, logprob=-0.1), answer("a b", logprob=-0.9), answer("a b", logprob=-0.5)
    assert quality.best([loop, unsure, sure], SPEECH, 5.0) is sure


def test_more_text_than_anybody_can_say_is_crowded() -> None:
    pieces = (
        Piece(0.0, 2.0, "it was a bright cold day"),
        Piece(2.0, 2.1, "and the clocks were striking thirteen o'clock"),
    )
    assert quality.doubts(Answer(pieces, 20, -0.2, 0.0), (Span(0.2, 2.2),), 5.0) == ("crowded",)
    assert quality.doubts(Answer(pieces, 20, -0.2, 0.0), (Span(0.2, 4.8),), 5.0) == ("crowded",)
    roomy = (pieces[0], Piece(2.0, 4.8, pieces[1].text))
    assert quality.doubts(Answer(roomy, 20, -0.2, 0.0), SPEECH, 5.0) == ()


def test_text_after_the_end_of_the_sound_is_doubted_and_loses_to_an_answer_without() -> None:
    good = answer("six zero nine three nine", logprob=-0.9)
    more = Answer((*good.pieces, Piece(5.0, 5.0, "six")), 4, -0.1, 0.0)
    assert quality.doubts(more, SPEECH, 5.0) == ("beyond",)
    assert quality.best([more, good], SPEECH, 5.0) is good


def test_a_last_piece_that_nothing_closed_ends_when_its_text_must_have_been_said() -> None:
    speech = (Span(0.0, 4.0), Span(6.0, 9.0))
    assert quality.ended(answer("a dozen letters", 10.0, closed=False), speech).pieces[-1].end == 2.5
    assert quality.ended(answer("a dozen letters" * 2, 10.0, closed=False), speech).pieces[-1].end == 7.0
    assert quality.ended(answer("a dozen letters" * 9, 10.0, closed=False), speech).pieces[-1].end == 9.0
    assert quality.ended(answer("a dozen letters", 10.0), speech).pieces[-1].end == 10.0
    assert quality.ended(answer("a dozen letters", 10.0, closed=False), ()).pieces[-1].end == 10.0


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
    assert quality.ended(cut, SPEECH).pieces[0].end == pytest.approx(0.2 + 19 / quality.SLOW_BYTES)


def test_compression_ratio_is_whispers() -> None:
    assert quality.compression_ratio("ha " * 100) > 10
    assert quality.compression_ratio("the quick brown fox") < 1.1
