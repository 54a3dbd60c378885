"""Features are large (1 MB for 20 s of large-v3), and are never held for more than four batches."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunking.planner import PlanOptions
from pipeline.engine import Answer, Ask, Floats, Samples
from storage.database import Database
from storage.jobs import JobOptions
from tests.acceptance.test_languages import Ground, Polyglot


class Counting(Polyglot):
    """Knows how many of its windows' features anybody still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._made: list[weakref.ref[Any]] = []
        self._lock = threading.Lock()

    def features(self, samples: Samples, window: float) -> Floats:
        made = super().features(samples, window)
        with self._lock:
            self._made = [*(r for r in self._made if r() is not None), weakref.ref(made)]
            self.most = max(self.most, len(self._made))
        return made

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        time.sleep(0.02)  # slower than the features, which then come as far ahead as they may
        return super().decode(asks)


def test_no_more_than_four_batches_of_features_are_held(sqlite: Database, tmp_path: Path) -> None:
    ground, engine, batch = Ground(sqlite, tmp_path), Counting(), 4
    ground.submit([("en", 8.0)] * 80, JobOptions(language="en"), PlanOptions(chunk_s=9.0))
    ground.transcribe(engine, batch_size=batch)
    assert len(engine.asked) == 80
    assert batch < engine.most <= 4 * batch
