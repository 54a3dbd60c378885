"""What a simulation is told, and what came of it: recordings, machines, the outcome."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass, field
from functools import lru_cache

from chunking.planner import Track, plan
from chunking.timeline import Plan, Span

GRAIN_S = 30.0
"""Recordings of lengths that are alike are cut alike."""
FRAME_S = 0.032


@dataclass(frozen=True, slots=True)
class Arrival:
    """A recording: when it comes, and how long it is, in seconds."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Machines:
    """What workers run on."""

    rtfx: float = 50.0
    """Of one worker, with full batches."""
    batch: int = 64
    cores: int = 0
    """That prepare recordings, all machines' together; 0: as many as are needed."""
    start_s: float = 180.0
    """From the wish for a machine to its first claim."""
    on_demand: float = 0.0
    """Share of the machines that nobody takes away."""
    interruptions: float = 0.05
    """Of one spot machine, in an hour."""
    noticed: float = 0.9
    """Share of those that come with a notice, so that leases are given back."""
    price_spot: float = 0.0
    price_on_demand: float = 0.0
    """An hour."""
    lease_s: float = 20.0
    kills: tuple[float, ...] = ()
    """Moments at which a machine is killed without notice, whatever chance says."""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    took_s: list[float] = field(default_factory=list)
    """From arrival to transcript, of each recording."""
    audio_s: float = 0.0
    done_s: float = 0.0
    """When the last one was done."""
    peak_s: float = 0.0
    """The largest backlog, in seconds of sound."""
    machine_s: float = 0.0
    starting_s: float = 0.0
    working_s: float = 0.0
    repeated_s: float = 0.0
    """Seconds of sound decoded a second time."""
    interrupted: int = 0
    cost: float = 0.0
    workers: list[tuple[float, int]] = field(default_factory=list)
    """How many there were, at each look."""
    chunks: int = 0
    shards: int = 0

    def took(self, share: float) -> float:
        """Within how many seconds that share of the recordings was done."""
        ordered = sorted(self.took_s)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0

    @property
    def idle_s(self) -> float:
        return max(0.0, self.machine_s - self.starting_s - self.working_s)


def cut_of(seconds: float) -> Plan:
    """The plan of a recording in which somebody speaks with a pause every few seconds."""
    return _cut(max(GRAIN_S, round(seconds / GRAIN_S) * GRAIN_S) if seconds > GRAIN_S else seconds)


@lru_cache(4096)
def _cut(seconds: float) -> Plan:
    chance, at, spans = random.Random(int(seconds)), 0.2, []  # noqa: S311
    while at < seconds - 0.5:
        end = min(seconds - 0.1, at + chance.uniform(1.5, 7.0))
        spans.append(Span(at, end))
        at = end + chance.uniform(0.2, 1.0)
    frames = array("f", [0.9]) * math.ceil(seconds / FRAME_S)
    return plan([Track(0, tuple(spans), frames, FRAME_S)], seconds)
