"""The Grafana dashboard, made from a table: `make docs` writes infra/grafana/dashboard.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT, ACROSS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Q = '{queue=~"$queue"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: queries with their legends."""

    title: str
    unit: str
    """Grafana's name of it."""
    queries: tuple[tuple[str, str], ...]
    about: str = ""


ROWS: dict[str, tuple[Panel, ...]] = {
    "Flow": (
        Panel("Sound that waits", "s", ((f"spotscribe_backlog_audio_seconds{Q}", "{{queue}}"),)),
        Panel("The oldest that waits", "s", ((f"spotscribe_backlog_oldest_seconds{Q}", "{{queue}}"),)),
        Panel(
            "Workers",
            "short",
            ((f"spotscribe_workers{Q}", "{{queue}} there"), (f"spotscribe_workers_wanted{Q}", "{{queue}} wanted")),
        ),
        Panel("Jobs by state", "short", (("spotscribe_jobs", "{{state}}"),)),
        Panel("Ends of 24 hours", "short", (("spotscribe_day_ended_jobs", "{{state}} {{code}}"),)),
        Panel(
            "From submission to end",
            "s",
            (
                ("histogram_quantile(0.5, sum by (le) (rate(spotscribe_job_seconds_bucket[15m])))", "half"),
                ("histogram_quantile(0.95, sum by (le) (rate(spotscribe_job_seconds_bucket[15m])))", "95 of 100"),
            ),
        ),
    ),
    "Speed": (
        Panel("Seconds of sound in a second", "short", (("sum(rate(spotscribe_audio_seconds_total[5m]))", "fleet"), ("rate(spotscribe_audio_seconds_total[5m])", "{{instance}}")), "RTFx"),
        Panel("Devices at work", "percentunit", (("rate(spotscribe_device_busy_seconds_total[5m])", "{{instance}}"),)),
        Panel(
            "How full batches are",
            "percentunit",
            (
                (
                    "sum by (instance) (rate(spotscribe_batch_fill_ratio_sum[5m]))"
                    " / sum by (instance) (rate(spotscribe_batch_fill_ratio_count[5m]))",
                    "{{instance}}",
                ),
                (
                    "sum(rate(spotscribe_padding_seconds_total[5m])) / sum(rate(spotscribe_window_seconds_total[5m]))",
                    "padding of windows",
                ),
            ),
        ),
        Panel("Seconds in each stage", "s", (("sum by (stage) (rate(spotscribe_stage_seconds_total[5m]))", "{{stage}}"),), "a second, over all threads"),
        Panel(
            "From claim to first checkpoint",
            "s",
            (
                ("histogram_quantile(0.5, sum by (le) (rate(spotscribe_checkpoint_latency_seconds_bucket[15m])))", "half"),
                (
                    "histogram_quantile(0.95, sum by (le) (rate(spotscribe_checkpoint_latency_seconds_bucket[15m])))",
                    "95 of 100",
                ),
            ),
        ),
        Panel("Recordings prepared", "Bps", (("sum(rate(spotscribe_prepared_bytes_total[5m]))", "bytes"),)),
    ),
    "Quality": (
        Panel("Decoded again, for each chunk", "short", (("sum by (reason) (rate(spotscribe_redecodes_total[15m])) / on () group_left () sum(rate(spotscribe_chunks_total[15m]))", "{{reason}}"),)),
        Panel("What became of the sound", "s", (("sum by (coverage) (rate(spotscribe_coverage_seconds_total[15m]))", "{{coverage}}"),)),
        Panel("Canary, WER", "percentunit", (("spotscribe_canary_wer_ratio", "{{version}} {{device}}"), ("spotscribe_canary_usual_wer_ratio", "usual {{device}}"))),
        Panel("Canary, speed", "short", (("spotscribe_canary_rtfx", "{{version}} {{device}}"), ("spotscribe_canary_usual_rtfx", "usual {{device}}"))),
    ),
    "Trouble": (
        Panel("Workers that went", "short", (("spotscribe_workers_lost", "died with work in hand"), ("spotscribe_workers_left", "said goodbye"))),
        Panel(
            "Leases lost, steps put off, notices",
            "short",
            (
                ("sum by (step) (increase(spotscribe_leases_lost_total[15m]))", "lost: {{step}}"),
                ("sum by (step) (increase(spotscribe_put_off_total[15m]))", "put off: {{step}}"),
                ("sum by (notice) (increase(spotscribe_preemption_notices_total[15m]))", "notice: {{notice}}"),
                ("sum(increase(spotscribe_out_of_memory_total[15m]))", "out of memory"),
            ),
        ),
        Panel("Given up", "short", (("spotscribe_dead_letters", "{{kind}}"), ("spotscribe_undelivered_files", "files to come"), ("spotscribe_held_recordings", "held"))),
        Panel("Since they last got on", "s", (("time() - spotscribe_progress_timestamp_seconds", "{{instance}}"),)),
    ),
    "Machines and money": (
        Panel("GPU at work", "percentunit", (("spotscribe_gpu_utilization_ratio", "{{instance}} {{gpu}}"),)),
        Panel("GPU memory", "bytes", (("spotscribe_gpu_memory_used_bytes", "{{instance}} {{gpu}}"),)),
        Panel("GPU power", "watt", (("spotscribe_gpu_power_watts", "{{instance}} {{gpu}}"),)),
        Panel("Where 24 hours of devices went", "s", (("spotscribe_day_device_seconds", "{{use}}"),)),
        Panel("What they cost", "short", (("spotscribe_day_cost", "{{use}}"),)),
    ),
}  # fmt: skip


def dashboard() -> str:
    """The file."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": WIDTH * ACROSS, "x": 0, "y": y}})  # fmt: skip
        for i, panel in enumerate(row):
            at = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (i % ACROSS), "y": y + 1 + HEIGHT * (i // ACROSS)}
            panels.append(_panel(panel, at))
        y += 1 + HEIGHT * -(-len(row) // ACROSS)
    for number, made_of in enumerate(panels, 1):
        made_of["id"] = number
    made = {
        "uid": "spotscribe", "title": "Spotscribe", "schemaVersion": 39, "editable": True, "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"}, "tags": ["spotscribe"], "panels": panels,
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
            {"name": "queue", "type": "query", "datasource": SOURCE, "includeAll": True, "multi": True, "refresh": 2,
             "current": {"text": "All", "value": "$__all"},
             "query": {"query": "label_values(spotscribe_workers, queue)", "refId": "queue"}},
        ]},
    }  # fmt: skip
    return json.dumps(made, indent=1) + "\n"


def _panel(panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries", "title": panel.title, "description": panel.about, "datasource": SOURCE, "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def queries() -> list[str]:
    """All of them, with the dashboard's variable filled in."""
    return [expr.replace("$queue", ".*") for row in ROWS.values() for p in row for expr, _ in p.queries]
