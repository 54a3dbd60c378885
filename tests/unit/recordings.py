"""Sound and files of all kinds for the tests of the decoder, made with PyAV."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from chunking.audio import DecodeOptions, DecoderPool, MediaReport, read_pcm
from chunking.errors import Code, Rejected
from chunking.timeline import SAMPLE_RATE

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
    "mp4": "aac",
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
