"""The benchmark of chunk and window lengths, in miniature, with real weights."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_windows import WAYS, main


def test_two_ways_on_the_clips_of_a_package(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--ways", "usual", "all-30"])
    head, _, names, _, first, second = capsys.readouterr().out.strip().splitlines()
    assert "3 recordings" in head
    assert "WER" in names
    ours, full = ([x.strip() for x in row.strip("|").split("|")] for row in (first, second))
    assert (ours[0], full[0]) == ("usual", "all-30")
    assert max(float(ours[1]), float(full[1])) < 0.7  # counting is written in figures
    assert ours[3] == full[3] == "0"
    assert float(ours[7]) == 10.0 * int(ours[6])
    assert float(full[7]) == 30.0 * int(full[6])


def test_the_way_that_is_used_is_among_them() -> None:
    assert len({*WAYS.values()}) == len(WAYS)
