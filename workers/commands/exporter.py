"""`spotscribe exporter`: metrics of the whole fleet, from its database."""

from __future__ import annotations

import logging
import signal
import threading

import click

from chunking.errors import UsageError
from pipeline.filters import parse_duration
from pipeline.metrics import EXPORTER
from pipeline.scaler import policy
from pipeline.settings import PREFIX
from workers.display import say
from workers.exporter import Exporter
from workers.logs import Logs
from workers.options import DEBUG
from workers.served import Served, Source, printed
from workers.wiring import Wiring, read_settings

LOG = logging.getLogger("spotscribe.exporter")
LISTEN, EVERY_S = ":9109", 15.0


@click.command()
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Where Prometheus finds it.")
@click.option("--every", default="15s", show_default=True, metavar="TIME", help="How often the database is asked.")
@click.option("--once", is_flag=True, help="Print the metrics and end: for a cron with node_exporter's text files.")
@DEBUG
def exporter(listen: str, every: str, once: bool, debug: bool) -> None:
    """Tell Prometheus of the fleet as a whole: backlog, ends, workers, cost. One is enough, two do no harm. What single
    workers do they tell themselves (SPOTSCRIBE_METRICS_LISTEN). All metrics: docs/metrics.md.
    """
    settings = read_settings()
    wiring = Wiring(settings, ping=False)
    if not once and wiring.database.is_sqlite:
        raise UsageError(f"{PREFIX}DATABASE_URL is not set; a fleet needs Postgres: postgresql://user@host/name")
    wiring.database.check()
    every_s = parse_duration(every)
    if every_s < 1:
        raise UsageError(f"--every: {every} is too often; 1s is the least")
    told = Exporter(wiring.database, every_s, policy(settings))
    source = Source(EXPORTER, told.values)
    if once:
        told.refresh()
        say(printed(source))
        return
    served = Served(listen)
    served.watch(source, told.stuck, lambda: told.ready)
    served.start()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logs = Logs(settings)
    logs.start("exporter")
    LOG.info("serving /metrics, /healthz and /readyz on port %d", served.port)
    told.run(stop)
    served.close()
    logs.flush()
