"""One server process of our own: started, ended and started again on the same port, and never left behind.

A server leads a session of its own, so Ctrl-C reaches us alone and we end things in our order. Should we be killed
without a chance to do that, a guard ends the server: a shell that waits for the end of a pipe whose other end is ours.
The kernel's parent-death signal would be less code, but takes the thread that started the server for its parent.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self, TypedDict

START_S = 60.0
END_S = 30.0

# Below 32768, where Linux takes the ports of outgoing connections from: a client that keeps calling a stopped server
# may be given that server's port, connect to itself, and keep the server from coming back. SeaweedFS adds 10 000 to
# each of its ports for its own calls, and those should lie below as well. In an order of this process's own, so that
# two test runs at once seldom meet and no port is given out twice.
SEAWEEDFS_ADDS = 10_000
_PORTS = range(10_000, 22_000)
_order = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))


class ServerFailed(RuntimeError):
    """A server did not come up."""


class RunAs(TypedDict, total=False):
    """Arguments of subprocess: the user that a process runs as."""

    user: int
    group: int
    extra_groups: list[int]


class Server(ABC):
    """What is known of a server before it runs, and the process while it does. A context starts and ends it."""

    ends_by = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None while it is stopped."""
        return self._process.pid if self._process else None

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    def run_as(self) -> RunAs:
        return {}

    def answers(self) -> bool:
        with socket.socket() as s:
            s.settimeout(0.5)
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> None:
        """Returns when the server answers; at once if it does already. Raises ServerFailed."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts it without waiting for it. Nothing happens where it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.end()  # it died by itself, if it ever ran
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, env=environment(self.folder), start_new_session=True, **self.run_as(),
            )  # fmt: skip
        self._guard = _guard(self._process.pid, self.ends_by)

    def wait(self) -> None:
        """Returns when the server answers. Raises ServerFailed, with the end of its log."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not self.answers():
            if self._process.poll() is not None:
                raise self.failed(f"ended with {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self.failed(f"does not answer after {START_S:.0f} s")
            time.sleep(0.02)

    def failed(self, how: str) -> ServerFailed:
        said = (self.folder / "log").read_text(errors="replace").splitlines()[-20:]
        return ServerFailed("\n".join([f"{Path(self.command()[0]).name} {how}", *said]))

    def end(self, how: signal.Signals | None = None) -> None:
        """By that signal, and by SIGKILL if it is not heeded. Nothing happens where nothing runs."""
        if self._process is not None:
            self._process.send_signal(how or self.ends_by)
        if self._guard is not None:  # before the server's id is free for another process
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Ends it at once, as a crash would: no goodbye to clients, nothing written any more."""
        self.end()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def environment(home: Path) -> dict[str, str]:
    """Nothing of the caller's: variables such as PGPORT or LC_ALL would change what a server does."""
    return {"PATH": os.defpath, "HOME": str(home)}


def free_port() -> int:
    """One that nobody listens on, nor on the one that SeaweedFS would use beside it."""
    return next(port for port in _order if _is_free(port) and _is_free(port + SEAWEEDFS_ADDS))


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _guard(pid: int, how: signal.Signals) -> subprocess.Popen[bytes]:
    """Sends that process that signal when our end of the pipe is closed, as it is at the latest when we are dead."""
    script = 'read -r _; kill -s "$1" "$2"'
    return subprocess.Popen(
        ["sh", "-c", script, "guard", how.name.removeprefix("SIG"), str(pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
