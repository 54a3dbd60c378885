"""Cues a viewer can read: every word once, in time, within the screen's limits, in files that players read back."""

from __future__ import annotations

import html
import re
import unicodedata
from itertools import pairwise

import pysubs2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunking.timeline import Segment, Transcript, Word
from pipeline.subtitles import LINE, LONGEST, RUN_GAP, SHORTEST, Cue, cues, to_srt, to_vtt
from pipeline.typography import cells, clean, letters, pieces

WORD_JOINER = "\u2060"
SCRIPTS = [
    "abcdefgXYZ.,?!;:'-é",
    "абвгдежЯ.,?!",
    "שלוםעברית،؟ابتثج",
    "한국어문장테스트.",
    "昨日私は図書館に行きましたー。、「」っ",
    "สวัสดีครับวันนี้เ",
    "हिन्दीमेंका।",
    "👍🏽❤️👨‍👩‍👧🇫🇷é",
    "<b>/&;{}\\Nnh-->\x00\x07\ud800\u202e0:1,",
]
words_of_text = st.sampled_from(SCRIPTS).flatmap(lambda letters: st.text(letters, min_size=1, max_size=14))
long_word = st.sampled_from(SCRIPTS[:5]).flatmap(lambda letters: st.text(letters, min_size=43, max_size=130))
texts = st.lists(words_of_text | words_of_text | words_of_text | long_word, max_size=20).map(" ".join)


def transcript(*segments: Segment, duration: float = 60.0, channels: int = 1) -> Transcript:
    return Transcript(duration, channels, "en", 1.0, segments, ())


def said(text: str, start: float, end: float, channel: int = 0) -> Segment:
    return Segment(start, end, text, "en", channel)


def spoken(text: str, start: float, rate: float = 15.0, channel: int = 0) -> Segment:
    """A segment with word times, at `rate` characters a second."""
    words, now = [], start
    for token in text.split():
        words.append(Word(now, now + len(token) / rate, " " + token, 0.9))
        now = words[-1].end + 1 / rate
    return Segment(start, words[-1].end, text, "en", channel, words=tuple(words))


@st.composite
def transcripts(draw: st.DrawFn, channels: int = 1) -> Transcript:
    """Segments in the order of time, with and without words, some too fast or too slow for anybody to say."""
    now, segments = 0.0, []
    for text in draw(st.lists(texts, max_size=5)):
        now += draw(st.sampled_from([0.0, 0.1, 0.7, 3.0]))
        rate = draw(st.sampled_from([3.0, 15.0, 15.0, 60.0, 1e6]))
        channel = draw(st.integers(0, channels - 1))
        with_words = draw(st.booleans()) and text.strip()
        segment = spoken(text, now, rate, channel) if with_words else said(text, now, now + len(text) / rate, channel)
        segments.append(segment)
        now = max(now, segment.end - draw(st.sampled_from([0.0, 0.0, 2.0])) * (channels > 1))
    return transcript(*segments, duration=now + draw(st.sampled_from([0.0, 5.0])), channels=channels)


def shown(found: tuple[Cue, ...], channel: int | None = None) -> str:
    return " ".join(line for cue in found if cue.channel == channel for line in cue.lines)


