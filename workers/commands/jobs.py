"""`spotscribe status`, `show`, `cancel`, `retry`: what became of jobs, and what to do about them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from sqlalchemy import Connection

from chunking.errors import DatabaseAway, PermanentError, UsageError
from pipeline.exports import Format
from pipeline.settings import PREFIX
from storage import arrivals, fleet, jobs, outputs, recordings, submission
from storage.arrivals import Origin
from storage.database import Database
from storage.fleet import Overview
from storage.jobs import JobOptions, JobView
from storage.recordings import Media
from workers.display import clock, printable, say
from workers.options import DEBUG
from workers.wiring import Wiring, read_settings

if TYPE_CHECKING:  # showing a job must not load a model's libraries
    from pipeline.finish import Finished

F = TypeVar("F", bound=Callable[..., Any])
HTML, EMBED = "html", "embed"
WATCH_S = 2.0
CLIPPED = 0.001
"""Share of samples at full scale that is worth a word: a few are in most loud recordings."""
STATES = ("queued", "preparing", "waiting", "transcribing", "transcribed", "finishing", *jobs.ENDED)
LABEL = click.option("--label", help="The jobs that were submitted under this name.")


@click.command()
@click.argument("job", type=int, required=False)
@LABEL
@click.option("--watch", is_flag=True, help="Again every two seconds, until nothing is left to do.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@DEBUG
def status(job: int | None, label: str | None, watch: bool, as_json: bool, debug: bool) -> None:
    """How all jobs stand, or those of a label, or one job."""
    if job is not None and label is not None:
        raise UsageError("give a job or --label, not both")
    database = open_database()
    while True:
        left = watch
        with suppress(DatabaseAway) if watch else nullcontext(), database.reading() as tx:
            left = _all(tx, label, as_json=as_json) if job is None else _one(tx, job, as_json=as_json)
        if not watch or not left:
            return
        time.sleep(WATCH_S)


@click.command()
@click.argument("job", type=int)
@click.option(
    "--format", "kind", type=click.Choice([*(f.value for f in Format), HTML]), default="txt", show_default=True
)
@click.option("--sound", default=EMBED, show_default=True, help="With --format html: embed, none, or a link to what the page plays.")  # fmt: skip # noqa: E501
@DEBUG
def show(job: int, kind: str, sound: str, debug: bool) -> None:
    """Print a job's transcript."""
    from pipeline.finish import Finisher
    from pipeline.telemetry import Tally
    from storage.objects import LocalStore

    if kind != HTML and sound != EMBED:
        raise UsageError("--sound is for --format html")
    settings = read_settings()
    database = open_database()
    with database.reading() as tx:
        check_jobs(tx, [job])
        view = jobs.view(tx, job)
    if view.transcript_id is None:
        if view.purged_at is not None:
            raise UsageError(
                f"job {job} is {view.state}, its result was purged on {view.purged_at:%Y-%m-%d}; submit it again"
            )
        raise UsageError(f"job {job} is {view.state} and has no transcript{': ' + view.error if view.error else ''}")
    finisher = Finisher(database, LocalStore(settings.work), Tally())
    if kind == HTML:
        say(_page(finisher.read([job])[job], sound))
        return
    say(finisher.render(job, Format(kind)).decode().rstrip("\n"))


def _page(finished: Finished, sound: str) -> str:
    """A transcript as a page; `sound`: embed, none or a link."""
    from pipeline.pages import embedded, transcript_page
    from workers.presence import Presence

    if sound != EMBED:
        return transcript_page(finished.transcript, finished.about, None if sound == "none" else sound)
    wiring = Wiring(read_settings())
    with Presence(wiring.settings.home, "show-") as presence, wiring.sounds(presence.scratch) as sounds:
        try:
            with sounds.of(finished.job) as found:
                played = embedded(found)
        except PermanentError as e:
            raise UsageError(f"the sound cannot be had: {e}; --sound none makes the page without it") from None
    return transcript_page(finished.transcript, finished.about, played)


