"""What the model leaves out is decoded again, with real weights: no word lost, none doubled where the two texts meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jiwer
import pytest
from whisper_normalizer.english import EnglishTextNormalizer

from chunking import speech
from chunking.planner import PlanOptions
from chunking.timeline import Chunk, Span
from pipeline.devices import EngineOptions
from pipeline.engine import Answer, Ask, Piece
from pipeline.models import find_model
from pipeline.reading import Reading, Request
from pipeline.whisper import WhisperEngine
from tests.conftest import read_16k

plain = EnglishTextNormalizer()


class Reader:
    """One chunk of a clip, and what the real model makes of requests for it."""

    def __init__(self, engine: WhisperEngine, clip: Path) -> None:
        self._engine, self._samples = engine, read_16k(clip)
        duration = len(self._samples) / 16000
        spans = speech.spans(speech.SpeechDetector().probabilities([self._samples]), duration)
        self.chunk = Chunk(0, Span(0.0, duration), spans, PlanOptions().window(duration))

    def answer(self, request: Request) -> Answer:
        sound = self._samples[round(request.span.start * 16000) : round(request.span.end * 16000)]
        features = self._engine.features(sound, request.window)
        ask = Ask(features, request.window, request.span.duration, "en", temperature=request.temperature, words=True)
        return self._engine.decode([ask])[0]

    def read(self, first: Answer) -> Reading:
        """The chunk read to its end, with another answer in place of its first."""
        reading = Reading(self.chunk, 0, "en")
        reading.take(first)
        while reading.request is not None:
            reading.take(self.answer(reading.request))
        return reading


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> WhisperEngine:
    return WhisperEngine(find_model("tiny.en", tmp_path_factory.mktemp("models")), EngineOptions("cpu", threads=2))


def words(reading: Reading) -> str:
    return str(plain(" ".join(s.text for s in reading.result().segments)))


def shortened(answer: Answer, share: tuple[float, float]) -> Answer:
    """The answer as if the model had said that share of its words alone, at their times."""
    said = [w for p in answer.pieces for w in p.words]
    mine = said[round(len(said) * share[0]) : round(len(said) * share[1])]
    text = "".join(w.text for w in mine).strip()
    return replace(answer, pieces=(Piece(mine[0].start, mine[-1].end, text, tuple(mine)),))


@pytest.mark.parametrize("share", [(0.0, 0.3), (0.0, 0.5), (0.0, 0.7), (0.5, 1.0)])
def test_what_was_left_out_is_read(engine: WhisperEngine, voice: Path, share: tuple[float, float]) -> None:
    reader = Reader(engine, voice)
    whole = Reading(reader.chunk, 0, "en")
    assert whole.request is not None
    answer = reader.answer(whole.request)
    whole.take(answer)
    assert whole.request is None
    reading = reader.read(shortened(answer, share))
    assert reading.result().decodes > 1
    assert jiwer.wer(words(whole), words(reading)) <= 0.1, (words(whole), words(reading))
