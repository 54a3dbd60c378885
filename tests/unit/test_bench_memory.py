"""The benchmark of memory: no two recordings alike, and what is held against what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bench_memory import copies, grown
from tests.benchmarks.bench_process import CannotRun
from tests.benchmarks.bench_set import from_packages


def test_no_two_recordings_are_equal_bytes(tmp_path: Path) -> None:
    clips = from_packages("en", 2)
    files = copies(clips, 7, tmp_path / "in")
    assert len({f.read_bytes() for f in files}) == len(files) == 7


def test_memory_around_the_fiftieth_is_held_against_the_end() -> None:
    samples = [(n, 100.0 + n) for n in range(201)]
    assert grown(samples, 200) == (150.0, 289.5)
    with pytest.raises(CannotRun, match="too fast"):
        grown([(0, 100.0), (200, 100.0)], 200)
