"""`spotscribe chaos`: the kill storm, on the user's own servers."""

from __future__ import annotations

import sys
import time

import click

from chunking.errors import UsageError
from workers.bootstrap import end_tidily
from workers.chaos import StormOptions, storm
from workers.display import say
from workers.options import DEBUG
from workers.wiring import read_settings

EXIT_CODES = """\b
Exit codes:
  0  every promise was kept
  1  something was lost, done twice, late or left behind; the last lines say what
  2  the set-up is wrong, or a part of the fleet does not answer
"""


@click.command(epilog=EXIT_CODES)
@click.option("--recordings", type=click.IntRange(1, 100_000), default=300, show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Processes on this machine.")
@click.option("--seconds", type=click.FloatRange(1.0), default=120.0, show_default=True, help="How long the storm lasts.")  # fmt: skip # noqa: E501
@click.option("--every", default="1-5", show_default=True, metavar="SECONDS", help="From one blow to the next: between these.")  # fmt: skip # noqa: E501
@click.option("--lease", "lease_s", type=click.FloatRange(1.0), default=3.0, show_default=True, help="Seconds of a lease: short, so that much happens.")  # fmt: skip # noqa: E501
@click.option("--seed", type=int, help="The same storm again.  [default: by the clock]")
@click.option("--engine", type=click.Choice(["paced", "whisper"]), default="paced", show_default=True, help="paced: 20 ms a chunk and a text made up. whisper: the model; then only the texts' plans are compared.")  # fmt: skip # noqa: E501
@click.option("--keep", is_flag=True, help="Leave the schema, the objects and the folder for a look.")
@DEBUG
def chaos(
    recordings: int,
    workers: int,
    seconds: float,
    every: str,
    lease_s: float,
    seed: int | None,
    engine: str,
    keep: bool,
    debug: bool,
) -> None:
    """Kill, stop and freeze workers at random while they work, and check that nothing is lost and nothing done twice.

    Works in a schema, queues and a prefix of its own on the servers of the settings; your jobs are not touched.
    """
    settings = read_settings().model_copy(update={"engine": engine})
    options = StormOptions(
        recordings, workers, seconds, _pause(every), lease_s, int(time.time()) if seed is None else seed, keep
    )
    end_tidily()
    faults = storm(settings, options, say)
    for fault in faults:
        say(f"BROKEN: {fault}")
    say("verdict: nothing lost, nothing done twice" if not faults else f"verdict: {len(faults)} promises broken")
    sys.exit(1 if faults else 0)


def _pause(every: str) -> tuple[float, float]:
    low, dash, high = every.partition("-")
    try:
        found = float(low), float(high if dash else low)
    except ValueError:
        raise UsageError(f"--every: {every!r} is neither a number nor two, such as 1-5") from None
    if not 0 < found[0] <= found[1]:
        raise UsageError(f"--every: {every!r} must be two numbers above 0, the smaller first")
    return found
