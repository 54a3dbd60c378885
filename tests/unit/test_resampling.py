"""Intervals by bootstrap, and which cells are worth their cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import resampling
from pipeline.resampling import Estimate, Sample, cheapest, front

recordings = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=12)
cells = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=8)


def sample(rows: list[tuple[int, int, int]], contents: list[str] | None = None) -> Sample:
    words, a, b = zip(*rows, strict=True)
    return Sample(words, [a, b], contents or [str(i) for i in range(len(rows))])


def ends(e: Estimate) -> tuple[float, float]:
    assert e.low is not None
    assert e.high is not None
    return e.low, e.high


@given(recordings)
@settings(max_examples=40)
def test_an_interval_holds_what_was_found(rows: list[tuple[int, int, int]]) -> None:
    s = sample(rows)
    for e in (s.rate(0), s.rate(1), s.difference(0, 1)):
        low, high = ends(e)
        assert low - 1e-9 <= e.value <= high + 1e-9
    words, errors, _ = map(sum, zip(*rows, strict=True))
    assert s.rate(0).value == pytest.approx(errors / max(1, words))


@given(recordings)
@settings(max_examples=20)
def test_a_cell_does_not_differ_from_itself_and_differs_as_much_both_ways(rows: list[tuple[int, int, int]]) -> None:
    s = sample(rows)
    assert s.difference(1, 1) == Estimate(0.0, 0.0, 0.0)
    there, back = s.difference(0, 1), -s.difference(1, 0)
    assert there.value == pytest.approx(back.value)
    assert ends(there) == pytest.approx(ends(back))
    assert there.sign == back.sign


@given(recordings)
@settings(max_examples=20, derandomize=True)  # a percentile of few values may jump by one for a draw in a thousand
def test_the_same_sound_twice_makes_nothing_surer(rows: list[tuple[int, int, int]]) -> None:
    names = [str(i) for i in range(len(rows))]
    once, twice = sample(rows), sample(rows * 2, names * 2)
    assert ends(once.rate(0)) == pytest.approx(ends(twice.rate(0)))


def test_one_recording_has_no_interval_and_shows_nothing() -> None:
    found = sample([(10, 2, 9), (10, 2, 9)], ["a", "a"])
    assert found.rate(0) == Estimate(0.2, None, None)
    assert found.difference(0, 1).sign == 0


def test_a_paired_difference_is_surer_than_the_rates_are() -> None:
    chance = np.random.default_rng(1)
    base = chance.integers(0, 20, 60)
    rows = [(40, int(e) + 1, int(e)) for e in base]
    s = sample(rows)
    assert s.difference(0, 1).sign == 1
    assert ends(s.rate(0))[0] < s.rate(1).value


def test_intervals_are_as_wide_as_theory_has_them() -> None:
    chance = np.random.default_rng(2)
    rows = [(50, int(e), 0) for e in chance.binomial(50, 0.1, 400)]
    low, high = ends(sample(rows).rate(0))
    assert high - low == pytest.approx(2 * 1.96 * (0.1 * 0.9 / (50 * 400)) ** 0.5, rel=0.15)


def test_small_blocks_and_one_large_one_are_as_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(20, i % 7, i % 5) for i in range(50)]
    whole = ends(sample(rows).rate(0))
    monkeypatch.setattr(resampling, "BLOCK", 333)
    assert ends(sample(rows).rate(0)) == pytest.approx(whole, abs=1e-12)


@given(cells)
def test_nothing_beats_the_front_and_all_else_is_beaten(found: list[tuple[float, float]]) -> None:
    rates, costs = zip(*found, strict=True)
    best = front(rates, costs)
    assert best

    def beats(j: int, i: int) -> bool:
        return found[j] != found[i] and rates[j] <= rates[i] and costs[j] <= costs[i]

    for i in range(len(found)):
        assert (i in best) == (not any(beats(j, i) for j in range(len(found))))


@given(cells, st.sampled_from([0.0, 0.1, 1.0]))
def test_the_cheapest_is_as_good_as_the_best_and_none_that_is_so_is_cheaper(
    found: list[tuple[float, float]], tolerance: float
) -> None:
    rates, costs = zip(*found, strict=True)
    chosen = cheapest(rates, costs, tolerance)
    good = [i for i, r in enumerate(rates) if r <= min(rates) + tolerance]
    assert chosen in good
    assert costs[chosen] == min(costs[i] for i in good)
    if tolerance == 0.0:
        assert chosen in front(rates, costs)
