"""Decoding: what comes of whole, cut, damaged, odd and hostile files, all made here with PyAV."""

from __future__ import annotations

import io
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from chunking.audio import DecodeOptions, DecoderPool, MediaReport, blocks, read_flac, read_pcm, write_flac
from chunking.errors import Code, DecoderFailed, Interrupted, PermanentError, Rejected, TransientError
from chunking.levels import repair
from chunking.timeline import SAMPLE_RATE, Span

CODECS = {
    "wav": "pcm_s16le",
    "mp3": "libmp3lame",
    "flac": "flac",
    "m4a": "aac",
    "ogg": "libopus",
    "opus": "libopus",
    "webm": "libopus",
    "mka": "flac",
    "mkv": "aac",
    "mov": "alac",
    "ts": "aac",
    "aac": "aac",
}
SECONDS = 8.0


def voice(seconds: float = SECONDS, rate: int = 48_000, channels: int = 1) -> np.ndarray:
    """A tone that swells four times a second, over a little noise; channels by samples, float."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(0, 0.01, len(t))
    mono = 0.4 * np.sin(2 * np.pi * 220 * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t)) + noise
    return np.tile(mono, (channels, 1)).astype(np.float32)


def encode(
    path: Path, samples: np.ndarray, rate: int = 48_000, at: tuple[float, ...] = (0.0,), *, video: float = 0.0
) -> Path:
    """Write `samples`, once at each second of `at`, under an optional `video` of that many seconds."""
    channels = samples.shape[0]
    layout = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[channels]
    with av.open(str(path), "w") as out:
        pictures = out.add_stream("mpeg4", rate=10) if video else None
        stream = out.add_stream(CODECS[path.suffix[1:]], rate=rate, layout=layout) if channels and at else None
        if pictures is not None:
            pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
            for index in range(int(video * 10)):
                frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), index % 250, np.uint8), "rgb24")
                frame.pts, frame.time_base = index, Fraction(1, 10)
                out.mux(pictures.encode(frame))
        if stream is not None:
            for second in at:
                for begin in range(0, samples.shape[1], 1024):
                    block = np.ascontiguousarray(samples[:, begin : begin + 1024].T.reshape(1, -1))
                    frame = av.AudioFrame.from_ndarray(block, "flt", layout)
                    frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
                    frame.pts = round(second * rate) + begin
                    out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        if pictures is not None:
            out.mux(pictures.encode(None))
    return path


def wav(path: Path, samples: np.ndarray, rate: int = SAMPLE_RATE) -> Path:
    """A WAV file of samples as they are (samples by channels): int16, or float32."""
    data = np.ascontiguousarray(samples)
    channels = 1 if data.ndim == 1 else data.shape[1]
    kind, size = (3, 4) if data.dtype == np.float32 else (1, 2)
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * size, channels * size, 8 * size)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", data.nbytes) + data.tobytes()
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool() as shared:
        yield shared


def decode(pool: DecoderPool, source: Path, **options: object) -> tuple[MediaReport, np.ndarray]:
    """The report and the samples (channels by samples)."""
    pcm = source.with_name("out.pcm")
    report = pool.decode(source, pcm, DecodeOptions(**options))  # type: ignore[arg-type]
    out = np.stack([read_pcm(pcm, report.pcm_channels, c) for c in range(report.pcm_channels)])
    assert out.shape[1] == round(report.duration_s * SAMPLE_RATE)
    return report, out


def code_of(pool: DecoderPool, source: Path, **options: object) -> Code:
    with pytest.raises(Rejected) as caught:
        decode(pool, source, **options)
    assert "\n" not in str(caught.value)
    return caught.value.code


def level(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples / 32768.0))))


# Whole files


@pytest.mark.parametrize("kind", CODECS)
def test_every_container_keeps_its_length(pool: DecoderPool, tmp_path: Path, kind: str) -> None:
    report, out = decode(pool, encode(tmp_path / f"a.{kind}", voice()))
    assert report.duration_s == pytest.approx(SECONDS, abs=0.06)
    assert level(out) == pytest.approx(level(voice() * 32768), rel=0.1)
    assert not report.truncated
    assert not report.damaged
    assert (report.decode_errors, report.inserted_silence_s, report.mixed) == (0, 0.0, "mono")


def test_a_16_khz_wav_comes_back_sample_by_sample(pool: DecoderPool, tmp_path: Path) -> None:
    given = np.random.default_rng(1).integers(-32768, 32768, 50_001, dtype=np.int16)
    report, out = decode(pool, wav(tmp_path / "a.wav", given))
    assert np.array_equal(out[0], given)
    assert report.expected_s == pytest.approx(report.duration_s)


def test_suffixes_are_not_believed(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.m4a", voice()).rename(tmp_path / "pipe:0.mp3")
    assert decode(pool, source)[0].container.startswith("mov")


def test_a_live_webm_has_no_expected_duration(pool: DecoderPool, tmp_path: Path) -> None:
    class Live(io.RawIOBase):
        data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += bytes(data)
            return len(data)

    live = Live()
    with av.open(live, "w", format="webm") as out:
        stream = out.add_stream("libopus", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(voice(), "fltp", "mono")
        frame.sample_rate, frame.pts = 48_000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    (tmp_path / "a.webm").write_bytes(live.data)
    report, _ = decode(pool, tmp_path / "a.webm")
    assert report.expected_s is None
    assert report.duration_s == pytest.approx(SECONDS, abs=0.06)


# Cut and damaged files


@pytest.mark.parametrize("kind", ["mp3", "flac", "ogg", "opus", "webm", "mka", "wav"])
def test_a_cut_file_is_truncated(pool: DecoderPool, tmp_path: Path, kind: str) -> None:
    source = encode(tmp_path / f"a.{kind}", voice())
    os.truncate(source, source.stat().st_size * 6 // 10 + 1)
    report, _ = decode(pool, source)
    assert report.truncated
    assert 3.0 < report.duration_s < 6.0


def test_a_cut_faststart_m4a_is_truncated(pool: DecoderPool, tmp_path: Path) -> None:
    source, fast = encode(tmp_path / "a.m4a", voice()), tmp_path / "b.m4a"
    with av.open(str(source)) as given, av.open(str(fast), "w", options={"movflags": "faststart"}) as out:
        stream = out.add_stream_from_template(given.streams.audio[0])
        for packet in given.demux(given.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    os.truncate(fast, fast.stat().st_size * 6 // 10)
    assert decode(pool, fast)[0].truncated


def test_an_m4a_without_its_index_is_incomplete(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.m4a", voice())
    os.truncate(source, source.stat().st_size // 2)
    with pytest.raises(Rejected, match="incomplete file") as caught:
        decode(pool, source)
    assert caught.value.code is Code.UNDECODABLE


@pytest.mark.parametrize("kind", ["mp3", "aac", "flac", "m4a", "mka", "ogg", "ts", "webm"])
def test_damage_in_the_middle_keeps_time(pool: DecoderPool, tmp_path: Path, kind: str) -> None:
    samples = voice()
    samples[:, -48_000:] = 0  # the last second is silent, and must still be the last second
    source = encode(tmp_path / f"a.{kind}", samples)
    data = bytearray(source.read_bytes())
    begin = len(data) * 4 // 10
    data[begin : begin + len(data) // 10] = np.random.default_rng(2).bytes(len(data) // 10)
    source.write_bytes(data)
    report, out = decode(pool, source)
    assert report.damaged
    assert report.duration_s == pytest.approx(SECONDS, abs=0.5)
    loud = np.flatnonzero(np.abs(out[0].astype(int)) > 1000)
    assert loud[-1] / SAMPLE_RATE == pytest.approx(SECONDS - 1, abs=0.5)


def test_a_header_that_promises_ten_hours_is_not_believed(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.flac", voice())
    data = bytearray(source.read_bytes())
    data[21:26] = bytes([data[21] & 0xF0]) + struct.pack(">I", 36_000 * 48_000)
    source.write_bytes(data)
    report, _ = decode(pool, source)
    assert not report.truncated
    assert report.expected_s is None


@pytest.mark.parametrize("claimed", [0, 0xFFFFFFFF, 40 * 2 * 16_000])
def test_a_wav_with_a_wrong_size_is_whole(pool: DecoderPool, tmp_path: Path, claimed: int) -> None:
    source = wav(tmp_path / "a.wav", (voice(1, SAMPLE_RATE)[0] * 32767).astype(np.int16))
    data = bytearray(source.read_bytes())
    data[40:44] = struct.pack("<I", claimed)
    source.write_bytes(data)
    report, _ = decode(pool, source)
    assert report.duration_s == 1.0
    assert not report.truncated


# Refusals


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.mp3", b"", Code.EMPTY),
        ("a.wav", b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0data\0\0\0\0", Code.EMPTY),
        ("a.mp3", b"Dear Sir or Madam, " * 200, Code.NOT_MEDIA),
        ("a.wav", b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>" * 20, Code.NOT_MEDIA),
        ("a.webm", b"PK\3\4" + b"\0" * 2000, Code.NOT_MEDIA),
        ("a.mp3", bytes(60_000), Code.NOT_MEDIA),
        ("a.m4a", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0" + bytes(500), Code.NO_AUDIO),
    ],
)
def test_what_is_no_recording_is_rejected(
    pool: DecoderPool, tmp_path: Path, name: str, content: bytes, code: Code
) -> None:
    (tmp_path / name).write_bytes(content)
    assert code_of(pool, tmp_path / name) is code


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_rejected(pool: DecoderPool, tmp_path: Path, seed: int) -> None:
    source = tmp_path / "a.mp3"
    source.write_bytes(np.random.default_rng(seed).bytes(200_000 * (seed + 1)))
    assert code_of(pool, source) in (Code.NOT_MEDIA, Code.UNDECODABLE)


@pytest.mark.parametrize("kind", ["mkv", "m4a"])
def test_video_without_audio_is_rejected(pool: DecoderPool, tmp_path: Path, kind: str) -> None:
    assert code_of(pool, encode(tmp_path / f"a.{kind}", voice(), at=(), video=2)) is Code.NO_AUDIO


def test_encrypted_audio_is_rejected(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.m4a", voice())
    source.write_bytes(source.read_bytes().replace(b"mp4a", b"enca"))
    assert code_of(pool, source) is Code.DRM


@pytest.mark.parametrize(
    "playlist",
    [
        "ffconcat version 1.0\nfile {path}\n",
        "ffconcat version 1.0\nfile {name}\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{path}\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 18999 RTP/AVP 0\n",
    ],
)
def test_playlists_are_rejected_and_not_followed(pool: DecoderPool, tmp_path: Path, playlist: str) -> None:
    canary = encode(tmp_path / "canary.ts", voice())
    source = tmp_path / "call.mp3"
    source.write_text(playlist.format(path=canary, name=canary.name))
    began = time.monotonic()
    assert code_of(pool, source) is Code.NOT_MEDIA
    assert time.monotonic() - began < 5


ELSEWHERE = (
    "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{url}\n#EXT-X-ENDLIST\n",
    "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{url}\n",
    "ffconcat version 1.0\nfile '{url}'\n",
    "[playlist]\nNumberOfEntries=1\nFile1={url}\n",
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet '
    'mimeType="audio/mp4"><Representation id="1"><BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>',
    '<asx version="3.0"><entry><ref href="{url}"/></entry></asx>',
    "[Reference]\nRef1={url}\n",
    "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n",
    "{url}",
)
"""Lists in which a player would find the sound elsewhere."""


def test_nothing_elsewhere_is_read_whatever_a_file_names(pool: DecoderPool, tmp_path: Path) -> None:
    secret = wav(tmp_path / "secret.wav", np.full(16_000, 12_345, np.int16))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for place in (
            f"http://127.0.0.1:{port}/secret.wav",
            f"tcp://127.0.0.1:{port}",
            secret.as_uri(),
            str(secret),
            "secret.wav",
        ):
            for text in ELSEWHERE:
                for name in ("call.mp3", "call.m3u8", "call.mp4"):
                    source = tmp_path / name
                    source.write_text(text.format(url=place, port=port))
                    assert code_of(pool, source) is Code.NOT_MEDIA
        linked = encode(tmp_path / "linked.mov", voice())
        for kind, what in ((b"url ", f"http://127.0.0.1:{port}/secret.wav"), (b"alis", str(secret))):
            whole = linked.read_bytes()
            flags = whole.index(b"url \0\0\0\1")  # the sound is in this very file: now it is said to lie elsewhere
            reference = kind + bytes(4) + what.encode() + b"\0"
            box = struct.pack(">I", len(reference) + 4) + reference
            moved = whole[: flags - 4] + box + whole[flags + 8 :]
            (tmp_path / "moved.mov").write_bytes(moved)
            with suppress(Rejected):
                _, out = decode(pool, tmp_path / "moved.mov")
                assert 12_345 not in out
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_sample_rate_of_one_is_rejected(pool: DecoderPool, tmp_path: Path) -> None:
    assert code_of(pool, wav(tmp_path / "a.wav", np.ones(50_000, np.int16), rate=1)) is Code.UNDECODABLE


def test_limits_hold_while_decoding(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.flac", voice())
    assert code_of(pool, source, max_duration_s=3.0) is Code.TOO_LONG
    assert code_of(pool, source, max_bytes=1000) is Code.TOO_LARGE
    bomb = encode(tmp_path / "b.flac", np.zeros((1, 8000 * 3700), np.float32), rate=8000)
    assert code_of(pool, bomb, max_expansion=100.0) is Code.TOO_LARGE


# Channels, tracks, times


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


# The child and its server

HOOK = """
import ctypes, os, sys, time
from chunking import landlock, sandbox

