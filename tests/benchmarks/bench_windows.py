"""`make bench-windows`: which lengths of chunks and windows suit a model: words in error and core-seconds of each way to cut.

Recordings are decoded and listened to by the VAD once, then cut in each way, read to the end (second attempts and
rests included) by the engine alone in one thread, and scored. CPU time, so a busy machine does little harm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunking import audio, speech
from chunking.audio import DecodeOptions, DecoderPool
from chunking.errors import UsageError
from chunking.planner import PlanOptions, Track, plan
from chunking.sentences import sentences
from chunking.speech import SpeechDetector
from chunking.stitcher import stitch
from chunking.timeline import SAMPLE_RATE
from pipeline import cutting
from pipeline.devices import EngineOptions, nearest
from pipeline.devices import compute_types as possible
from pipeline.engine import Ask, Engine
from pipeline.models import find_model
from pipeline.reading import Reading
from pipeline.references import Reference
from pipeline.scoring import Score
from pipeline.settings import Settings
from pipeline.whisper import WhisperEngine
from tests.benchmarks.bench_set import chosen, score

BATCH = 16
WAYS: Mapping[str, PlanOptions] = {
    **cutting.WAYS,
    "edges of 0.25 s": PlanOptions(edge_s=0.25),
    "margin of 1.5 s": PlanOptions(margin_s=1.5),
}


@dataclass(frozen=True, slots=True)
class Heard:
    """A recording, ready to be cut."""

    clip: Reference
    samples: npt.NDArray[np.int16]
    track: Track

    @property
    def duration(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one way to cut."""

    score: Score
    cpu_s: float
    chunks: int
    window_s: float
    decodings: int


def heard(clips: Iterable[Reference], *, repaired: bool = True) -> list[Heard]:
    """As pipeline/prepare.py hears them; not `repaired`: as it would without a look at their levels."""
    detector, found = SpeechDetector(), []
    with DecoderPool() as decoder, tempfile.TemporaryDirectory() as folder:
        for clip in clips:
            pcm = Path(folder) / "sound.pcm"
            (decoder.decode_repaired if repaired else decoder.decode)(clip.file, pcm, DecodeOptions())
            samples = audio.read_pcm(pcm, 1)
            loud = detector.probabilities([samples])
            spans = speech.spans(loud, len(samples) / SAMPLE_RATE)
            found.append(Heard(clip, samples, Track(0, spans, array("f", loud.tobytes()), speech.FRAME_S)))
    return found


def tried(engine: Engine, recordings: Sequence[Heard], way: PlanOptions) -> Outcome:
    """Cut all recordings in that way and read them."""
    began = time.process_time()
    cut = [plan([r.track], r.duration, way).chunks for r in recordings]
    read = [[Reading(c, 0, r.clip.language, way) for c in chunks] for r, chunks in zip(recordings, cut, strict=True)]
    left = [(reading, r) for r, mine in zip(recordings, read, strict=True) for reading in mine]
    while left:
        for batch in _batches(left):
            answers = engine.decode([_ask(engine, reading, r) for reading, r in batch])
            for (reading, _), answer in zip(batch, answers, strict=True):
                reading.take(answer)
        left = [(reading, r) for reading, r in left if reading.request is not None]
    results = [[reading.result() for reading in mine] for mine in read]
    texts = [
        " ".join(s.text for s in sentences(stitch(found, r.duration)))
        for r, found in zip(recordings, results, strict=True)
    ]
    windows = [c.window for chunks in cut for c in chunks]
    decodings = sum(x.decodes for found in results for x in found)
    cpu = time.process_time() - began
    return Outcome(score([r.clip for r in recordings], texts), cpu, len(windows), sum(windows), decodings)


def _batches(left: Sequence[tuple[Reading, Heard]]) -> Iterable[Sequence[tuple[Reading, Heard]]]:
    kinds: dict[tuple[float, float], list[tuple[Reading, Heard]]] = {}
    for one in sorted(left, key=lambda x: x[0].expected_tokens):
        if (request := one[0].request) is not None:
            kinds.setdefault((request.window, request.temperature), []).append(one)
    return [mine[i : i + BATCH] for mine in kinds.values() for i in range(0, len(mine), BATCH)]


def _ask(engine: Engine, reading: Reading, r: Heard) -> Ask:
    request, chunk = reading.request, reading.chunk
    assert request is not None
    span = request.span
    features = engine.features(
        r.samples[round(span.start * SAMPLE_RATE) : round(span.end * SAMPLE_RATE)], request.window
    )
    words = chunk.cut_before or chunk.cut_after
    return Ask(features, request.window, span.duration, request.language, temperature=request.temperature, words=words)


def line(name: str, o: Outcome) -> str:
    """One row of the table."""
    s = o.score
    errors = f"{s.wer:.4f} | {s.substitutions} | {s.deletions} | {s.insertions}"
    return f"| {name} | {errors} | {o.cpu_s:.1f} | {o.chunks} | {o.window_s:.0f} | {o.decodings} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-windows", description=__doc__)
    ask.add_argument("--manifest", type=Path, help="JSONL with paths, texts, languages; else clips of packages")
    ask.add_argument("--language", default="en", help="auto: all of the manifest")
    ask.add_argument("--model", default="tiny.en")
    ask.add_argument("--limit", type=int)
    ask.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS], metavar="WAY", help=", ".join(WAYS))
    asked = ask.parse_args(arguments)
    how = EngineOptions("cpu", nearest("int8", possible("cpu")), 1, 1)
    try:
        clips = chosen(asked.manifest, asked.language, asked.limit)
        engine = WhisperEngine(find_model(asked.model, Settings().models), how)
    except UsageError as e:
        sys.exit(str(e))
    recordings = heard(clips.clips)
    print(f"{clips.name}: {len(recordings)} recordings, {clips.seconds:.0f} s, {Path(asked.model).name}\n")
    print(
        "| way | WER | words substituted | deleted | inserted | core-seconds | chunks | seconds of windows | decodings |"
    )
    print("| --- " + "| ---: " * 8 + "|")
    for name in asked.ways:
        print(line(name, tried(engine, recordings, WAYS[name])), flush=True)


if __name__ == "__main__":
    main()
