"""The cells of `spotscribe evaluate`: each a `spotscribe run` of its own, with an empty state, scored by its files."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunking.errors import UsageError
from pipeline.devices import EngineOptions, gpu_name
from pipeline.evaluation import Cell, Heard, Listed, Machine, Measured, Round
from pipeline.references import Reference
from pipeline.scoring import Score, score
from pipeline.settings import PREFIX, Settings
from workers.usage import ChildFailed, Usage, measured

SOME_ENDED_BADLY = 3
"""An exit code of `run` with which there is a result all the same."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell, and how `run` is called for it."""

    cell: Cell
    computed_in: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One cell, one round."""

    heard: tuple[Heard, ...]
    round: Round


@dataclass(frozen=True, slots=True)
class Results:
    """Cells with at least one round, and why others have none."""

    measured: tuple[Measured, ...]
    failed: dict[str, str]


def listed(references: Sequence[Reference], manifest: Path) -> tuple[Listed, ...]:
    """What is remembered of the recordings. Reads them all. Raises UsageError."""
    folder = Path(os.path.abspath(manifest.parent))
    return tuple(
        Listed(
            str(r.file.relative_to(folder) if r.file.is_relative_to(folder) else r.file),
            _sha256(r.file),
            hashlib.sha256(f"{r.language}\n{r.text}".encode("utf-8", "surrogatepass")).hexdigest(),
            r.language,
            r.label,
        )
        for r in references
    )


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise UsageError(f"{file} cannot be read: {e.strerror}") from None


def machine(settings: Settings, how: EngineOptions) -> Machine:
    """Where the model runs."""
    if how.device == "cuda":
        return Machine(gpu_name(0) or "a CUDA device", "cuda", how.parallel, how.parallel)
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return Machine(cpu[1] if cpu else platform.machine(), "cpu", 1, settings.cores)


def measure(
    grid: Sequence[Planned], references: Sequence[Reference], scratch: Path, rounds: int, tell: Callable[[str], None]
) -> Results:
    """All cells, one after the other, as often as there are rounds. A cell that fails once is out."""
    runs: dict[Cell, list[Run]] = {p.cell: [] for p in grid}
    failed: dict[str, str] = {}
    for number, planned in _turns(grid, rounds):
        name = str(planned.cell)
        if name in failed:
            continue
        tell(f"round {number}, {name}")
        try:
            run = _run(planned, references, scratch)
        except ChildFailed as e:
            failed[name] = _why(e)
            tell(f"{name} could not be measured: {failed[name]}")
            continue
        runs[planned.cell].append(run)
    found = tuple(
        Measured(p.cell, p.computed_in, runs[p.cell][0].heard, tuple(r.round for r in runs[p.cell]))
        for p in grid
        if str(p.cell) not in failed
    )
    return Results(found, failed)


def _turns(grid: Sequence[Planned], rounds: int) -> Iterator[tuple[int, Planned]]:
    """Another cell begins each round, so that none always runs on a machine that has just cooled down."""
    for i in range(rounds):
        first = i % len(grid)
        yield from ((i + 1, planned) for planned in (*grid[first:], *grid[:first]))


def _run(planned: Planned, references: Sequence[Reference], scratch: Path) -> Run:
    files = [*dict.fromkeys(str(r.file) for r in references)]
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        command = (
            *(sys.executable, "-P", "-m", "workers", "run", *files, "--out", str(folder / "out")),
            *("--formats", "txt", "--json", *planned.options),
        )
        try:
            usage = measured(command, folder, _environment(folder), fine=(0, SOME_ENDED_BADLY))
        except OSError as e:
            raise UsageError(f"{len(files)} recordings are too many for one evaluation: {e.strerror}") from None
        told = json.loads((folder / "stdout").read_text(encoding="utf-8"))
        ends = {f["source"]: f for f in told["files"]}
        heard = tuple(_heard(r, ends[str(r.file)]) for r in references)
    return Run(heard, _round(told["wall_s"], usage, heard))


def _environment(folder: Path) -> Mapping[str, str]:
    """This process's settings, but for the places of what is kept: nothing is reused, and nothing is left behind."""
    home = folder / "home"
    return {**os.environ, f"{PREFIX}HOME": str(home), f"{PREFIX}DATABASE_URL": f"sqlite:///{home / 'spotscribe.db'}"}


def _heard(reference: Reference, end: dict[str, Any]) -> Heard:
    file = end["outputs"].get("txt")
    text = Path(file).read_text(encoding="utf-8") if file else ""
    found: Score = score(reference.text, text, reference.language)
    return Heard(end["state"], end["code"], end["language"], end["seconds"], found)


def _round(wall_s: float, usage: Usage, heard: Sequence[Heard]) -> Round:
    errors = sum(h.score.errors for h in heard)
    return Round(wall_s, usage.process_s, usage.cpu_s, usage.memory_mb, usage.others, errors)


def _why(e: ChildFailed) -> str:
    if e.code < 0:
        return f"it was ended by signal {-e.code}" + (" (out of memory?)" if e.code == -9 else "")
    return e.said.removeprefix("spotscribe: ") or str(e)
