"""`make bench-levels`: what quiet, rumbling, shifted and clipped recordings cost in words, and what the repair gives back.

Each recording is spoilt in each way, then heard and read by the engine alone (as in bench_windows.py), with the repair
of chunking/levels.py and without. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from chunking.audio import DecodeOptions, DecoderPool, read_pcm
from chunking.errors import UsageError
from chunking.planner import PlanOptions
from chunking.timeline import SAMPLE_RATE
from pipeline.devices import EngineOptions, nearest
from pipeline.devices import compute_types as possible
from pipeline.engine import Engine
from pipeline.models import find_model
from pipeline.references import Reference
from pipeline.settings import Settings
from pipeline.whisper import WhisperEngine
from tests.benchmarks.bench_set import chosen
from tests.benchmarks.bench_windows import heard, tried

Sound = npt.NDArray[np.float64]
"""Samples of one channel at 16 kHz, -1 to 1."""


def louder(db: float) -> Callable[[Sound], Sound]:
    """By so many decibels, quieter where they are negative; what is beyond full scale is clipped."""
    return lambda x: np.clip(x * 10 ** (db / 20), -1, 1)


def rumbling(x: Sound) -> Sound:
    """An engine at 30 Hz, with overtones, 20 dB above the speech."""
    t = np.arange(len(x)) / SAMPLE_RATE
    engine = sum(np.sin(2 * np.pi * hz * t + hz) / n for n, hz in enumerate((30, 60, 90), 1))
    loud = np.sqrt(np.mean(np.square(x)) / np.mean(np.square(engine))) * 10
    made: Sound = x + engine * loud
    return made / max(1.0, np.abs(made).max())


SPOILT: Mapping[str, Callable[[Sound], Sound]] = {
    "as it is": lambda x: x,
    "20 dB quieter": louder(-20),
    "30 dB quieter": louder(-30),
    "40 dB quieter": louder(-40),
    "50 dB quieter": louder(-50),
    "under rumble": rumbling,
    "an offset of 0.1": lambda x: np.clip(x + 0.1, -1, 1),
    "an offset of 0.5": lambda x: np.clip(x + 0.5, -1, 1),
    "20 dB louder, clipped": louder(20),
    "30 dB louder, clipped": louder(30),
}


def spoilt(clips: Sequence[Reference], how: Callable[[Sound], Sound], folder: Path) -> list[Reference]:
    """The recordings, spoilt, as 24-bit files in the folder."""
    made = []
    with DecoderPool() as decoder:
        for index, clip in enumerate(clips):
            pcm, file = folder / "sound.pcm", folder / f"{index}.wav"
            decoder.decode(clip.file, pcm, DecodeOptions())
            soundfile.write(file, how(read_pcm(pcm, 1) / 32768), SAMPLE_RATE, subtype="PCM_24")
            made.append(replace(clip, file=file))
    return made


def row(engine: Engine, name: str, clips: Sequence[Reference]) -> str:
    """One row of the table."""
    found = [tried(engine, heard(clips, repaired=r), PlanOptions()).score for r in (False, True)]
    return f"| {name} | " + " | ".join(f"{s.wer:.4f} | {s.deletions}" for s in found) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-levels", description=__doc__)
    ask.add_argument("--manifest", type=Path, help="JSONL with paths, texts, languages; else clips of packages")
    ask.add_argument("--language", default="en", help="auto: all of the manifest")
    ask.add_argument("--model", default="tiny.en")
    ask.add_argument("--limit", type=int)
    ask.add_argument("--ways", nargs="+", choices=[*SPOILT], default=[*SPOILT], metavar="WAY", help=", ".join(SPOILT))
    asked = ask.parse_args(arguments)
    try:
        clips = chosen(asked.manifest, asked.language, asked.limit)
        how = EngineOptions("cpu", nearest("int8", possible("cpu")), 1, 1)
        engine = WhisperEngine(find_model(asked.model, Settings().models), how)
    except UsageError as e:
        sys.exit(str(e))
    print(f"{clips.name}: {len(clips.clips)} recordings, {clips.seconds:.0f} s, {Path(asked.model).name}\n")
    print("| the recordings | WER without repair | words deleted | WER with it | words deleted |")
    print("| --- " + "| ---: " * 4 + "|")
    for name in asked.ways:
        with tempfile.TemporaryDirectory() as folder:
            print(row(engine, name, spoilt(clips.clips, SPOILT[name], Path(folder))), flush=True)


if __name__ == "__main__":
    main()
