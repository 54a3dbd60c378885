"""`spotscribe report`: what became of many jobs, as one page."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from chunking.errors import UsageError
from pipeline.filters import parse_moment
from pipeline.meanings import DOUBTFUL
from storage import summary
from storage.destinations import Destinations
from storage.summary import Scope
from workers.commands.jobs import LABEL, open_database
from workers.display import printable, say
from workers.options import DEBUG, out_url
from workers.wiring import Wiring, read_settings


@click.command()
@LABEL
@click.option("--since", metavar="TIME", help="Jobs that were submitted then or later: 2026-12-01, with or without a time, or 7d, 12h ago.")  # fmt: skip # noqa: E501
@click.option("--out", default="report.html", show_default=True, metavar="FILE|s3://…", help="Where the page goes.")
@DEBUG
def report(label: str | None, since: str | None, out: str, debug: bool) -> None:
    """Write a page about all jobs, or those of a label: states, failures, speed, confidence, what needs a look."""
    from pipeline.pages import CONTENT_TYPE
    from pipeline.report import report_page

    now = datetime.now(UTC)
    scope = Scope(label, parse_moment(since, now) if since is not None else None)
    url = out_url(out)
    if not url or url.endswith("/"):
        raise UsageError("--out: name a file, such as report.html")
    database = open_database()
    with database.reading() as tx:
        found = summary.summary(tx, scope, doubtful=DOUBTFUL)
    if not found.states:
        since_then = f" since {since}" if since is not None else ""
        raise UsageError(f"no jobs have the label {label}{since_then}" if label else f"there are no jobs{since_then}")
    page = report_page(found, scope, now).encode()
    places = Wiring(read_settings()).destinations if url.startswith("s3://") else Destinations()
    places.write(url, page, CONTENT_TYPE)
    jobs = sum(found.states.values())
    say(f"{jobs} job{'s' if jobs != 1 else ''}: {printable(out)}")
