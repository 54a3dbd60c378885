"""`spotscribe submit`: recordings become jobs of a fleet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import click
from sqlalchemy import Connection

from chunking.errors import DatabaseAway, Rejected, TransientError, UsageError
from pipeline import tracing
from pipeline.ingestion import Named, find_everywhere, target_paths
from pipeline.layout import want_files
from pipeline.settings import PREFIX
from storage import jobs, submission
from storage.database import Database
from storage.jobs import JobOptions, JobView
from storage.s3 import S3Bucket
from storage.submission import Request, Submitted
from storage.urls import join_url
from workers.celery_app import CPU
from workers.display import clock, printable, say
from workers.nudges import Nudges
from workers.options import DEBUG, FORMATS, decoding, formats_of, job_options, out_url
from workers.wiring import Wiring, read_settings

AT_ONCE = 1000
"""Recordings of one transaction."""
NUDGES = 64
WAIT_S = 0.5
SHOWN = 20

EXIT_CODES = """\b
Exit codes:
  0    submitted; with --wait: all are transcribed
  1    Spotscribe itself failed (--debug shows where); what it said is submitted stays so
  2    the request is wrong, or a part of the fleet does not answer; nothing was submitted
  3    with --wait: some recordings are partial, rejected or failed
  130  interrupted; what is submitted stays so
"""


@click.command(epilog=EXIT_CODES)
@click.argument("names", nargs=-1, required=True, metavar="PATH|s3://BUCKET/KEY|s3://BUCKET/PREFIX/…")
@click.option("--label", help="A name for these jobs, to ask for them by.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True, help="Higher goes first.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Kept with the job; may be given again.")
@click.option("--out", metavar="URL", help="Where the transcripts go as files: s3://bucket/prefix or a folder.  [default: SPOTSCRIBE_OUT_URL; without it they are in the database only]")  # fmt: skip # noqa: E501
@FORMATS
@decoding
@click.option("--force", is_flag=True, help="Decode again what has been decoded before.")
@click.option("--wait", is_flag=True, help="Until all of them have ended.")
@click.option("--dry-run", is_flag=True, help="Say what would be submitted, and do nothing.")
@DEBUG
def submit(
    names: tuple[str, ...],
    label: str | None,
    priority: int,
    metadata: tuple[str, ...],
    out: str | None,
    formats: str,
    force: bool,
    wait: bool,
    dry_run: bool,
    debug: bool,
    **asked: Any,
) -> None:
    """Give a fleet recordings to transcribe: files, objects in S3, everything below a folder or a prefix (which ends
    in /). `-` reads names from standard input, one a line. Submitting again is the same jobs.
    """
    settings = read_settings()
    wiring = Wiring(settings)
    job = job_options(settings, None, asked)
    request = Request(label, priority, _metadata(metadata), force)
    place, kinds = out_url(out or settings.out_url), formats_of(formats)
    if not dry_run:
        wiring.check_fleet()
    found, skipped = _found(names, wiring)
    if dry_run:
        _preview(found, skipped)
        return
    began = time.monotonic()
    tracing.start(settings)
    done = _submit(wiring, found, job, request, place, kinds)
    tracing.flush(tracing.EXPORT_S)
    _report(done, skipped, label, time.monotonic() - began)
    if wait:
        sys.exit(_wait(wiring.database, [d.job for d in done]))


def _found(names: Sequence[str], wiring: Wiring) -> tuple[list[Named], int]:
    try:
        found, skipped = find_everywhere(_lines(names), lambda: S3Bucket(wiring.s3))
    except TransientError as e:
        raise UsageError(f"{e}: see {PREFIX}S3_ENDPOINT") from None
    except Rejected as e:
        raise UsageError(str(e)) from None
    if not found:
        raise UsageError("no recordings were named")
    return found, skipped


def _lines(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name == "-":
            yield from (line for raw in sys.stdin if (line := raw.rstrip("\r\n").strip()))
        else:
            yield name


def _metadata(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--metadata: {pair!r} is not KEY=VALUE")
        found[key.strip()] = value
    return found


def _submit(
    wiring: Wiring, found: Sequence[Named], job: JobOptions, request: Request, place: str, kinds: Sequence[str]
) -> list[Submitted]:
    """Jobs and wanted files, a thousand recordings to a transaction, and then the nudges."""
    done: list[Submitted] = []
    for first in range(0, len(found), AT_ONCE):
        part = found[first : first + AT_ONCE]
        done += wiring.database.again(lambda tx, part=part: _some(tx, part, job, request, place, kinds))  # type: ignore[misc]
    nudges = Nudges(wiring.app)
    for new in [d for d in done if d.state == "queued"][:NUDGES]:
        nudges.send(CPU, new.job)
    nudges.flush(5.0)
    return done


def _some(
    tx: Connection, part: Sequence[Named], job: JobOptions, request: Request, place: str, kinds: Sequence[str]
) -> list[Submitted]:
    submitted = submission.submit_all(tx, [n.media for n in part], job, request, tracing.submitted)
    if place:
        _want(tx, part, submitted, place, kinds)
    return submitted


def _want(
    tx: Connection, part: Sequence[Named], submitted: Sequence[Submitted], place: str, kinds: Sequence[str]
) -> None:
    """Each file at the first path that is not another recording's."""
    want_files(
        tx,
        [
            (s.job, kind, (_url(place, path) for path in target_paths(n.path, n.target, f".{kind}")))
            for n, s in zip(part, submitted, strict=True)
            for kind in kinds
        ],
    )


def _url(place: str, path: PurePath) -> str:
    return join_url(place, path.as_posix())


def _preview(found: Sequence[Named], skipped: int) -> None:
    for named in found[:SHOWN]:
        say(f"{named.media.size_bytes:14,d} bytes  {printable(named.media.url)}")
    if len(found) > SHOWN:
        say(f"… and {len(found) - SHOWN} more")
    size = sum(n.media.size_bytes for n in found)
    say(f"would submit {_count(len(found))}, {size / 1e9:.2f} GB{_passed_over(skipped)}; nothing was done")


def _report(done: Sequence[Submitted], skipped: int, label: str | None, seconds: float) -> None:
    known = sum(d.known for d in done)
    ended = sum(d.state in jobs.ENDED for d in done)
    before = f" ({known} known before, {ended} of them ended)" if known else ""
    say(f"submitted {_count(len(done))} in {clock(seconds)}{before}{_passed_over(skipped)}")
    if len(done) <= SHOWN:
        say("jobs: " + ", ".join(str(d.job) for d in done))
    say(f"see: spotscribe status{f' --label {label}' if label else ''}")


def _count(n: int) -> str:
    return f"{n} recording{'s' if n != 1 else ''}"


def _passed_over(skipped: int) -> str:
    return f", passed over {skipped} that are no media by their name" if skipped else ""


def _wait(database: Database, ids: Sequence[int]) -> int:
    """Show each job as it ends. The exit code."""
    left, well = sorted(set(ids)), True
    while left:
        views: list[JobView] = []
        with suppress(DatabaseAway), database.reading() as tx:  # it may come back, and the jobs go on meanwhile
            views = jobs.views(tx, sorted(jobs.ended(tx, left)))
        for view in views:
            well = well and view.state == "done"
            why = f": {view.error}" if view.error else ""
            say(f"{view.state:9} {view.duration_s or 0.0:9.1f} s  {printable(view.url)}{why}")
        ended = {v.id for v in views}
        left = [j for j in left if j not in ended]
        if left:
            time.sleep(WAIT_S)
    return 0 if well else 3
