"""`spotscribe ingest`: files appear in a bucket or a folder, and become jobs of a fleet."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from chunking.errors import UsageError
from pipeline import tracing
from pipeline.filters import parse_duration
from pipeline.intake import Intake
from storage import sources
from storage.database import Database
from storage.s3 import S3Bucket
from storage.sources import Source
from workers.commands.sources import about_source, settings_of, source_url
from workers.display import printable, say
from workers.ingester import Ingester, IngestOptions, passed_over
from workers.logs import Logs
from workers.nudges import Nudges
from workers.options import DEBUG
from workers.wiring import Wiring, read_settings

LOG = logging.getLogger("spotscribe.ingest")
SHOWN = 20

EXIT_CODES = """\b
Exit codes:
  0    all was listed; with --watch: it was told to stop (SIGTERM, Ctrl-C)
  2    the request is wrong, or a part of the fleet does not answer
  3    a source could not be listed: spotscribe sources list says why
"""


@click.command(epilog=EXIT_CODES)
@click.argument("url", required=False, metavar="[s3://BUCKET/PREFIX/|FOLDER]")
@click.option("--once", is_flag=True, help="List, take what is new, and end.  [default]")
@click.option("--watch", is_flag=True, help="Go on until told to stop. Several may watch the same sources.")
@click.option("--every", default="30s", show_default=True, metavar="TIME", help="With --watch: how often each source is listed.")  # fmt: skip # noqa: E501
@click.option("--events", multiple=True, metavar="sqs:QUEUE-URL", help="With --watch: hear a bucket's notifications, so that nothing waits for a listing. May be given again.")  # fmt: skip # noqa: E501
@click.option("--listen", metavar="HOST:PORT", help="With --watch: take webhooks of MinIO and SeaweedFS here (SPOTSCRIBE_EVENTS_TOKEN).")  # fmt: skip # noqa: E501
@click.option("--dry-run", is_flag=True, help="Say what would be taken, and do nothing.")
@about_source
@DEBUG
def ingest(
    url: str | None,
    once: bool,
    watch: bool,
    every: str,
    events: tuple[str, ...],
    listen: str | None,
    dry_run: bool,
    debug: bool,
    **asked: Any,
) -> None:
    """Take what appears at a source, each object once: everything below a prefix or a folder, or, without one named,
    the sources that `spotscribe sources add` keeps, with their own options.
    """
    if once and watch:
        raise UsageError("give --once or --watch, not both")
    if (events or listen) and not watch:
        raise UsageError("--events and --listen go with --watch")
    every_s = parse_duration(every)
    if every_s < 1:
        raise UsageError(f"--every: {every} is less than a second")
    context = click.get_current_context()
    said = sorted(n for n in asked if context.get_parameter_source(n) is ParameterSource.COMMANDLINE)
    if url is None and said:
        raise UsageError(
            f"--{said[0].replace('_', '-')} is an option of a source; name one, or see spotscribe sources add"
        )
    wiring = Wiring(read_settings(), connections=12)
    wiring.check_fleet()
    tracing.start(wiring.settings)
    intake = Intake(wiring.database, lambda: S3Bucket(wiring.s3))
    options = IngestOptions(every_s, listen, wiring.settings.events_token)
    inboxes = [wiring.inbox(e) for e in events]
    ingester = Ingester(wiring.database, intake, Nudges(wiring.app), options, LOG.info if watch else say, inboxes)
    source = _source(wiring, url, asked, said, keep=not dry_run) if url is not None else None
    only = source.id if source is not None else None
    if dry_run:
        _preview(wiring.database, intake, source)
    elif not watch:
        sys.exit(0 if ingester.once(only) else 3)
    else:
        logs = Logs(wiring.settings)
        logs.start("ingest")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ingester.stop())
        _say_watching(wiring.database, source, every)
        ingester.watch(only)
        intake.close()
        logs.flush()


def _source(wiring: Wiring, url: str, asked: dict[str, Any], said: Sequence[str], *, keep: bool) -> Source:
    """The source of this URL: the kept one, or one for this command alone."""
    at = source_url(url)
    with wiring.database.transaction() as tx:
        there = sources.at(tx, at)
        if there is not None and there.state != "ad_hoc":
            if said:
                raise UsageError(f"{at} is kept as {there.name}: its options are changed by spotscribe sources add")
            if there.state == "paused":
                raise UsageError(f"{there.name} is paused: spotscribe sources resume {there.name}")
            return there
        made = settings_of(wiring.settings, at, asked if "label" in said else {**asked, "label": ""})
        return sources.put(tx, at, at, made, "ad_hoc") if keep else Source(0, at, at, "ad_hoc", made)


def _say_watching(database: Database, source: Source | None, every: str) -> None:
    with database.reading() as tx:
        kept = [source] if source else sources.everything(tx, sources.WATCHED)
    if not kept:
        LOG.info("no sources are kept yet; they are watched as soon as they are: spotscribe sources add")
    for s in kept:
        LOG.info("watching %s%s, every %s", s.name, f": {printable(s.url)}" if s.name != s.url else "", every)


def _preview(database: Database, intake: Intake, source: Source | None) -> None:
    with database.reading() as tx:
        kept = [source] if source else sources.everything(tx, sources.WATCHED)
    for s in kept:
        found, passed = intake.preview(s)
        for media in found[:SHOWN]:
            say(f"{media.size_bytes:14,d} bytes  {printable(media.url)}")
        if len(found) > SHOWN:
            say(f"… and {len(found) - SHOWN} more")
        size = sum(m.size_bytes for m in found) / 1e9
        say(f"{s.name}: would take {len(found)} new, {size:.2f} GB{passed_over(passed)}; nothing was done")
