"""`spotscribe sources`: the drop folders that are kept in the database, each with options of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from chunking.errors import DatabaseAway, UsageError
from pipeline import layout
from pipeline.errands import errands_of
from pipeline.filters import parse_duration, parse_size
from pipeline.notices import redacted
from pipeline.settings import PREFIX, Settings
from storage import arrivals
from storage import sources as stored
from storage.database import Database
from storage.purge import What
from storage.sources import Source, SourceSettings
from storage.urls import bucket_and_key, s3_url
from workers.display import printable, say
from workers.options import DEBUG, decoding, formats_of, job_options, out_url
from workers.wiring import Wiring, read_settings

F = TypeVar("F", bound=Callable[..., Any])
LOCAL_MIN_AGE_S = 10.0
"""Of files in a folder, where nothing is said: one that is being written is not whole yet. Objects in S3 always are."""
NOWHERE = "none"

_OPTIONS = (
    click.option("--include", multiple=True, metavar="GLOB", help="Only these, by their path below URL; * crosses /. May be given again.  [default: names of media]"),  # noqa: E501
    click.option("--exclude", multiple=True, metavar="GLOB", help="Not these. May be given again."),
    click.option("--min-age", metavar="TIME", help="Only what was written so long ago: 30s, 5m.  [default: 0s in S3, 10s in a folder]"),  # noqa: E501
    click.option("--done-marker", metavar="SUFFIX", help="Only once NAME + SUFFIX lies beside it, such as .done"),
    click.option("--max-size", metavar="SIZE", help="Only up to this: 500M, 2G."),
    click.option("--no-sidecars", is_flag=True, help="Do not read NAME.json beside a recording for metadata and options."),  # noqa: E501
    click.option("--label", default="{source}", show_default=True, help="A template: {source}, {date}, {dir}, {name}."),
    click.option("--priority", type=click.IntRange(-100, 100), default=0, show_default=True, help="Higher goes first."),
    decoding,
    click.option("--out", metavar="URL", help="Where transcripts go: s3://bucket/prefix, a folder, or none: the database only.  [default: SPOTSCRIBE_OUT_URL, else beside the recordings]"),  # noqa: E501
    click.option("--formats", default="txt,srt", show_default=True, help="Any of txt, srt, vtt, json."),
    click.option("--key", default="{dir}/{name}.{format}", show_default=True, help="Template of a file's place below --out; {date}, {source}, {ext} too."),  # noqa: E501
    click.option("--after", metavar="WHAT", help="move:PREFIX, tag or delete the recording once its transcript is delivered.  [default: leave it alone]"),  # noqa: E501
    click.option("--notify", multiple=True, metavar="URL", help="Tell of each end: https://…, sqs:QUEUE-URL, sns:TOPIC-ARN. May be given again."),  # noqa: E501
    click.option("--daily-hours", type=click.FloatRange(0, min_open=True), help="Hours of audio that are taken a day (UTC)."),  # noqa: E501
    click.option("--at-once", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Its share: recordings of it that may be in the queue."),  # noqa: E501
    click.option("--keep-work", metavar="TIME", help="Delete audio in work and checkpoints so long after a job's end: 2d."),  # noqa: E501
    click.option("--keep-results", metavar="TIME", help="Delete transcripts from the database after so long: 90d."),
    click.option("--keep-recordings", metavar="TIME", help="Delete all that is known of a recording after so long: 1y. Files stay."),  # noqa: E501
)  # fmt: skip


def about_source(command: F) -> F:
    """The options of a source; `settings_of` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_of(settings: Settings, url: str, asked: dict[str, Any]) -> SourceSettings:
    """From what `about_source` gives. Raises UsageError."""
    local = url.startswith("file://")
    made = SourceSettings(
        job=job_options(settings, None, asked),
        include=tuple(asked["include"]),
        exclude=tuple(asked["exclude"]),
        min_age_s=parse_duration(asked["min_age"]) if asked["min_age"] else LOCAL_MIN_AGE_S if local else 0.0,
        done_marker=asked["done_marker"] or None,
        max_bytes=parse_size(asked["max_size"]) if asked["max_size"] else None,
        sidecars=not asked["no_sidecars"],
        label=asked["label"],
        priority=asked["priority"],
        out="" if asked["out"] == NOWHERE else out_url(asked["out"] or settings.out_url or url),
        formats=formats_of(asked["formats"]),
        key=asked["key"],
        after=asked["after"] or None,
        notify=tuple(asked["notify"]),
        daily_hours=asked["daily_hours"],
        at_once=asked["at_once"],
        **{f"keep_{what}_s": parse_duration(asked[f"keep_{what}"]) if asked[f"keep_{what}"] else None for what in What},
    )
    layout.check_key(made.key)
    layout.check_label(made.label)
    errands_of(made, url)
    return made


def source_url(named: str) -> str:
    """A prefix or a folder as a source's URL, which ends in /. Raises UsageError."""
    if named.startswith("s3://"):
        bucket, key = bucket_and_key(named)
        if key and not key.endswith("/"):
            raise UsageError(f"{named} is one object; everything below it is {named}/")
        return s3_url(bucket, key)
    if "://" in named:
        raise UsageError(f"{named} is neither an S3 prefix (s3://bucket/prefix/) nor a folder")
    folder = Path(os.path.abspath(os.path.expanduser(named)))
    if not folder.is_dir():
        raise UsageError(f"{named} is no folder")
    return folder.as_uri() + "/"