def _chosen(command: F) -> F:
    command = click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="With --label: only those.")(command)  # fmt: skip # noqa: E501
    return click.argument("ids", nargs=-1, type=int, metavar="[JOB]…")(LABEL(DEBUG(command)))


@click.command()
@_chosen
def cancel(ids: tuple[int, ...], label: str | None, states: tuple[str, ...], debug: bool) -> None:
    """End jobs that have not ended. What has been transcribed of them is kept, and goes with a retry."""
    _do(ids, label, states, submission.cancel, "cancelled", "had ended before")


@click.command()
@_chosen
def retry(ids: tuple[int, ...], label: str | None, states: tuple[str, ...], debug: bool) -> None:
    """Start jobs again that failed, were rejected or cancelled, or are partial."""
    _do(ids, label, states, submission.retry, "start again", "ended well or are at work")


def _do(
    ids: Sequence[int],
    label: str | None,
    states: Sequence[str],
    what: Callable[[Connection, Sequence[int]], int],
    done: str,
    others: str,
) -> None:
    if bool(ids) == (label is not None):
        raise UsageError("name jobs, or a label with --label")
    database = open_database()
    with database.reading() as tx:
        check_jobs(tx, ids)
        chosen = list(ids) or submission.labelled(tx, label or "", states)
    if not chosen:
        raise UsageError(f"no jobs{' in these states' if states else ''} have the label {label}")
    count = database.again(lambda tx: what(tx, chosen))
    rest = len(set(chosen)) - count
    say(f"{count} job{'s' if count != 1 else ''} {done}" + (f"; {rest} {others}" if rest else ""))


def open_database() -> Database:
    wiring = Wiring(read_settings())
    database = wiring.database
    try:
        if database.is_sqlite:
            database.upgrade()
        else:
            database.check()
    except DatabaseAway as e:
        raise UsageError(f"{e}: see {PREFIX}DATABASE_URL") from None
    return database


def check_jobs(tx: Connection, ids: Sequence[int]) -> None:
    missing = sorted(set(ids) - submission.existing(tx, ids))
    if missing:
        raise UsageError(f"there is no job {', '.join(map(str, missing[:5]))}{', …' if len(missing) > 5 else ''}")


def _one(tx: Connection, job: int, *, as_json: bool) -> bool:
    """Show one job. Whether it is still at work."""
    check_jobs(tx, [job])
    view, progress = jobs.view(tx, job), fleet.progress(tx, job)
    came = arrivals.of_job(tx, job)
    files, media = outputs.of_jobs(tx, [job]), recordings.media_of(tx, [job])[job]
    if as_json:
        say(
            json.dumps(
                {
                    **asdict(view),
                    "origin": [asdict(c) for c in came],
                    "media": asdict(media),
                    "progress": asdict(progress),
                    "outputs": [asdict(o) for o in files],
                },
                default=str,
            )
        )
        return not view.ended
    say(f"job {view.id}: {view.state}{f' ({view.code})' if view.code else ''}")
    for name, value in {**_facts(view, progress), **_origin(came), "media": _sound(media)}.items():
        if value:
            say(f"  {name:11} {value}")
    for o in files:
        say(f"  {o.format:11} {printable(o.url)}{'' if o.written else ' (not written yet)'}")
    return not view.ended


def _extras(o: JobOptions) -> str:
    track = "" if o.track is None else f", audio track {o.track}"
    return f"{track}{', word times' if o.word_timestamps else ''}"


