"""What is made of the prompt is told from what is not, and an echo from words that were truly said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.echoes import borne_out, echoing
from pipeline.engine import Answer, Piece

PROMPT = "Spotscribe, Kubernetes, Dr. Kovacs, Merneptah, Zürich, 北京大学附属医院"
WORDS = PROMPT.split()


def said(*texts: str, start: float = 0.0, step: float = 3.0) -> Answer:
    pieces = (Piece(start + i * step, start + (i + 1) * step, t) for i, t in enumerate(texts))
    return Answer(tuple(p for p in pieces if p.text), 10, -0.3, 0.1)


def texts(pieces: tuple[Piece, ...]) -> list[str]:
    return [p.text for p in pieces]


@given(st.integers(0, len(WORDS) - 1), st.integers(1, len(WORDS)), st.integers(1, 5), st.sampled_from([str, str.upper]))
def test_any_run_of_the_prompt_however_often_is_made_of_it(first: int, count: int, times: int, case: type[str]) -> None:
    run = " ".join(WORDS[first : first + count])
    answer = said(case(" ".join([run] * times)))
    if len(run) > 3 or times == 1:  # of a short word alone nothing can be told
        assert echoing(answer, PROMPT) == answer.pieces


@pytest.mark.parametrize(
    "text",
    [
        "Kubernetes and Spotscribe.",
        "Merneptah, Zürich, Spotscribe",
        "Zürich, Zürich, Zürich, Zürich!",
        "Spotscribe, Kubernets, Dr. Kovacs, Merneptah",
        "北京大学附属医院。",
        "Dr",
    ],
)
def test_other_orders_and_spellings_are_made_of_it_too(text: str) -> None:
    assert texts(echoing(said(text), PROMPT)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "We met Dr. Kovacs in the hall yesterday.",
        "I use Kubernetes at work.",
        "Thank you.",
        "北京欢迎你们",
        "...",
        "42",
    ],
)
def test_a_sentence_that_has_a_hotword_in_it_is_not(text: str) -> None:
    assert echoing(said(text), PROMPT) == ()


def test_pieces_are_looked_at_one_by_one() -> None:
    answer = said("We begin with the minutes.", "Spotscribe, Kubernetes, Dr. Kovacs", "And now the budget.")
    assert texts(echoing(answer, PROMPT)) == ["Spotscribe, Kubernetes, Dr. Kovacs"]


@given(st.text())
def test_nothing_is_made_of_no_prompt(text: str) -> None:
    assert echoing(said(text), "") == ()


@given(st.lists(st.text(st.characters(categories=["L", "N", "Zs"]), min_size=1), min_size=1, max_size=4))
def test_what_both_decodings_say_was_said(spoken: list[str]) -> None:
    answer = said(*spoken)
    if any(ch.isalnum() for ch in "".join(spoken)):
        assert borne_out(answer.pieces, answer)
        assert not borne_out(answer.pieces, said(""))


@pytest.mark.parametrize(
    ("suspect", "without"),
    [
        ("Merneptah", "Mer Neptune."),
        ("Kovacs", "Kovach."),
        ("Zürich", "Zurich!"),
        ("Dr. Kovacs, Merneptah", "Doctor Covax, Mer Neptah"),
        ("北京大学附属医院", "北京大学付属医院"),
        ("Spotscribe, Kubernetes", "Spots cribe, Cooper Netties."),
    ],
)
def test_a_name_that_was_said_is_borne_out_by_its_wrong_spelling(suspect: str, without: str) -> None:
    assert borne_out(said(suspect).pieces, said(without))


@pytest.mark.parametrize("without", ["", "you", "Thank you.", "...", "Thanks for watching!", "Please hold the line."])
def test_what_nobody_said_is_not(without: str) -> None:
    assert not borne_out(said("Spotscribe, Kubernetes, Dr. Kovacs").pieces, said(without))


def test_a_name_that_was_said_at_another_time_bears_nothing_out() -> None:
    answer = said("Spotscribe is what we talk about.", "Nothing of it was said here.", "Spotscribe")
    without = said("Spot Scribe is what we talk about.", "Nothing of it was said here.")
    assert not borne_out(echoing(answer, PROMPT), without)
