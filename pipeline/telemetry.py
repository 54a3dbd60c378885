"""What a process has done so far, counted where it happens. Safe to share by threads.

`spotscribe run` prints some of it, a worker serves all of it as metrics (pipeline/metrics.py has their names).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeline import tracing
from pipeline.metrics import WORKER, named

Labels = tuple[str, ...]
BUCKETS = {m.name: m.buckets for m in WORKER if m.kind == "histogram"}


@dataclass
class Spread:
    """How often values fell where: one count for each of a histogram's buckets, and one for what is above them."""

    counts: list[int]
    total: float = 0.0


@dataclass
class Tally:
    """Counters of one process."""

    chunks_decoded: int = 0
    """Chunks whose result was accepted here."""
    chunks_reused: int = 0
    """Chunks of this run's jobs whose result stood already when it began."""
    batches: int = 0
    batch_fill: float = 0.0
    """Sum over the batches of chunks in it ÷ chunks that fit."""
    audio_s: float = 0.0
    """Seconds of the chunks decoded."""
    reused_s: float = 0.0
    """Seconds of the chunks reused."""
    prepared_s: float = 0.0
    """Seconds of the recordings prepared, rejected ones included; their chunks; their bytes."""
    planned_s: float = 0.0
    prepared_bytes: int = 0
    device_s: float = 0.0
    """Seconds that the model's device was at work, whatever became of that."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent in each stage, summed over the threads."""
    counted: dict[str, dict[Labels, float]] = field(default_factory=dict)
    """Of metrics with labels, and some without: their values."""
    spreads: dict[str, Spread] = field(default_factory=dict)
    got_on_at: dict[str, float] = field(default_factory=dict)
    """When each part of the process last got on, or found nothing to do: seconds of the epoch."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a metric of the worker, named without its prefix and `_total`. Its labels, in the table's order."""
        metric = named(name)
        assert len(labels) == len(metric.labels), metric.name
        with self._lock:
            of = self.counted.setdefault(metric.name, {})
            of[labels] = of.get(labels, 0.0) + by

    def observe(self, name: str, value: float) -> None:
        """Note one value of a histogram, named as for `count`."""
        metric = named(name).name
        with self._lock:
            spread = self.spreads.setdefault(metric, Spread([0] * (len(BUCKETS[metric]) + 1)))
            spread.counts[bisect_left(BUCKETS[metric], value)] += 1
            spread.total += value

    def got_on(self, part: str) -> None:
        """This part of the process is not stuck."""
        self.got_on_at[part] = time.time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            with tracing.child(name):
                yield
        finally:
            with self._lock:
                self.stage_s[name] = self.stage_s.get(name, 0.0) + time.perf_counter() - began

    @property
    def mean_batch_fill(self) -> float:
        return self.batch_fill / self.batches if self.batches else 0.0
