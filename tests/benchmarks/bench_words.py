"""`make bench-words`: how near word times come to where clips, joined with pauses of known lengths, truly begin and end.

The clips of a manifest become recordings of a few minutes. Where the first word of a clip was read right, its start is
compared with where the clip's sound rises, and the last word's end with where it falls. That needs a quiet room, so
clips with noise between their words are in the recordings and are not judged. faster-whisper's word times of the same
recordings are judged in the same way.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import jiwer
import numpy as np
import numpy.typing as npt

from chunking import speech
from chunking.errors import UsageError
from chunking.speech import SpeechDetector
from chunking.stitcher import spelling
from chunking.timeline import SAMPLE_RATE, Span, Word
from pipeline.models import find_model
from pipeline.references import Reference
from pipeline.settings import Settings
from tests.benchmarks.bench_process import CannotRun, Usage, environment, measured
from tests.benchmarks.bench_set import from_manifest, from_packages
from tests.conftest import read_16k, write_wav

Samples = npt.NDArray[np.int16]

PAUSE_S = (0.3, 1.0)
"""Between two clips, at random, beside the silence that they have at their own ends."""
HOP_S, FRAME_S = 0.01, 0.02
SOUND_DB = 35.0
"""Below a clip's loudest frame: what is louder is sound …"""
QUIET_DB = 50.0
"""… in a clip whose quietest twentieth lies that far below it."""
SOUND_FRAMES = 3
"""So many in a row: fewer are a click."""
NEAR_S = (0.1, 0.2, 0.5)
OURS, PEER = "spotscribe", "faster-whisper"


@dataclass(frozen=True, slots=True)
class Placed:
    """A clip in a recording."""

    text: str
    sound: Span | None
    """Seconds of the recording in which it truly sounds; None: its room is too loud to tell."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Clips with pauses between them."""

    file: Path
    clips: tuple[Placed, ...]
    speech: tuple[Span, ...]
    """By the VAD."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Seconds from where a clip truly begins, and ends, to where its first word does, and its last."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    words: int
    inside: int
    """Words that neither begin nor end in a pause, as the VAD sees it."""
    in_order: int
    """Words that begin no earlier than the one before ended, and end no earlier than they began."""


def sound_of(samples: Samples) -> Span | None:
    """Where a clip sounds, in its seconds; None where noise hides it."""
    hop, frame = round(HOP_S * SAMPLE_RATE), round(FRAME_S * SAMPLE_RATE)
    if samples.size < frame:
        return None
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), frame)[::hop]
    level = 10.0 * np.log10(np.mean(frames**2, axis=1) + 1e-3)
    if level.max() - np.percentile(level, 5) < QUIET_DB:
        return None
    loud = np.convolve(level > level.max() - SOUND_DB, np.ones(SOUND_FRAMES), "valid") == SOUND_FRAMES
    at = np.flatnonzero(loud)
    return Span(at[0] * HOP_S, (at[-1] + SOUND_FRAMES - 1) * HOP_S + FRAME_S) if at.size else None


def recordings(clips: Sequence[Reference], folder: Path, seconds: float, seed: int) -> list[Recording]:
    """Each clip once, in a random order, joined to recordings of at least that many seconds but for the last."""
    chance, detector = np.random.default_rng(seed), SpeechDetector()
    found: list[Recording] = []
    parts: list[Samples] = []
    placed: list[Placed] = []
    for i, which in enumerate(chance.permutation(len(clips)), 1):
        samples, at = read_16k(clips[which].file), sum(p.size for p in parts) / SAMPLE_RATE
        sound = sound_of(samples)
        placed.append(Placed(clips[which].text, sound and Span(at + sound.start, at + sound.end)))
        parts += [samples, np.zeros(round(chance.uniform(*PAUSE_S) * SAMPLE_RATE), np.int16)]
        length = sum(p.size for p in parts) / SAMPLE_RATE
        if length >= seconds or i == len(clips):
            file = write_wav(folder / f"joined-{len(found)}.wav", np.concatenate(parts))
            found.append(Recording(file, tuple(placed), speech.spans(detector.probabilities(parts), length)))
            parts, placed = [], []
    return found


def edges_of(recording: Recording, words: Sequence[Word]) -> Edges:
    """Compare a recording's words with what is known of its clips."""
    heard = [(s, w) for w in words if (s := spelling(w.text))]
    said = [[s for t in c.text.split() if (s := spelling(t))] for c in recording.clips]
    right = _matches([s for text in said for s in text], [s for s, _ in heard])
    starts, ends, first = list[float](), list[float](), 0
    for clip, text in zip(recording.clips, said, strict=True):
        last = first + len(text) - 1
        if clip.sound and first in right:
            starts.append(heard[right[first]][1].start - clip.sound.start)
        if clip.sound and last in right:
            ends.append(heard[right[last]][1].end - clip.sound.end)
        first += len(text)
    inside = sum(_in_any(w.start, recording.speech) and _in_any(w.end, recording.speech) for w in words)
    ordered = sum(w.start <= w.end for w in words) - sum(b.start < a.end - ROUNDED_S for a, b in pairwise(words))
    return Edges(tuple(starts), tuple(ends), len(words), inside, ordered)


