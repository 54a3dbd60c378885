"""Calling `spotscribe` as a user does, for the acceptance tests."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = [str(Path(sys.executable).parent / "spotscribe")]
TIMEOUT_S = 300


@dataclass(frozen=True)
class Ran:
    """A finished call."""

    code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """The summary's files by their name."""
        return {Path(f["source"]).name: f for f in self.summary["files"]}


def spotscribe(*arguments: object, cwd: Path | None = None) -> Ran:
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=cwd
    )
    assert "Traceback" not in done.stderr + done.stdout
    return Ran(done.returncode, done.stdout, done.stderr)


def run(*arguments: object, out: Path) -> Ran:
    """`spotscribe run … --json` with tiny.en."""
    return spotscribe("run", *arguments, "--model", "tiny.en", "--out", out, "--json")


def query(home: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the run's own database."""
    with sqlite3.connect(home / "spotscribe.db") as connection:
        return connection.execute(sql).fetchall()
