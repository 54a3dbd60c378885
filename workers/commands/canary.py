"""`spotscribe canary`: whether workers still read a known recording as they did."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from pipeline.settings import PREFIX
from storage.canaries import Compared, compared
from workers.commands.jobs import open_database
from workers.display import say
from workers.options import DEBUG

DRIFT = 4

EXIT_CODES = """\b
Exit codes:
  0   no worker reads worse than is usual
  4   one does: see which version, engine and device
"""


@click.command(epilog=EXIT_CODES)
@click.option("--tolerance", type=click.FloatRange(min=0), default=0.05, show_default=True, help="So much more WER is no drift.")  # fmt: skip # noqa: E501
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@DEBUG
def canary(tolerance: float, as_json: bool, debug: bool) -> None:
    """Each worker with a model reads a recording whose words are known, at its start and every
    SPOTSCRIBE_CANARY_EVERY_S (docs/operations.md). This shows what came of it by version, engine and device: the worst
    of what each worker read last, beside what was usual on that engine and device in the last 90 days.
    """
    database = open_database()
    with database.reading() as tx:
        found = compared(tx)
    drifted = [c for c in found if drift(c, tolerance)]
    if as_json:
        say(json.dumps({"canaries": [{**asdict(c), "at": c.at.isoformat(), "drift": c in drifted} for c in found]}))
    elif not found:
        say(f"no worker has read a canary yet; they do at their start, unless {PREFIX}CANARY_EVERY_S is 0")
    for c in () if as_json else found:
        say(line(c, drifted=c in drifted))
    if drifted:
        raise click.exceptions.Exit(DRIFT)


def drift(c: Compared, tolerance: float) -> bool:
    return c.hopeless or c.worst.wer > c.usual.wer + tolerance


def line(c: Compared, *, drifted: bool) -> str:
    """One version on one device."""
    read = c.worst
    word = "DRIFT  " if drifted else "       "
    usual = f"usual {c.usual.wer:.3f}, {c.usual.rtfx:.0f}x"
    by = f"{read.worker} of {c.workers} workers" if c.workers > 1 else read.worker
    return (
        f"{word}{c.at:%Y-%m-%d %H:%M}  WER {read.wer:.3f}, {c.rtfx:.0f}x ({usual})  {read.engine}, {read.device},"
        f" {read.version}, {by}" + (f": {read.text}" if drifted else "")
    )
