"""A child process, measured: seconds, CPU, the most memory of it and all below it; and environments for peers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLE_S = 0.2


class CannotRun(Exception):
    """A contender does not run here: one line that says why."""


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


def environment(**more: str) -> dict[str, str]:
    """This process's, with no setting of Spotscribe's and no hub."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", **more}


def measured(
    command: Sequence[str], folder: Path, env: Mapping[str, str], *, given: str = "", fine: Sequence[int] = (0,)
) -> Usage:
    """Run it, with stdout in `folder`/stdout. Raises CannotRun with the last line that it said."""
    (folder / "stdin").write_text(given)
    began, busy = time.perf_counter(), _busy_s()
    with (folder / "stdin").open() as stdin, (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        child = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err, env=env, cwd=ROOT)
    try:
        with _Sampler(child.pid) as sampler:
            _, status, used = os.wait4(child.pid, 0)
    except BaseException:
        child.kill()
        raise
    took, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
    others = max(0.0, _busy_s() - busy - cpu) / (took * (os.cpu_count() or 1))
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in fine:
        said = (folder / "stderr").read_text(errors="replace").strip().splitlines()
        raise CannotRun(plain(f"ended with {child.returncode}: {said[-1] if said else 'without a word'}"))
    return Usage(took, cpu, sampler.most_mb, others)


def _busy_s() -> float:
    """Of all cores since the machine began: no idling, no waiting for disks; what its host took from it counts."""
    user, nice, system, _idle, _wait, *others = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def plain(text: str) -> str:
    """One line without addresses and folders of this machine, fit for a report."""
    text = re.sub(r"\w+://\S+", "…", " ".join(text.split()))
    return re.sub(r"(?<![\w.])/[^\s'\":,]*/", "…/", text)[:300]


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
        while not self._done.wait(SAMPLE_S):
            self.most_mb = max(self.most_mb, held_mb(self._pid), _told_mb(self._pid, "status", "VmHWM"))


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


def made_environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of `.venv-bench-NAME`, made and filled unless it stands. Raises CannotRun."""
    folder = ROOT / f".venv-bench-{name}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((sys.version, *requirements))
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"installing {' '.join(requirements)} into {folder.name}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *requirements]
    with (folder / "install.log").open("w") as log:
        code = subprocess.run(pip, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        said = (folder / "install.log").read_text(errors="replace").splitlines()
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["without a word"]
        raise CannotRun(plain(f"cannot be installed: {errors[-1]}"))
    stamp.write_text(wanted)
    return python


def versions(python: Path, module: str, packages: Sequence[str]) -> dict[str, str]:
    """Of the packages, if the module can be imported there. Raises CannotRun."""
    code = (
        f"import json, {module}; from importlib.metadata import version;"
        f"print(); print(json.dumps({{p: version(p) for p in {list(packages)!r}}}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        raise CannotRun(plain(f"cannot be imported: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"))
    return dict(json.loads(done.stdout.splitlines()[-1]))
