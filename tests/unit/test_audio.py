"""Decoding: what comes of whole, cut, damaged and hostile files, all made here with PyAV."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest

from chunking.audio import DecoderPool
from chunking.errors import Code, Rejected
from chunking.timeline import SAMPLE_RATE
from tests.unit.recordings import CODECS, SECONDS, code_of, decode, encode, level, voice, wav

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