ROUNDED_S = 0.011
"""Times are written with two decimals at least."""


def _in_any(at: float, spans: Iterable[Span]) -> bool:
    return any(s.start - ROUNDED_S <= at <= s.end + ROUNDED_S for s in spans)


def _matches(said: Sequence[str], heard: Sequence[str]) -> dict[int, int]:
    """Which word of the reference was heard as which word: those that are right, by the fewest edits."""
    if not heard:
        return {}
    (chunks,) = jiwer.process_words(" ".join(said), " ".join(heard)).alignments
    return {
        c.ref_start_idx + i: c.hyp_start_idx + i
        for c in chunks
        if c.type == "equal"
        for i in range(c.ref_end_idx - c.ref_start_idx)
    }


def together(found: Iterable[Edges]) -> Edges:
    """Of all recordings."""
    e = list(found)
    starts, ends = tuple(x for f in e for x in f.starts), tuple(x for f in e for x in f.ends)
    return Edges(starts, ends, sum(f.words for f in e), sum(f.inside for f in e), sum(f.in_order for f in e))


def near(errors: Sequence[float], within: float) -> float:
    """The share of errors of at most so many seconds."""
    return sum(abs(e) <= within for e in errors) / max(1, len(errors))


@dataclass(frozen=True, slots=True)
class Asked:
    """What both are asked for."""

    model: Path
    language: str
    compute_type: str
    threads: int


def ours(joined: Sequence[Recording], asked: Asked, folder: Path) -> tuple[list[list[Word]], Usage]:
    """`spotscribe run --word-timestamps` as a user calls it, with a fresh state."""
    (folder / "empty.toml").touch()
    env = environment(
        SPOTSCRIBE_HOME=str(folder / "home"),
        SPOTSCRIBE_CONFIG=str(folder / "empty.toml"),
        SPOTSCRIBE_CPU_THREADS=str(asked.threads),
    )
    command = [
        *(sys.executable, "-m", "workers", "run", *(str(r.file) for r in joined), "--out", str(folder / "out")),
        *("--formats", "json", "--word-timestamps", "--device", "cpu", "--language", asked.language),
        *("--model", str(asked.model), "--compute-type", asked.compute_type),
    ]
    usage = measured(command, folder, env)
    texts = [json.loads((folder / "out" / f"{r.file.stem}.json").read_text(encoding="utf-8")) for r in joined]
    found = [[w for s in t["segments"] for w in s["words"]] for t in texts]
    return [[Word(w["start"], w["end"], w["text"], w["probability"]) for w in ws] for ws in found], usage


def peers(joined: Sequence[Recording], asked: Asked, folder: Path) -> tuple[list[list[Word]], Usage]:
    """faster-whisper's sequential mode with `word_timestamps=True`, else its defaults, greedy as ours."""
    request = {
        "peer": PEER, "files": [str(r.file) for r in joined], "language": asked.language, "model": str(asked.model),
        "compute_type": asked.compute_type, "beam": 1, "threads": asked.threads, "device": "cpu", "batch": None,
        "words": True,
    }  # fmt: skip
    child = Path(__file__).with_name("bench_child.py")
    command = [sys.executable, str(child), str(folder / "result")]
    usage = measured(command, folder, environment(), given=json.dumps(request))
    found = json.loads((folder / "result").read_text())["words"]
    return [[Word(*w) for w in ws] for ws in found], usage


