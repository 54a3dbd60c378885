"""`spotscribe simulate`: what a load will take and cost, before anything is paid for."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from chunking.errors import UsageError
from pipeline import simulation
from pipeline.filters import parse_duration
from pipeline.scaler import policy
from pipeline.scaling import Policy
from pipeline.scenario import Arrival, Machines, Outcome
from pipeline.simulation import LOOK_S
from workers.display import say
from workers.options import DEBUG
from workers.wiring import read_settings

MOST = 1500
"""Recordings of one simulation; of more a part is taken, and all figures are scaled."""
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 48
MIXES = {"spot": 0.0, "on-demand": 1.0}


@click.command()
@click.option("--recordings", type=click.IntRange(1), default=1000, show_default=True, help="How many come, spread over --over.")  # fmt: skip # noqa: E501
@click.option("--over", default="1d", show_default=True, metavar="TIME", help="In what time they come; 0s: all at once.")  # fmt: skip # noqa: E501
@click.option("--length", default="5m", show_default=True, metavar="TIME", help="Of a recording, in the median.")
@click.option("--spread", type=click.FloatRange(0, 3), default=0.8, show_default=True, help="Of lengths: sigma of a lognormal distribution; 0: all alike.")  # fmt: skip # noqa: E501
@click.option("--arrivals", type=click.Path(path_type=Path), help="Instead of these: a CSV file of seconds from the beginning, seconds of sound.")  # fmt: skip # noqa: E501
@click.option("--rtfx", type=click.FloatRange(min=0.1), help="Of one worker (spotscribe scale --explain).  [default: SPOTSCRIBE_EXPECTED_RTFX]")  # fmt: skip # noqa: E501
@click.option("--start", default="3m", show_default=True, metavar="TIME", help="From the wish for a machine to its first batch.")  # fmt: skip # noqa: E501
@click.option("--cpu-cores", type=click.IntRange(0), default=0, show_default=True, help="That prepare recordings, in all; 0: as many as are needed.")  # fmt: skip # noqa: E501
@click.option("--interruptions", type=click.FloatRange(0, 60), default=0.05, show_default=True, help="Of one spot machine, in an hour.")  # fmt: skip # noqa: E501
@click.option("--noticed", type=click.FloatRange(0, 1), default=0.9, show_default=True, help="Share of those with a notice.")  # fmt: skip # noqa: E501
@click.option("--spot", "price_spot", type=click.FloatRange(0), default=0.16, show_default=True, help="Price of an hour of a spot machine.")  # fmt: skip # noqa: E501
@click.option("--on-demand", "price_on_demand", type=click.FloatRange(0), default=0.53, show_default=True, help="Of one that nobody takes away.")  # fmt: skip # noqa: E501
@click.option("--mixes", default="spot,on-demand", show_default=True, help="Side by side: spot, on-demand, or the share on demand: 0.25.")  # fmt: skip # noqa: E501
@click.option("--seed", type=int, default=0, help="Another one, another day.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@DEBUG
def simulate(as_json: bool, mixes: str, seed: int, debug: bool, **asked: Any) -> None:
    """Play a load through the real planner, leases and scaling policy in simulated time. How many workers are wanted
    is settled by SPOTSCRIBE_FINISH_WITHIN_S, _MIN_WORKERS, _MAX_WORKERS, _SCALE_IN_AFTER_S, as in a fleet. What is
    assumed, and how near it comes to a real fleet: docs/capacity.md.
    """
    settings = read_settings()
    rtfx = asked["rtfx"] or settings.expected_rtfx
    arrivals = read_arrivals(asked["arrivals"]) if asked["arrivals"] else made_arrivals(asked, seed)
    part = math.ceil(len(arrivals) / MOST)
    wish = slice_of(replace(policy(settings), expected_rtfx=rtfx), part)
    machines = Machines(
        rtfx=rtfx, start_s=parse_duration(asked["start"]), interruptions=asked["interruptions"],
        noticed=asked["noticed"], price_spot=asked["price_spot"], price_on_demand=asked["price_on_demand"],
        lease_s=settings.lease_s, cores=math.ceil(asked["cpu_cores"] / part),
    )  # fmt: skip
    found = {
        name: simulation.simulate(arrivals[::part], replace(machines, on_demand=share), wish, seed=seed)
        for name, share in shares(mixes).items()
    }
    if as_json:
        say(json.dumps({name: _record(o, part) for name, o in found.items()}))
        return
    for line in _report(found, len(arrivals), part, wish):
        say(line)


def shares(mixes: str) -> dict[str, float]:
    """The share on demand of each mix. Raises UsageError."""
    found = {}
    for mix in (m.strip() for m in mixes.split(",")):
        try:
            share = MIXES[mix] if mix in MIXES else float(mix)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise UsageError(f"--mixes: {mix} is neither spot nor on-demand nor a share between 0 and 1")
        found[mix] = share
    return found


def read_arrivals(file: Path) -> list[Arrival]:
    """A line for each recording. Raises UsageError that names the line."""
    found = []
    if not file.is_file():
        raise UsageError(f"--arrivals: there is no file {file}")
    with file.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            try:
                at, seconds = map(float, row)
            except ValueError:
                if number == 1:  # names of the columns
                    continue
                raise UsageError(f"{file}: line {number} is not SECONDS,SECONDS") from None
            found.append(Arrival(at, seconds))
    if not found:
        raise UsageError(f"{file} has no recordings")
    return sorted(found, key=lambda a: a.at)


def made_arrivals(asked: dict[str, Any], seed: int) -> list[Arrival]:
    """Evenly spread by chance, of lengths by a lognormal distribution."""
    chance = random.Random(seed)  # noqa: S311 (a simulation must be repeatable)
    over, length = parse_duration(asked["over"]), parse_duration(asked["length"])
    found = (
        Arrival(chance.uniform(0, over), max(1.0, chance.lognormvariate(math.log(length), asked["spread"])))
        for _ in range(asked["recordings"])
    )
    return sorted(found, key=lambda a: a.at)


def slice_of(wish: Policy, part: int) -> Policy:
    """The policy of one of so many equal parts of a fleet."""
    return replace(wish, least=round(wish.least / part), most=max(1, round(wish.most / part)))


def _record(o: Outcome, part: int) -> dict[str, Any]:
    hours = o.audio_s / 3600
    return {
        "finish_p50_s": round(o.took(0.5)), "finish_p95_s": round(o.took(0.95)), "done_s": round(o.done_s),
        "audio_h": round(hours * part, 1), "machine_h": round(o.machine_s / 3600 * part, 1),
        "most_workers": max((n for _, n in o.workers), default=0) * part,
        "backlog_peak_h": round(o.peak_s / 3600 * part, 1),
        "cost": round(o.cost * part, 2), "cost_per_audio_h": round(o.cost / hours, 4) if hours else None,
        "interrupted": o.interrupted * part, "repeated_audio_h": round(o.repeated_s / 3600 * part, 2),
        "starting_share": round(o.starting_s / o.machine_s, 3) if o.machine_s else 0.0,
        "idle_share": round(o.idle_s / o.machine_s, 3) if o.machine_s else 0.0,
    }  # fmt: skip


ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "half are done within": lambda r: _time(r["finish_p50_s"]),
    "95 of 100 within": lambda r: _time(r["finish_p95_s"]),
    "all are done after": lambda r: _time(r["done_s"]),
    "most that waits": lambda r: f"{r['backlog_peak_h']:.1f} h of sound",
    "most workers": lambda r: str(r["most_workers"]),
    "machine hours": lambda r: f"{r['machine_h']:.1f}",
    "  of them starting": lambda r: f"{r['starting_share']:.0%}",
    "  of them idle": lambda r: f"{r['idle_share']:.0%}",
    "cost": lambda r: f"{r['cost']:.2f}",
    "an hour of audio": lambda r: f"{r['cost_per_audio_h'] or 0:.4f}",
    "machines taken away": lambda r: str(r["interrupted"]),
    "decoded twice": lambda r: f"{r['repeated_audio_h']:.2f} h of sound",
}


def _report(found: dict[str, Outcome], recordings: int, part: int, wish: Policy) -> list[str]:
    records = {name: _record(o, part) for name, o in found.items()}
    audio = next(iter(records.values()))["audio_h"]
    lines = [f"{recordings} recordings, {audio:.0f} h of sound, to be done within {_time(wish.finish_within_s)} each"]
    if part > 1:
        lines.append(f"every {part}th recording was played, with a {part}th of the workers; figures are for all")
    width = max(20, *(len(n) + 2 for n in records))
    lines.append(" " * 22 + "".join(f"{name:>{width}}" for name in records))
    lines += [f"{title:22}" + "".join(f"{show(r):>{width}}" for r in records.values()) for title, show in ROWS.items()]
    lines += [f"workers, {name}: {chart(o.workers)}" for name, o in found.items()]
    return lines


def chart(workers: Sequence[tuple[float, int]]) -> str:
    """How many there were, from the beginning to the end."""
    counts = [n for _, n in workers]
    width = min(WIDTH, len(counts))
    means = [counts[i * len(counts) // width : (i + 1) * len(counts) // width] for i in range(width)]
    most = max(counts, default=0) or 1
    bars = "".join(BARS[math.ceil(sum(m) / len(m) / most * (len(BARS) - 1))] for m in means)
    return f"|{bars}| 0 to {max(counts, default=0)}, over {_time(len(counts) * LOOK_S)}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
