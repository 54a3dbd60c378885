"""Contenders' processes, measured, and environments for peers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from workers import usage
from workers.usage import Usage

ROOT = Path(__file__).parents[2]


class CannotRun(Exception):
    """A contender does not run here: one line that says why."""


def environment(**more: str) -> dict[str, str]:
    """This process's, with no setting of Spotscribe's and no hub."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", **more}


def measured(
    command: Sequence[str], folder: Path, env: Mapping[str, str], *, given: str = "", fine: Sequence[int] = (0,)
) -> Usage:
    """Run it, with stdout in `folder`/stdout. Raises CannotRun with the last line that it said."""
    try:
        return usage.measured(command, folder, env, given=given, fine=fine, cwd=ROOT)
    except usage.ChildFailed as e:
        raise CannotRun(plain(str(e))) from None


def plain(text: str) -> str:
    """One line without addresses and folders of this machine, fit for a report."""
    text = re.sub(r"\w+://\S+", "…", " ".join(text.split()))
    return re.sub(r"(?<![\w.])/[^\s'\":,]*/", "…/", text)[:300]


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
