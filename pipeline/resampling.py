"""How sure a word error rate is, and the difference of two, by bootstrap; which cell is worth its cost. Pure.

Recordings are drawn with repeats, as many as there are, RESAMPLES times; the rates of the middle 95 % of these drawings
are the interval (percentile bootstrap: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004). Words of one recording go wrong together, so recordings are drawn and not words. All cells
are drawn alike, so what they have in common does not widen the interval of their difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
SEED = 20_240_229
"""Fixed: the same evaluation has the same intervals wherever it is looked at."""
MIDDLE = (2.5, 97.5)
"""Percentiles."""
BLOCK = 4_000_000
"""Drawings held in memory at once: 32 MB."""

Figures = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate, or a difference of two, and where it lies with 95 % confidence; None: one recording does not tell."""

    value: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies on one side of zero, else 0: no difference that can be shown."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)

    def __neg__(self) -> Estimate:
        low, high = (None if x is None else 0.0 - x for x in (self.high, self.low))
        return Estimate(0.0 - self.value, low, high)


class Sample:
    """Words in error of several cells in the same recordings, and in all drawings of these."""

    def __init__(self, words: Sequence[int], errors: Sequence[Sequence[int]], contents: Sequence[str]) -> None:
        """`words` of each recording's reference; `errors` of each cell in each recording; `contents`: recordings of
        equal content are drawn together."""
        figures = _by_content(np.array([words, *errors], np.float64).T, contents)
        self._rates = _rates(figures.sum(axis=0, keepdims=True))[0]
        self._drawn = _rates(_resampled(figures)) if len(figures) > 1 else None

    def rate(self, cell: int) -> Estimate:
        """A cell's word error rate."""
        drawn = None if self._drawn is None else self._drawn[:, cell]
        return _estimate(self._rates[cell], drawn)

    def difference(self, cell: int, base: int) -> Estimate:
        """How much higher a cell's rate is than that of another."""
        drawn = None if self._drawn is None else self._drawn[:, cell] - self._drawn[:, base]
        return _estimate(self._rates[cell] - self._rates[base], drawn)


def _by_content(figures: Figures, contents: Sequence[str]) -> Figures:
    """A row for each content, from one for each recording."""
    place = {content: i for i, content in enumerate(dict.fromkeys(contents))}
    found = np.zeros((len(place), figures.shape[1]))
    np.add.at(found, [place[c] for c in contents], figures)
    return found


def _resampled(figures: Figures) -> Figures:
    """RESAMPLES × columns: sums over the rows drawn."""
    rows, chance = len(figures), np.random.default_rng(SEED)
    found = []
    for left in range(RESAMPLES, 0, -(step := max(1, BLOCK // rows))):
        draws = min(step, left)
        drawn = chance.integers(rows, size=(draws, rows)) + rows * np.arange(draws)[:, None]
        times = np.bincount(drawn.ravel(), minlength=draws * rows).reshape(draws, rows)
        found.append(times @ figures)
    return np.concatenate(found)


def _rates(sums: Figures) -> Figures:
    """Of each cell, from columns of words and errors."""
    return sums[:, 1:] / np.maximum(1.0, sums[:, :1])


def _estimate(value: float, drawn: Figures | None) -> Estimate:
    if drawn is None:
        return Estimate(float(value), None, None)
    low, high = np.percentile(drawn, MIDDLE)
    return Estimate(float(value), float(low), float(high))


def front(rates: Sequence[float], costs: Sequence[float]) -> tuple[int, ...]:
    """The cells that no other beats: none is as exact and as cheap, and better in one of the two (Pareto front)."""
    cells = range(len(rates))
    return tuple(
        i
        for i in cells
        if not any(
            rates[j] <= rates[i] and costs[j] <= costs[i] and (rates[j] < rates[i] or costs[j] < costs[i])
            for j in cells
        )
    )


def cheapest(rates: Sequence[float], costs: Sequence[float], tolerance: float) -> int:
    """The cheapest cell whose rate is at most `tolerance` above the best; of equals the more exact."""
    limit = min(rates) + tolerance
    return min((i for i in range(len(rates)) if rates[i] <= limit), key=lambda i: (costs[i], rates[i]))