def _facts(view: JobView, progress: fleet.JobProgress) -> dict[str, str]:
    o, p = view.options, progress
    return {
        "recording": printable(view.url),
        "why": view.error or "",
        "superseded": "other bytes lie there by now" if view.superseded else "",
        "length": clock(view.duration_s) if view.duration_s else "",
        "language": view.language or "",
        "decoding": f"{o.engine}, {o.task}, channels {o.channels}{_extras(o)}",
        "hotwords": printable(o.hotwords or ""),
        "prompt": printable(o.initial_prompt or ""),
        "done": f"{p.chunks_done} of {p.chunks} chunks, {p.shards_done} of {p.shards} shards" if p.shards else "",
        "held by": ", ".join(progress.workers),
        "labels": ", ".join(progress.labels),
        "metadata": ", ".join(f"{k}={v}" for k, v in (view.meta or {}).items()),
        "priority": str(view.priority or ""),
        "submitted": _ago(view.created_at),
        "ended": _ago(view.finished_at) if view.finished_at else "",
        "purged": f"its result went on {view.purged_at:%Y-%m-%d}" if view.purged_at else "",
    }  # fmt: skip


def _sound(m: Media) -> str:
    """What the recording was, and what was done to its sound."""
    if m.container is None:
        return ""
    several = m.tracks is not None and m.tracks > 1
    parts = (
        f"{m.codec} in {m.container}, {m.sample_rate} Hz",
        f"{m.channels} channel{'s' if m.channels != 1 else ''}{f' ({m.mixed})' if m.channels != 1 else ''}",
        f"track {m.track} of {m.tracks}" if several else "",
        f"{m.decode_errors} decoding errors" if m.decode_errors else "",
        f"made {m.gain_db:.0f} dB louder" if m.gain_db else "",
        f"freed of what lies under {m.highpass_hz:.0f} Hz" if m.highpass_hz else "",
        f"{m.clipped:.1%} clipped" if m.clipped and m.clipped > CLIPPED else "",
    )
    return printable(", ".join(p for p in parts if p))


def _origin(came: Sequence[Origin]) -> dict[str, str]:
    notes = [printable(c.note) for c in came if c.note]
    return {"source": ", ".join(sorted({c.source for c in came})), "sidecar": "; ".join(notes)}


def _all(tx: Connection, label: str | None, *, as_json: bool) -> bool:
    """Show the whole. Whether anything is left to do."""
    seen = fleet.overview(tx, label)
    if label is not None and not seen.jobs:
        raise UsageError(f"no jobs have the label {label}")
    if as_json:
        say(json.dumps({**asdict(seen), "left": seen.left}, default=str))
        return bool(seen.left or seen.undelivered)
    for text in _lines(seen):
        say(text)
    return bool(seen.left or seen.undelivered)


def _lines(seen: Overview) -> list[str]:
    total = sum(seen.jobs.values())
    states = ", ".join(f"{seen.jobs[s]} {s}" for s in STATES if s in seen.jobs)
    lines = [f"{total} job{'s' if total != 1 else ''}{': ' if states else ''}{states}"]
    if seen.codes:
        lines.append("  why: " + ", ".join(f"{n} {code}" for code, n in sorted(seen.codes.items())))
    if seen.chunks:
        lines.append(
            f"  {seen.chunks_done} of {seen.chunks} chunks transcribed, {clock(seen.audio_s)} of audio prepared"
        )
    if seen.held:
        lines.append(f"  {seen.held} more held at their sources: spotscribe sources list")
    if seen.undelivered:
        lines.append(f"  {seen.undelivered} files due and not written yet")
    if seen.given_up:
        lines.append(f"  {seen.given_up} notices or recordings given up: spotscribe notices")
    lines += [f"  put off, and tried again: {why}" for why in seen.put_off]
    for b in seen.backlog:
        nobody = "; NO LIVE WORKER HAS THIS MODEL" if not b.workers else f"; {b.workers} live workers have it"
        lines.append(f"  waiting for {b.engine}: {b.shards} shards, {clock(b.audio_s)} of audio{nobody}")
    lines.append(f"{len(seen.workers)} live worker{'s' if len(seen.workers) != 1 else ''}")
    lines += [f"  {w.name}: {', '.join(w.roles)} {w.engine}" for w in seen.workers[:20]]
    return lines


def _ago(moment: datetime) -> str:
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return f"{at.isoformat(timespec='seconds')} ({clock(max(0.0, (datetime.now(UTC) - at).total_seconds()))} ago)"
