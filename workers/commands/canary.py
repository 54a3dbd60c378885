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
  0   no worker reads worse than was read before
  4   one does: see which version, engine and device
"""


@click.command(epilog=EXIT_CODES)
@click.option("--tolerance", type=click.FloatRange(min=0), default=0.05, show_default=True, help="So much more WER is no drift.")  # fmt: skip # noqa: E501
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@DEBUG
def canary(tolerance: float, as_json: bool, debug: bool) -> None:
    """Each worker with a model reads a recording whose words are known, at its start and every
    SPOTSCRIBE_CANARY_EVERY_S (docs/operations.md). This shows what came of it: the latest of each version, engine and
    device, beside the median of those before.
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
    return c.wer_before is not None and c.latest.wer > c.wer_before + tolerance


def line(c: Compared, *, drifted: bool) -> str:
    """One version on one device."""
    last = c.latest
    before = f"before {c.wer_before:.3f}, {c.rtfx_before:.0f}x" if c.wer_before is not None else "the first"
    word = "DRIFT  " if drifted else "       "
    at = f"{c.at:%Y-%m-%d %H:%M}"
    return (
        f"{word}{at}  WER {last.wer:.3f}, {last.rtfx:.0f}x ({before}; {c.times} times)  {last.engine}, {last.device},"
        f" {last.version}, {last.worker}" + (f": {last.text}" if drifted else "")
    )
