"""A chunk is read to its end: doubtful answers climb the ladder, unread tails are asked for, the end is accounted for."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chunking.coverage import INVENTED, UNHEARD, UNREAD, holes
from chunking.timeline import Chunk, Gap, Span, Word
from pipeline.engine import Answer, Piece
from pipeline.quality import ladder
from pipeline.reading import MOST_PARTS, Reading

CHUNK = Chunk(3, Span(100.0, 112.0), (Span(100.5, 105.0), Span(106.0, 111.5)), 15.0)


ONE, TWO = "One is what was said at first.", "Two is what was said after it."


def said(*pieces: tuple[float, float, str], logprob: float = -0.3, **more: object) -> Answer:
    made = tuple(Piece(a, b, t) for a, b, t in pieces)
    return replace(Answer(made, 20, logprob, 0.01), **more)  # type: ignore[arg-type]


def test_a_good_answer_ends_it() -> None:
    reading = Reading(CHUNK, 1, "en")
    assert reading.request is not None
    assert (reading.request.span, reading.request.window, reading.request.temperature) == (CHUNK.span, 15.0, 0.0)
    reading.take(said((0.5, 5.0, ONE), (6.0, 11.6, TWO)))
    assert reading.request is None
    result = reading.result()
    assert [(s.start, s.end, s.text, s.channel, s.flags) for s in result.segments] == [
        (100.5, 105.0, ONE, 1, ()),
        (106.0, 111.6, TWO, 1, ()),
    ]
    assert (result.index, result.decodes, result.gaps) == (3, 1, ())


def test_an_unread_tail_is_a_part_of_its_own() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.take(said((0.5, 5.0, ONE)))
    assert reading.request is not None
    assert reading.request.span == Span(105.9, 112.0)
    assert reading.request.window == 10.0
    reading.take(said((0.1, 5.6, TWO)))
    assert reading.request is None
    assert [(s.start, s.text, s.flags) for s in reading.result().segments] == [
        (100.5, ONE, ()),
        (106.0, TWO, ("tail",)),
    ]


def test_a_tail_that_begins_with_the_words_before_it_does_not_say_them_twice() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.take(said((0.5, 5.0, "Try again. Fail again. Fail better.")))
    reading.take(said((0.0, 5.6, "Better. Two is what was said after it.")))
    assert [s.text for s in reading.result().segments] == ["Try again. Fail again. Fail better.", TWO]
    alone = Reading(CHUNK, 0, "en")
    alone.take(said((0.5, 5.0, "Never mind. Try again. Fail better.")))
    alone.take(said((0.0, 5.6, "better.")))
    assert [s.text for s in alone.result().segments] == ["Never mind. Try again. Fail better."]
    assert alone.request is None


def test_a_doubtful_answer_climbs_and_the_best_one_stays() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.take(said((0.5, 11.5, "la " * 200)))
    assert reading.request is not None
    assert (reading.request.window, reading.request.temperature) == (20.0, 0.0)
    reading.take(said((0.5, 11.5, "one two three four five six seven eight nine"), logprob=-1.2))
    assert reading.request.temperature > 0
    reading.take(said((0.5, 11.5, "one too tree for five six seven ate nine ten"), logprob=-1.5))
    result = reading.result()
    assert [s.text for s in result.segments] == ["one two three four five six seven eight nine"]
    assert result.segments[0].flags == ("low_confidence", "wider_window")
    assert result.decodes == 3


def test_nothing_heard_over_speech_is_a_gap_with_a_reason() -> None:
    reading = Reading(CHUNK, 0, "en")
    while reading.request is not None:
        reading.take(said())
    result = reading.result()
    assert result.segments == ()
    assert {g.reason for g in result.gaps} == {"unread"}
    assert sum(g.span.duration for g in result.gaps) == 10.0


def test_silence_by_the_models_word_is_no_text_and_no_failure() -> None:
    reading = Reading(CHUNK, 0, "en")
    while reading.request is not None:
        reading.take(said((0.0, 11.5, "Thank you."), logprob=-1.3, no_speech_prob=0.9))
    assert reading.result().segments == ()
    assert {g.reason for g in reading.result().gaps} == {UNHEARD}


def test_a_rest_that_begins_in_a_word_is_decoded_with_what_was_said_before_it() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.take(said((0.5, 5.0, ONE), (6.0, 10.0, "Two is what was said af")))
    assert reading.request is not None
    assert reading.request.span == Span(105.9, 112.0)
    reading.take(said((0.1, 5.6, "Two is what was said after it.")))
    assert [s.text for s in reading.result().segments] == [ONE, "Two is what was said", "after it."]
    assert reading.request is None


def test_a_rest_that_the_model_does_not_reach_is_decoded_alone_and_then_given_up() -> None:
    reading = Reading(CHUNK, 0, "en")
    half = (6.0, 10.0, "Two is what was said")
    reading.take(said((0.5, 5.0, ONE), half))
    reading.take(said((0.1, 4.1, half[2])))
    assert reading.request is not None
    assert reading.request.span == Span(110.0, 112.0)
    reading.take(said())
    assert reading.request is None
    assert reading.result().gaps == (Gap(Span(110.0, 111.5), UNREAD),)


def test_speech_between_two_pieces_is_a_part_of_its_own() -> None:
    chunk = replace(CHUNK, span=Span(100.0, 120.0), speech=(Span(100.5, 119.0),), window=25.0)
    reading = Reading(chunk, 0, "en")
    reading.take(said((0.5, 8.0, ONE + " " + ONE), (13.0, 19.0, TWO + " " + TWO)))
    assert reading.request is not None
    assert (reading.request.span.start, reading.request.span.end) == (105.0, 116.0)
    reading.take(said((0.5, 3.0, "at first."), (3.2, 7.5, "Here is what was left out."), (8.0, 11.0, "Two is what")))
    assert [(s.text, s.flags) for s in reading.result().segments] == [
        (ONE + " " + ONE, ()),
        ("Here is what was left out.", ("gap",)),
        (TWO + " " + TWO, ()),
    ]
    assert reading.request is None


def test_a_gap_in_which_the_model_hears_nothing_new_is_no_failure() -> None:
    chunk = replace(CHUNK, span=Span(100.0, 120.0), speech=(Span(100.5, 119.0),), window=25.0)
    reading = Reading(chunk, 0, "en")
    reading.take(said((0.5, 8.0, ONE + " " + ONE), (11.0, 19.0, TWO + " " + TWO)))
    reading.take(said((0.5, 3.0, "One is what was said at first."), (6.0, 9.0, "Two is what was")))
    assert [s.text for s in reading.result().segments] == [ONE + " " + ONE, TWO + " " + TWO]
    assert reading.request is None
    assert reading.result().gaps == ()


def test_speech_after_a_piece_that_nothing_closed_is_read() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.take(said((0.5, 12.0, ONE + " Two is what was"), closed=False))
    assert reading.request is not None
    assert reading.request.span == Span(105.9, 112.0)
    reading.take(said((0.1, 5.6, TWO)))
    assert [s.text for s in reading.result().segments] == [ONE + " Two is what was", "said after it."]
    assert reading.request is None


def test_a_loop_in_a_rest_is_not_kept_while_there_is_another_way() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.take(said((0.5, 5.0, ONE), (6.0, 10.0, "Two is what was said")))
    reading.take(said((0.0, 6.0, "said af " * 60), hit_limit=True))
    assert reading.request is not None
    assert reading.request.span == Span(110.0, 112.0)
    reading.take(said((0.0, 1.5, "after it.")))
    assert [s.text for s in reading.result().segments] == [ONE, "Two is what was said", "after it."]


def test_a_closing_phrase_in_a_pause_is_dropped_with_a_reason_and_over_speech_it_stays() -> None:
    chunk = replace(CHUNK, speech=(Span(100.5, 105.0), Span(109.0, 111.5)))
    reading = Reading(chunk, 0, "en")
    reading.take(said((0.5, 5.0, ONE), (5.8, 7.8, "Thank you."), (9.0, 11.4, TWO)))
    result = reading.result()
    assert [s.text for s in result.segments] == [ONE, TWO]
    assert result.gaps == (Gap(Span(105.8, 107.8), INVENTED),)
    spoken = Reading(CHUNK, 0, "en")
    spoken.take(said((0.5, 5.0, ONE), (6.0, 11.4, "Thank you. Thank you very much."), no_speech_prob=0.7))
    assert [s.text for s in spoken.result().segments] == [ONE, "Thank you. Thank you very much."]
    flagged = Reading(replace(CHUNK, speech=(Span(100.5, 102.0),), span=Span(100.0, 102.3)), 0, "en")
    flagged.take(said((0.5, 2.0, "Thank you."), no_speech_prob=0.7))
    assert [(s.text, s.flags) for s in flagged.result().segments] == [("Thank you.", ("stock_phrase",))]


def test_other_text_in_a_pause_stays_with_a_flag() -> None:
    chunk = replace(CHUNK, speech=(Span(100.5, 105.0), Span(109.0, 111.5)))
    reading = Reading(chunk, 0, "en")
    reading.take(said((0.5, 5.0, ONE), (5.8, 7.8, "Mind the gap."), (9.0, 11.4, TWO)))
    assert [(s.text, s.flags) for s in reading.result().segments] == [
        (ONE, ()),
        ("Mind the gap.", ("unheard",)),
        (TWO, ()),
    ]


def test_text_after_the_end_of_the_sound_is_never_kept() -> None:
    reading = Reading(CHUNK, 0, "en")
    while reading.request is not None:
        reading.take(said((0.5, 5.0, ONE), (6.0, 11.6, TWO), (12.0, 12.0, "six,"), (12.0, 12.0, "six,")))
    assert [(s.text, s.flags) for s in reading.result().segments] == [(ONE, ("beyond",)), (TWO, ("beyond",))]


PIECES = st.lists(
    st.tuples(st.floats(0.0, 14.0), st.floats(0.0, 6.0), st.sampled_from([ONE, TWO, "uh", "Thank you.", "la " * 99])),
    max_size=4,
)


@given(st.data())
def test_whatever_the_model_says_the_chunk_is_read_and_accounted_for(data: st.DataObject) -> None:
    edges = sorted(data.draw(st.lists(st.floats(100.2, 113.8), min_size=2, max_size=8, unique=True)))
    speech = tuple(Span(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False))
    chunk = Chunk(0, Span(100.0, 114.0), speech, 15.0)
    reading, asked = Reading(chunk, 0, "en"), 0
    while (request := reading.request) is not None:
        asked += 1
        pieces = sorted((min(a, request.span.duration), t, text) for a, t, text in data.draw(PIECES))
        made = [(a, min(a + t, request.span.duration), text) for a, t, text in pieces]
        numbers = {"logprob": data.draw(st.floats(-2.0, 0.0)), "no_speech_prob": data.draw(st.floats(0.0, 1.0))}
        reading.take(said(*made, closed=data.draw(st.booleans()), **numbers))  # type: ignore[arg-type]
    assert asked <= len(ladder(15.0)) + MOST_PARTS - 1
    result = reading.result()
    stands = [s.span for s in result.segments] + [g.span for g in result.gaps]
    assert holes(stands, speech, chunk.span) == ()
    assert all(chunk.span.start <= s.start <= s.end <= chunk.span.end for s in result.segments)


def test_tails_come_to_an_end_even_if_the_model_never_gets_on() -> None:
    reading = Reading(CHUNK, 0, "en")
    asked = 0
    while reading.request is not None:
        asked += 1
        reading.take(said((0.0, 0.2, "uh")))
    assert asked <= 5
    assert any(g.reason == "unread" for g in reading.result().gaps)


def test_an_unclosed_last_piece_ends_with_the_speech() -> None:
    reading = Reading(CHUNK, 0, "en")
    words = (Word(0.5, 1.0, " One", 0.9), Word(11.0, 13.0, " two", 0.9))
    answer = Answer(
        (Piece(0.5, 12.0, "One two three four five six seven eight nine ten", words),), 5, -0.2, 0.0, closed=False
    )
    reading.take(answer)
    (segment,) = reading.result().segments
    assert segment.end == 111.5
    assert segment.words[-1].end <= 112.0


def test_a_chunk_the_engine_cannot_decode_is_lost_alone() -> None:
    reading = Reading(CHUNK, 0, "en")
    reading.fail("the engine failed")
    assert reading.request is None
    assert [g.reason for g in reading.result().gaps] == ["the engine failed"] * 2


PROMPT = "Spotscribe, Kubernetes, Dr. Kovacs."
NAMES = "Spotscribe and Kubernetes, Dr. Kovacs."
HEARD = "Spot scribe and Cooper Netties, Doctor Kovach."
SHORT = Chunk(0, Span(10.0, 15.0), (Span(10.5, 14.5),), 10.0)


def test_an_echo_of_the_prompt_is_decoded_again_without_it_and_stripped() -> None:
    reading = Reading(SHORT, 0, "en", prompt=PROMPT)
    assert reading.request is not None
    assert reading.request.prompted
    reading.take(said((0.0, 4.6, PROMPT), logprob=-0.1))
    assert reading.request is not None
    assert (reading.request.window, reading.request.temperature, reading.request.prompted) == (10.0, 0.0, False)
    reading.take(said((0.4, 4.6, "Please hold the line for a moment.")))
    assert reading.request is None
    (segment,) = reading.result().segments
    assert (segment.text, segment.flags) == ("Please hold the line for a moment.", ("prompt_echo",))


def test_a_speaker_who_truly_says_the_hotwords_keeps_them_as_they_are_spelt() -> None:
    reading = Reading(SHORT, 0, "en", prompt=PROMPT)
    reading.take(said((0.4, 4.6, NAMES)))
    reading.take(said((0.4, 4.6, HEARD), logprob=-0.6))
    assert reading.request is None
    (segment,) = reading.result().segments
    assert (segment.text, segment.flags, reading.result().decodes) == (NAMES, (), 2)


def test_an_echo_over_noise_leaves_nothing_and_never_climbs_with_the_prompt_again() -> None:
    reading = Reading(SHORT, 0, "en", prompt=PROMPT)
    reading.take(said((0.0, 4.6, PROMPT), logprob=-0.1))
    asked = []
    while reading.request is not None:
        asked.append(reading.request.prompted)
        reading.take(said())
    assert asked == [False, False, False]
    assert reading.result().segments == ()
    assert {g.reason for g in reading.result().gaps} == {"unread"}


def test_a_doubtful_answer_keeps_its_prompt_until_there_is_temperature() -> None:
    reading = Reading(SHORT, 0, "en", prompt=PROMPT)
    asked = []
    while reading.request is not None:
        asked.append((reading.request.window, reading.request.temperature, reading.request.prompted))
        reading.take(said((0.0, 4.6, "Nothing of it is sure."), logprob=-1.5))
    assert asked == [(10.0, 0.0, True), (15.0, 0.0, True), (30.0, 0.4, False)]


def test_an_echo_in_the_rest_is_stripped_from_the_rest_alone() -> None:
    reading = Reading(CHUNK, 0, "en", prompt=PROMPT)
    reading.take(said((0.5, 5.0, ONE)))
    reading.take(said((0.0, 5.6, PROMPT)))
    reading.take(said((0.1, 5.6, TWO)))
    assert [(s.text, s.flags) for s in reading.result().segments] == [(ONE, ()), (TWO, ("prompt_echo", "tail"))]


@given(
    st.lists(st.sampled_from(["", PROMPT, NAMES, HEARD, ONE, "la " * 200, "Thank you."]), min_size=30, max_size=30),
    st.floats(-1.5, -0.1),
)
def test_whatever_the_model_says_it_comes_to_an_end(answers: list[str], logprob: float) -> None:
    reading, left = Reading(CHUNK, 0, "en", prompt=PROMPT), list(answers)
    while reading.request is not None:
        text = left.pop()
        reading.take(said(*([(0.0, min(5.0, reading.request.span.duration), text)] if text else []), logprob=logprob))
    assert reading.result().decodes == len(answers) - len(left)
