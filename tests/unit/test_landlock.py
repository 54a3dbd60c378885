"""Landlock, where this kernel has it: nothing more can be opened, by a process without any other limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chunking import landlock

TRIES = """
import ctypes, os, socket, sys
from chunking import landlock
kept = open("/etc/passwd")
listener = socket.create_server(("127.0.0.1", 0))
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
if sys.argv[1] == "forbid":
    assert landlock.forbid_all()
def tried(what):
    try:
        what()
    except OSError as e:
        return type(e).__name__
    return "done"
print(tried(lambda: kept.read(1)), tried(lambda: open("/etc/passwd")), tried(lambda: open("/tmp/landlock-x", "w")),
      tried(lambda: os.listdir("/")), tried(lambda: socket.create_connection(listener.getsockname())),
      tried(lambda: os.kill(os.getppid(), 0)))
"""


def tried(how: str) -> str:
    return subprocess.run([sys.executable, "-c", TRIES, how], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(landlock.version() < 6, reason="this kernel's Landlock knows no signals")
def test_what_is_open_stays_and_nothing_more_is_opened() -> None:
    assert tried("allow") == "done done done done done done"
    assert tried("forbid") == "done PermissionError PermissionError PermissionError PermissionError PermissionError"


def test_a_kernel_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert not landlock.forbid_all()
