"""Clips: times as people write them, cuts that do not click, and one recording decoded once."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from chunking.audio import SOUND_SUFFIXES
from chunking.errors import UsageError
from chunking.timeline import Span
from pipeline.clips import LONGEST_S, cut, encoded, join, seconds_of, stretch
from pipeline.review import Entry, index_name, index_of
from pipeline.sound import Sound
from storage.review import Doubtful


def sound(folder: Path, *channels: int, seconds: float = 4.0) -> Sound:
    """Channels of one level each."""
    samples = np.tile(np.array(channels, np.int16), (int(seconds * 16000), 1))
    samples.tofile(folder / "sound.pcm")
    return Sound(folder / "sound.pcm", len(channels), seconds)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_time_is_read_however_it_is_written(hours: int, minutes: int, seconds: int, ms: int) -> None:
    expected = hours * 3600 + minutes * 60 + seconds + ms / 1000
    assert seconds_of(f"{hours}:{minutes:02d}:{seconds:02d}.{ms:03d}") == pytest.approx(expected)
    assert seconds_of(f"{hours * 3600 + minutes * 60 + seconds}.{ms:03d}") == pytest.approx(expected)
    if not hours:
        assert seconds_of(f" {minutes}:{seconds:02d}.{ms:03d} ") == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "x", "1:60", "1:60:00", "-3", "1:2:3:4", "1e3", "nan", "1:", ":5", "١"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no time in a recording"):
        seconds_of(text)


@given(st.floats(0, 1e5), st.floats(0, 2000), st.floats(0, 60), st.floats(0, 1e5))
def test_a_stretch_lies_in_the_recording_and_is_no_longer_than_a_clip(
    start: float, length: float, around: float, duration: float
) -> None:
    span = stretch(start, start + length, around, duration)
    assert 0 <= span.start <= span.end <= duration
    assert span.duration <= LONGEST_S + 1e-6


def test_a_cut_begins_and_ends_in_silence_and_is_untouched_between(tmp_path: Path) -> None:
    pcm = cut(sound(tmp_path, 1000), Span(1.0, 2.0))
    assert len(pcm) == 16000
    assert abs(int(pcm[0])) < 100
    assert abs(int(pcm[-1])) < 100
    assert set(pcm[200:-200]) == {1000}


def test_channels_are_cut_apart_or_mixed(tmp_path: Path) -> None:
    both = sound(tmp_path, 1000, 3000)
    assert [int(cut(both, Span(0, 1), channel)[8000]) for channel in (0, 1, None)] == [1000, 3000, 2000]


def test_the_shortest_and_the_longest_clip(tmp_path: Path) -> None:
    short = sound(tmp_path, 1000)
    assert len(cut(short, Span(1.0, 1.0))) == 0
    assert len(cut(short, Span(1.0, 1.0005))) == 8
    with pytest.raises(UsageError, match="at most 10 minutes"):
        cut(short, Span(0.0, LONGEST_S + 1))


def test_clips_are_joined_with_a_pause_between_them() -> None:
    one, two = np.full(8000, 5, np.int16), np.full(4000, 7, np.int16)
    whole, starts = join([one, two])
    assert starts == [0.0, 1.0]
    assert [len(whole), whole[7999], whole[8000], whole[15999], whole[16000]] == [20000, 5, 0, 0, 7]
    with pytest.raises(UsageError, match="too long"):
        join([np.zeros(9_600_001, np.int16)])


@pytest.mark.parametrize("suffix", SOUND_SUFFIXES)
def test_each_format_is_read_back(tmp_path: Path, suffix: str) -> None:
    """Two minutes: libsndfile's Vorbis encoder crashed on long blocks."""
    tone = (np.sin(np.arange(16000 * 120) / 8) * 8000).astype(np.int16)
    content = encoded(tone, f"x{suffix}", tmp_path)
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float64")
    assert rate == 16000
    assert len(samples) == pytest.approx(len(tone), abs=3000)  # MP3 pads
    assert np.sqrt((samples[8000:-8000] ** 2).mean()) == pytest.approx(8000 / 32768 / np.sqrt(2), rel=0.1)
    assert list(tmp_path.iterdir()) == []


def test_the_index_says_what_each_clip_is() -> None:
    doubtful = Doubtful(7, 3, 0, Span(1.23456, 2.0), 'Sie sagte: "Nein",\nja', -1.5, "loop tail")
    (row,) = csv.DictReader(io.StringIO(index_of([Entry("a.wav", "s3://b/a.wav", doubtful, 0.5)])))
    assert row == {
        "file": "a.wav", "job": "7", "recording": "s3://b/a.wav", "segment": "3", "start_s": "1.235", "end_s": "2.0",
        "at_s": "0.5", "text": 'Sie sagte: "Nein",\nja', "avg_logprob": "-1.5", "flags": "loop tail",
    }  # fmt: skip
    assert index_name("s3://b/c.d/x.WAV") == "s3://b/c.d/x.csv"
