"""What `gpu.py` measures: encode and decode of one shaped model at several batch sizes, and the memory they take.

Beside the standard library it needs numpy and CTranslate2 alone, so that it runs on a bare machine.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import NormalDist

import ctranslate2
import numpy as np

from tests.benchmarks.gpu_machine import Memory
from tests.benchmarks.shaped import LANGUAGES, SPECIAL, TEXT_TOKENS

MARGIN_S = 1.0
"""A window's speech ends that long before it (chunking/planner.py): shorter windows of the planner hold less."""
TOKENS_PER_SECOND, TOKENS_MORE, SPREAD = 4.5, 4, 0.2
"""Assumed for a chunk, on the careful side: tokens of a second of quick speech, its timestamps, and the deviation of the
sum, as a part of it. Of read English (LibriSpeech) tiny.en made 3.4 tokens a second in all, with a deviation of 0.2."""
LONGEST_TEXT = 224
CALLS = 2
"""Calls of each worker in a round, where there are several: one waits for the other at the end alone."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One model as it is loaded and asked: what the cells of a group have in common."""

    model: str
    compute_type: str
    workers: int
    beam: int
    window: int

    @property
    def speech(self) -> float:
        """Seconds of speech in a full window."""
        return self.window - MARGIN_S


@dataclass(slots=True)
class Cell:
    """What was measured at one batch size: lists with one entry for each round, medians beside them."""

    setup: Setup
    batch: int
    forced: int
    """Tokens that every text of the batch was made to have: as many as the longest of so many real ones."""
    encode_ms: list[float] = field(default_factory=list)
    generate_ms: list[float] = field(default_factory=list)
    windows_per_s: list[float] = field(default_factory=list)
    memory_mb: int | None = None
    """Most that was in use during the batch's warm-up; CTranslate2 may still hold what smaller batches took."""
    problem: str = ""

    @property
    def rtfx(self) -> float:
        return statistics.median(self.windows_per_s) * self.setup.speech

    def line(self) -> str:
        told = f"  batch {self.batch:3}"
        if self.windows_per_s:
            encode, generate = statistics.median(self.encode_ms), statistics.median(self.generate_ms)
            memory = "" if self.memory_mb is None else f"  {self.memory_mb / 1000:6.1f} GB"
            told += (
                f"  encode {encode:8.1f} ms  generate {generate:8.1f} ms of {self.forced:3} tokens"
                f"  {statistics.median(self.windows_per_s):7.1f} windows/s  {self.rtfx:7.0f} × real time{memory}"
                f"  {len(self.windows_per_s)} round{'s' * (len(self.windows_per_s) > 1)}"
            )
        return f"{told}  {self.problem}".rstrip()

    def record(self) -> dict[str, object]:
        """For the JSON file."""
        s = self.setup
        return {
            "model": s.model, "compute_type": s.compute_type, "workers": s.workers, "beam": s.beam, "window_s": s.window,
            "speech_s": s.speech, "batch": self.batch, "forced_tokens": self.forced,
            "encode_ms": self.encode_ms, "generate_ms": self.generate_ms, "windows_per_s": self.windows_per_s,
            "rtfx": self.rtfx if self.windows_per_s else None, "memory_mb": self.memory_mb, "problem": self.problem,
        }  # fmt: skip