landlock.forbid_all = lambda: False  # here a child may end its server, which Landlock forbids

def work(source, output, options):
    what = os.pread(source, 9, 0)
    if what == b"segfault":
        ctypes.string_at(0)
    if what == b"hang":
        time.sleep(600)
    if what == b"memory":
        bytes(8 << 30)
    if what == b"open":
        open("/etc/passwd")
    if what == b"server":
        os.kill(os.getppid(), 9)
        time.sleep(600)
    raise ValueError("secret text of the file")

sandbox.serve(int(sys.argv[1]), work)
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecoderPool]:
    (tmp_path / "hostile_decoder.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    with DecoderPool(module="hostile_decoder") as pool:
        yield pool


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("segfault", Code.DECODER_CRASHED),
        ("memory", Code.DECODER_CRASHED),
        ("open", Code.DECODER_CRASHED),
        ("raise", Code.DECODER_CRASHED),
        ("hang", Code.DECODER_TIMEOUT),
    ],
)
def test_a_child_that_dies_or_hangs_is_reported(hostile: DecoderPool, tmp_path: Path, what: str, code: Code) -> None:
    (tmp_path / "a.mp3").write_text(what)
    with pytest.raises(DecoderFailed) as caught:
        hostile.decode(tmp_path / "a.mp3", tmp_path / "a.pcm", DecodeOptions(wall_s=1.0))
    assert caught.value.code is code
    assert "secret" not in str(caught.value)


