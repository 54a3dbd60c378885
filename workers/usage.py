"""A child process, measured: seconds, CPU, and the most memory of it and all below it. Linux only."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.2
SHARE = 0.02
"""Of a core, for looking: a large process's pages take the kernel milliseconds to count."""


class ChildFailed(Exception):
    """A measured process ended with another code than it may."""

    def __init__(self, code: int, said: str) -> None:
        """`said`: the last line that it wrote on stderr; `code`: below zero for a signal."""
        super().__init__(f"ended with {code}: {said or 'without a word'}")
        self.code, self.said = code, said


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process took from its start to its end."""

    process_s: float
    cpu_s: float
    """Of it and of all its children."""
    memory_mb: float
    """The most that all of them held at once, by samples, or the most that it alone ever held, where that is more."""
    others: float
    """What everything else on this machine took of its cores meanwhile, 0 to 1."""


def measured(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    given: str = "",
    fine: Sequence[int] = (0,),
    cwd: Path | None = None,
) -> Usage:
    """Run it, with stdin, stdout and stderr as files in `folder`. Raises ChildFailed."""
    (folder / "stdin").write_text(given)
    began, busy = time.perf_counter(), _busy_s()
    child = None
    try:
        with (
            (folder / "stdin").open() as i,
            (folder / "stdout").open("w") as o,
            (folder / "stderr").open("w") as e,
            _held(),
        ):
            child = subprocess.Popen(command, stdin=i, stdout=o, stderr=e, env=env, cwd=cwd)
        with _Sampler(child.pid) as sampler:
            _, status, used = os.wait4(child.pid, 0)
    except BaseException:
        if child is not None:
            child.kill()
            child.wait()
        raise
    took, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
    others = max(0.0, _busy_s() - busy - cpu) / (took * (os.cpu_count() or 1))
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in fine:
        said = (folder / "stderr").read_text(errors="replace").strip().splitlines()
        raise ChildFailed(child.returncode, said[-1] if said else "")
    return Usage(took, cpu, sampler.most_mb, others)


@contextmanager
def _held() -> Iterator[None]:
    """SIGINT and SIGTERM come at its end: a child that is there before it has a name here would work on, unseen."""
    came: list[int] = []
    before = {s: signal.signal(s, lambda s, _: came.append(s)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        for one in came:
            signal.raise_signal(one)


def _busy_s() -> float:
    """Of all cores since the machine began: no idling, no waiting for disks; what its host took from it counts."""
    user, nice, system, _idle, _wait, *others = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


class _Sampler(threading.Thread):
    """Not by ru_maxrss: it begins with what this process held when it forked."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.most_mb = 0.0
        self._pid, self._done = pid, threading.Event()

    def __enter__(self) -> _Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        pause = SAMPLE_S
        while not self._done.wait(pause):
            began = time.thread_time()
            self.most_mb = max(self.most_mb, held_mb(self._pid), _told_mb(self._pid, "status", "VmHWM"))
            pause = max(SAMPLE_S, (time.thread_time() - began) / SHARE)


def held_mb(pid: int) -> float:
    """By a process and all below it; a page that several share counts once (proc(5), Pss)."""
    try:
        below = [c for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    except OSError:  # it has ended
        return 0.0
    return _told_mb(pid, "smaps_rollup", "Pss") + sum(held_mb(int(c)) for c in below)


def _told_mb(pid: int, file: str, name: str) -> float:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e6 if found else 0.0
