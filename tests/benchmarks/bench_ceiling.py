"""The engine's own ceiling: a run's chunks in full batches, with everything but the model done before the clock starts.

Called by bench_peers.py with a job on stdin. It also tells what run's stages do not: how a call's time is shared
between encoder and decoder, and what judging the answers takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from chunking import audio, speech
from chunking.audio import DecodeOptions, DecoderPool
from chunking.errors import PermanentError
from chunking.planner import Track, plan
from chunking.speech import SpeechDetector
from chunking.timeline import Chunk
from pipeline.devices import default_batch_size, engine_options
from pipeline.engine import Answer, Ask, Floats
from pipeline.reading import Reading
from pipeline.settings import Settings
from pipeline.whisper import WhisperEngine
from workers.bootstrap import tame_allocator


class TimedEngine(WhisperEngine):
    """Knows how many seconds its threads spent in the encoder."""

    encode_s = 0.0
    _lock = threading.Lock()

    def _encode(self, features: Sequence[Floats]) -> Any:
        began = time.perf_counter()
        encoded = super()._encode(features)
        with self._lock:
            self.encode_s += time.perf_counter() - began
        return encoded


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One chunk, ready for the model."""

    chunk: Chunk
    ask: Ask

    @property
    def expected_tokens(self) -> float:
        return self.reading().expected_tokens

    def reading(self) -> Reading:
        return Reading(self.chunk, 0, self.ask.language)


def main() -> None:
    tame_allocator()
    job = json.load(sys.stdin)
    how = engine_options(
        Settings(device=job["device"], cpu_threads=job["threads"]), job["device"], job["compute_type"], job["beam"]
    )
    engine = TimedEngine(Path(job["model"]), how)
    windows = list(_windows(engine, job["files"], job["languages"]))
    found = batches(windows, default_batch_size(how) // engine.parallel, engine.parallel)
    engine.decode([w.ask for w in found[0]])  # the first call of a model is slow
    engine.encode_s = 0.0
    with ThreadPoolExecutor(engine.parallel) as pool:
        began = time.perf_counter()
        answers = list(pool.map(lambda batch: _decoded(engine, batch), found))
        wall = time.perf_counter() - began
    calls = sum(seconds for seconds, _ in answers)
    judge = _judged(
        [(w, a) for batch, (_, got) in zip(found, answers, strict=True) for w, a in zip(batch, got, strict=True)]
    )
    stages = {"encode": engine.encode_s, "decode": calls - engine.encode_s, "judge": judge}
    counts = {"chunks": len(windows), "batches": len(found), "threads": engine.parallel}
    Path(sys.argv[1]).write_text(json.dumps({"inside_s": wall, "stage_s": stages, "counts": counts}))


def batches(windows: Sequence[Window], size: int, calls: int) -> list[list[Window]]:
    """Of one window each and full, like lengths of text together; the long ones first, what is left over last."""

    def order(w: Window) -> tuple[float, float]:
        return -w.ask.window, -w.expected_tokens

    found: list[list[Window]] = []
    for _, group in groupby(sorted(windows, key=order), key=lambda w: w.ask.window):
        alike = list(group)
        most = min(size, -(-len(alike) // calls))
        found += [alike[i : i + most] for i in range(0, len(alike), most)]
    return sorted(found, key=lambda b: len(b) < size)


def _windows(engine: WhisperEngine, files: Sequence[str], languages: Sequence[str]) -> Iterator[Window]:
    """As pipeline/prepare.py cuts and pipeline/transcribe.py asks. What cannot be decoded has no windows."""
    detector = SpeechDetector()
    with DecoderPool() as decoder, tempfile.TemporaryDirectory() as folder:
        pcm = Path(folder) / "sound.pcm"
        for file, language in zip(files, languages, strict=True):
            try:
                duration = decoder.decode(Path(file), pcm, DecodeOptions()).duration_s
            except PermanentError:
                continue
            heard = detector.probabilities(audio.blocks(pcm, 1, 0))
            track = Track(0, speech.spans(heard, duration), array("f", heard.tobytes()), speech.FRAME_S)
            for chunk in plan([track], duration).chunks:
                features = engine.features(audio.read_pcm(pcm, 1, 0, chunk.span), chunk.window)
                words = chunk.cut_before or chunk.cut_after
                yield Window(chunk, Ask(features, chunk.window, chunk.span.duration, language, words=words))


def _decoded(engine: WhisperEngine, batch: Sequence[Window]) -> tuple[float, list[Answer]]:
    began = time.perf_counter()
    answers = engine.decode([w.ask for w in batch])
    return time.perf_counter() - began, answers


def _judged(answered: Sequence[tuple[Window, Answer]]) -> float:
    """Seconds that it takes to judge each answer once."""
    began = time.perf_counter()
    for window, answer in answered:
        window.reading().take(answer)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
