"""Channels, tracks, times and levels: what the PCM file holds of them."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from chunking.audio import DecoderPool
from chunking.errors import Code
from chunking.levels import repair
from chunking.timeline import SAMPLE_RATE
from tests.unit.recordings import SECONDS, code_of, decode, encode, level, voice, wav


def test_opposite_phase_is_not_silence(pool: DecoderPool, tmp_path: Path) -> None:
    stereo = voice(channels=2)
    stereo[1] *= -0.95
    report, out = decode(pool, encode(tmp_path / "a.flac", stereo))
    assert report.mixed == "left"
    assert level(out) == pytest.approx(level(stereo[0] * 32768), rel=0.1)


def test_one_silent_channel_is_averaged(pool: DecoderPool, tmp_path: Path) -> None:
    stereo = voice(channels=2)
    stereo[0] = 0
    report, out = decode(pool, encode(tmp_path / "a.flac", stereo))
    assert report.mixed == "average"
    assert level(out) == pytest.approx(level(stereo[1] * 32768) / 2, rel=0.1)


@pytest.mark.parametrize("channels", [6, 8])
def test_the_centre_is_heard(pool: DecoderPool, tmp_path: Path, channels: int) -> None:
    surround = np.zeros((channels, 96_000), np.float32)
    surround[2] = voice(2)[0]
    report, out = decode(pool, encode(tmp_path / "a.flac", surround))
    assert (report.mixed, report.channels) == ("downmix", channels)
    assert level(out) > 0.15 * level(surround[2] * 32768)


def test_split_keeps_channels_apart(pool: DecoderPool, tmp_path: Path) -> None:
    stereo = (voice(2, SAMPLE_RATE, 2) * 32767).astype(np.int16)
    stereo[1] = stereo[1][::-1]
    report, out = decode(pool, wav(tmp_path / "a.wav", stereo.T), channels="split")
    assert report.mixed == "split"
    assert np.array_equal(out, stereo)


def test_a_side_is_taken_alone(pool: DecoderPool, tmp_path: Path) -> None:
    stereo = (voice(2, SAMPLE_RATE, 2) * 32767).astype(np.int16)
    stereo[1] = stereo[1][::-1]
    source = wav(tmp_path / "a.wav", stereo.T)
    for channel, side in enumerate(("left", "right")):
        report, out = decode(pool, source, channels=side)
        assert (report.mixed, report.pcm_channels) == (side, 1)
        assert np.array_equal(out[0], stereo[channel])
    assert decode(pool, wav(tmp_path / "b.wav", stereo[0]), channels="right")[0].mixed == "mono"


def test_levels_are_measured_and_repaired(pool: DecoderPool, tmp_path: Path) -> None:
    quiet = voice(4, SAMPLE_RATE, 2) * np.array([[1.0], [0.002]], np.float32) + np.array([[0.0], [0.2]], np.float32)
    source = wav(tmp_path / "a.wav", quiet.T.astype(np.float32))
    report, _ = decode(pool, source, channels="split")
    loud, faint = report.levels
    assert loud.loudest_db > -20
    assert faint.loudest_db < -55
    assert faint.offset == pytest.approx(0.2, abs=0.01)
    needed = repair(report.levels)
    assert needed is not None
    repaired, out = decode(pool, source, channels="split", repair=needed)
    assert repaired.duration_s == report.duration_s
    assert level(out[0]) == pytest.approx(level(voice() * 32768), rel=0.1)
    assert level(out[1, SAMPLE_RATE:]) == pytest.approx(10 ** (-26 / 20), rel=0.5)
    assert abs(out[1, SAMPLE_RATE:].mean()) < 50


def test_stereo_that_turns_mono_inside_an_mp3(pool: DecoderPool, tmp_path: Path) -> None:
    parts = [
        encode(tmp_path / f"{n}.mp3", voice(4, rate, n), rate) for n, rate in ((2, 44_100), (1, 44_100), (1, 16_000))
    ]
    joined = tmp_path / "joined.mp3"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    for channels in ("mix", "split"):
        report, out = decode(pool, joined, channels=channels)
        assert report.duration_s == pytest.approx(12, abs=0.4)
        assert level(out[-1]) == pytest.approx(level(voice() * 32768), rel=0.15)
        assert not report.truncated


def test_chained_ogg_is_read_to_the_end(pool: DecoderPool, tmp_path: Path) -> None:
    joined = tmp_path / "joined.ogg"
    parts = [encode(tmp_path / "a.opus", voice()), encode(tmp_path / "b.ogg", voice(4))]
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    report, _ = decode(pool, joined)
    assert report.duration_s == pytest.approx(SECONDS + 4, abs=0.1)
    assert not report.truncated


@pytest.mark.parametrize("kind", ["mkv", "ts", "m4a"])
def test_a_late_start_is_silence(pool: DecoderPool, tmp_path: Path, kind: str) -> None:
    report, out = decode(pool, encode(tmp_path / f"a.{kind}", voice(), at=(4.0,), video=13))
    assert report.start_s == pytest.approx(4.0, abs=0.12)
    assert report.duration_s == pytest.approx(12.0, abs=0.12)
    assert not out[0, : int(3.8 * SAMPLE_RATE)].any()
    assert not report.truncated
    assert not report.damaged


def test_a_gap_in_the_time_stamps_is_silence(pool: DecoderPool, tmp_path: Path) -> None:
    report, out = decode(pool, encode(tmp_path / "a.mka", voice(4), at=(0.0, 14.0)))
    assert report.inserted_silence_s == pytest.approx(10.0, abs=0.12)
    assert report.duration_s == pytest.approx(18.0, abs=0.12)
    assert not out[0, int(4.2 * SAMPLE_RATE) : int(13.8 * SAMPLE_RATE)].any()
    assert not report.damaged


def test_the_flagged_track_is_taken(pool: DecoderPool, tmp_path: Path) -> None:
    source = tmp_path / "a.mkv"
    with av.open(str(source), "w") as out:
        tracks = [out.add_stream("flac", rate=16_000, layout="mono") for _ in range(2)]
        tracks[0].disposition = av.stream.Disposition(0)
        tracks[1].disposition = av.stream.Disposition.default
        for index, track in enumerate(tracks):
            frame = av.AudioFrame.from_ndarray(np.full((1, 16_000), 1000 * (index + 1), np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = 16_000, 0
            out.mux([*track.encode(frame), *track.encode(None)])
    report, samples = decode(pool, source)
    assert (report.track, report.tracks, samples[0, 500]) == (1, 2, 2000)
    assert decode(pool, source, track=0)[1][0, 500] == 1000
    assert code_of(pool, source, track=2) is Code.NO_AUDIO


def test_float_samples_are_zeroed_or_clamped(pool: DecoderPool, tmp_path: Path) -> None:
    samples = np.full(16_000, 0.5, np.float32)
    samples[100:103] = np.nan, np.inf, -np.inf
    samples[200:202] = 3.0, -3.0
    report, out = decode(pool, wav(tmp_path / "a.wav", samples))
    assert report.nonfinite == 3
    assert list(out[0, 99:104]) == [16384, 0, 0, 0, 16384]
    assert list(out[0, 200:202]) == [32767, -32768]
