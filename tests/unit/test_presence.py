"""Who is alive on this machine: real processes, one of them killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from workers.presence import Presence

CHILD = """
import sys, time
from pathlib import Path
from workers.presence import Presence
with Presence(Path(sys.argv[1])) as me:
    (me.scratch / "sound.pcm").write_bytes(b"words")
    print(me.name, flush=True)
    sys.stdin.read()
"""


def other(home: Path) -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def test_a_process_is_there_until_it_ends_and_leaves_nothing(tmp_path: Path) -> None:
    child, name = other(tmp_path)
    with Presence(tmp_path) as me:
        assert me.dead([name, me.name]) == set()
        assert (tmp_path / "scratch" / name / "sound.pcm").exists()
        child.communicate("")
        assert me.dead([name, me.name]) == {name}
        assert [p.name for p in (tmp_path / "scratch").iterdir()] == [me.name]
    assert list((tmp_path / "scratch").iterdir()) == []
    assert list((tmp_path / "run").iterdir()) == []


def test_what_a_killed_process_left_in_scratch_goes_whoever_looks(tmp_path: Path) -> None:
    child, name = other(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert (tmp_path / "scratch" / name / "sound.pcm").exists()
    with Presence(tmp_path, "export-") as me:
        assert me.dead([name]) == set()  # one of another kind, whose leases are not ours to take
        assert not (tmp_path / "scratch" / name).exists()


def test_workers_of_other_machines_are_not_judged(tmp_path: Path) -> None:
    with Presence(tmp_path, "thishost-") as me:
        assert me.dead(["otherhost-12-abc", "thishost-12-abc"]) == {"thishost-12-abc"}
