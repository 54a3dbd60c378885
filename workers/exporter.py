"""The exporter: asks the database every so often, apart from scrapes, and serves what it said last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chunking.errors import TransientError
from pipeline.metrics import PREFIX
from pipeline.scaler import decisions
from pipeline.scaling import Decision, Policy
from pipeline.telemetry import Labels
from storage.canaries import Compared, compared
from storage.database import Database
from storage.figures import Figures, Queue, figures
from workers.served import gauge

LOG = logging.getLogger("spotscribe.exporter")
LATE = 5
"""So many rounds without an answer of the database: it is away."""

CANARIES_S = 300.0
"""How often it asks for canaries: 100 000 of them take Postgres a second (`make bench-exporter`)."""

Gauges = dict[str, Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What the database said, when, and how long that took."""

    figures: Figures
    canaries: list[Compared]
    """Those that are current."""
    wanted: list[Decision]
    at: float
    """Seconds of the epoch."""
    took_s: float


class Exporter:
    """`run` in a thread of its own; `values` at each scrape, from any."""

    def __init__(self, database: Database, every_s: float, policy: Policy) -> None:
        self._db, self._every_s, self._policy = database, every_s, policy
        self._last: Refreshed | None = None
        self._canaries: list[Compared] = []
        self._looked = -CANARIES_S
        self._began = time.time()

    def run(self, stop: threading.Event) -> None:
        """Until told to stop. While the database is away the last answer stands."""
        while not stop.is_set():
            self.refresh()
            stop.wait(self._every_s)

    def refresh(self) -> None:
        began = time.perf_counter()
        try:
            with self._db.reading() as tx:
                found = figures(tx)
                if began - self._looked >= CANARIES_S:
                    self._canaries, self._looked = [c for c in compared(tx) if c.current], began
            wanted = decisions(self._db, self._policy)
        except TransientError as e:
            LOG.warning("%s", e)
            return
        self._last = Refreshed(found, self._canaries, wanted, time.time(), time.perf_counter() - began)

    @property
    def ready(self) -> bool:
        return self._last is not None

    def stuck(self) -> str | None:
        """The database has not answered for some rounds. No reason to start this process again, but worth telling."""
        since = time.time() - (self._last.at if self._last else self._began)
        return f"the database has not answered for {since:.0f} s" if since > LATE * self._every_s + 30 else None

    def values(self) -> Gauges:
        """By the names of pipeline/metrics.py; empty until the database has answered."""
        if self._last is None:
            return {}
        f, last = self._last.figures, self._last
        found = _queues(f.queues) | _waste(f) | _of_canaries(last.canaries)
        plain = {
            "held_recordings": f.held,
            "undelivered_files": f.undelivered,
            "workers_lost": f.lost,
            "workers_left": f.left,
            "exporter_refresh_seconds": last.took_s,
            "exporter_refreshed_timestamp_seconds": last.at,
        }
        found |= {PREFIX + name: gauge(value) for name, value in plain.items()}
        found["spotscribe_workers_wanted"] = {(d.load.queue,): float(d.wanted) for d in last.wanted}
        found["spotscribe_worker_rtfx"] = {(d.load.queue,): d.rtfx for d in last.wanted if d.measured}
        found["spotscribe_jobs"] = {(state,): n for state, n in f.jobs.items()}
        found["spotscribe_day_ended_jobs"] = {(state, code): float(n) for (state, code), n in f.ended.items()}
        found["spotscribe_dead_letters"] = {(kind,): n for kind, n in f.dead.items()}
        return found


def _queues(queues: tuple[Queue, ...]) -> Gauges:
    each: dict[str, Callable[[Queue], float]] = {
        "backlog_recordings": lambda q: q.recordings,
        "backlog_shards": lambda q: q.shards,
        "backlog_audio_seconds": lambda q: q.audio_s,
        "backlog_oldest_seconds": lambda q: q.oldest_s,
        "workers": lambda q: q.workers,
    }
    return {PREFIX + name: {(q.name,): float(of(q)) for q in queues} for name, of in each.items()}


def _waste(f: Figures) -> Gauges:
    w = f.waste
    uses = {"kept": w.accepted_s, "failed": w.failed_s, "repeated": w.repeated_s, "idle": w.idle_s}
    price = w.cost / w.alive_s if w.alive_s else 0.0
    return {
        "spotscribe_day_device_seconds": {(use,): s for use, s in uses.items()},
        "spotscribe_day_cost": {(use,): s * price for use, s in uses.items()},
    }


def _of_canaries(canaries: list[Compared]) -> Gauges:
    each = {(c.worst.version, c.worst.engine, c.worst.device, c.worst.recording): c for c in canaries}
    return {
        "spotscribe_canary_wer_ratio": {labels: c.worst.wer for labels, c in each.items()},
        "spotscribe_canary_rtfx": {labels: c.rtfx for labels, c in each.items()},
        "spotscribe_canary_timestamp_seconds": {labels: c.at.timestamp() for labels, c in each.items()},
        "spotscribe_canary_usual_wer_ratio": {labels[1:]: c.usual.wer for labels, c in each.items()},
        "spotscribe_canary_usual_rtfx": {labels[1:]: c.usual.rtfx for labels, c in each.items()},
    }
