"""How many workers a backlog asks for. Pure: values in, values out.

workers = seconds of sound that wait ÷ (RTFx of one worker × the time in which it is to be done), rounded up. More are
wanted at once, fewer only after fewer would have done for some time: a machine that was given back takes minutes and
money to come again. How busy GPUs are does not count: a GPU is as busy with a tenth of the backlog.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.backlog import CPU, Backlog

CPU_RTFX = 200.0
"""Seconds of recordings that a core prepares in a second: 18 s an hour for decoding, VAD and shards, of mp3 in a child
process (`make bench-decode` 227, without VAD)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user wants."""

    finish_within_s: float = 3600.0
    least: int = 0
    most: int = 10
    fewer_after_s: float = 600.0
    expected_rtfx: float = 50.0
    """Until an engine's workers have been measured."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What was said before."""

    wanted: int
    fewer_for_s: float | None = None
    """Since how many seconds fewer would do; None: they would not."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers, and how that came about."""

    load: Backlog
    policy: Policy
    rtfx: float
    measured: bool
    needed: int
    """By the backlog alone."""
    wanted: int
    fewer_for_s: float | None
    """Since when fewer would do, which is not long enough yet; None: they would not."""

    def explain(self) -> list[str]:
        """In words."""
        p, load = self.policy, self.load
        how = "as its workers do" if self.measured else "as is expected of one that was not measured"
        lines = [
            f"{load.queue}: {self.wanted} wanted, {load.workers} there",
            f"  {_hours(load.audio_s)} of sound: {_hours(load.waiting_s)} in the queue, {_hours(load.in_hand_s)} in "
            f"hand, {_hours(load.coming_s)} not prepared yet",
            f"  a worker does {self.rtfx:.4g} s of sound in a second, {how}",
            f"  to be done within {_hours(p.finish_within_s)}: {load.audio_s:.0f} s / ({self.rtfx:.4g} x "
            f"{p.finish_within_s:.0f} s) = {load.audio_s / (self.rtfx * p.finish_within_s):.2f}, so {self.needed}",
        ]
        if self.needed != max(p.least, min(p.most, self.needed)):
            lines.append(f"  at least {p.least} and at most {p.most}")
        if self.fewer_for_s is not None:
            lines.append(
                f"  fewer would do for {self.fewer_for_s:.0f} s; they are wanted after {p.fewer_after_s:.0f} s of that"
            )
        return lines


def decide(load: Backlog, policy: Policy, before: Standing | None = None) -> Decision:
    """How many workers are wanted now, given what was said before; then `standing` of it is what was said."""
    assumed = CPU_RTFX if load.queue == CPU else policy.expected_rtfx
    rtfx = load.rtfx or assumed
    needed = math.ceil(load.audio_s / (rtfx * policy.finish_within_s) - 1e-9) if load.audio_s > 0 else 0
    needed = max(needed, 1 if load.audio_s > 0 else 0)
    bounded = min(max(policy.least, needed), max(policy.least, policy.most))
    if before is None or bounded >= before.wanted:
        return Decision(load, policy, rtfx, load.rtfx is not None, needed, bounded, None)
    since = before.fewer_for_s or 0.0
    if since >= policy.fewer_after_s:
        return Decision(load, policy, rtfx, load.rtfx is not None, needed, bounded, None)
    held = min(before.wanted, max(policy.least, policy.most))
    return Decision(load, policy, rtfx, load.rtfx is not None, needed, held, since)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
