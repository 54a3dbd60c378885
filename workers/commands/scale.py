"""`spotscribe scale`: how many workers the backlog asks for."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Sequence

import click

from chunking.errors import TransientError, UsageError
from pipeline.filters import parse_duration
from pipeline.scaler import decisions, policy
from pipeline.scaling import Decision
from workers.display import say
from workers.logs import Logs
from workers.options import DEBUG
from workers.wiring import Wiring, read_settings

LOG = logging.getLogger("spotscribe.scale")


@click.command()
@click.option("--explain", is_flag=True, help="Say how it comes to that.")
@click.option("--queue", help="Only this one: cpu, or an engine such as 'large-v3-turbo int8 beam 1'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--publish", type=click.Choice(["cloudwatch"]), help="Tell AWS, again and again until told to stop.")
@click.option("--every", default="60s", show_default=True, metavar="TIME", help="With --publish: how often.")
@click.option("--once", is_flag=True, help="With --publish: once.")
@DEBUG
def scale(
    explain: bool, queue: str | None, as_json: bool, publish: str | None, every: str, once: bool, debug: bool
) -> None:
    """How many workers are wanted: seconds of sound that wait / (what a worker does in a second x
    SPOTSCRIBE_FINISH_WITHIN_S), from SPOTSCRIBE_MIN_WORKERS to SPOTSCRIBE_MAX_WORKERS; fewer only after
    SPOTSCRIBE_SCALE_IN_AFTER_S. For Kubernetes the exporter serves the same figure (infra/kubernetes/autoscaling.yaml),
    for AWS --publish does (namespace Spotscribe, WorkersWanted and WorkersThere by Engine).
    """
    settings = read_settings()
    wiring = Wiring(settings)
    wiring.database.check()

    def look() -> list[Decision]:
        found = decisions(wiring.database, policy(settings))
        return [d for d in found if queue in (None, d.load.queue)]

    if publish is not None:
        _publish(wiring, look, parse_duration(every), once=once)
        return
    found = look()
    if queue is not None and not found:
        raise UsageError(f"no work and no worker is of {queue}")
    if as_json:
        say(json.dumps({"queues": [_record(d) for d in found]}))
        return
    for decision in found:
        for line in decision.explain() if explain else decision.explain()[:1]:
            say(line)


def _publish(wiring: Wiring, look, every_s: float, *, once: bool) -> None:  # type: ignore[no-untyped-def]
    logs = Logs(wiring.settings)
    logs.start("scale")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        try:
            wiring.gauges.publish(_measures(look()))
        except TransientError as e:
            if once:
                raise
            LOG.warning("not published: %s", e)
        if once:
            return
        stop.wait(every_s)


def _measures(found: Sequence[Decision]) -> dict[tuple[str, str], float]:
    """By metric and engine."""
    wanted = {("WorkersWanted", d.load.queue): float(d.wanted) for d in found}
    return wanted | {("WorkersThere", d.load.queue): float(d.load.workers) for d in found}


def _record(d: Decision) -> dict[str, object]:
    return {
        "queue": d.load.queue, "wanted": d.wanted, "needed": d.needed, "workers": d.load.workers,
        "audio_s": round(d.load.audio_s, 3), "rtfx": round(d.rtfx, 3), "measured": d.measured,
        "fewer_for_s": d.fewer_for_s,
    }  # fmt: skip