def open_fleet() -> tuple[Wiring, Database]:
    """A fleet's, migrated. Raises UsageError."""
    wiring = Wiring(read_settings())
    if wiring.database.is_sqlite:
        raise UsageError(f"{PREFIX}DATABASE_URL is not set; sources belong to a fleet: postgresql://user@host/name")
    try:
        wiring.database.check()
    except DatabaseAway as e:
        raise UsageError(f"{e}: see {PREFIX}DATABASE_URL") from None
    return wiring, wiring.database


@click.group()
def sources() -> None:
    """Drop folders that `spotscribe ingest` watches: prefixes in buckets, each with options of its own."""


@sources.command()
@click.argument("name")
@click.argument("url", metavar="s3://BUCKET/PREFIX/|FOLDER")
@about_source
@DEBUG
def add(name: str, url: str, debug: bool, **asked: Any) -> None:
    """Keep a source, or change the one of this name to what is said here. What has been taken stays taken."""
    wiring, database = open_fleet()
    if not name.strip() or name != name.strip() or "/" in name:
        raise UsageError(f"{name!r} is no name for a source: letters, digits and hyphens, such as calls-emea")
    at = source_url(url)
    made = settings_of(wiring.settings, at, asked)
    with database.transaction() as tx:
        there = stored.at(tx, at)
        if there is not None and there.state != "ad_hoc" and there.name != name:
            raise UsageError(f"{at} is kept already, as {there.name}")
        known = stored.named(tx, [name])
        stored.put(tx, name, at, made)
    say(
        f"{name}: {printable(at)}, {'changed' if known else 'kept'}; spotscribe ingest --watch takes what appears there"
    )


@sources.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@DEBUG
def list_(as_json: bool, debug: bool) -> None:
    """The sources, what has been taken from them, and what is wrong with them."""
    _, database = open_fleet()
    with database.reading() as tx:
        found, counts = stored.everything(tx, ("active", "paused", "ad_hoc")), arrivals.counts(tx)
    if as_json:
        say(json.dumps([_json(s, counts.get(s.id, {})) for s in found], default=str))
        return
    if not found:
        say("no sources are kept: spotscribe sources add NAME s3://bucket/prefix/")
    for s in found:
        for line in _lines(s, counts.get(s.id, {})):
            say(line)


@sources.command()
@click.argument("name")
@DEBUG
def pause(name: str, debug: bool) -> None:
    """Take nothing more from a source, and admit nothing of what is held. What is in the queue goes on."""
    _set(name, "paused", "is paused")


@sources.command()
@click.argument("name")
@DEBUG
def resume(name: str, debug: bool) -> None:
    """Go on with a source that was paused; what appeared meanwhile is taken."""
    _set(name, "active", "goes on")


@sources.command()
@click.argument("name")
@DEBUG
def remove(name: str, debug: bool) -> None:
    """Forget a source. Its jobs and transcripts stay; added again it goes on where it was."""
    _set(name, "removed", "is removed")


def _kept(s: SourceSettings) -> str:
    times = ((What.WORK, s.keep_work_s), (What.RESULTS, s.keep_results_s), (What.RECORDINGS, s.keep_recordings_s))
    return ", ".join(f"{what} for {seconds / 86400:g} days" for what, seconds in times if seconds is not None)


def _set(name: str, state: str, what: str) -> None:
    _, database = open_fleet()
    with database.transaction() as tx:
        if not stored.set_state(tx, name, state):
            raise UsageError(f"there is no source {name}")
    say(f"{name} {what}")


def _json(source: Source, counts: dict[str, int]) -> dict[str, Any]:
    shown = replace(source.settings, notify=tuple(map(redacted, source.settings.notify)))
    return {**asdict(source), "settings": asdict(shown), "arrivals": counts}


def _lines(source: Source, counts: dict[str, int]) -> list[str]:
    s = source.settings
    lines = [f"{source.name}: {printable(source.url)}{'' if source.state == 'active' else f' ({source.state})'}"]
    lines.append(
        f"  taken {sum(counts.values())}: {counts.get('ended', 0)} ended, {counts.get('submitted', 0)} in the queue, "
        f"{counts.get('held', 0)} held"
    )
    said = {
        "decoding": f"{s.job.engine}, {s.job.language or 'language detected'}, channels {s.job.channels}",
        "hotwords": printable(s.job.hotwords or ""),
        "prompt": printable(s.job.initial_prompt or ""),
        "files": f"{', '.join(s.formats)} below {printable(s.out)}" if s.out else "in the database only",
        "only": ", ".join(s.include),
        "not": ", ".join(s.exclude),
        "budget": f"{s.daily_hours:g} h of audio a day" if s.daily_hours else "",
        "afterwards": s.after or "",
        "keeps": _kept(s),
        "tells": ", ".join(map(redacted, s.notify)),
        "problem": f"{source.problem}; looked at again after {source.rest_until}" if source.problem else "",
    }
    return [*lines, *(f"  {name:11} {value}" for name, value in said.items() if value)]
