"""Several workers on one machine: kept at work, told to leave, and each alone with its GPU. Children are small programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.pack import VISIBLE, children, share_of_gpus

PATIENCE_S = 90.0
PARENT = """
import json, sys
from workers import pack
pack.PAUSE_S, pack.GONE_S = 0.2, float(sys.argv[2])
sys.exit(pack.Pack([pack.Child(f"GPU {i}", (sys.executable, "-c", *c), {}) for i, c in enumerate(json.loads(sys.argv[1]))]).run())
"""
LIVES = """
import os, signal, sys, time
from pathlib import Path
def leave(*_):
    Path(sys.argv[1] + ".left").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
"""Notes each of its lives in a file, and leaves when told to."""
STAYS = f"{LIVES}\ntime.sleep(60)"
FIRST_LOSES_ITS_DEVICE = f"{LIVES}\nif len(open(sys.argv[1]).readlines()) == 1: os._exit(70)\ntime.sleep(60)"


def pack(*programs: tuple[str, Path], gone_s: float = 9.5) -> subprocess.Popen[str]:
    named = json.dumps([[program, str(notes)] for program, notes in programs])
    return subprocess.Popen([sys.executable, "-c", PARENT, named, str(gone_s)], stderr=subprocess.PIPE, text=True)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(notes: Path) -> list[int]:
    return [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def test_a_child_that_ends_by_itself_is_started_again_and_takes_no_other_with_it(tmp_path: Path) -> None:
    lost, other = tmp_path / "lost", tmp_path / "other"
    process = pack((FIRST_LOSES_ITS_DEVICE, lost), (STAYS, other))
    until(lambda: len(lives(lost)) == 2 and len(lives(other)) == 1)
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert (tmp_path / "lost.left").exists()
    assert (tmp_path / "other.left").exists()
    assert (len(lives(lost)), len(lives(other))) == (2, 1)
    assert said == "GPU 0: ended with 70, and is started again in 0 s\n"


def test_the_worst_code_counts_and_a_wrong_set_up_is_final(tmp_path: Path) -> None:
    wrong, told = tmp_path / "wrong", tmp_path / "told"
    process = pack((f"{LIVES}\nsys.exit(2)", wrong), (f"{LIVES}\nsys.exit(0)", told))
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert (len(lives(wrong)), len(lives(told))) == (1, 1)
    assert "GPU 0: ended with 2, and is not started again" in said


def test_a_set_up_that_was_right_once_is_tried_again(tmp_path: Path) -> None:
    program = f"{LIVES}\nn = len(open(sys.argv[1]).readlines())\nif n < 3: os._exit((70, 2)[n - 1])\ntime.sleep(60)"
    notes = tmp_path / "notes"
    process = pack((program, notes))
    until(lambda: len(lives(notes)) == 3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_who_does_not_leave_in_time_is_ended(tmp_path: Path) -> None:
    deaf, good = tmp_path / "deaf", tmp_path / "good"
    process = pack(
        (f"{LIVES}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)", deaf), (STAYS, good), gone_s=1.0
    )
    until(lambda: len(lives(deaf)) == 1 and len(lives(good)) == 1)
    time.sleep(0.3)  # its handler is set after its note
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert (tmp_path / "good.left").exists()


def test_a_parent_that_is_killed_leaves_no_children(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    program = f"from workers.bootstrap import die_with\nimport os\ndie_with(os.getppid())\n{STAYS}"
    process = pack((program, notes))
    until(lambda: len(lives(notes)) == 1)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    until((tmp_path / "notes.left").exists)


@pytest.mark.parametrize(
    ("visible", "gpus", "shares"),
    [
        (None, 4, ["0", "1", "2", "3"]),
        ("", 2, ["0", "1"]),
        ("2,3", 2, ["2", "3"]),
        ("GPU-8f2a, GPU-77b1", 2, ["GPU-8f2a", "GPU-77b1"]),
        (None, 4, ["0,2", "1,3"]),
        (None, 1, ["0", "0", "0"]),
        ("5,-1,6", 1, ["5"]),  # CUDA ends the list at what is no device
    ],
)
def test_gpus_are_shared_out(visible: str | None, gpus: int, shares: list[str]) -> None:
    assert [share_of_gpus(visible, gpus, i, len(shares)) for i in range(len(shares))] == shares


@given(st.integers(1, 16), st.integers(1, 16))
def test_every_gpu_has_a_process_and_every_process_a_gpu(gpus: int, processes: int) -> None:
    shares = [share_of_gpus(None, gpus, i, processes).split(",") for i in range(processes)]
    assert all(shares)
    assert {g for s in shares for g in s} == {str(i) for i in range(gpus)}
    if processes <= gpus:
        assert sum(map(len, shares)) == gpus  # none has two


def test_children_are_this_command_with_a_share_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/spotscribe", "worker", "--cpu-threads", "6"])
    monkeypatch.setenv(VISIBLE, "4,7")
    first, second = children(2, 2, 8, 6)
    options = ("--processes", "1", "--child-of", str(os.getpid()), "--cpu-threads", "3")
    assert second.command == (sys.executable, "/bin/spotscribe", "worker", "--cpu-threads", "6", *options)
    assert [c.environment[VISIBLE] for c in (first, second)] == ["4", "7"]
    assert first.environment["SPOTSCRIBE_CPU_THREADS"] == "4"
    assert (first.name, second.name) == ("GPU 4", "GPU 7")
    monkeypatch.delenv(VISIBLE)
    [only, _] = children(2, 0, 1, None)
    assert VISIBLE not in only.environment
    assert only.environment["SPOTSCRIBE_CPU_THREADS"] == "1"
