"""Segments read like sentences, and hold the same words in the same order as before."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from chunking.sentences import LONGEST_S, ends_sentence, sentences
from chunking.timeline import Segment

texts = st.lists(
    st.sampled_from(
        ["we", "went.", "home,", "and", "Mr.", "Smith", "said:", "no!", "why?", "then", "3.5", "of", "them", "left"]
    ),
    min_size=1,
    max_size=40,
)


@st.composite
def runs(draw: st.DrawFn) -> list[Segment]:
    at, made = 0.0, []
    for words in draw(st.lists(texts, min_size=1, max_size=12)):
        at += draw(st.floats(0.0, 4.0))
        length = len(words) * draw(st.floats(0.2, 0.8))
        made.append(Segment(at, at + length, " ".join(words), "en", avg_logprob=-0.3))
        at += length
    return made


@given(runs())
def test_same_words_in_order_and_times_in_order(given_segments: list[Segment]) -> None:
    found = sentences(given_segments)
    assert " ".join(s.text for s in found).split() == " ".join(s.text for s in given_segments).split()
    assert all(s.start <= s.end for s in found)
    assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(found))
    assert all(s.end - s.start <= LONGEST_S + 1e-6 or len(s.text.split()) < 2 for s in found)


def test_a_paragraph_is_taken_apart_and_a_fragment_put_together() -> None:
    found = sentences(
        [
            Segment(0.0, 9.0, "He came. Mr. Hale was not at home, they", "en"),
            Segment(9.0, 11.0, "told him. So he", "en"),
            Segment(14.0, 15.0, "left.", "en"),
        ]
    )
    assert [s.text for s in found] == ["He came.", "Mr. Hale was not at home, they told him.", "So he", "left."]


def test_chinese_is_joined_without_spaces() -> None:
    found = sentences([Segment(0.0, 2.0, "我们今天", "zh"), Segment(2.0, 4.0, "去北京。", "zh")])
    assert [s.text for s in found] == ["我们今天去北京。"]


def test_ends() -> None:
    assert ends_sentence("home.")
    assert ends_sentence('said."', "Then")
    assert not ends_sentence("Mr.", "Hale")
    assert not ends_sentence("J.", "Smith")
    assert not ends_sentence("etc.", "and")
    assert ends_sentence("好。")
