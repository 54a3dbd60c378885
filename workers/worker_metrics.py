"""A worker's metrics: what its Tally has counted and what its GPUs say, by the names of pipeline/metrics.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from chunking.timeline import Coverage
from pipeline.gpus import Gpu, Gpus
from pipeline.metrics import PREFIX, WORKER
from pipeline.telemetry import BUCKETS, Labels, Spread, Tally
from storage.fleet import Worker
from storage.leases import Step
from workers.served import Values, gauge
from workers.spot import Notice

STEPS = tuple((s.name.lower(),) for s in Step)
FROM_ZERO: Mapping[str, tuple[Labels, ...]] = {
    "claims": STEPS,
    "leases_lost": STEPS,
    "put_off": STEPS,
    "batches": (("decode",), ("listen",)),
    "coverage_seconds": tuple((c.value,) for c in Coverage),
    "preemption_notices": tuple((n.value,) for n in Notice),
    "ended": (("done", "ok"), ("failed", "internal"), ("failed", "decoder_crashed"), ("failed", "decoder_timeout")),
    "out_of_memory": ((),),
    "window_seconds": ((),),
    "padding_seconds": ((),),
}
"""Served from the start, as a rate needs a value to begin with."""


class WorkerMetrics:
    """Their values, asked for at each scrape."""

    def __init__(self, me: Worker, tally: Tally, main_part: str, ready: Callable[[], bool]) -> None:
        """`main_part`: of the process, whose getting on counts."""
        self._me, self._tally, self._main, self._ready = me, tally, main_part, ready
        self._gpus = Gpus() if "gpu" in me.roles and me.device.startswith("cuda") else None
        self._began = time.time()

    @property
    def got_on_at(self) -> float:
        """When the worker last got on, in seconds of the epoch."""
        return self._tally.got_on_at.get(self._main, self._began)

    def values(self) -> Values:
        t, m = self._tally, self._me
        info = (m.name, m.version, ",".join(m.roles), m.engine, m.device, m.market)
        plain = {
            "ready": float(self._ready()),
            "progress_timestamp_seconds": self.got_on_at,
            "chunks_total": t.chunks_decoded,
            "audio_seconds_total": t.audio_s,
            "device_busy_seconds_total": t.device_s,
            "prepared_seconds_total": t.prepared_s,
            "prepared_bytes_total": t.prepared_bytes,
        }
        found: dict[str, Mapping[Labels, float] | Spread] = {PREFIX + name: gauge(v) for name, v in plain.items()}
        found["spotscribe_worker_info"] = {info: 1.0}
        found["spotscribe_stage_seconds_total"] = {(stage,): s for stage, s in list(t.stage_s.items())}
        for name in BUCKETS:
            found[name] = t.spreads.get(name, Spread([0] * (len(BUCKETS[name]) + 1)))
        for metric in WORKER:
            if metric.name not in found:
                short = metric.name.removeprefix(PREFIX).removesuffix("_total")
                zeros = dict.fromkeys(FROM_ZERO.get(short, ()), 0.0)
                found[metric.name] = zeros | dict(t.counted.get(metric.name, {}))
        return found | self._of_gpus()

    def _of_gpus(self) -> dict[str, Mapping[Labels, float]]:
        gpus = self._gpus.read() if self._gpus is not None else []

        def each(value: Callable[[Gpu], Any]) -> dict[Labels, float]:
            return {(g.name,): float(value(g)) for g in gpus if value(g) is not None}

        return {
            "spotscribe_gpu_utilization_ratio": each(lambda g: g.utilization),
            "spotscribe_gpu_memory_used_bytes": each(lambda g: g.memory_used),
            "spotscribe_gpu_memory_bytes": each(lambda g: g.memory),
            "spotscribe_gpu_power_watts": each(lambda g: g.power),
        }