def test_a_server_that_dies_is_started_once_more(pool: DecoderPool, tmp_path: Path) -> None:
    source = wav(tmp_path / "a.wav", np.ones(16_000, np.int16))
    with DecoderPool() as own:
        decode(own, source)
        assert own._server is not None
        first = own._server.pid
        os.kill(first, signal.SIGKILL)
        assert decode(own, source)[0].duration_s == 1.0
        assert own._server.pid != first


def test_a_server_that_always_dies_is_not_the_recordings_fault(hostile: DecoderPool, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("server")
    with pytest.raises(TransientError):
        hostile.decode(tmp_path / "a.mp3", tmp_path / "a.pcm", DecodeOptions(wall_s=20.0))


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_closing_the_pool_ends_running_decodes(hostile: DecoderPool, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("hang")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            hostile.decode(tmp_path / "a.mp3", tmp_path / "a.pcm", DecodeOptions(wall_s=20.0))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while hostile._server is None or not (children := children_of(hostile._server.pid)):
        time.sleep(0.01)
    hostile.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [Interrupted]
    assert not Path(f"/proc/{children[0]}").exists()


def test_decodes_run_side_by_side(pool: DecoderPool, tmp_path: Path) -> None:
    sources = [wav(tmp_path / f"{n}.wav", np.full(16_000 * n, n, np.int16)) for n in range(1, 9)]
    got: dict[int, bool] = {}

    def run(n: int, source: Path) -> None:
        pcm = source.with_suffix(".pcm")
        report = pool.decode(source, pcm, DecodeOptions())
        got[n] = report.duration_s == n and bool((read_pcm(pcm, 1) == n).all())

    threads = [threading.Thread(target=run, args=(n, s)) for n, s in enumerate(sources, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == dict.fromkeys(range(1, 9), True)


def test_two_hours_take_no_more_memory_than_a_minute(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.flac", np.zeros((1, 8000 * 7200), np.float32), rate=8000)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            assert pool._server is not None
            for child in children_of(pool._server.pid):
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if "VmHWM" in status:
                    peak = max(peak, int(status.split("VmHWM:")[1].split()[0]))

    thread = threading.Thread(target=watch)
    thread.start()
    report = pool.decode(source, tmp_path / "a.pcm", DecodeOptions(max_expansion=1e9))
    done.set()
    thread.join()
    assert report.duration_s == 7200
    assert 0 < peak < 150_000
    assert sum(len(block) for block in blocks(tmp_path / "a.pcm", 1)) == 7200 * SAMPLE_RATE


def least_of(folder: Path) -> int:
    """Files that stay open: a child that has just ended may not be noticed yet."""
    counts = []
    for _ in range(20):
        counts.append(len(os.listdir(folder)))
        time.sleep(0.02)
    return min(counts)


def test_the_server_leaves_nothing_open(pool: DecoderPool, tmp_path: Path) -> None:
    source = wav(tmp_path / "a.wav", np.ones(1600, np.int16))
    decode(pool, source)
    assert pool._server is not None
    server, ours = Path(f"/proc/{pool._server.pid}/fd"), Path("/proc/self/fd")
    before = least_of(server), least_of(ours)
    for _ in range(20):
        decode(pool, source)
    assert (least_of(server), least_of(ours)) == before
    assert b"AWS_" not in Path(f"/proc/{pool._server.pid}/environ").read_bytes()


# PCM and FLAC


def test_pcm_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.pcm"
    samples = np.arange(2 * 40_000, dtype=np.int16).reshape(-1, 2)
    path.write_bytes(samples.tobytes())
    assert np.array_equal(read_pcm(path, 2, 1), samples[:, 1])
    assert np.array_equal(read_pcm(path, 2, 0, Span(1.0, 2.0)), samples[16_000:32_000, 0])
    assert len(read_pcm(path, 2, 0, Span(9.0, 10.0))) == 0
    assert [len(block) for block in blocks(path, 2, 0, seconds=1.0)] == [16_000, 16_000, 8_000]


def test_flac_shards_come_back_exactly(tmp_path: Path) -> None:
    samples = np.random.default_rng(3).integers(-20_000, 20_000, 100_000, dtype=np.int16)
    write_flac(tmp_path / "a.flac", (samples[i : i + 30_000] for i in range(0, 100_000, 30_000)))
    assert np.array_equal(read_flac(tmp_path / "a.flac"), samples)
    assert np.array_equal(read_flac(tmp_path / "a.flac", Span(1.0, 2.0)), samples[16_000:32_000])
    memory = io.BytesIO()
    write_flac(memory, [samples])
    memory.seek(0)
    assert np.array_equal(read_flac(memory), samples)


def test_a_damaged_shard_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "x.flac").write_bytes(b"fLaC but not for long")
    with pytest.raises(PermanentError, match="stored sound is damaged"):
        read_flac(tmp_path / "x.flac")
