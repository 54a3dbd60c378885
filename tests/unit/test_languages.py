"""Which language is spoken where: a vote of chunks all over a shard, changes only where the evidence is clear."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chunking.timeline import Chunk, Segment, Span, seconds_by_language, total, within
from pipeline.hearing import EachChunk, Hearing, OneLanguage
from pipeline.languages import (
    LISTENING_S,
    PIECE_S,
    UNHEARD,
    VOTERS,
    Evidence,
    Probabilities,
    listening_window,
    path,
    pieces,
    vote,
    voters,
)

SURE_EN, SURE_DE = {"en": 0.97, "de": 0.02}, {"de": 0.97, "en": 0.02}
UNSURE = {"la": 0.43, "de": 0.35, "en": 0.1}


def chunk(index: int, *speech: tuple[float, float], at: float | None = None) -> Chunk:
    """With speech in seconds of the chunk, which begins ten seconds after the one before it."""
    begin = 10.0 * index if at is None else at
    spans = tuple(Span(begin + a, begin + b) for a, b in speech)
    return Chunk(index, Span(begin, spans[-1].end + 0.1), spans, 10.0)


def heard(hearing: Hearing, chunks: Sequence[Chunk], said: dict[int, Sequence[Probabilities]]) -> None:
    """Listen to all that is wanted; the pieces of chunk i are heard as `said[i]` has it, in order."""
    for c in chunks:
        for languages in said.get(c.index, []):
            span = hearing.wanted(c.index)
            assert span is not None
            hearing.take(c.index, span, languages)


def stretches(hearing: Hearing, index: int) -> list[tuple[float, float, str]]:
    return [(s.span.start, s.span.end, s.language) for s in hearing.spoken(index)]


def test_voters_lie_all_over_the_shard_and_are_the_longest_of_their_part() -> None:
    chunks = [chunk(i, (0.0, 8.0 if i % 4 == 3 else 3.0)) for i in range(20)]
    assert [c.index for c in voters(chunks)] == [3, 7, 11, 15, 19]
    assert voters(chunks[:3]) == tuple(chunks[:3])
    assert voters([]) == ()


def test_a_vote_counts_seconds_of_speech() -> None:
    jingle = Evidence(6.0, SURE_DE)
    language, probability = vote([jingle, *[Evidence(15.0, {"en": 0.6, "de": 0.4})] * 4])
    assert (language, round(probability, 2)) == ("en", 0.55)
    assert vote([Evidence(2.0, SURE_EN), Evidence(9.0, SURE_DE)])[0] == "de"
    assert vote([]) == vote([Evidence(5.0, {})]) == (UNHEARD, 0.0)


def test_a_recordings_language_is_voted_for_and_the_first_answer_stands() -> None:
    chunks = [chunk(i, (0.0, 8.0)) for i in range(30)]
    hearing = OneLanguage(chunks)
    wanted = [c.index for c in chunks if hearing.wanted(c.index) is not None]
    assert len(wanted) == VOTERS
    for index in wanted:
        assert hearing.verdict is None
        hearing.take(index, chunks[index].span, SURE_DE if index == wanted[0] else SURE_EN)
        assert hearing.wanted(index) is None
    assert hearing.verdict is not None
    assert hearing.verdict[0] == "en"
    assert hearing.spoken(0) == ()
    hearing.settle("nl", 0.7)  # another shard was first
    assert hearing.verdict is None
    assert {s.language for c in chunks for s in hearing.spoken(c.index)} == {"nl"}


def test_a_language_that_is_told_needs_no_listening() -> None:
    chunks = [chunk(0, (0.0, 8.0))]
    hearing = OneLanguage(chunks, "fr", 1.0)
    assert hearing.wanted(0) is None
    assert [(s.span, s.language, s.probability) for s in hearing.spoken(0)] == [(chunks[0].span, "fr", 1.0)]


def test_a_german_middle_part_is_german() -> None:
    chunks = [chunk(i, (0.0, 8.0)) for i in range(5)]
    hearing = EachChunk(chunks, {})
    heard(hearing, chunks, {i: [SURE_DE if i == 2 else SURE_EN] for i in range(5)})
    assert [hearing.spoken(i)[0].language for i in range(5)] == ["en", "en", "de", "en", "en"]


def test_what_is_unclear_takes_its_neighbours_language() -> None:
    chunks = [chunk(0, (0.0, 8.0)), chunk(1, (0.0, 1.8)), chunk(2, (0.0, 8.0))]
    hearing = EachChunk(chunks, {})
    heard(hearing, chunks[:2], {0: [SURE_DE], 1: [UNSURE]})
    assert stretches(hearing, 0)[0][2] == "de"
    assert hearing.spoken(1) == ()  # what comes after it has not been heard
    heard(hearing, chunks[2:], {2: [SURE_DE]})
    assert stretches(hearing, 1)[0][2] == "de"


def test_short_speech_needs_more_to_change_the_language() -> None:
    def middle(seconds: float, languages: Probabilities) -> str:
        chunks = [chunk(0, (0.0, 8.0)), chunk(1, (0.0, seconds)), chunk(2, (0.0, 8.0))]
        hearing = EachChunk(chunks, {})
        heard(hearing, chunks, {0: [SURE_EN], 1: [languages], 2: [SURE_EN]})
        return stretches(hearing, 1)[0][2]

    strong = {"de": 0.9, "en": 0.05}
    assert middle(6.0, strong) == "de"
    assert middle(1.0, strong) == "en"
    assert middle(6.0, {"de": 0.7, "en": 0.2}) == "en"


def test_many_unclear_chunks_change_it_together() -> None:
    weak = Evidence(8.0, {"de": 0.75, "en": 0.1})
    assert path([weak], "en", "en") == ["en"]
    assert path([weak] * 4, "en", "en") == ["de"] * 4
    assert path([weak], "en", "de") == ["de"]
    assert path([weak], None, None) == ["de"]
    assert path([Evidence(8.0, {})], None, None) == [UNHEARD]


def test_a_chunk_that_holds_two_languages_is_divided_at_the_pause() -> None:
    chunks = [chunk(0, (0.0, 8.0)), chunk(1, (0.0, 3.0), (3.4, 8.0)), chunk(2, (0.0, 8.0))]
    hearing = EachChunk(chunks, {})
    heard(hearing, chunks, {0: [SURE_EN], 1: [SURE_EN, SURE_DE], 2: [SURE_DE]})
    assert stretches(hearing, 1) == [(10.0, 13.2, "en"), (13.2, 18.1, "de")]
    assert [len(hearing.spoken(i)) for i in (0, 2)] == [1, 1]


def test_pieces_end_in_pauses_and_have_some_speech() -> None:
    assert pieces(chunk(0, (0.0, 3.0), (3.1, 8.0))) == (Span(0.0, 8.1),)  # no pause
    assert pieces(chunk(0, (0.0, 3.0), (4.0, 4.5), (4.8, 8.0))) == (Span(0.0, 3.5), Span(3.5, 8.1))
    assert listening_window(Span(3.0, 7.0)) == LISTENING_S
    assert listening_window(Span(3.0, 11.0)) == 10.0


speeches = st.lists(st.tuples(st.floats(0.05, 3.0), st.floats(0.1, 4.0)), min_size=1, max_size=6)


@given(speeches)
def test_pieces_together_are_the_chunk(lengths: list[tuple[float, float]]) -> None:
    at, speech = 0.0, []
    for pause, length in lengths:
        speech.append((at + pause, at + pause + length))
        at += pause + length
    c = chunk(0, *speech)
    found = pieces(c)
    assert (found[0].start, found[-1].end) == (c.span.start, c.span.end)
    assert all(a.end == b.start for a, b in pairwise(found))
    assert all(total(within(c.speech, p)) >= PIECE_S - 1e-6 for p in found) or len(found) == 1


evidence = st.sampled_from([SURE_EN, SURE_DE, UNSURE, {"de": 0.75, "en": 0.1}, {"en": 0.5, "de": 0.45}, {}])
shards = st.lists(st.lists(st.tuples(st.floats(1.6, 4.0), evidence), min_size=1, max_size=3), min_size=1, max_size=8)


def shard_of(said: list[list[tuple[float, Probabilities]]]) -> tuple[list[Chunk], dict[Span, Probabilities]]:
    chunks, at, by_piece = [], 0.0, {}
    for index, parts in enumerate(said):
        speech, begin = [], at
        for seconds, _ in parts:
            speech.append((at - begin, at - begin + seconds))
            at += seconds + 0.5
        chunks.append(chunk(index, *speech, at=begin))
        by_piece.update(zip(pieces(chunks[-1]), [languages for _, languages in parts], strict=True))
    return chunks, by_piece


def listened(hearing: EachChunk, chunks: Sequence[Chunk], by_piece: dict[Span, Probabilities]) -> None:
    for c in chunks:
        while (span := hearing.wanted(c.index)) is not None:
            hearing.take(c.index, span, by_piece[span])


@given(shards, st.randoms(use_true_random=False))
def test_neither_order_nor_a_kill_changes_a_language(said: list[list[tuple[float, Probabilities]]], chance) -> None:  # type: ignore[no-untyped-def]
    chunks, by_piece = shard_of(said)
    hearing = EachChunk(chunks, {})
    listened(hearing, chunks, by_piece)
    expected = {c.index: stretches(hearing, c.index) for c in chunks}
    assert all(expected.values())

    mixed = chance.sample(chunks, len(chunks))
    other = EachChunk(chunks, {})
    listened(other, mixed, by_piece)
    assert {c.index: stretches(other, c.index) for c in chunks} == expected

    done = {c.index: (expected[c.index][0][2], expected[c.index][-1][2]) for c in chunks if chance.random() < 0.5}
    resumed = EachChunk(chunks, done)
    listened(resumed, mixed, by_piece)
    left = [c.index for c in chunks if c.index not in done]
    assert {i: stretches(resumed, i) for i in left} == {i: expected[i] for i in left}


def test_seconds_by_language_come_longest_first() -> None:
    segments = [Segment(0.0, 2.0, "a", "en"), Segment(2.0, 9.0, "b", "de"), Segment(9.0, 11.0, "c", "en")]
    assert list(seconds_by_language(segments).items()) == [("de", 7.0), ("en", 4.0)]
