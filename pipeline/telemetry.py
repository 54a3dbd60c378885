"""What a run has done so far, counted where it happens. Safe to share by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.stage_s[name] = self.stage_s.get(name, 0.0) + time.perf_counter() - began

    @property
    def mean_batch_fill(self) -> float:
        return self.batch_fill / self.batches if self.batches else 0.0
