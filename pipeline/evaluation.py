"""What `spotscribe evaluate` has measured, as it is saved: cells of a grid, and each recording's errors in each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter, ValidationError

from chunking.errors import UsageError
from pipeline.cutting import USUAL
from pipeline.scoring import Score

FORMAT = "spotscribe-evaluation/1"
_SAVED = re.compile(rb'\s*\{\s*"format":\s*"spotscribe-evaluation/')
PRECISE = ("float32", "bfloat16", "float16", "int16", "int8_float32", "int8_bfloat16", "int8_float16", "int8")
"""Compute types, the most exact first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to transcribe; a grid has all combinations of some."""

    model: str
    compute_type: str
    """As it was asked for."""
    beam_size: int = 1
    windows: str = USUAL

    def __str__(self) -> str:
        cut = "" if self.windows == USUAL else f", windows {self.windows}"
        return f"{self.model}, {self.compute_type}, beam {self.beam_size}{cut}"


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the manifest."""

    name: str
    """The recording's file: its path below the manifest's folder, where it lies there."""
    sha256: str
    text_sha256: str
    """Of the reference and its language: errors are compared with those beside the same text only."""
    language: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of one recording in one cell."""

    state: str
    code: str
    language: str
    seconds: float
    score: Score
    """Of one without a transcript all words count as deleted."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run over all recordings."""

    wall_s: float
    """First byte read to last transcript written, without the start and the model's load."""
    process_s: float
    cpu_s: float
    memory_mb: float
    others: float
    """What other work took of this machine's cores meanwhile, 0 to 1."""
    errors: int
    """Words."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell, its recordings in the manifest's order, and its rounds."""

    cell: Cell
    computed_in: str
    """What the device makes of the compute type."""
    heard: tuple[Heard, ...]
    """In the first round."""
    rounds: tuple[Round, ...]

    @property
    def wall_s(self) -> float:
        return median(r.wall_s for r in self.rounds)

    @property
    def memory_mb(self) -> float:
        return max(r.memory_mb for r in self.rounds)

    def score(self, recordings: Sequence[int]) -> Score:
        """Over these recordings together, by their numbers."""
        return sum((self.heard[i].score for i in recordings), Score())


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured. `devices` are what a price is for: GPUs, or the one machine; `units` its GPUs or cores."""

    name: str
    device: str
    devices: int
    units: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All of it, comparable with later ones."""

    at: str
    """ISO 8601, in UTC."""
    spotscribe: str
    """Its version."""
    machine: Machine
    manifest: str
    options: dict[str, str]
    """Of `run`, the same for all cells."""
    recordings: tuple[Listed, ...]
    measured: tuple[Measured, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Cells that could not be measured, and why."""
    format: str = FORMAT

    @property
    def contents(self) -> tuple[str, ...]:
        return tuple(r.sha256 for r in self.recordings)

    def audio_s(self, measured: Measured) -> float:
        """Seconds that were decoded: equal bytes count once."""
        return sum({r.sha256: h.seconds for r, h in zip(self.recordings, measured.heard, strict=True)}.values())

    def rtfx(self, measured: Measured) -> float:
        """Seconds of audio for each second of the run."""
        return self.audio_s(measured) / measured.wall_s if measured.wall_s > 0 else 0.0

    def device_s(self, measured: Measured) -> float:
        """Core-seconds, or GPU-seconds, for an hour of audio."""
        rtfx = self.rtfx(measured)
        return 3600.0 * self.machine.units / rtfx if rtfx else float("inf")

    def price(self, measured: Measured, device_hour: float) -> float:
        """Of an hour of audio, where an hour of a device has that price."""
        return self.device_s(measured) / 3600.0 / self.machine.units * self.machine.devices * device_hour


_RECORD: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)


def to_json(evaluation: Evaluation) -> bytes:
    """To be saved."""
    ordered = {"format": FORMAT} | _RECORD.dump_python(evaluation, mode="json")
    return TypeAdapter(dict[str, Any]).dump_json(ordered) + b"\n"


def is_saved(file: Path) -> bool:
    """Whether it is an evaluation and not a manifest."""
    try:
        with file.open("rb") as f:
            return _SAVED.match(f.read(100)) is not None
    except OSError:
        return False


def read_saved(file: Path) -> Evaluation:
    """An evaluation that was saved. Raises UsageError."""
    try:
        found = _RECORD.validate_json(file.read_bytes())
    except OSError as e:
        raise UsageError(f"{file} cannot be read: {e.strerror}") from None
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(f"{file} is no saved evaluation: {where}: {first['msg']}") from None
    lengths = {len(m.heard) for m in found.measured} | {len(found.recordings)}
    if found.format != FORMAT or len(lengths) > 1 or not found.measured or not all(m.rounds for m in found.measured):
        raise UsageError(f"{file} is no saved evaluation that this version of Spotscribe can read")
    return found


def counterparts(new: Sequence[Cell], old: Sequence[Cell]) -> dict[int, int]:
    """Which cells are compared, by their numbers: equal ones; of two evaluations of one cell each these, however they
    differ."""
    if len(new) == len(old) == 1:
        return {0: 0}
    return {i: list(old).index(cell) for i, cell in enumerate(new) if cell in old}


def in_both(new: Sequence[Listed], old: Sequence[Listed]) -> dict[int, int]:
    """Recordings of equal content with equal references, by their numbers."""
    known = {(r.sha256, r.text_sha256): i for i, r in enumerate(old)}
    found = ((i, known.get((r.sha256, r.text_sha256))) for i, r in enumerate(new))
    return {i: match for i, match in found if match is not None}


def one_step_apart(cells: Sequence[Cell]) -> Iterator[tuple[int, int]]:
    """Pairs of cells (by their numbers) that differ in one thing: a cell, and the one that it is to be compared with.

    That is the one with the most exact compute type, the smallest beam, the usual windows, the model named first.
    """
    for name, rank in _RANKS.items():
        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, cell in enumerate(cells):
            groups.setdefault(tuple(getattr(cell, f.name) for f in fields(Cell) if f.name != name), []).append(i)
        for group in groups.values():
            base = min(group, key=lambda i: rank(cells[i]))
            yield from ((i, base) for i in group if i != base)


_RANKS: Mapping[str, Callable[[Cell], int]] = {
    "compute_type": lambda c: PRECISE.index(c.compute_type) if c.compute_type in PRECISE else len(PRECISE),
    "beam_size": lambda c: c.beam_size,
    "windows": lambda c: c.windows != USUAL,
    "model": lambda _: 0,
}
