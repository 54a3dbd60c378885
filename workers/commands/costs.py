"""`spotscribe costs`: what transcripts cost, and what was spent on nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from pipeline.filters import parse_moment
from storage import costs as accounts
from storage.costs import BY, Spent, Waste
from workers.commands.jobs import open_database
from workers.display import printable, say
from workers.options import DEBUG


@click.command()
@click.option("--by", type=click.Choice(BY), default="label", show_default=True, help="How jobs are grouped.")
@click.option("--label", help="Only jobs that were submitted under this name.")
@click.option("--since", help="Only what ended, or started, since then (2026-12-01, or 7d ago).")
@click.option("--price", type=click.FloatRange(min=0), help="Of a device hour, instead of what workers paid: what if?")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@DEBUG
def costs(by: str, label: str | None, since: str | None, price: float | None, as_json: bool, debug: bool) -> None:
    """What ended jobs took of the device, and what that cost.

    Prices are those of the machines that did the work: SPOTSCRIBE_PRICE_PER_HOUR of each worker. Without --label also
    where the fleet's time went: results that stand, jobs that failed, work that was repeated, and waiting.
    """
    moment = parse_moment(since, datetime.now(UTC)) if since else None
    database = open_database()
    with database.reading() as tx:
        rows = accounts.spent(tx, by, label=label, since=moment, price=price)
        waste = accounts.waste(tx, since=moment, price=price) if label is None else None
    if as_json:
        say(json.dumps({"by": by, "groups": [_record(r) for r in rows], "fleet": asdict(waste) if waste else None}))
        return
    if not rows:
        say("no jobs have ended" + (f" under the label {label}" if label else ""))
    for line in _table(by, rows):
        say(line)
    if waste and waste.workers:
        for line in _fleet(waste):
            say(line)


def _record(row: Spent) -> dict[str, Any]:
    return {**asdict(row), "cost_per_audio_hour": row.per_audio_hour}


def _table(by: str, rows: Sequence[Spent]) -> list[str]:
    if not rows:
        return []
    shown = [*rows, accounts.total(rows)] if len(rows) > 1 and by != "label" else list(rows)
    width = max(len(by), *(len(printable(r.group)) for r in shown))
    head = f"{by:{width}}  {'jobs':>8}  {'audio h':>10}  {'device h':>10}  {'cost':>10}  {'a audio h':>10}"
    return [head, *(_row(r, width) for r in shown)]


def _row(r: Spent, width: int) -> str:
    each = f"{r.per_audio_hour:10.4f}" if r.per_audio_hour is not None else f"{'-':>10}"
    hours = f"{r.audio_s / 3600:10.2f}  {r.device_s / 3600:10.3f}"
    return f"{printable(r.group):{width}}  {r.jobs:8d}  {hours}  {r.cost:10.4f}  {each}"


def _fleet(w: Waste) -> list[str]:
    parts = {
        "results that stand": w.accepted_s, "jobs that failed": w.failed_s,
        "repeated, lost, or not ended": w.repeated_s, "idle": w.idle_s,
    }  # fmt: skip
    head = f"{w.workers} workers with a model were alive for {w.alive_s / 3600:.2f} h, which cost {w.cost:.4f}:"
    return [head, *(f"  {name:30} {s / 3600:9.3f} h  {_share(s, w.alive_s)}" for name, s in parts.items())]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole else ""
