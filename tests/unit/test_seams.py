"""Two decodings of one chunk meet without a word doubled or lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.timeline import Segment, Word
from pipeline.seams import without_echo, without_end


def said(start: float, end: float, text: str) -> Segment:
    return Segment(start, end, text, "en")


def texts(segments: list[Segment]) -> list[str]:
    return [s.text for s in segments]


@pytest.mark.parametrize(
    ("before", "again", "left", "right"),
    [
        ("to rest them of their", "sleep to rest them of their fatigue.", "to rest them of their", "fatigue."),
        ("the two following distits.", "the two following these stages.", "the two following", "these stages."),
        ("Try again. Fail better.", "better.", "Try again. Fail better.", ""),
        ("Press one.", "Press one. Press one.", "Press one.", "Press one."),
        ("and said to him,", "the eunuch and said to him, woe to thee", "and said to him,", "woe to thee"),
    ],
)
def test_what_was_said_before_is_not_said_again(before: str, again: str, left: str, right: str) -> None:
    kept, rest = without_echo([said(10.0, 12.0, before)], [said(10.0, 13.0, again)], 12.0)
    assert (" ".join(texts(kept)), " ".join(texts(rest))) == (left, right)


def test_without_a_word_in_common_the_times_decide() -> None:
    before, again = [said(8.0, 12.0, "a b c d")], [said(10.0, 14.0, "e f g h")]
    assert texts(without_echo(before, again, 12.0)[1]) == ["g h"]
    assert texts(without_end([said(10.0, 14.0, "e f g h")], [said(12.0, 15.0, "i j")], 12.0)) == ["e f"]


def test_the_same_words_far_apart_were_said_twice() -> None:
    again = [said(16.0, 18.0, "no way. I said so")]
    assert texts(without_echo([said(10.0, 12.0, "oh no way.")], again, 12.0)[1]) == ["no way. I said so"]


def test_what_is_said_after_it_is_not_said_before() -> None:
    again = [said(10.0, 12.0, "Here is what was left out."), said(12.0, 13.0, "Two is")]
    assert texts(without_end(again, [said(12.0, 15.0, "Two is what was said")], 12.0)) == ["Here is what was left out."]


def test_words_keep_their_times() -> None:
    words = (Word(10.0, 10.4, " of", 0.9), Word(10.4, 10.9, " their", 0.9), Word(11.0, 11.8, " fatigue.", 0.9))
    again = [Segment(10.0, 12.0, "of their fatigue.", "en", words=words)]
    (rest,) = without_echo([said(9.0, 11.0, "to rest them of their")], again, 11.0)[1]
    assert (rest.start, rest.end, rest.words) == (11.0, 11.8, words[2:])


WORDS = st.lists(st.sampled_from(["a", "b", "c", "...", "D."]), max_size=6)


@given(WORDS, WORDS)
def test_only_ends_are_dropped(ours: list[str], theirs: list[str]) -> None:
    before = [said(0.0, 4.0, " ".join(ours))] if ours else []
    again = [said(2.0, 6.0, " ".join(theirs))] if theirs else []
    kept, rest = without_echo(before, again, 4.0)
    assert " ".join(ours).startswith(" ".join(texts(kept)))
    assert len(ours) - len(" ".join(texts(kept)).split()) <= 1
    assert " ".join(theirs).endswith(" ".join(texts(rest)))
    assert " ".join(theirs).startswith(" ".join(texts(without_end(again, before, 4.0))))
