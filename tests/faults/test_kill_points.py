"""SIGKILL at every named point: before and after each commit, message and object. The points are found by a first run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.conftest import Places
from tests.faults.killing import SEEN
from workers.arena import Arena

PATIENCE_S = 90.0
EXPECTED = (
    "commit submit", "commit Steps._claimed", "commit Preparer._prepare", "commit Ledger.write",
    "commit Finisher.finish", "commit Finisher.deliver_leased", "commit Reconciler.once", "message published",
    "message acknowledged", "work object written", "work object read", "work object deleted",
    "transcript file written", "recording read",
)  # fmt: skip
"""Some of what must be among the points, so that a change of names cannot make this test try nothing."""


class Zygote:
    """The program of tests/faults/killing.py, and what it starts."""

    def __init__(self, place: Arena) -> None:
        self._place = place
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.killing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._running: set[int] = set()
        self._log = place.folder / "logs" / "zygote.log"

    def start(self, arguments: Sequence[str], point: str | None = None, seen: Path | None = None) -> int:
        """A process with these arguments that dies at that point, if it comes there."""
        environment = self._place.environment | ({SEEN: str(seen)} if seen else {})
        return self._tell(arguments, point, environment, wait=False)

    def finish(self, arguments: Sequence[str], point: str | None = None) -> int:
        """The same, waited for: its exit code."""
        self._tell(arguments, point, self._place.environment, wait=True)
        assert self._process.stdout
        return int(self._process.stdout.readline())

    def _tell(self, arguments: Sequence[str], point: str | None, environment: dict[str, str], *, wait: bool) -> int:
        assert self._process.stdin
        assert self._process.stdout
        told = {"arguments": arguments, "point": point, "environment": environment, "log": str(self._log), "wait": wait}
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if not wait:
            self._running.add(pid)
        return pid

    def alive(self, pid: int) -> bool:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"

    def end(self, pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 12.0
        while self.alive(pid):
            assert time.monotonic() < deadline, "it does not leave"
            time.sleep(0.02)
        self._running.discard(pid)

    def close(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


@contextmanager
def zygote(place: Arena) -> Iterator[Zygote]:
    made = Zygote(place)
    try:
        yield made
    finally:
        made.close()


WORKER = ("worker", "--batch-size", "4", "--cpu-threads", "2")


def points(place: Arena, z: Zygote, files: Sequence[Path]) -> list[str]:
    """All that a worker passes on its way, from start to leaving."""
    seen = place.folder / "seen"
    place.submit(files)
    worker = z.start(WORKER, seen=seen)
    assert place.settle(PATIENCE_S)
    time.sleep(0.5)
    z.end(worker)
    return sorted(set(seen.read_text().splitlines()))


def test_a_kill_at_any_point_loses_nothing_and_repeats_next_to_nothing(places: Places) -> None:
    with places(lease_s=1.0) as place, zygote(place) as z:
        first = place.record(12.0, 30.0)
        found = points(place, z, first)
        missing = [p for name in EXPECTED[1:] for p in (f"before {name}", f"after {name}") if p not in found]
        assert not missing, found
        files = place.record(*[9.0] * len(found))
        expected = place.undisturbed([*first, *files])
        died = []
        for point, file in zip(found, files, strict=True):
            place.submit([file])
            victim = z.start(WORKER, point)
            deadline = time.monotonic() + PATIENCE_S
            while z.alive(victim) and not place.settled():
                assert time.monotonic() < deadline, point
                time.sleep(0.05)
            if z.alive(victim):  # the point comes when it leaves, or did not come this time
                os.kill(victim, signal.SIGTERM)
                while z.alive(victim):
                    assert time.monotonic() < deadline + 12, point
                    time.sleep(0.02)
            else:
                died.append(point)
            rescuer = z.start(WORKER)
            assert place.settle(PATIENCE_S), point
            z.end(rescuer)
        assert place.faults(expected) == []
        assert place.repeated() <= len(died)
        assert len(died) >= 0.7 * len(found), sorted(set(found) - set(died))


def test_a_submission_killed_at_any_point_is_submitted_or_is_not(places: Places) -> None:
    """And the same command again makes it whole: each recording once."""
    with places(lease_s=1.0) as place, zygote(place) as z:
        for i, point in enumerate(
            ("before commit Database.again", "after commit Database.again", "before message published")
        ):
            (file,) = place.record(9.0)
            command = ["submit", str(file), "--label", f"l{i}", "--model", place.job.model, "--language", "en"]
            assert z.finish(command, point) == -signal.SIGKILL
            worker = z.start(WORKER)
            if not point.startswith("before commit"):
                deadline = time.monotonic() + PATIENCE_S  # nobody published anything: the reconciler finds it
                while not place.settled():
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            assert z.finish([*command, "--wait"]) == 0
            z.end(worker)
        with place.wiring.database.reading() as tx:
            from sqlalchemy import func, select

            from storage.tables import Job, TranscriptRow

            assert tx.execute(select(func.count()).select_from(Job)).scalar() == 3
            assert tx.execute(select(func.count()).select_from(TranscriptRow)).scalar() == 3
