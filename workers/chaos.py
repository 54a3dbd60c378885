"""The kill storm: workers at work, and SIGKILL, SIGTERM and SIGSTOP at random, for a time; then the verdict."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.settings import Settings
from storage import leases
from workers.arena import BATCH, Arena, arena

LEAVE_S = 10.0
"""What a worker may take to leave after SIGTERM."""
PORTIONS, SUBMITTING = 8, 0.7
"""The recordings are submitted in so many portions over this share of the storm."""
LONG_SHARE, LONG_S, SHORT_S = 0.1, 700.0, (8.0, 40.0)
"""Some recordings have several shards, most are a chunk or two."""
SETTLE_S = 300.0
"""How long the fleet may take for what is left when the storm is over."""
BLOWS = {"SIGKILL": 2, "SIGTERM": 1, "SIGSTOP": 1}
"""What falls, and how often in proportion."""
AIMED = 0.8
"""The share of blows that fall on somebody who has something in hand: only there can anything be lost."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StormOptions:
    """How much, how long, how rough."""

    recordings: int = 300
    workers: int = 3
    seconds: float = 120.0
    pause: tuple[float, float] = (1.0, 5.0)
    """Seconds between two blows."""
    lease_s: float = 3.0
    seed: int = 0
    keep: bool = False
    """Leave schema, objects and folder for a look."""


def storm(settings: Settings, options: StormOptions, say: Say) -> list[str]:
    """Run it. The answer is what was broken, in words; nothing: all promises were kept."""
    o = options
    with arena(settings, lease_s=o.lease_s, seed=o.seed, keep=o.keep) as place:
        say(f"{o.recordings} recordings, {o.workers} workers, {o.seconds:.0f} s, seed {o.seed}")
        files = place.record(*(_length(place) for _ in range(o.recordings)))
        say("undisturbed, on this machine: what ought to come of them")
        expected = place.undisturbed(files)
        say(f"the storm: {sum(len(t.segments) for t in expected.values())} segments to get right")
        found = _Storm(place, o)
        found.rage(files)
        say(f"calm: {sum(found.blows.values())} blows fell; what is left is done in peace")
        settled = found.calm()
        faults = ([] if settled else [f"not done {SETTLE_S:.0f} s after the storm"]) + found.faults
        faults += place.faults(expected)
        most, repeated = BATCH * sum(found.blows.values()), place.repeated()
        if settings.engine == "paced" and repeated > most:
            faults.append(f"{repeated} chunks were decoded again, more than a batch a blow ({most})")
        blows = ", ".join(f"{n} {name}" for name, n in sorted(found.blows.items()))
        say(f"{blows}; {place.started} workers started, the slowest left {found.slowest_leave_s:.1f} s after SIGTERM")
        say(f"{len(place.ids)} jobs; {repeated} chunks decoded again, {most} allowed")
        return faults


def _length(place: Arena) -> float:
    return LONG_S if place.chance.random() < LONG_SHARE else place.chance.uniform(*SHORT_S)


class _Storm:
    """What is done to the workers, and how they take it."""

    def __init__(self, place: Arena, options: StormOptions) -> None:
        self._place, self._options = place, options
        self.blows: Counter[str] = Counter()
        self.slowest_leave_s = 0.0
        self.faults: list[str] = []
        self._frozen: dict[subprocess.Popen[bytes], float] = {}
        self._leaving: dict[subprocess.Popen[bytes], float] = {}
        self._killed: set[subprocess.Popen[bytes]] = set()

    def rage(self, files: Sequence[Path]) -> None:
        """The recordings come in portions; blows fall; who ends is replaced."""
        for _ in range(self._options.workers):
            self._place.start()
        began = time.monotonic()
        next_blow = began + self._pause()
        size, given = -(-len(files) // PORTIONS), 0
        while (now := time.monotonic()) < began + self._options.seconds:
            due = 1 + int((now - began) / (SUBMITTING * self._options.seconds) * PORTIONS)
            if given < min(due * size, len(files)):
                self._place.submit(files[given : due * size])
                given = due * size
            if now >= next_blow:
                self._strike()
                next_blow = now + self._pause()
            self._look_after()
            time.sleep(0.05)
        if given < len(files):
            self._place.submit(files[given:])

    def calm(self) -> bool:
        """No more blows: everybody may work until all is done, and then leave. Whether all was done in time."""
        deadline = time.monotonic() + SETTLE_S
        self._frozen = dict.fromkeys(self._frozen, 0.0)
        while not (settled := self._place.settled()) and time.monotonic() < deadline:
            self._look_after()
            time.sleep(0.5)
        for process in self._place.workers:
            process.send_signal(signal.SIGTERM)
            self._leaving.setdefault(process, time.monotonic())
        while self._place.workers:
            self._look_after(replace=False)
            time.sleep(0.05)
        return settled

    def _strike(self) -> None:
        busy = self._frozen.keys() | self._leaving.keys()
        able = [w for w in self._place.workers if w not in busy and w.poll() is None]
        chance, now = self._place.chance, time.monotonic()
        if chance.random() < AIMED:
            with self._place.wiring.database.reading() as tx:
                names = leases.holders(tx)
            able = [w for w in able if any(f"-{w.pid}-" in name for name in names)] or able
        if not able:
            return
        victim = chance.choice(able)
        blow = chance.choices(list(BLOWS), list(BLOWS.values()))[0]
        self.blows[blow] += 1
        victim.send_signal(getattr(signal, blow))
        if blow == "SIGSTOP":
            self._frozen[victim] = now + self._options.lease_s * chance.uniform(0.5, 2.5)
        elif blow == "SIGTERM":
            self._leaving[victim] = now
        else:
            self._killed.add(victim)

    def _look_after(self, *, replace: bool = True) -> None:
        """Thaw who has been frozen long enough, end who does not leave, and put somebody in the place of who ended."""
        now = time.monotonic()
        for process in [p for p, until in self._frozen.items() if now >= until]:
            del self._frozen[process]
            process.send_signal(signal.SIGCONT)
        for process in [p for p, since in self._leaving.items() if now - since > LEAVE_S + 2 and p.poll() is None]:
            process.kill()
        for process in [p for p in self._place.workers if p.poll() is not None]:
            self._place.workers.remove(process)
            self._ended(process, now)
            if replace:
                self._place.start()

    def _ended(self, process: subprocess.Popen[bytes], now: float) -> None:
        asked = self._leaving.pop(process, None)
        if asked is not None:
            self.slowest_leave_s = max(self.slowest_leave_s, now - asked)
            if now - asked > LEAVE_S + 0.5:
                self.faults.append(f"a worker took {now - asked:.1f} s to leave after SIGTERM")
        expected = -signal.SIGKILL if process in self._killed else 0
        # A signal that comes before the worker has set up its handlers ends it in Python's own way.
        early = asked is not None and process.returncode in {-signal.SIGTERM, 143}
        if process.returncode != expected and not early:
            self.faults.append(
                f"a worker ended with {process.returncode} by itself: {self._place.said(process)[-500:]}"
            )

    def _pause(self) -> float:
        return self._place.chance.uniform(*self._options.pause)
