"""The canary: a recording whose words are known, read again and again, so that what decays in silence is seen.

It goes the way of all recordings, from VAD to stitching, but in memory and on its own: it has no job and no lease.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from chunking import speech
from chunking.audio import DecodeOptions, DecoderPool, Pcm, read_flac, read_pcm
from chunking.errors import UsageError
from chunking.planner import Track, plan
from chunking.speech import SpeechDetector
from chunking.stitcher import stitch
from chunking.timeline import Chunk, ChunkResult, Span
from pipeline.engine import Ask, Engine
from pipeline.languages import UNHEARD
from pipeline.reading import Reading
from pipeline.scoring import score
from pipeline.settings import PREFIX

OWN = Path(__file__).parent / "canary_data" / "beckett.flac"
RATE = 16_000
WHOLE = Span(0.0, 24 * 3600.0)
LONGEST_S = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """A recording and what is said in it."""

    sound: Pcm
    """16 kHz mono."""
    text: str
    digest: str
    """Of its sound and its text: results of unlike canaries are not comparable."""

    @property
    def duration_s(self) -> float:
        return len(self.sound) / RATE


@dataclass(frozen=True, slots=True)
class Sung:
    """What an engine made of it."""

    text: str
    wer: float
    rtfx: float
    """Seconds of sound ÷ seconds for features and decoding; beside real work it is less."""


def load(path: str, scratch: Path) -> Canary:
    """That recording, with its text in NAME.txt beside it; empty: our own. Raises UsageError where it cannot be had."""
    file = Path(path).expanduser() if path else OWN
    said = file.with_suffix(".txt")
    try:
        text = said.read_text(encoding="utf-8").strip()
        if not path:
            with OWN.open("rb") as own:
                return _canary(read_flac(own, WHOLE), text)
        pcm = scratch / "canary.pcm"
        with DecoderPool() as decoder:
            report = decoder.decode_repaired(file, pcm, DecodeOptions(max_duration_s=LONGEST_S))
        return _canary(read_pcm(pcm, report.pcm_channels, 0, WHOLE), text)
    except OSError as e:
        raise UsageError(f"{PREFIX}CANARY: {e.filename or path}: {e.strerror}") from e
    except UnicodeDecodeError:
        raise UsageError(f"{PREFIX}CANARY: {said} is no text in UTF-8") from None


def _canary(sound: Pcm, text: str) -> Canary:
    return Canary(sound, text, hashlib.sha256(np.ascontiguousarray(sound).tobytes() + text.encode()).hexdigest()[:16])


def sing(engine: Engine, canary: Canary, detector: SpeechDetector) -> Sung:
    """Have the engine read it. Raises what the engine raises."""
    found = detector.probabilities([canary.sound])
    spans = speech.spans(found, canary.duration_s)
    cut = plan([Track(0, spans, array("f", found.tobytes()), speech.FRAME_S)], canary.duration_s)
    began = time.perf_counter()
    language = _language(engine, canary)
    results = [_read(engine, canary, chunk, language) for chunk in cut.chunks]
    took = time.perf_counter() - began
    text = " ".join(s.text.strip() for s in stitch(results, canary.duration_s))
    return Sung(text, score(canary.text, text, language).wer, canary.duration_s / took)


def _language(engine: Engine, canary: Canary) -> str:
    if not engine.multilingual:
        return UNHEARD
    (heard,) = engine.listen([engine.features(canary.sound[: 30 * RATE], 30.0)])
    return max(heard.languages, key=lambda name: heard.languages[name])


def _read(engine: Engine, canary: Canary, chunk: Chunk, language: str) -> ChunkResult:
    reading = Reading(chunk, 0, language)
    while (asked := reading.request) is not None:
        sound = canary.sound[round(asked.span.start * RATE) : round(asked.span.end * RATE)]
        ask = Ask(
            features=engine.features(sound, asked.window), window=asked.window, duration=asked.span.duration,
            language=language, temperature=asked.temperature, words=chunk.cut_before or chunk.cut_after,
        )  # fmt: skip
        (answer,) = engine.decode([ask])
        reading.take(answer)
    return reading.result()


def versions() -> str:
    """What reads: Spotscribe and what computes."""
    return f"{version('spotscribe')}, ctranslate2 {version('ctranslate2')}"