def forced_tokens(speech: float, batch: int) -> int:
    """The median of the longest of `batch` texts: a batch decodes until its longest ends."""
    mean = TOKENS_PER_SECOND * speech + TOKENS_MORE
    longest = NormalDist(mean, SPREAD * mean).inv_cdf(0.5 ** (1 / batch))
    return min(LONGEST_TEXT, round(longest))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything that is to be measured."""

    models: Sequence[str]
    compute_types: Sequence[str]
    workers: Sequence[int]
    beams: Sequence[int]
    windows: Sequence[int]

    def stages(self) -> list[list[Setup]]:
        """What tells most first: one worker, greedy, elastic against full windows; then other windows, then the rest."""
        told = [w for w in self.windows if w in {20, 30}] or list(self.windows)
        first = self._setups(self.workers[:1], self.beams[:1], told)
        second = self._setups(self.workers[:1], self.beams[:1], [w for w in self.windows if w not in told])
        third = self._setups(self.workers[1:], self.beams[:1], self.windows)
        fourth = self._setups(self.workers, self.beams[1:], self.windows)
        return [first, second, third, fourth]

    def _setups(self, workers: Sequence[int], beams: Sequence[int], windows: Sequence[int]) -> list[Setup]:
        every = product(workers, beams, windows, self.compute_types, self.models)
        return [Setup(model, kind, number, beam, window) for number, beam, window, kind, model in every]


class Loaded:
    """A shaped model on the device."""

    def __init__(self, directory: Path, device: str, setup: Setup, largest: int) -> None:
        self.setup = setup
        threads = max(1, (os.cpu_count() or 1) // setup.workers) if device == "cpu" else 0
        self._model = ctranslate2.models.Whisper(
            str(directory),
            device=device,
            compute_type=setup.compute_type,
            inter_threads=setup.workers,
            intra_threads=threads,
        )
        shape = (largest, self._model.n_mels, 100 * setup.window)
        self._features = np.random.default_rng(0).standard_normal(shape, np.float32)
        # Without an end token every text goes on to the limit.
        self._never = list(range(TEXT_TOKENS, TEXT_TOKENS + len(SPECIAL)))
        self._prompt = [TEXT_TOKENS + SPECIAL.index(s) for s in ("startoftranscript", LANGUAGES[0], "transcribe")]

    def round(self, cell: Cell, *, calls: int) -> tuple[list[float], list[float], float]:
        """Milliseconds of each encode and of each generate, and windows a second of all workers together."""
        start = threading.Barrier(self.setup.workers + 1)
        with ThreadPoolExecutor(self.setup.workers) as pool:
            work = [pool.submit(self._call, cell, calls, start) for _ in range(self.setup.workers)]
            start.wait()
            began = time.perf_counter()
            took = [pair for w in work for pair in w.result()]
            wall = time.perf_counter() - began
        return [e for e, _ in took], [g for _, g in took], len(took) * cell.batch / wall

    def _call(self, cell: Cell, calls: int, start: threading.Barrier) -> list[tuple[float, float]]:
        start.wait()
        took = []
        features = self._features[: cell.batch]
        for _ in range(calls):
            began = time.perf_counter()
            encoded = self._model.encode(ctranslate2.StorageView.from_array(features))
            between = time.perf_counter()
            results = self._model.generate(
                encoded,
                [self._prompt] * cell.batch,
                beam_size=self.setup.beam,
                max_length=2 * cell.forced,  # CTranslate2 halves it
                return_scores=True,
                return_no_speech_prob=True,
                suppress_tokens=self._never,
            )
            took.append((1000 * (between - began), 1000 * (time.perf_counter() - between)))
            if made := {len(r.sequences_ids[0]) for r in results} - {cell.forced}:
                cell.problem = f"made texts of {min(made)} to {max(made)} tokens"
        return took


@dataclass(frozen=True, slots=True)
class Terms:
    """How a group is measured."""

    device: str
    batches: Sequence[int]
    rounds: int
    time_left: Callable[[], float]
    memory: Memory


def measure(directory: Path, setup: Setup, terms: Terms, told: Callable[[str], None]) -> Iterator[Cell]:
    """The cells of one group: a warm-up of each batch size, growing, then rounds over all of them, interleaved."""
    began = time.monotonic()
    try:
        loaded = Loaded(directory, terms.device, setup, max(terms.batches))
    except (RuntimeError, ValueError) as e:
        told(f"  not loaded: {_first_line(e)}")
        return
    told(f"  loaded in {time.monotonic() - began:.1f} s")
    cells = [Cell(setup, b, forced_tokens(setup.speech, b)) for b in terms.batches]
    alive = list(_warmed_up(loaded, cells, terms))
    for _ in range(terms.rounds):
        for cell in alive:
            if terms.time_left() > 0 and (done := _tried(loaded, cell, CALLS if setup.workers > 1 else 1)):
                cell.encode_ms.append(statistics.median(done[0]))
                cell.generate_ms.append(statistics.median(done[1]))
                cell.windows_per_s.append(done[2])
    for cell in cells:
        if not cell.windows_per_s and not cell.problem:
            cell.problem = "no time left"
        yield cell


def _warmed_up(loaded: Loaded, cells: Sequence[Cell], terms: Terms) -> Iterator[Cell]:
    """Those that the device can do; none beyond one that failed."""
    for cell in cells:
        if terms.time_left() <= 0:
            return
        with terms.memory.watched() as most:
            done = _tried(loaded, cell, 1)
        cell.memory_mb = most()
        if not done:
            for larger in cells[cells.index(cell) + 1 :]:
                larger.problem = f"not tried, since {cell.batch} failed"
            return
        yield cell


def _tried(loaded: Loaded, cell: Cell, calls: int) -> tuple[list[float], list[float], float] | None:
    try:
        return loaded.round(cell, calls=calls)
    except (RuntimeError, ValueError, MemoryError) as e:
        text = _first_line(e)
        full = "memory" in text.lower() or "alloc" in text.lower()  # cuBLAS says CUBLAS_STATUS_ALLOC_FAILED
        cell.problem = f"out of memory: {text}" if full else f"failed: {text}"
        return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
