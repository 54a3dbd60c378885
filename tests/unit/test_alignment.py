"""Word times cost an alignment for the windows that want them and for no others, whatever shares their batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ctranslate2 import StorageView

from pipeline.devices import EngineOptions
from pipeline.engine import Answer, Ask
from pipeline.whisper import WhisperEngine
from tests.benchmarks import shaped


class Watched:
    """CTranslate2's model, with an eye on what is aligned; it may pretend to be on a GPU."""

    def __init__(self, model: Any, device: str) -> None:
        self._model, self.device = model, device
        self.aligned: list[tuple[int, list[int]]] = []
        """For each call the language's token, and how long each window's text is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, features: StorageView, **how: Any) -> StorageView:
        """One by one, as on CPU: random weights make much of the last bit of a float."""
        windows = [StorageView.from_array(w[np.newaxis]) for w in np.array(features)]
        return StorageView.from_array(np.concatenate([np.array(self._model.encode(w)) for w in windows]))

    def align(self, encoded: Any, prompt: list[int], texts: list[list[int]], frames: list[int]) -> Any:
        assert encoded.shape[0] == len(texts) == len(frames)
        self.aligned.append((prompt[1], [len(t) for t in texts]))
        return self._model.align(encoded, prompt, texts, frames)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> WhisperEngine:
    """Many languages; its random weights say nonsense, but they say it again."""
    model = shaped.build(shaped.SHAPES["miniature"], tmp_path_factory.mktemp("shaped"))
    return WhisperEngine(model, EngineOptions("cpu", "float32", threads=1))


@pytest.fixture(scope="module")
def asks(engine: WhisperEngine) -> list[Ask]:
    chance = np.random.default_rng(0)
    wanted = [(9.0, "en", True), (8.96, "de", True), (9.0, "en", False), (9.02, "zh", True), (9.04, "de", True)]
    noise = [(chance.normal(size=160_000) * 3000).astype(np.int16) for _ in wanted]
    return [
        Ask(engine.features(n, 10.0), 10.0, d, language, words=words)
        for n, (d, language, words) in zip(noise, wanted, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(engine: WhisperEngine, asks: list[Ask]) -> list[Answer]:
    return [engine.decode([a])[0] for a in asks]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_batch_of_languages_gives_what_each_window_gives_alone(
    engine: WhisperEngine, asks: list[Ask], alone: list[Answer], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(engine._model, device)
    monkeypatch.setattr(engine, "_model", watched)
    together = engine.decode(asks)
    assert [a.text for a in together] == [a.text for a in alone]
    pairs = [
        (w, v)
        for one, other in zip(together, alone, strict=True)
        for p, q in zip(one.pieces, other.pieces, strict=True)
        for w, v in zip(p.words, q.words, strict=True)
    ]
    assert all(w.probability == pytest.approx(v.probability, abs=1e-3) for w, v in pairs)
    assert sum(abs(w.start - v.start) < 0.05 for w, v in pairs) > 0.95 * len(pairs)  # ties are broken by the last bit
    assert [[bool(p.words) for p in a.pieces] for a in together] == [[a.words] for a in asks]
    windows = sorted(len(lengths) for _, lengths in watched.aligned)
    assert windows == ([1, 1, 2] if device == "cpu" else [5, 5, 5])
    real = sorted(sum(n > 1 for n in lengths) for _, lengths in watched.aligned)
    assert real == [1, 1, 2]


def test_nothing_is_aligned_where_nobody_wants_words(
    engine: WhisperEngine, asks: list[Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(engine._model, "cpu")
    monkeypatch.setattr(engine, "_model", watched)
    assert all(not p.words for a in engine.decode([replace(a, words=False) for a in asks]) for p in a.pieces)
    assert watched.aligned == []


def test_next_to_no_sound_is_aligned_as_well(engine: WhisperEngine, asks: list[Ask]) -> None:
    (answer,) = engine.decode([replace(asks[0], duration=0.001)])
    assert all(w.start == w.end == 0.0 for p in answer.pieces for w in p.words)