def columns(text: str) -> int:
    """Cells counted without regard for emoji sequences: never fewer than the screen shows of other text."""
    marks = ("Mn", "Me", "Cf")
    return sum(
        0 if unicodedata.category(c) in marks else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


@settings(max_examples=100, deadline=None)
@given(transcripts())
@example(transcript(said("a" * 100, 0, 1)))
@example(transcript(said("word " * 40, 0, 0), duration=0.02))
def test_every_word_is_shown_once_and_in_order(heard: Transcript) -> None:
    found = cues(heard)
    text = clean(heard.text)
    assert letters(shown(found)) == letters(text)
    if all(len(pieces(word, LINE)) == 1 for word in text.split()):
        assert shown(found).split() == text.split()


@settings(max_examples=100, deadline=None)
@given(transcripts() | transcripts(channels=3))
def test_a_cue_fits_the_screen(heard: Transcript) -> None:
    for cue in cues(heard):
        label = "" if cue.channel is None else f"[channel {cue.channel + 1}] "
        first, *rest = cue.lines
        assert len(rest) <= 1
        assert all(line and line == line.strip() for line in cue.lines)
        for line in (label + first, *rest):
            assert cells(line) <= LINE
            if not re.search("[\u200d\ufe0f\U0001f3fb-\U0001f3ff]", line):
                assert columns(line) <= LINE
            assert not unicodedata.combining(line[0]) or any(word[0] == line[0] for word in heard.text.split())


@settings(max_examples=100, deadline=None)
@given(transcripts() | transcripts(channels=3))
@example(transcript(said("Late.", 59.9, 60.0), said("Later.", 70.0, 80.0)))
@example(transcript(said("Backwards.", 9, 3), said("Not a number.", float("nan"), float("nan")), said("Early.", -4, 2)))
def test_cues_are_one_after_another_inside_the_recording(heard: Transcript) -> None:
    found = cues(heard)
    room = len(found) * SHORTEST <= heard.duration
    for cue in found:
        assert 0.0 <= cue.start < cue.end
        assert round(cue.end - cue.start, 3) <= LONGEST
        assert cue.end <= max(heard.duration + 1e-9, len(found) / 1000)
        assert not room or round(cue.end - cue.start, 3) >= SHORTEST
    assert all(a.end <= b.start for a, b in pairwise(found))


@settings(max_examples=60, deadline=None)
@given(transcripts(channels=3))
def test_split_channels_keep_their_words_and_order(heard: Transcript) -> None:
    found = cues(heard)
    for channel in range(3):
        own = " ".join(s.text for s in heard.segments if s.channel == channel)
        assert letters(shown(found, channel)) == letters(clean(own))


def read_back(text: str, kind: str) -> list[str]:
    """The cues' texts as a program sees them that knows ASS styling, HTML tags and nothing else."""
    lines = [event.plaintext for event in pysubs2.SSAFile.from_string(text, format_=kind)]
    return [line.replace(WORD_JOINER, "").replace("｛", "{").replace("｝", "}") for line in lines]


@settings(max_examples=100, deadline=None)
@given(transcripts())
def test_srt_reads_back_as_the_same_words_and_times(heard: Transcript) -> None:
    found, text = cues(heard), to_srt(heard)
    text.encode()
    assert read_back(text, "srt") == ["\n".join(cue.lines) for cue in found]
    times = [(event.start, event.end) for event in pysubs2.SSAFile.from_string(text, format_="srt")]
    assert times == [(round(cue.start * 1000), round(cue.end * 1000)) for cue in found]


@settings(max_examples=100, deadline=None)
@given(transcripts())
def test_vtt_reads_back_as_the_same_words(heard: Transcript) -> None:
    text = to_vtt(heard)
    text.encode()
    header, *blocks = re.split("\n\n", text.removesuffix("\n\n"))
    assert header == "WEBVTT"
    assert len(pysubs2.SSAFile.from_string(text, format_="vtt")) == len(blocks)
    for block, cue in zip(blocks, cues(heard), strict=True):
        _, times, payload = block.split("\n", 2)
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} --> \d\d:\d\d:\d\d\.\d{3}", times)
        assert "-->" not in payload
        assert not re.search(r"<|&(?!amp;|lt;|gt;)", payload)
        assert html.unescape(payload).replace(WORD_JOINER, "") == "\n".join(cue.lines)


HOSTILE = r"Use <b>bold</b> & {\an8}x {y} {\p1} C:\new\Name --> 5 < 6, a<b and c>d &amp; 00:00:01,000 --> 00:00:02,000"


def test_hostile_text_survives_both_formats() -> None:
    heard = transcript(said(HOSTILE + "\n\n7\x00\ud800\u202e", 0, 12))
    words = [*HOSTILE.split(), "7"]
    assert " ".join(read_back(to_srt(heard), "srt")).split() == words
    assert "--&gt; 5 &lt; 6" in to_vtt(heard)
    body = re.sub(r"(?m)^(WEBVTT|\d+|\S+ --> \S+)$", "", to_vtt(heard))
    assert html.unescape(body).replace(WORD_JOINER, "").split() == words


def test_a_number_alone_is_not_taken_for_the_next_cues_number() -> None:
    heard = transcript(said("a" * 42 + " 42", 0, 3))
    assert read_back(to_srt(heard), "srt") == ["a" * 42 + "\n42"]


def test_an_empty_transcript_gives_valid_files() -> None:
    assert to_srt(transcript()) == ""
    assert to_vtt(transcript(said(" \x00", 0, 1))) == "WEBVTT\n\n"


def blocks(text: str) -> list[str]:
    return [block.split("\n", 1)[1] for block in text.strip().split("\n\n")]


def test_reads_well() -> None:
    first = "Nobody knows who made the first pencil, but it was sold in England, where the graphite came from."
    second = "The lead was cut by hand, and shepherds used it to mark their sheep before the market opened."
    assert blocks(to_srt(transcript(spoken(first, 0.5), spoken(second, 8.0)))) == [
        "00:00:00,500 --> 00:00:03,167\nNobody knows who made the first pencil,",
        "00:00:03,167 --> 00:00:06,967\nbut it was sold in England,\nwhere the graphite came from.",
        "00:00:08,000 --> 00:00:09,733\nThe lead was cut by hand,",
        "00:00:09,733 --> 00:00:14,200\nand shepherds used it to mark\ntheir sheep before the market opened.",
    ]


def test_japanese_breaks_at_its_own_punctuation() -> None:
    heard = said(
        "昨日、私たちは新しい「図書館」に行きました。そこには何千冊もの本があり、とても喜んでいました。", 0.5, 12
    )
    assert [cue.lines for cue in cues(transcript(heard))] == [
        ("昨日、私たちは新しい", "「図書館」に行きました。"),
        ("そこには何千冊もの本があり、", "とても喜んでいました。"),
    ]


def test_french_punctuation_stays_with_its_word() -> None:
    heard = said("Vous avez vu « Le Grand Bleu » hier au cinéma ? Oui : c'était vraiment magnifique, madame !", 0, 9)
    for line in (line for cue in cues(transcript(heard)) for line in cue.lines):
        assert not line.startswith(("?", ":", "!", "»"))
        assert not line.endswith("«")


