"""A chunk that holds two languages: each stretch is read on its own, and the chunk has one result."""

from chunking.timeline import Chunk, Span
from pipeline.engine import Answer, Piece
from pipeline.languages import Spoken
from pipeline.mixed import MixedReading, reading_of
from pipeline.reading import Reading

CHUNK = Chunk(3, Span(100.0, 109.0), (Span(100.2, 103.0), Span(103.6, 108.8)), 10.0, cut_before=True, cut_after=True)
EN, DE = Spoken(Span(100.0, 103.3), "en", 0.9), Spoken(Span(103.3, 109.0), "de", 0.8)


SAYS = {"en": "One is what was said at first.", "de": "Das hier ist es, was danach gesagt worden ist."}


def said(text: str, end: float, logprob: float = -0.3) -> Answer:
    return Answer((Piece(0.2, end, text),), 20, logprob, 0.01)


def test_each_stretch_is_asked_for_in_its_language() -> None:
    reading = reading_of(CHUNK, 1, (EN, DE))
    asked = []
    while (request := reading.request) is not None:
        asked.append((request.span, request.window, request.language))
        reading.take(said(SAYS[request.language], request.span.duration - 0.2))
        assert reading.begun
    assert asked == [(EN.span, 10.0, "en"), (DE.span, 10.0, "de")]
    result = reading.result()
    found = [(round(s.start, 1), s.text, s.language, s.language_probability) for s in result.segments]
    assert found == [(100.2, SAYS["en"], "en", 0.9), (103.5, SAYS["de"], "de", 0.8)]
    assert (result.index, result.channel, result.span, result.language, result.decodes) == (3, 1, CHUNK.span, "de", 2)
    assert (result.cut_before, result.cut_after, result.gaps) == (True, True, ())


def test_a_stretch_that_cannot_be_decoded_costs_itself_alone() -> None:
    reading = MixedReading(CHUNK, 0, (EN, DE))
    assert reading.first.span == EN.span
    reading.fail("the engine failed")
    assert reading.request is not None
    assert reading.request.language == "de"
    reading.take(said(SAYS["de"], 5.5))
    result = reading.result()
    assert [(g.span, g.reason) for g in result.gaps] == [(Span(100.2, 103.0), "the engine failed")]
    assert [s.text for s in result.segments] == [SAYS["de"]]


def test_a_chunk_in_one_language_is_read_as_ever() -> None:
    reading = reading_of(CHUNK, 0, (Spoken(CHUNK.span, "fr", 0.7),))
    assert isinstance(reading, Reading)
    assert reading.first.language == "fr"
    reading.take(said(f"{SAYS['en']} {SAYS['de']}", 8.7))
    (segment,) = reading.result().segments
    assert (segment.language, segment.language_probability) == ("fr", 0.7)
