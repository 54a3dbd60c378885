"""Where files go: where the template says, below the place for outputs, and never where a name leads astray."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.errors import UsageError
from pipeline.layout import check_key, check_label, label, places
from storage.urls import bucket_and_key, s3_url

SOURCE = "s3://calls/in/"
BESIDE = "{dir}/{name}.{format}"
DAY = 1_700_000_000  # 2023-11-14


def at(key: str, template: str = BESIDE, out: str = "s3://texts/out") -> list[str]:
    return list(places(s3_url("calls", key), SOURCE, "emea", template, out, "txt", DAY))


def test_beside_where_it_lay_and_what_else_where_that_is_taken() -> None:
    first, second, third, last = at("in/a/b/call 1.wav")
    assert first == "s3://texts/out/a/b/call%201.txt"
    assert second == "s3://texts/out/a/b/call%201.wav.txt"
    assert third.startswith("s3://texts/out/a/b/call%201-")
    assert len(last) == len("s3://texts/out/") + 32 + len(".txt")
    assert at("in/call")[0] == "s3://texts/out/call.txt"
    assert at("in/.wav")[0] == "s3://texts/out/.wav.txt"
    assert at("elsewhere/call.wav")[0] == "s3://texts/out/elsewhere/call.txt"
    assert at("in/a/call.wav", out="file:///t/")[0] == "file:///t/a/call.txt"


def test_templates() -> None:
    template = "{source}/{date}/{{x}}/{ext}-{name}.{format}"
    assert at("in/a/call.wav", check_key(template))[0] == "s3://texts/out/emea/2023-11-14/%7Bx%7D/wav-call.txt"
    assert at("in/a/call.wav", "{name}/{format}")[:2] == ["s3://texts/out/call/txt", "s3://texts/out/call.wav/txt"]
    assert at("in/call.wav", "/../{dir}/./{name}.{format}")[0] == "s3://texts/out/call.txt"
    for odd in (-(10**20), 10**20):
        assert next(places("s3://calls/in/x", SOURCE, "s", "{date}/{name}.{format}", "s3://b", "txt", odd))


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{dir}/{name}.txt", "lacks {format}"), ("{dir}.{format}", "lacks {name}"), ("", "lacks {name} and {format}"),
        ("{name}.{format}{size}", "{size} is not possible; possible: {dir}, {name}, {ext}, {format}, {date}, {source}"),
        ("{name.__class__}.{format}", "{name.__class__} is not"), ("{name[0]}.{format}", "is not possible"),
        ("{name!r}.{format}", "what follows"), ("{name:>9}.{format}", "what follows"), ("{}{name}.{format}", "{} is not"),
        ("{0}{name}.{format}", "{0} is not"), ("{name.{format}", "is n"), ("{name}.{format}}", "is no template"),
        ("{name:{dir}}.{format}", "what follows"),
    ],
)  # fmt: skip
def test_templates_that_are_none(template: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"is no template|possible|lacks") as caught:
        check_key(template)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels() -> None:
    url = "s3://calls/in/a/b/call%201.wav"
    assert label(check_label("{source} {date}"), SOURCE, "emea", url, DAY) == "emea 2023-11-14"
    assert label(check_label("{dir}:{name}"), SOURCE, "emea", url, DAY) == "a/b:call 1"
    assert label(check_label(""), SOURCE, "emea", url, DAY) == ""
    assert label("{name}", SOURCE, "emea", "file:///x%FF%00.wav", DAY) == "x\ufffd\ufffd"
    long = {label("{name}", SOURCE, "emea", f"s3://calls/in/{'x' * 300}{i}.wav", DAY) for i in range(9)}
    assert len(long) == 9
    assert {len(x) for x in long} == {255}
    with pytest.raises(UsageError, match=r"\{format\} is not possible; possible: \{source\}"):
        check_label("{format}")


def test_names_that_no_store_takes_become_digests() -> None:
    for key in ("in/" + "x" * 300 + ".wav", "in/" + "\u00e9" * 128 + ".wav", "in/" + "\u00e9/" * 200 + "x.wav"):
        [only] = at(key)
        assert only.startswith("s3://texts/out/")
        assert len(only) < 60
    assert len(at("in/" + "\u00e9" * 120 + ".wav")) >= 2
    assert len(list(places("file:///in/a%FF.wav", "file:///in/", "s", BESIDE, "s3://b/out", "txt", DAY))) == 1
    assert len(list(places("file:///in/a%FF.wav", "file:///in/", "s", BESIDE, "file:///out", "txt", DAY))) == 4


SOMETHING = st.text(st.characters(exclude_categories=["Cs"])) | st.text("./ab\0%é\U0001f399", max_size=400)
TEMPLATES = st.sampled_from(
    [BESIDE, "{name}/{format}", "{source}{dir}{ext}/{name}{format}", "../{dir}/{name}/../.{format}"]
)


@given(SOMETHING, TEMPLATES, st.sampled_from(["s3://b", "s3://b/out", "file:///out", "file:///a/out/"]), SOMETHING)
def test_every_place_is_below_out_and_can_be_stored(key: str, template: str, out: str, source: str) -> None:
    url = s3_url("calls", "in/" + key)
    found = list(places(url, SOURCE, source, template, out, "json", DAY))
    assert len(set(found)) == len(found) >= 1
    for place in found:
        assert place.startswith(out.rstrip("/") + "/")
        assert len(place) <= 1000
        below = unquote_to_bytes(place.removeprefix(out.rstrip("/") + "/"))
        assert not {b"", b".", b".."} & set(below.split(b"/"))
        assert all(len(part) <= 255 for part in below.split(b"/"))
        assert b"\0" not in below
        if out.startswith("s3:"):
            assert len(bucket_and_key(place)[1].encode()) <= 1024
            assert s3_url(*bucket_and_key(place)) == place


@given(st.sets(SOMETHING, min_size=2, max_size=6))
def test_the_last_place_is_nobody_elses(keys: set[str]) -> None:
    assert len({at("in/" + k)[-1] for k in keys}) == len(keys)
