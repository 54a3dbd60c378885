"""The files a user gets: plain text as paragraphs, and JSON as its schema says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from chunking.errors import Code
from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript, Word
from pipeline.exports import PARAGRAPH_GAP, SCHEMA_VERSION, About, Format, render
from pipeline.subtitles import to_srt, to_vtt
from storage.recordings import Media

ABOUT = About(
    source_url="s3://bucket/interviews/öl.mp3",
    sha256="ab" * 32,
    model="large-v3",
    compute_type="float16",
    task="transcribe",
    state="done",
    code="ok",
    job_id="0197c0de",
    created_at="2025-06-01T12:00:00+00:00",
    media=Media(
        container="wav", codec="pcm_s16le", sample_rate=8000, channels=2, track=0, tracks=1, mixed="average",
        decoded_s=12.3456, decode_errors=0, loudest_db=-50.1, clipped=0.0, dc_offset=-0.01, gain_db=24.1,
    ),
)  # fmt: skip
SCHEMA: dict[str, Any] = json.loads(files("pipeline").joinpath("transcript.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)


def said(text: str, start: float, end: float, channel: int = 0) -> Segment:
    return Segment(start, end, text, "en", channel)


def transcript(*segments: Segment, channels: int = 1) -> Transcript:
    return Transcript(60.0, channels, "en", 0.98765, segments, (CoverageSpan(Span(0.0, 60.0), Coverage.TRANSCRIBED),))


FULL = Transcript(
    duration=12.34567,
    channels=1,
    language="de",
    language_probability=0.987654,
    segments=(
        Segment(
            0.12345,
            2.0,
            "Grüß Gott.",
            "de",
            avg_logprob=-0.12345,
            no_speech_prob=0.01234567,
            compression_ratio=1.23456,
            temperature=0.2,
            words=(Word(0.12345, 1.0, " Grüß", 0.912345), Word(1.0, 2.0, " Gott.", 1.0)),
            flags=("low_confidence",),
            language_probability=0.98765,
        ),
    ),
    coverage=(
        CoverageSpan(Span(0.0, 4.0), Coverage.TRANSCRIBED),
        CoverageSpan(Span(4.0, 10.0), Coverage.NO_SPEECH),
        CoverageSpan(Span(10.0, 12.34567), Coverage.FAILED, "loop"),
    ),
)


def document(heard: Transcript, about: About = ABOUT) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = render(heard, about, Format.JSON)
    text.encode()
    assert text.endswith("}\n")
    parsed: dict[str, Any] = json.loads(text, parse_constant=refuse)
    VALIDATOR.validate(parsed)
    return parsed


def test_json_says_everything() -> None:
    assert document(FULL) == {
        "schema_version": SCHEMA_VERSION,
        "source": {
            "url": "s3://bucket/interviews/öl.mp3",
            "sha256": "ab" * 32,
            "media": {
                "container": "wav",
                "codec": "pcm_s16le",
                "sample_rate": 8000,
                "channels": 2,
                "tracks": 1,
                "expected_s": None,
                "decoded_s": 12.346,
                "decode_errors": 0,
                "loudest_db": -50.1,
                "clipped": 0.0,
                "dc_offset": -0.01,
                "gain_db": 24.1,
                "highpass_hz": None,
            },
        },
        "job": {
            "id": "0197c0de",
            "state": "done",
            "code": "ok",
            "task": "transcribe",
            "created_at": "2025-06-01T12:00:00+00:00",
        },
        "model": {"name": "large-v3", "compute_type": "float16"},
        "language": "de",
        "language_probability": 0.9877,
        "languages": [{"language": "de", "seconds": 1.877}],
        "duration": 12.346,
        "text": "Grüß Gott.",
        "segments": [
            {
                "id": 0,
                "start": 0.123,
                "end": 2.0,
                "text": "Grüß Gott.",
                "channel": 0,
                "language": "de",
                "language_probability": 0.9877,
                "avg_logprob": -0.123,
                "no_speech_prob": 0.0123,
                "compression_ratio": 1.235,
                "temperature": 0.2,
                "flags": ["low_confidence"],
                "words": [
                    {"start": 0.123, "end": 1.0, "text": " Grüß", "probability": 0.9123},
                    {"start": 1.0, "end": 2.0, "text": " Gott.", "probability": 1.0},
                ],
            }
        ],
        "coverage": {
            "transcribed_s": 4.0,
            "no_speech_s": 6.0,
            "failed_s": 2.346,
            "spans": [
                {"start": 0.0, "end": 4.0, "kind": "transcribed", "reason": "", "channel": 0},
                {"start": 4.0, "end": 10.0, "kind": "no_speech", "reason": "", "channel": 0},
                {"start": 10.0, "end": 12.346, "kind": "failed", "reason": "loop", "channel": 0},
            ],
        },
    }


def test_json_is_utf8_and_its_keys_keep_the_schemas_order() -> None:
    text = render(FULL, ABOUT, Format.JSON)
    assert "Grüß" in text
    parsed = json.loads(text)
    assert list(parsed) == list(SCHEMA["properties"])
    assert list(parsed["segments"][0]) == list(SCHEMA["$defs"]["segment"]["properties"])
    assert text == render(FULL, ABOUT, Format.JSON)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.characters() | st.sampled_from("\x00\ud800\udfff\u2028<&"), max_size=30),
    score=st.floats(),
    probability=st.floats(0, 1) | st.just(math.nan),
    start=st.floats(0, 1e5) | st.sampled_from([-0.0, -1e-9, math.nan, math.inf]),
)
def test_json_is_valid_whatever_the_model_said(text: str, score: float, probability: float, start: float) -> None:
    words = (Word(start, start + 1, text, probability),)
    segment = Segment(start, start + 1, text, "en", 0, score, probability, score, score, words, ("loop",))
    parsed = document(transcript(segment), replace(ABOUT, state="partial", code="damaged"))
    assert [s["text"] for s in parsed["segments"]] == [parsed["text"]]


def test_json_replaces_what_utf8_and_databases_cannot_hold() -> None:
    assert document(transcript(said("a\ud800b\0c", 0, 1)))["text"] == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"duration": -1},
        {"duration": None},
        {"schema_version": "2.0"},
        {"segments": [{}]},
        {"language": None},
    ],
)
def test_the_schema_refuses_what_it_does_not_describe(change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({**document(FULL), **change})


def test_the_schema_describes_each_field_and_allows_no_other() -> None:
    Draft202012Validator.check_schema(SCHEMA)

    def visit(node: dict[str, Any]) -> None:
        properties: dict[str, Any] = node.get("properties", {})
        if properties:
            assert node["additionalProperties"] is False
            assert node["required"] == list(properties)
        for child in properties.values():
            assert child.get("description") or SCHEMA["$defs"][child["$ref"].rsplit("/", 1)[1]]["description"]
            visit(child)

    for node in (SCHEMA, *SCHEMA["$defs"].values()):
        visit(node)


def test_the_schema_knows_every_code_and_kind() -> None:
    assert SCHEMA["properties"]["job"]["properties"]["code"]["enum"] == [code.value for code in Code]
    assert SCHEMA["$defs"]["stretch"]["properties"]["kind"]["enum"] == [kind.value for kind in Coverage]
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def test_text_is_a_paragraph_per_long_silence() -> None:
    heard = transcript(
        said(" It rained.\n", 0, 2),
        said("We stayed\x00 in.", 2 + PARAGRAPH_GAP, 5),
        said("  ", 5, 5),
        said("Next day the sun shone.", 5.1 + PARAGRAPH_GAP, 9),
    )
    assert render(heard, ABOUT, Format.TXT) == "It rained. We stayed in.\n\nNext day the sun shone.\n"


def test_text_of_split_channels_is_a_paragraph_per_turn_in_the_order_of_time() -> None:
    heard = transcript(
        said("How are you?", 0, 1, 0),
        said("And the family?", 1.2, 2, 0),
        said("Good.", 4.8, 5, 0),
        said("Fine, thanks.", 2.5, 3, 1),
        said("All well.", 3.5, 4, 1),
        channels=2,
    )
    assert render(heard, ABOUT, Format.TXT) == (
        "[channel 1] How are you? And the family?\n\n[channel 2] Fine, thanks. All well.\n\n[channel 1] Good.\n"
    )


def test_a_lecture_without_pauses_still_has_paragraphs() -> None:
    sentence = "This sentence has exactly fifty characters, yes. " * 4
    heard = transcript(*(said(sentence, i, i + 1) for i in range(20)))
    paragraphs = render(heard, ABOUT, Format.TXT).split("\n\n")
    assert len(paragraphs) > 3
    assert all(paragraph.rstrip().endswith("yes.") for paragraph in paragraphs)
    assert " ".join(" ".join(paragraphs).split()) == " ".join(heard.text.split())


def test_subtitles_are_rendered_by_format() -> None:
    heard = transcript(said("Hello.", 0, 1))
    assert render(heard, ABOUT, Format.SRT) == to_srt(heard)
    assert render(heard, ABOUT, Format.VTT) == to_vtt(heard)


@pytest.mark.parametrize(("fmt", "text"), [(Format.TXT, ""), (Format.SRT, ""), (Format.VTT, "WEBVTT\n\n")])
def test_an_empty_transcript_gives_an_empty_file(fmt: Format, text: str) -> None:
    assert render(transcript(), ABOUT, fmt) == text


def test_an_empty_transcript_is_valid_json() -> None:
    assert document(replace(transcript(), language="", language_probability=0.0))["segments"] == []
