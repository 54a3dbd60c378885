"""`spotscribe export`: transcripts of many jobs as files, or as tables for those who count and search."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import asdict
from datetime import UTC, datetime

import click

from chunking.errors import UsageError
from pipeline.exporter import Exported, Exporter, ExportRequest
from pipeline.filters import parse_moment
from pipeline.finish import Finisher
from pipeline.formats import FORMATS
from pipeline.telemetry import Tally
from storage import exporting
from storage.destinations import Destinations
from storage.exporting import Selection
from storage.objects import LocalStore, path_of
from storage.urls import bucket_and_key
from workers.bootstrap import end_tidily, tame_collector
from workers.commands.jobs import LABEL, check_jobs, open_database
from workers.display import printable, say
from workers.options import DEBUG, out_url
from workers.presence import Presence
from workers.wiring import Wiring, make_folder, read_settings

MOST_IDS = 10_000


@click.command()
@click.argument("ids", nargs=-1, type=int, metavar="[JOB]…")
@LABEL
@click.option("--since", metavar="TIME", help="Jobs that ended then or later: 2026-12-01, with or without a time, or 7d, 12h ago.")  # fmt: skip # noqa: E501
@click.option("--until", metavar="TIME", help="Jobs that ended before.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="json", show_default=True, help="jsonl, csv, parquet: a row for each segment; the others: a file for each job.")  # fmt: skip # noqa: E501
@click.option("--out", required=True, metavar="FOLDER|s3://…", help="Where the files go.")
@click.option("--cursor", metavar="NAME", help="Only what has ended since the last export of this name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@DEBUG
def export(
    ids: tuple[int, ...],
    label: str | None,
    since: str | None,
    until: str | None,
    kind: str,
    out: str,
    cursor: str | None,
    as_json: bool,
    debug: bool,
) -> None:
    """Write the transcripts of jobs, of a label, or of all that ended in a time.

    Killed or interrupted, the same command goes on. Columns, and how to read them: docs/exports.md.
    """
    chosen = _selection(ids, label, since, until, cursor)
    url = _checked(out)
    asked = {"--format": kind, "--out": url, "--label": label, "--since": since, "--until": until}
    words = [word for option, value in asked.items() if value is not None for word in (option, value)]
    request = ExportRequest(chosen, kind, url, shlex.join([*map(str, chosen.ids), *words]), cursor)
    settings = read_settings()
    wiring, database = Wiring(settings), open_database()
    with database.reading() as tx:
        check_jobs(tx, chosen.ids)
        if label is not None and not exporting.any_labelled(tx, label):
            raise UsageError(f"no jobs have the label {label}")
    make_folder(settings.home, "SPOTSCRIBE_HOME")
    end_tidily()
    tame_collector()  # there are lists for each word, and looking through them takes half of the time
    with Presence(settings.home, "export-") as presence, wiring.sounds(presence.scratch) as sounds:
        places = wiring.destinations if url.startswith("s3://") else Destinations()
        finisher = Finisher(database, LocalStore(settings.work), Tally())
        made = Exporter(database, places, finisher, sounds).export(request)
    if as_json:
        say(json.dumps({"format": kind, "out": url, "cursor": cursor, **asdict(made)}))
        return
    _report(made, url)


def _report(made: Exported, url: str) -> None:
    states = ", ".join(f"{n} {state}" for state, n in sorted(made.states.items()))
    jobs = sum(made.states.values())
    again = " (gone on with)" if made.resumed else ""
    say(f"{jobs} job{'s' if jobs != 1 else ''} exported{again}{f': {states}' if states else ''}")
    say(f"  {made.segments} segments; {made.files} files, {made.bytes / 1e6:.1f} MB written to {printable(url)}")
    if made.without:
        say("  without a transcript: " + ", ".join(f"{n} {state}" for state, n in sorted(made.without.items())))
    if made.at_work:
        say(f"  {made.at_work} have not ended yet")


def _selection(
    ids: tuple[int, ...], label: str | None, since: str | None, until: str | None, cursor: str | None
) -> Selection:
    if ids and (label is not None or since is not None or until is not None):
        raise UsageError("name jobs, or say --label, --since, --until; not both")
    if not ids and cursor is None and label is None and since is None and until is None:
        raise UsageError("say what to export: jobs, --label, --since, --until; or --cursor NAME for all that is new")
    if len(ids) > MOST_IDS:
        raise UsageError(f"at most {MOST_IDS} jobs can be named; give them a label")
    if cursor is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", cursor):
        raise UsageError("--cursor: a name is up to 64 letters, digits, dots, dashes and underscores")
    now = datetime.now(UTC)
    begin, end = (parse_moment(t, now) if t is not None else None for t in (since, until))
    if begin is not None and end is not None and begin >= end:
        raise UsageError("--since must be before --until")
    return Selection(tuple(sorted(set(ids))), label, begin, end)


def _checked(out: str) -> str:
    """The place as a URL; a folder need not be there yet."""
    url = out_url(out)
    if not url:
        raise UsageError("--out: no folder is named")
    if url.startswith("s3://"):
        bucket_and_key(url)
    else:
        folder = path_of(url)
        nearest = next(p for p in (folder, *folder.parents) if p.exists())
        if not nearest.is_dir():
            raise UsageError(f"--out: {nearest} is a file")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise UsageError(f"--out: {nearest} may not be written to")
    return url