def test_channels_are_labelled_and_take_turns() -> None:
    question = spoken("Did you bring the letter that I gave you on Monday?", 0.0, channel=0)
    answer = spoken("Yes, I did.", 1.5, channel=1)
    heard = transcript(question, answer, channels=2, duration=10.0)
    assert blocks(to_srt(heard)) == [
        "00:00:00,000 --> 00:00:02,500\n[channel 1] Did you bring\nthe letter that I gave you on Monday?",
        "00:00:02,500 --> 00:00:03,500\n[channel 2] Yes, I did.",
    ]
    assert blocks(to_vtt(heard).removeprefix("WEBVTT\n\n")) == [
        "00:00:00.000 --> 00:00:02.500\n<v Channel 1>Did you bring\nthe letter that I gave you on Monday?",
        "00:00:02.500 --> 00:00:03.500\n<v Channel 2>Yes, I did.",
    ]


def test_word_times_place_the_cues() -> None:
    words = (
        Word(1.0, 1.4, " Wait", 0.9),
        Word(1.4, 1.8, " here.", 0.9),
        Word(6.25, 6.75, " Now", 0.9),
        Word(6.75, 7.5, " go.", 0.9),
    )
    heard = Segment(1.0, 7.5, "Wait here. Now go.", "en", words=words)
    assert cues(transcript(heard)) == (Cue(1.0, 2.0, ("Wait here.",)), Cue(6.25, 7.5, ("Now go.",)))


def test_words_that_do_not_spell_the_text_are_not_trusted() -> None:
    heard = Segment(0.0, 4.0, "All of this is said.", "en", words=(Word(3.0, 3.5, " All", 0.9),))
    assert cues(transcript(heard)) == (Cue(0.0, 4.0, ("All of this is said.",)),)


@pytest.mark.parametrize(("gap", "first"), [(0.0, "Yes. No. Well."), (0.3, "Yes. No."), (0.7, "Yes.")])
def test_cues_too_short_to_read_are_joined(gap: float, first: str) -> None:
    heard = [said(word, 5 + i * (0.4 + gap), 5.4 + i * (0.4 + gap)) for i, word in enumerate(["Yes.", "No.", "Well."])]
    assert shown(cues(transcript(*heard))[:1]) == first


def test_a_short_cue_stays_a_second_and_a_long_one_leaves_after_seven() -> None:
    found = cues(transcript(said("Yes.", 5.0, 5.2), said("Hmm.", 20.0, 40.0)))
    assert [(cue.start, cue.end) for cue in found] == [(5.0, 6.0), (20.0, 27.0)]


def test_silence_ends_a_cue() -> None:
    apart = RUN_GAP + 0.1
    found = cues(transcript(said("And the winner", 0.0, 1.0), said("is you.", 1.0 + apart, 2.0 + apart)))
    assert [cue.lines for cue in found] == [("And the winner",), ("is you.",)]


def test_slow_speech_is_shown_as_it_comes() -> None:
    slow = " ".join(f"word{i}" for i in range(12))
    found = cues(transcript(spoken(slow, 0.0, rate=5.0)))
    assert [(cue.start, cue.lines) for cue in found] == [
        (0.0, ("word0 word1 word2 word3",)),
        (4.8, ("word4 word5 word6 word7",)),
        (9.6, ("word8 word9 word10 word11",)),
    ]


def test_no_orphan_where_a_balanced_break_fits() -> None:
    (cue,) = cues(transcript(said("Everybody had gone home long before the rain", 0, 4)))
    assert cue.lines == ("Everybody had gone", "home long before the rain")
    (cue,) = cues(transcript(said("Hm. If I do it to my own old dad as we all do", 0, 4)))
    assert cue.lines == ("Hm. If I do it to my", "own old dad as we all do")


def test_a_word_wider_than_a_line_is_broken_hard() -> None:
    (cue,) = cues(transcript(said("x" * 50, 0, 4)))
    assert cue.lines == ("x" * 42, "x" * 8)


@pytest.mark.parametrize(
    ("text", "width"),
    [("abc", 3), ("日本", 4), ("한국", 4), ("e\u0301", 1), ("👨‍👩‍👧", 2), ("❤️", 2), ("🇫🇷", 2), ("👍🏽", 2), ("का", 2)],
)
def test_cells(text: str, width: int) -> None:
    assert cells(text) == width


@pytest.mark.parametrize(
    ("token", "parts"),
    [
        ("word", ["word"]),
        ("図「書館」に、", ["図", "「書", "館」", "に、"]),
        ("はiPhoneだ", ["は", "iPhone", "だ"]),
        ("เที่ยว", ["เที่", "ย", "ว"]),
        ("한국어", ["한국어"]),
        ("abcdefghijk", ["abcdefghij", "k"]),
        ("e\u0301" * 11, ["e\u0301" * 10, "e\u0301"]),
    ],
)
def test_pieces(token: str, parts: list[str]) -> None:
    assert pieces(token, 10) == parts
