"""Where two chunks heard the same seconds, each word is in the transcript once, whoever misheard at the edge."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from chunking.stitcher import split_words, stitch, words_of
from chunking.timeline import ChunkResult, Segment, Span, Word

WORDS = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "it",
    "was",
    "she",
    "he",
    "said",
    "not",
    "one",
    "two",
    "three",
    "river",
    "stone",
    "letter",
    "under",
    "green",
]


def chunk(
    index: int, span: Span, segments: list[Segment], *, before: bool, after: bool, channel: int = 0
) -> ChunkResult:
    return ChunkResult(index, channel, span, before, after, "en", tuple(segments))


def segment(words: list[Word]) -> Segment:
    text = "".join(w.text for w in words).strip()
    return Segment(words[0].start, words[-1].end, text, "en", words=tuple(words))


@st.composite
def spoken(draw: st.DrawFn) -> tuple[list[Word], list[float]]:
    """A minute or so of words one after the other, few different ones, and where chunks are cut."""
    at, words = 0.0, []
    for text in draw(st.lists(st.sampled_from(WORDS), min_size=60, max_size=150)):
        length = draw(st.floats(0.15, 0.6))
        words.append(Word(at, at + length, f" {text}", 0.9))
        at += length + draw(st.floats(0.0, 0.1))
    cuts, last = [], 0.0
    while (cut := last + draw(st.floats(6.0, 15.0))) < at - 3.0:
        cuts.append(cut)
        last = cut
    return words, cuts


def heard(word: Word, span: Span) -> bool:
    return word.start >= span.start and word.end <= span.end


@given(spoken(), st.integers(0, 2**20))
def test_every_word_once_though_edges_are_misheard(made: tuple[list[Word], list[float]], seed: int) -> None:
    import random

    chance = random.Random(seed)
    words, cuts = made
    end = words[-1].end
    edges = [0.0, *cuts, end]
    results = []
    for i, (a, b) in enumerate(itertools.pairwise(edges)):
        span = Span(max(0.0, a - 1.0 if i else 0.0), min(end, b + 1.0 if b != end else end))
        mine = [w for w in words if heard(w, span)]
        jittered = []
        for w in mine:  # another chunk puts it a little elsewhere
            shift = chance.uniform(-0.04, 0.04)
            jittered.append(Word(w.start + shift, w.end + shift, w.text, w.probability))
        if i and chance.random() < 0.5:  # half a word at the edge becomes some other word
            jittered.insert(0, Word(span.start, span.start + 0.1, " zq", 0.1))
        if b != end and chance.random() < 0.5:
            jittered.append(Word(span.end - 0.1, span.end, " qz", 0.1))
        results.append(chunk(i, span, [segment(jittered)], before=i > 0, after=b != end))
    found = stitch(results, end)
    assert " ".join(s.text for s in found).split() == "".join(w.text for w in words).split()
    assert all(0.0 <= s.start <= s.end <= end for s in found)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))


def test_chunks_that_do_not_share_seconds_are_left_alone() -> None:
    a = segment([Word(0.0, 0.5, " so", 1.0), Word(0.5, 1.0, " so", 1.0)])
    b = segment([Word(1.2, 1.6, " so", 1.0)])
    found = stitch(
        [
            chunk(0, Span(0, 1.1), [a], before=False, after=False),
            chunk(1, Span(1.1, 2), [b], before=False, after=False),
        ],
        2.0,
    )
    assert [s.text for s in found] == ["so so", "so"]


def test_nothing_heard_alike_means_a_cut_in_the_middle() -> None:
    a = segment([Word(8.2, 8.6, " one", 1.0), Word(8.7, 8.9, " bee", 1.0), Word(9.4, 9.9, " sea", 1.0)])
    b = segment([Word(8.1, 8.5, " juan", 1.0), Word(9.2, 9.9, " see", 1.0), Word(10.5, 10.9, " dee", 1.0)])
    found = stitch(
        [chunk(0, Span(0, 10), [a], before=False, after=True), chunk(1, Span(8, 12), [b], before=True, after=False)],
        12.0,
    )
    assert " ".join(s.text for s in found) == "one bee see dee"


def test_a_chunk_that_heard_nothing_loses_nothing_of_its_neighbour_beyond_the_middle() -> None:
    a = segment([Word(7.0, 7.5, " left", 1.0), Word(8.1, 8.5, " alone", 1.0)])
    found = stitch(
        [chunk(0, Span(0, 10), [a], before=False, after=True), chunk(1, Span(8, 12), [], before=True, after=False)],
        12.0,
    )
    assert [s.text for s in found] == ["left alone"]


def test_words_without_times_are_placed_by_their_letters() -> None:
    words = words_of(Segment(10.0, 14.0, "abc defghi", "en"))
    assert [w.text for w in words] == [" abc", " defghi"]
    assert words[0].start == 10.0
    assert words[-1].end == 14.0


def test_channels_do_not_mix_and_come_out_by_time() -> None:
    a = Segment(5.0, 6.0, "left", "en", channel=0)
    b = Segment(1.0, 2.0, "right", "en", channel=1)
    found = stitch(
        [
            chunk(0, Span(0, 9), [a], before=False, after=False),
            chunk(1, Span(0, 9), [b], before=False, after=False, channel=1),
        ],
        9.0,
    )
    assert [s.text for s in found] == ["right", "left"]


@given(st.text(alphabet="ab é日本語。、, สวัสดี\t\n", max_size=40))
def test_split_words_keeps_the_text(text: str) -> None:
    assert "".join("".join(split_words(text)).split()) == "".join(text.split())
    assert all(w.strip() for w in split_words(text))
