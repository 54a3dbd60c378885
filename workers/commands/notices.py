"""`spotscribe notices`, `deliver`: what was to be done at jobs' ends and was not, and files written once more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC

import click
from sqlalchemy import Connection

from chunking.errors import UsageError
from pipeline.notices import redacted
from storage import errands, outputs, submission
from storage.errands import NOTICES, ErrandView
from workers.commands.jobs import LABEL, check_jobs, open_database
from workers.display import printable, say
from workers.options import DEBUG

STATES = ("wanted", "due", "running", "later", "done", "dead", "void")


@click.command()
@click.argument("ids", nargs=-1, type=int, metavar="[NOTICE]…")
@LABEL
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only those in this state. May be given again.  [default: the dead, and those that are tried again]")  # fmt: skip # noqa: E501
@click.option("--all", "everything", is_flag=True, help="In any state.")
@click.option("--retry", is_flag=True, help="Try those of them again that are dead, with the keys that they had.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@DEBUG
def notices(
    ids: tuple[int, ...],
    label: str | None,
    states: tuple[str, ...],
    everything: bool,
    retry: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """What was to be done at jobs' ends (notices sent, recordings moved, tagged or deleted), and could not be.

    A notice is tried for a day, less and less often, and is dead then, or once its receiver answers 410.
    """
    if everything and states:
        raise UsageError("give --all or --state, not both")
    chosen = states or (() if everything or ids else ("dead",))
    database = open_database()
    with database.reading() as tx:
        found = errands.listing(tx, states=chosen, retried=not states, label=label, ids=ids)
    missing = sorted(set(ids) - {e.id for e in found})
    if missing and not states:
        raise UsageError(f"there is no notice {missing[0]}{f' of {label}' if label else ''}")
    if retry:
        dead = [e.id for e in found if e.state == "dead"]
        count = database.again(lambda tx: errands.retry(tx, dead))
        say(f"{count} tried again")
        return
    if as_json:
        shown = [replace(e, target=_shown(e)) for e in found]
        say(json.dumps([asdict(e) for e in shown], default=str))
        return
    for e in found:
        say(_line(e))
    if not found:
        say("none")


@click.command()
@click.argument("ids", nargs=-1, type=int, metavar="[JOB]…")
@LABEL
@click.option("--notify", is_flag=True, help="Send the jobs' notices again as well, with keys of their own.")
@DEBUG
def deliver(ids: tuple[int, ...], label: str | None, notify: bool, debug: bool) -> None:
    """Write the files of jobs again, wherever they were asked for: deleted ones, failed ones, those that wait."""
    if bool(ids) == (label is not None):
        raise UsageError("name jobs, or a label with --label")
    database = open_database()
    with database.reading() as tx:
        check_jobs(tx, ids)
        chosen = list(ids) or submission.labelled(tx, label or "", errands.TOLD)
    if not chosen:
        raise UsageError(f"no jobs that have ended have the label {label}")
    files = database.again(lambda tx: _again(tx, sorted(set(chosen)), notify=notify))
    told = ", and told of again" if notify else ""
    say(f"{files} file{'s' if files != 1 else ''} of {len(set(chosen))} jobs are written again{told}")


def _again(tx: Connection, jobs: Sequence[int], *, notify: bool) -> int:
    count = outputs.again(tx, jobs)
    if notify:
        errands.start_again(tx, jobs, NOTICES)
        errands.settle(tx, jobs)
    return count


def _shown(e: ErrandView) -> str:
    """A queue's URL looks like a webhook's, but there is nothing secret in its path."""
    return redacted(e.target) if e.kind != "sqs" else redacted(f"sqs:{e.target}").removeprefix("sqs:")


def _line(e: ErrandView) -> str:
    tries = f" after {e.attempts} tr{'ies' if e.attempts != 1 else 'y'}" if e.attempts else ""
    at = e.next_run_at if e.next_run_at is None or e.next_run_at.tzinfo is None else e.next_run_at.astimezone(UTC)
    then = f", again at {at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""
    why = f": {printable(e.error)}" if e.error else ""
    whither = f" {printable(e.place or _shown(e))}" if e.target else ""
    return f"{e.id}: job {e.job}, {e.kind}{whither}: {e.state}{tries}{then}{why}"
