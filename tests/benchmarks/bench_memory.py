"""`make bench-memory`: whether a run's memory grows with the number of recordings, all of its processes together.

Clips are repeated, each time a little louder or quieter, so that no two recordings are equal bytes. Memory is sampled
while `spotscribe run` transcribes them, and what it held around the 50th recording is held against the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from chunking.errors import UsageError
from tests.benchmarks.bench_process import ROOT, CannotRun, environment
from tests.benchmarks.bench_set import ClipSet, chosen
from tests.conftest import read_16k, write_wav
from workers.usage import SAMPLE_S, held_mb

EARLY, BAND = 50, 10
"""The recording around which memory is taken for the first time, and how many on both sides of it count."""


def copies(clips: ClipSet, count: int, folder: Path) -> list[Path]:
    """So many recordings in `folder`, no two of equal bytes."""
    folder.mkdir()
    sounds = [read_16k(c.file) for c in clips.clips]
    files = []
    for i in range(count):
        gain = 1.0 - 0.5 * (i // len(sounds)) / (1 + count // len(sounds))
        samples = (sounds[i % len(sounds)] * gain).astype(np.int16)
        files.append(write_wav(folder / f"{i:05d}.wav", samples))
    return files


def sampled(command: Sequence[str], out: Path, env: dict[str, str]) -> Iterator[tuple[int, float]]:
    """(recordings ended, MB held) again and again while the command runs. Raises CannotRun."""
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        try:
            while child.poll() is None:
                yield (len(os.listdir(out)) if out.is_dir() else 0), held_mb(child.pid)
                time.sleep(SAMPLE_S)
        finally:
            child.kill()
        said = child.stderr.read().decode(errors="replace").strip() if child.stderr else ""
    if child.returncode:
        raise CannotRun(f"ended with {child.returncode}: {said.splitlines()[-1] if said else 'without a word'}")


def grown(
    samples: Sequence[tuple[int, float]], count: int, early: int = EARLY, band: int = BAND
) -> tuple[float, float]:
    """MB around the `early`-th recording, and from as many before the last on: medians."""
    first = [mb for ended, mb in samples if abs(ended - early) <= band]
    last = [mb for ended, mb in samples if count - 2 * band <= ended < count]
    if not first or not last:
        raise CannotRun(f"too fast to be sampled: take more than {count} recordings")
    return median(first), median(last)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-memory", description=__doc__)
    ask.add_argument("--manifest", type=Path, help="JSONL with paths, texts, languages; else clips of packages")
    ask.add_argument("--language", default="en")
    ask.add_argument("--model", default="tiny.en")
    ask.add_argument("--recordings", type=int, default=500)
    asked = ask.parse_args(arguments)
    try:
        clips = chosen(asked.manifest, asked.language)
        with tempfile.TemporaryDirectory(prefix="spotscribe-bench-") as made:
            folder, out = Path(made), Path(made) / "out"
            copies(clips, asked.recordings, folder / "in")
            command = [sys.executable, "-m", "workers", "run", str(folder / "in"), "--model", asked.model]
            command += ["--language", asked.language, "--out", str(out), "--formats", "txt"]
            samples = list(sampled(command, out, environment(SPOTSCRIBE_HOME=str(folder / "home"))))
        first, last = grown(samples, asked.recordings)
    except (UsageError, CannotRun) as e:
        sys.exit(str(e))
    most = max(mb for _, mb in samples)
    print(
        f"{asked.recordings} recordings, {asked.model}: {first:.0f} MB around the {EARLY}th, {last:.0f} MB at the end "
        f"({last / first - 1:+.1%}), {most:.0f} MB at most"
    )


if __name__ == "__main__":
    main()