Go = Callable[[Sequence[Recording], Asked, Path], tuple[list[list[Word]], Usage]]
CONTENDERS: dict[str, Go] = {OURS: ours, PEER: peers}


def table(joined: Sequence[Recording], found: dict[str, tuple[Edges, Usage]]) -> str:
    """What a model came to, as a table in Markdown; with the peer there, ours beside it as ratios."""
    clips = [c for r in joined for c in r.clips]
    judged = sum(c.sound is not None for c in clips)
    head = " | ".join(f"within {s} s" for s in NEAR_S)
    lines = [
        f"{len(joined)} recordings of {len(clips)} clips, {judged} of them quiet enough to be judged.",
        "",
        f"| | edge | judged | {head} | median error | inside speech | in order | CPU s |",
        "|---|---|---|" + "---|" * (len(NEAR_S) + 4),
    ]
    for name, (e, usage) in found.items():
        of_all = f"{e.inside / max(1, e.words):.1%} | {e.in_order / max(1, e.words):.1%} | {usage.cpu_s:.0f}"
        for edge, errors in (("starts", e.starts), ("ends", e.ends)):
            shares = " | ".join(f"{near(errors, s):.1%}" for s in NEAR_S)
            middle = median(abs(x) for x in errors) if errors else 0.0
            lines.append(f"| {name} | {edge} | {len(errors)} | {shares} | {middle:.3f} s | {of_all} |")
    if PEER in found:
        lines += ["", f"Within {NEAR_S[1]} s beside {PEER}: " + ", ".join(_ratios(found)) + "."]
    return "\n".join(lines)


def _ratios(found: dict[str, tuple[Edges, Usage]]) -> Iterable[str]:
    (mine, used), (theirs, their_use) = found[OURS], found[PEER]
    for edge, a, b in (("starts", mine.starts, theirs.starts), ("ends", mine.ends, theirs.ends)):
        yield f"{edge} {near(a, NEAR_S[1]) / max(1e-9, near(b, NEAR_S[1])):.2f} times as often"
    yield f"for {used.cpu_s / their_use.cpu_s:.2f} times its CPU seconds"


def main(arguments: Sequence[str] | None = None) -> None:
    """A table for each model on stdout."""
    o = _options(arguments)
    try:
        clips = from_manifest(o.manifest, o.language, o.limit) if o.manifest else from_packages(o.language, o.limit)
        models = {name: find_model(name, Settings().models) for name in o.models.split(",")}
        with tempfile.TemporaryDirectory(prefix="spotscribe-bench-") as folder:
            joined = recordings(clips.clips, Path(folder), o.seconds, o.seed)
            for name, model in models.items():
                asked = Asked(model, o.language, o.compute_type, o.threads)
                print(f"## {name}, {o.compute_type}, {clips.name}\n\n{_measured(joined, asked, o)}\n", flush=True)
    except (UsageError, CannotRun) as e:
        sys.exit(f"bench-words: {e}")


def _measured(joined: Sequence[Recording], asked: Asked, o: argparse.Namespace) -> str:
    found: dict[str, tuple[Edges, Usage]] = {}
    for name in (OURS,) if o.alone else CONTENDERS:
        with tempfile.TemporaryDirectory(prefix="spotscribe-bench-") as folder:
            words, usage = CONTENDERS[name](joined, asked, Path(folder))
        found[name] = together(edges_of(r, w) for r, w in zip(joined, words, strict=True)), usage
    return table(joined, found)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="bench-words", description=__doc__.split("\n", 1)[0])
    add, what = p.add_argument, "JSONL: path (relative to it), text, language; else the clips that a package carries"
    add("--manifest", type=Path, metavar="FILE", help=what)
    add("--language", default="en", metavar="CODE", help="only clips in it")
    add("--limit", type=int, metavar="N", help="only the first N clips")
    add("--models", default="tiny.en", metavar="NAME,…", help="names, or directories in CTranslate2 form")
    add("--compute-type", default="int8")
    add("--threads", type=int, default=2, help="of each contender")
    add("--seconds", type=float, default=180.0, help="of a recording; default: 180")
    add("--seed", type=int, default=5)
    add("--alone", action="store_true", help=f"without {PEER}")
    return p.parse_args(arguments)


if __name__ == "__main__":
    main()
