"""Several workers on one machine: a process for each GPU, kept at work by one that does nothing else.

A process each, because a CUDA error poisons its whole process: a lost GPU takes nothing from the others. Each child is
a worker in all things: it has its name, its leases, its watch for notices of preemption, so those reach all of them.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from pipeline.settings import PREFIX

LOG = logging.getLogger("spotscribe.pack")
VISIBLE = "CUDA_VISIBLE_DEVICES"
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a child that ended by itself is started again; twice as long each time, until it has lived LONGEST_PAUSE_S."""
GONE_S = 9.5
"""From the word to leave: when what is still there is killed. A child has 9 s (workers/fleet.py)."""
TICK_S = 0.1
LEFT, WRONG = 0, 2
"""Exit codes of a child that was told to leave, and of one whose set-up is wrong: the latter is final in a first life
alone, since later it may be that a server is away for a while."""


@dataclass(frozen=True, slots=True)
class Child:
    """What is to be kept running."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def children(
    number: int, gpus: int, cores: int, cpu_threads: int | None, metrics_listen: str = ""
) -> tuple[Child, ...]:
    """This process's own command so many times: GPUs, cores and CPU threads are shared out.

    Each serves its metrics on a port of its own, from `metrics_listen` on.
    """
    made = []
    for i in range(number):
        environment = {**os.environ, f"{PREFIX}CPU_THREADS": str(max(1, cores // number))}
        if metrics_listen:
            environment[f"{PREFIX}METRICS_LISTEN"] = next_port(metrics_listen, i)
        name = f"process {i}"
        if gpus:
            environment[VISIBLE] = share_of_gpus(os.environ.get(VISIBLE), gpus, i, number)
            name = f"GPU {environment[VISIBLE]}"
        threads = () if cpu_threads is None else ("--cpu-threads", str(max(1, cpu_threads // number)))
        command = (sys.executable, *sys.orig_argv[1:], "--processes", "1", "--child-of", str(os.getpid()))
        made.append(Child(name, (*command, *threads), environment))
    return tuple(made)


def next_port(listen: str, after: int) -> str:
    """HOST:PORT, so many ports on; 0 stays, any free port. Pure."""
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) + after}" if port.isdecimal() and int(port) else listen


def share_of_gpus(visible: str | None, gpus: int, process: int, processes: int) -> str:
    """CUDA_VISIBLE_DEVICES of one process, from what it is now and how many GPUs CTranslate2 sees. Pure."""
    names = [name.strip() for name in visible.split(",")][:gpus] if visible else [str(i) for i in range(gpus)]
    return ",".join(names[process::processes] or [names[process % gpus]])


class Pack:
    """Children, started and started again until somebody says to leave."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._places = [_Place(c) for c in children]
        self._leaving: float | None = None
        """Since when."""

    def run(self) -> int:
        """Until all have ended for good; SIGTERM and Ctrl-C are passed on. Returns the worst of their exit codes."""
        for told in (signal.SIGTERM, signal.SIGINT):
            signal.signal(told, self._leave)
        while not all(p.over for p in self._places):
            if (since := self._leaving) is not None:
                for place in self._places:
                    place.end(late=time.monotonic() - since > GONE_S)
            for place in self._places:
                place.look(leaving=self._leaving is not None)
            time.sleep(TICK_S)
        return max(p.code for p in self._places)

    def _leave(self, _signal: int, _frame: FrameType | None) -> None:
        self._leaving = self._leaving or time.monotonic()


class _Place:
    """One child, over its lives."""

    def __init__(self, child: Child) -> None:
        self.code, self.over = 0, False
        """Of the last life that has ended (128 and the number of the signal that ended it); whether it was the last."""
        self._lives = 0
        self._child = child
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._again_at = 0.0
        self._pause = PAUSE_S
        self._told = False

    def look(self, *, leaving: bool) -> None:
        """Start the child if it is time to, note if it has ended."""
        if self._process is not None:
            if (code := self._process.poll()) is not None:
                self._ended(code if code >= 0 else 128 - code, leaving=leaving)
        elif leaving:
            self.over = True
        elif not self.over and time.monotonic() >= self._again_at:
            self._began, self._lives = time.monotonic(), self._lives + 1
            # In a session of its own: Ctrl-C in a terminal is for this process, which passes the word on, once.
            command, environment = self._child.command, dict(self._child.environment)
            self._process = subprocess.Popen(command, env=environment, start_new_session=True)

    def end(self, *, late: bool) -> None:
        """Tell the child to leave, once; `late`: end it."""
        if self._process is not None and (late or not self._told):
            self._process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
            self._told = True

    def _ended(self, code: int, *, leaving: bool) -> None:
        now, self._process, self.code = time.monotonic(), None, code
        self.over = leaving or code == LEFT or (code == WRONG and self._lives == 1)
        if leaving:
            return
        if self.over:
            self._say(f"ended with {code}, and is not started again")
            return
        if now - self._began > LONGEST_PAUSE_S:
            self._pause = PAUSE_S
        self._again_at = now + self._pause
        self._say(f"ended with {code}, and is started again in {self._pause:.0f} s")
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def _say(self, text: str) -> None:
        LOG.warning("%s: %s", self._child.name, text)
