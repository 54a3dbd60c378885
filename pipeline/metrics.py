"""Every metric there is: its name, what it says and in which unit, its labels. docs/metrics.md is made from this table.

Names follow Prometheus' conventions (base units, `_total` for what only grows). Labels take few values: never a job, a
recording or a user's label, so the number of series is bounded by workers × engines × codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
PREFIX = "spotscribe_"
CANARY = ("engine", "device", "canary")


@dataclass(frozen=True, slots=True)
class Metric:
    """One name."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Of a histogram: their upper ends."""


WORKER = (
    Metric("spotscribe_worker_info", "gauge", "1: what this process is.", ("worker", "version", "roles", "engine", "device", "market")),
    Metric("spotscribe_ready", "gauge", "1 once it takes work, 0 before that and while it leaves."),
    Metric("spotscribe_progress_timestamp_seconds", "gauge", "When it last got on: something ended, or there was nothing to do."),
    Metric("spotscribe_chunks_total", "counter", "Chunks whose result was accepted."),
    Metric("spotscribe_audio_seconds_total", "counter", "Seconds of sound of those chunks. Its rate is the worker's RTFx."),
    Metric("spotscribe_batches_total", "counter", "Calls of the model.", ("kind",)),
    Metric("spotscribe_batch_fill_ratio", "histogram", "Chunks in a batch ÷ chunks that fit.", (), (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)),
    Metric("spotscribe_window_seconds_total", "counter", "Seconds of windows that went through the model, padding and repeats included."),
    Metric("spotscribe_padding_seconds_total", "counter", "Of those, seconds of padding: the waste of windows."),
    Metric("spotscribe_device_busy_seconds_total", "counter", "Seconds that the model's device was at work. Its rate is the busy share."),
    Metric("spotscribe_stage_seconds_total", "counter", "Seconds in each stage, summed over threads.", ("stage",)),
    Metric("spotscribe_checkpoint_latency_seconds", "histogram", "From the claim of a shard to its first checkpoint.", (), (0.5, 1, 2, 5, 10, 20, 60, 120, 300, 900)),
    Metric("spotscribe_job_seconds", "histogram", "From a job's submission to its end, for jobs that end here.", (), (10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)),
    Metric("spotscribe_redecodes_total", "counter", "Chunks decoded again, by the doubt that was the reason.", ("reason",)),
    Metric("spotscribe_claims_total", "counter", "Leases taken.", ("step",)),
    Metric("spotscribe_leases_lost_total", "counter", "Leases that ran out, or whose fence was raised, while this process held them.", ("step",)),
    Metric("spotscribe_put_off_total", "counter", "Steps that could not be done now and are tried again later.", ("step",)),
    Metric("spotscribe_ended_total", "counter", "Jobs that ended here.", ("state", "code")),
    Metric("spotscribe_coverage_seconds_total", "counter", "Seconds of recordings that ended here, by what became of them.", ("coverage",)),
    Metric("spotscribe_prepared_seconds_total", "counter", "Seconds of recordings that were decoded and planned."),
    Metric("spotscribe_prepared_bytes_total", "counter", "Their bytes."),
    Metric("spotscribe_preemption_notices_total", "counter", "Notices of the cloud.", ("notice",)),
    Metric("spotscribe_out_of_memory_total", "counter", "Batches for which the device had no memory."),
    Metric("spotscribe_gpu_utilization_ratio", "gauge", "Share of the last moments in which the GPU was at work (NVML).", ("gpu",)),
    Metric("spotscribe_gpu_memory_used_bytes", "gauge", "Of the whole GPU (NVML).", ("gpu",)),
    Metric("spotscribe_gpu_memory_bytes", "gauge", "That it has (NVML).", ("gpu",)),
    Metric("spotscribe_gpu_power_watts", "gauge", "That it draws (NVML).", ("gpu",)),
)  # fmt: skip
"""Served by each worker. `engine` is what it has loaded (`large-v3 int8 beam 1`), `step` one of storage.leases.Step."""

EXPORTER = (
    Metric("spotscribe_jobs", "gauge", "Jobs that have not ended.", ("state",)),
    Metric("spotscribe_day_ended_jobs", "gauge", "Jobs that ended in the last 24 hours.", ("state", "code")),
    Metric("spotscribe_backlog_recordings", "gauge", "Recordings with something queued.", ("queue",)),
    Metric("spotscribe_backlog_shards", "gauge", "Shards that wait for a worker.", ("queue",)),
    Metric("spotscribe_backlog_audio_seconds", "gauge", "Seconds of recordings that wait; for `cpu`, as far as lengths are known.", ("queue",)),
    Metric("spotscribe_backlog_oldest_seconds", "gauge", "Age of the oldest job that waits.", ("queue",)),
    Metric("spotscribe_workers", "gauge", "Workers that were seen lately.", ("queue",)),
    Metric("spotscribe_workers_wanted", "gauge", "Workers that the backlog asks for (`spotscribe scale --explain`).", ("queue",)),
    Metric("spotscribe_worker_rtfx", "gauge", "Seconds of sound in a second of one worker at work, as measured lately.", ("queue",)),
    Metric("spotscribe_held_recordings", "gauge", "Recordings that sources hold back for their share or budget."),
    Metric("spotscribe_undelivered_files", "gauge", "Files that are due and not written."),
    Metric("spotscribe_dead_letters", "gauge", "What was given up and waits for a person: notices, recordings not put away, files.", ("kind",)),
    Metric("spotscribe_workers_lost", "gauge", "Workers of the last hour that died with work in hand."),
    Metric("spotscribe_workers_left", "gauge", "Workers of the last hour that said goodbye."),
    Metric("spotscribe_day_device_seconds", "gauge", "Of workers that started in the last 24 hours, by use: kept, failed, repeated, idle.", ("use",)),
    Metric("spotscribe_day_cost", "gauge", "The same in the currency of SPOTSCRIBE_PRICE_PER_HOUR.", ("use",)),
    Metric("spotscribe_canary_wer_ratio", "gauge", "WER of the canary: the worst of each worker's latest.", ("version", *CANARY)),
    Metric("spotscribe_canary_rtfx", "gauge", "Its speed: the median of each worker's latest.", ("version", *CANARY)),
    Metric("spotscribe_canary_timestamp_seconds", "gauge", "When it was last read.", ("version", *CANARY)),
    Metric("spotscribe_canary_usual_wer_ratio", "gauge", "The best WER of a version's day, of 90 days.", CANARY),
    Metric("spotscribe_canary_usual_rtfx", "gauge", "The speed of a median day, of 90.", CANARY),
    Metric("spotscribe_exporter_refresh_seconds", "gauge", "What it took to ask the database."),
    Metric("spotscribe_exporter_refreshed_timestamp_seconds", "gauge", "When the database last answered."),
)  # fmt: skip
"""Served by `spotscribe exporter`, which asks the database. `queue` is `cpu`, or an engine for its GPU workers."""


@cache
def named(short: str) -> Metric:
    """The worker's metric of that name, without its prefix and `_total`. Raises KeyError."""
    return {m.name.removeprefix(PREFIX).removesuffix("_total"): m for m in WORKER}[short]
