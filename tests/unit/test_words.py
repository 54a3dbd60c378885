"""Words lie where the VAD saw speech, one after the other, after stitching too."""

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from chunking.sentences import sentences
from chunking.stitcher import stitch
from chunking.timeline import Chunk, Span, Word
from chunking.words import REACH_S, in_speech
from pipeline.engine import Answer, Piece
from pipeline.reading import Reading


@st.composite
def stretches(draw: st.DrawFn, seconds: float = 30.0) -> list[Span]:
    """Speech with pauses, as the VAD tells of it."""
    at, found = draw(st.floats(0.0, 2.0)), list[Span]()
    while at < seconds - 0.1 and len(found) < 12:
        end = min(seconds, at + draw(st.floats(0.1, 6.0)))
        found.append(Span(at, end))
        at = end + draw(st.floats(0.04, 3.0))
    return found


texts = st.sampled_from([" a", " and", " one", " river", " conference.", " -", "今", " 3.5"])


@st.composite
def timed(draw: st.DrawFn, start: float = 0.0, end: float = 30.0) -> list[Word]:
    """Words as an alignment gives them: by its steps of 20 ms, some with no length."""
    edges = sorted(
        start + 0.02 * draw(st.integers(0, int((end - start) * 50))) for _ in range(draw(st.integers(2, 40)))
    )
    return [Word(a, b, draw(texts), 0.5) for a, b in itertools.pairwise(edges)]


@given(timed(), stretches())
def test_each_word_lies_in_one_stretch_and_after_the_word_before(words: list[Word], speech: list[Span]) -> None:
    found = in_speech(words, speech)
    assert [(w.text, w.probability) for w in found] == [(w.text, w.probability) for w in words]
    assert all(any(s.start <= w.start <= w.end <= s.end for s in speech) for w in found)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))


@given(timed(), stretches())
def test_a_word_in_mid_speech_keeps_its_place_but_for_what_words_without_length_take(
    words: list[Word], speech: list[Span]
) -> None:
    for before, after in zip(words, in_speech(words, speech), strict=True):
        if any(s.start + REACH_S < before.start < before.end < s.end - REACH_S for s in speech):
            assert before.start <= after.start < after.end <= before.end


@given(timed(), stretches())
def test_what_is_where_it_belongs_stays_there(words: list[Word], speech: list[Span]) -> None:
    once = in_speech(words, speech)
    again = in_speech(once, speech)
    assert all(abs(a.start - b.start) < 1e-6 or a.start == a.end for a, b in zip(once, again, strict=True))


@given(st.lists(st.builds(Word, st.floats(0, 30), st.floats(0, 30), texts, st.just(0.5)), max_size=20), stretches())
def test_words_in_any_order_come_out_in_order(words: list[Word], speech: list[Span]) -> None:
    found = in_speech(words, speech)
    assert all(w.start <= w.end for w in found)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))


def test_pauses_are_nobody_s() -> None:
    speech = [Span(0.3, 1.0), Span(2.0, 4.0)]
    words = [Word(0.0, 0.5, " It", 1.0), Word(0.5, 1.9, " was.", 1.0), Word(1.9, 2.9, " Then", 1.0)]
    found = in_speech([*words, Word(2.9, 3.0, " not", 1.0)], speech)
    assert [(w.start, w.end) for w in found] == [(0.3, 0.5), (0.5, 1.0), (2.0, 2.9), (2.9, 3.0)]


def test_a_word_over_a_pause_keeps_the_side_with_more_speech_and_its_neighbour_takes_the_other() -> None:
    words = [Word(0.0, 0.8, " home", 1.0), Word(0.8, 1.9, " and", 1.0), Word(1.9, 2.2, " he", 1.0)]
    found = in_speech(words, [Span(0.0, 1.0), Span(1.5, 2.2)])
    assert [(w.start, w.end) for w in found] == [(0.0, 1.0), (1.5, 1.9), (1.9, 2.2)]


def test_a_word_in_a_pause_goes_to_the_nearest_speech_and_shares_it_by_letters() -> None:
    words = [Word(0.0, 1.0, " One", 1.0), Word(1.7, 1.9, " and", 1.0), Word(1.9, 3.0, " two", 1.0)]
    found = in_speech(words, [Span(0.0, 1.0), Span(2.0, 3.0)])
    assert [(w.start, w.end) for w in found] == [(0.0, 1.0), (2.0, 2.5), (2.5, 3.0)]


def test_without_speech_words_stay_as_they_are() -> None:
    words = (Word(1.0, 2.0, " so", 1.0),)
    assert in_speech(words, []) == words


@given(st.data())
def test_words_lie_in_speech_after_chunks_are_read_and_stitched(data: st.DataObject) -> None:
    """Two chunks that share two seconds of speech, read by the real Reading, joined by the real stitcher."""
    speech = data.draw(stretches(40.0))
    results = []
    for index, span in enumerate((Span(0.0, 19.0), Span(17.0, 36.0))):
        heard = tuple(s.clip(span) for s in speech if s.overlap(span) > 0.0)
        assume(heard)  # no chunk is without
        reading = Reading(Chunk(index, span, heard, 20.0, index > 0, index == 0), 0, "en")
        while reading.request is not None:
            length = reading.request.span.duration
            words = data.draw(timed(0.0, length))
            middle = len(words) // 2
            parts = [tuple(p) for p in (words[:middle], words[middle:]) if p]
            pieces = [Piece(p[0].start, p[-1].end, "".join(w.text for w in p).strip(), p) for p in parts]
            reading.take(Answer(tuple(pieces), 20, -0.3, 0.01))
        results.append(reading.result())
    for found in (stitch(results, 36.0), sentences(stitch(results, 36.0))):
        words = [w for s in found for w in s.words]
        assert all(a.end <= b.start for a, b in itertools.pairwise(words))
        spoken = [w for w in words if any(s.start - 1e-6 <= w.start <= w.end <= s.end + 1e-6 for s in speech)]
        assert spoken == words
        assert all(s.start <= s.words[0].start and s.words[-1].end <= s.end for s in found)
