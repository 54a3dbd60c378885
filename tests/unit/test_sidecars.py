"""A sidecar is read whatever is in it: what is right counts, what is wrong is said, and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.timeline import Transcript
from pipeline.exports import About, Format, render
from pipeline.sidecars import MOST_BYTES, Sidecar, candidates, from_json, parse, to_json
from storage.jobs import JobOptions
from storage.recordings import Media


def read(value: Any, model: str = "small") -> tuple[Sidecar | None, str | None]:
    return parse(json.dumps(value).encode(), model=model)


def transcript(text: str = "") -> bytes:
    about = About(
        source_url="s3://b/x.wav", sha256="", model="m", compute_type="int8", task="transcribe", state="done", code="ok",
        job_id="1", created_at="2026-01-01T00:00:00+00:00", media=Media(),
    )  # fmt: skip
    made = Transcript(duration=1.0, channels=1, language="en", language_probability=1.0, segments=(), coverage=())
    return (render(made, about, Format.JSON) + text).encode()


def test_where_they_lie() -> None:
    assert candidates("s3://b/d.x/call.wav") == ("s3://b/d.x/call.wav.json", "s3://b/d.x/call.json")
    assert candidates("s3://b/d.x/call") == ("s3://b/d.x/call.json",) * 2
    assert candidates("s3://b.c/.wav") == ("s3://b.c/.wav.json",) * 2


def test_all_that_one_may_say() -> None:
    said, note = read(
        {
            "label": " november ",
            "priority": -100,
            "metadata": {"team": "blue", "id": 17, "rate": 0.5, "vip": True},
            "formats": ["txt", "srt", "txt"],
            "options": {
                "language": "DE",
                "task": "translate",
                "channels": "split",
                "word_timestamps": True,
                "hotwords": " Kovacs,\nSpotscribe",
                "initial_prompt": " ",
                "track": 1,
            },
        }
    )
    assert note is None
    assert said == Sidecar(
        label="november",
        priority=-100,
        metadata={"team": "blue", "id": "17", "rate": "0.5", "vip": "true"},
        options={
            "language": "de",
            "task": "translate",
            "channels": "split",
            "word_timestamps": True,
            "hotwords": "Kovacs, Spotscribe",
            "initial_prompt": None,
            "track": 1,
        },
        formats=("txt", "srt"),
    )
    assert from_json(json.loads(json.dumps(to_json(said)))) == said
    assert JobOptions(**said.options).language == "de"
    assert read({}) == (Sidecar(), None)
    assert to_json(Sidecar()) == {}
    assert from_json({"label": "x", "of": "a newer version"}) == Sidecar(label="x")


@pytest.mark.parametrize(
    ("value", "note"),
    [
        ({"model": "large"}, "no field 'model'"),
        ({"options": {"model": "large"}}, "options: there is no field 'model'; possible: language, task"),
        ({"options": ["de"]}, "options: it is no object"),
        ({"options": {"language": "klingon"}}, "'klingon' is no language code"),
        ({"options": {"language": None}}, "null is no text"),
        ({"options": {"task": "sing"}}, "'sing' is none of transcribe, translate"),
        ({"options": {"channels": 2}}, "2 is none of mix, split"),
        ({"options": {"track": -1}}, "no whole number from 0 to 99"),
        ({"options": {"word_timestamps": "yes"}}, "neither true nor false"),
        ({"priority": 101}, "no whole number from -100 to 100"),
        ({"priority": True}, "true is no whole number"),
        ({"priority": 1.5}, "no whole number"),
        ({"priority": 10**400}, "no whole number"),
        ({"label": ""}, "1 to 255 characters"),
        ({"label": "x" * 256}, "1 to 255 characters"),
        ({"label": "a\0b"}, "cannot be stored"),
        ({"label": "a\ud800b"}, "cannot be stored"),
        ({"metadata": {"a": {"b": 1}}}, "'a': an object is no text"),
        ({"metadata": {"a": None, "b": [1]}}, "'a': null is no text; metadata: 'b': a list is no text"),
        ({"metadata": {"\0": "x"}}, "cannot be stored"),
        ({"metadata": "x"}, "metadata: it is no object"),
        ({"formats": "txt"}, "formats: it is no list"),
        ({"formats": ["doc", ["txt"]]}, "'doc' is none of txt, srt, vtt, json; formats: a list is none"),
        ({"formats": []}, "it names none"),
        ({f"x{i}": 1 for i in range(9)}, "and 4 more"),
    ],
)
def test_what_is_wrong_is_said_and_the_rest_counts(value: dict[str, Any], note: str) -> None:
    said, why = read({"label": "good", "metadata": {"good": "1"}, **value})
    assert said is not None
    assert note in (why or "")
    assert said.label == (None if "label" in value else "good")
    assert said.metadata == ({} if "metadata" in value else {"good": "1"})


def test_parts_that_are_right_count_within_a_field() -> None:
    said, note = read(
        {"formats": ["doc", "vtt"], "metadata": {"a": [], "b": "c"}, "options": {"x": 1, "task": "translate"}}
    )
    assert said == Sidecar(formats=("vtt",), metadata={"b": "c"}, options={"task": "translate"})
    assert note


def test_several_languages_may_be_said() -> None:
    said, note = read({"options": {"language": "multi"}})
    assert (said.options, note) == ({"language": "multi"}, None)
    assert "English only" in str(read({"options": {"language": "multi"}}, model="tiny.en")[1])


def test_a_model_of_english_alone_takes_no_other_language() -> None:
    said, note = read({"options": {"language": "de", "task": "translate", "channels": "split"}}, model="tiny.en")
    assert said == Sidecar(options={"channels": "split"})
    assert (note or "").count("knows English only") == 2
    assert read({"options": {"language": "en"}}, model="tiny.en")[1] is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"), (b"[1]", "no JSON object"), (b"null", "no JSON object"), (b'{"a":', "no JSON"),
        (b"{" + b'"a":{' * 10_000, "nested too deeply"), (b"[" * 60_000, "nested too deeply"),
        (b'{"label": "\xff"}', "not UTF-8"), ('{"a": 1}'.encode("utf-16"), "not UTF-8"), (b"\0\0", "no JSON"),
        (b'{"priority": NaN}', "NaN is no number"), (b'{"priority": -Infinity}', "is no number"),
        (b'{"priority": ' + b"9" * 5000 + b"}", "beyond all bounds"), (b" " * (MOST_BYTES + 1), "larger than 65536 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_sidecar_at_all_is_said(content: bytes, why: str) -> None:
    said, note = parse(content, model="small")
    assert said is None
    assert note is not None
    assert note.startswith("the sidecar is ")
    assert why in note


def test_odd_but_right() -> None:
    assert parse(b'\xef\xbb\xbf{"label": "x"}', model="small") == (Sidecar(label="x"), None)
    said, note = parse(b'{"label": "x", "label": "y", "metadata": {"n": 1e999}}', model="small")
    assert said == Sidecar(label="y")
    assert note == "'label' is there twice, and the last one counts; metadata: 'n': a number beyond all bounds"


def test_our_own_transcripts_are_none() -> None:
    whole = transcript()
    assert parse(whole, model="small") == (None, None)
    assert parse(transcript(" " * MOST_BYTES)[: MOST_BYTES + 1], model="small") == (None, None)
    assert parse(json.dumps(json.loads(whole), sort_keys=True).encode(), model="small") == (None, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=4)
    ),
)
FIELDS = (
    "label",
    "priority",
    "metadata",
    "options",
    "formats",
    "language",
    "task",
    "channels",
    "word_timestamps",
    "hotwords",
    "track",
)
NAMED = st.dictionaries(st.sampled_from(FIELDS), JSON | st.dictionaries(st.sampled_from(FIELDS), JSON))


def storable(text: str | None) -> None:
    assert "\0" not in (text or "")
    (text or "").encode()


@given(st.binary() | JSON.map(lambda v: json.dumps(v).encode()) | NAMED.map(lambda v: json.dumps(v).encode()))
def test_nothing_raises_and_all_that_comes_out_can_be_stored(content: bytes) -> None:
    said, note = parse(content, model="small")
    storable(note)
    if said is not None:
        stored = json.dumps(to_json(said), ensure_ascii=False, allow_nan=False)
        storable(stored)
        assert "\\u0000" not in stored
        assert from_json(json.loads(stored)) == said
        assert JobOptions(**said.options)
