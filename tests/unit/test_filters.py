"""Which objects are taken, and why the others are not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from chunking.errors import UsageError
from pipeline.companions import Found
from pipeline.filters import Filter, Verdict, parse_duration, parse_moment, parse_size
from storage.jobs import JobOptions, Listed, MediaObject
from storage.sources import SourceSettings
from storage.urls import s3_url

SOURCE = "s3://b/calls/"
NOW = 1_000_000.0


def verdict(
    path: str, *beside: str, size: int = 10, age: float = 100.0, source: str = SOURCE, **settings: Any
) -> Verdict:
    made = replace(SourceSettings(JobOptions()), **settings)
    below = s3_url("b", path).removeprefix("s3://b/")
    listed = Listed(MediaObject(source + below, "1", size), int(NOW - age))
    return Filter(made, source).verdict(Found(listed, frozenset(source + b for b in beside)), NOW)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.wav", Verdict.TAKE), ("x/A.MP3", Verdict.TAKE), ("caf\u00e9 #1.ogg", Verdict.TAKE), (".a.wav", Verdict.TAKE),
        ("a.pdf", Verdict.NOT_MEDIA), ("a", Verdict.NOT_MEDIA), ("a.json", Verdict.NOT_MEDIA),
        ("a.wav.json", Verdict.NOT_MEDIA), ("a.srt", Verdict.NOT_MEDIA), ("folder.wav/", Verdict.TAKE),
    ],
)  # fmt: skip
def test_names_say_what_is_media(path: str, expected: Verdict) -> None:
    assert verdict(path) is expected


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.wav", "a.wav", True), ("*.wav", "x/y/a.wav", True), ("*.wav", "a.WAV", False), ("*.wav", "a.wav.bak", False),
        ("x/*.wav", "x/y/a.wav", True), ("x/*.wav", "y/x/a.wav", False), ("**/a.wav", "a.wav", True),
        ("**/a.wav", "x/y/a.wav", True), ("**/a.wav", "x/ba.wav", False), ("x/**/a/**/b", "x/a/q/b", True),
        ("x/**/a/**/b", "x/q/a/b", True), ("x/**", "x/y/z", True), ("call?.wav", "call1.wav", True),
        ("call[12].wav", "call2.wav", True), ("call[!12].wav", "call2.wav", False), ("call[[]1].wav", "call[1].wav", True),
        ("/x/*", "x/a", True), ("a+b (1).wav", "a+b (1).wav", True), ("caf\u00e9*", "caf\u00e9.wav", True),
    ],
)  # fmt: skip
def test_globs_see_the_path_below_the_source(glob: str, path: str, matches: bool) -> None:
    assert verdict(path, include=(glob,)) is (Verdict.TAKE if matches else Verdict.EXCLUDED)
    assert verdict(path, include=("*",), exclude=("nothing", glob)) is (Verdict.EXCLUDED if matches else Verdict.TAKE)


def test_what_is_excluded_stays_so_and_what_we_write_is_never_taken() -> None:
    assert verdict("a.wav", include=("*.wav",), exclude=("a*",)) is Verdict.EXCLUDED
    for name in ("a.json", "a.txt", "a.vtt", "a.srt", "a.wav.done"):
        assert verdict(name, include=("*",), done_marker=".done") is Verdict.NOT_MEDIA


def test_sizes_ages_and_markers() -> None:
    assert verdict("a.wav", size=11, max_bytes=10) is Verdict.TOO_LARGE
    assert verdict("a.wav", size=10, max_bytes=10) is Verdict.TAKE
    assert verdict("a.wav", age=29, min_age_s=30.0) is Verdict.TOO_YOUNG
    assert verdict("a.wav", age=30, min_age_s=30.0) is Verdict.TAKE
    assert verdict("a.wav", age=-50) is Verdict.TAKE  # its clock is not ours
    assert verdict("a.wav", "a.done", done_marker=".done") is Verdict.UNMARKED
    assert verdict("a.wav", "a.wav.done", done_marker=".done") is Verdict.TAKE
    assert verdict("a.wav", "a.wav%20ok", done_marker=" ok") is Verdict.TAKE


def test_what_was_put_away_is_left_there() -> None:
    for after in ("move:s3://b/calls/done", "move:s3://b/calls/done/", "move:calls/done", "move:/calls/done/"):
        assert verdict("done/a.wav", after=after) is Verdict.OWN
        assert verdict("done2/a.wav", after=after) is Verdict.TAKE
    assert verdict("my done/a.wav", after="move:s3://b/calls/my done/") is Verdict.OWN
    for after in ("tag", "delete", None):
        assert verdict("done/a.wav", after=after) is Verdict.TAKE


def test_hidden_files_of_a_folder_are_left() -> None:
    for path in (".a.wav", ".git/a.wav", "x/.a.wav"):
        assert verdict(path, source="file:///calls/", include=("*",)) is Verdict.EXCLUDED
    assert verdict("x.y/a.b.wav", source="file:///calls/") is Verdict.TAKE
    assert verdict("a.wav", source="file:///.calls/") is Verdict.TAKE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("45", 45), (" 1.5 H ", 5400), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16G", 16 << 30),
        ("500M", 500 << 20),
        ("1_000", 1000),
        ("64k", 65536),
        ("1.5GiB", 3 << 29),
        ("2 TB", 2 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "s", "-5s", "5x", "5 m 3", "nan", "inf", "1e9", "١", "5\n6", "G", "5i", "9" * 40])
def test_what_is_no_measure_is_said_in_one_line(text: str) -> None:
    for parse in (parse_duration, parse_size):
        with pytest.raises(UsageError, match="is no") as caught:
            parse(text)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01", "2026-12-01T00:00:00+00:00"),
        ("20261201", "2026-12-01T00:00:00+00:00"),
        (" 2026-12-01T08:30:00+01:00", "2026-12-01T07:30:00+00:00"),
        ("2026-12-01 08:30", "2026-12-01T08:30:00+00:00"),
        ("2026-12-01T08:30Z", "2026-12-01T08:30:00+00:00"),
        ("7d", "2026-11-24T12:00:00+00:00"),
        ("90m", "2026-12-01T10:30:00+00:00"),
    ],
)
def test_moments_are_utc_or_so_long_ago(text: str, moment: str) -> None:
    assert parse_moment(text, datetime(2026, 12, 1, 12, tzinfo=UTC)).isoformat() == moment


@pytest.mark.parametrize("text", ["", "soon", "7", "7x", "2026-13-01", "99999999999d", "9999-99-99"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_moment(text, datetime(2026, 12, 1, 12, tzinfo=UTC))
