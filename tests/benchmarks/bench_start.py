"""`make bench-start`: from the start of `spotscribe worker` to its first decoded batch, and what that time is spent on.

Shards are queued before, so the worker finds work at once. Servers are from wheels, on the same cores. Each round is a
new process; its steps note when they begin and end, on the clock that all processes of a machine share. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from infra.laptop import stack
from infra.stage import INBOX, OUT, WORK, recordings
from pipeline.settings import Settings
from tests.benchmarks.start_child import MARKS
from workers.wiring import Wiring

PROGRAM = [str(Path(sys.executable).parent / "spotscribe")]
CHILD = [sys.executable, "-m", "tests.benchmarks.start_child"]
PATIENCE_S = 120.0
EACH = 8
"""Recordings of some minutes for each round, so that nothing is wanting however much a worker does until it is told to leave."""
STEPS = (
    ("python", "Python starts"),
    ("command line", "the command line is imported"),
    ("imports", "what the command needs is imported (CTranslate2, ONNX, SQLAlchemy, Celery)"),
    ("settings", "settings are read"),
    ("servers", "Postgres and Redis are asked whether they are as they should be"),
    ("device, model", "the device is looked at, the model is found"),
    ("load", "the model's sums are checked, it is loaded"),
    ("threads", "threads, decoder, registration: until the first claim"),
    ("claim", "the first claim that finds something"),
    ("sound", "shards are read, features are computed, a batch is put together"),
    ("decode", "the first batch is decoded"),
)
"""In the order in which they end."""


@dataclass(frozen=True, slots=True)
class Round:
    """When each step ended, in seconds from the start of the process."""

    ends: dict[str, float]

    def took(self, step: str) -> float:
        names = [name for name, _ in STEPS]
        at = names.index(step)
        return self.ends[step] - (self.ends[names[at - 1]] if at else 0.0)


def measure(environment: dict[str, str], marks: Path, model: str) -> Round:
    """One worker, until its first batch is decoded."""
    marks.unlink(missing_ok=True)
    marks.touch()
    began = time.monotonic()
    with marks.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*CHILD, "worker", "--roles", "gpu", "--model", model], env={**environment, MARKS: str(marks)}, stderr=log
        )
    try:
        while not any(step == "decode" for step, _ in read(marks)):
            if process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                raise SystemExit(f"the worker decoded nothing:\n{marks.with_suffix('.log').read_text()}")
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(30)
    ends: dict[str, float] = {}
    for step, at in read(marks):
        ends.setdefault(step, at - began)
    return Round(ordered(ends))


def ordered(ends: dict[str, float]) -> dict[str, float]:
    """Steps of threads that run side by side end in any order: none ends before the one that is before it in the table."""
    found, latest = {}, 0.0
    for step, _ in STEPS:
        latest = max(latest, ends[step])
        found[step] = latest
    return found


def read(marks: Path) -> list[tuple[str, float]]:
    return [(step, at) for step, at in map(json.loads, marks.read_text().splitlines())]


def table(rounds: list[Round]) -> str:
    """Medians of each step, and of the whole."""
    lines = ["| step | seconds | at | what happens |", "|---|---:|---:|---|"]
    for step, about in STEPS:
        took, at = median(r.took(step) for r in rounds), median(r.ends[step] for r in rounds)
        lines.append(f"| {step} | {took:.2f} | {at:.2f} | {about} |")
    return "\n".join(lines)


def main() -> None:
    """Servers, shards that wait, and some workers, one after the other."""
    parser = argparse.ArgumentParser(prog="make bench-start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="tiny.en")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, stack(Path(name) / "servers") as servers:
        folder = Path(name)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPOTSCRIBE_", "AWS_"))}
        environment |= servers.environment() | {
            "SPOTSCRIBE_HOME": str(folder / "home"), "SPOTSCRIBE_WORK_URL": f"s3://{WORK}/audio",
            "SPOTSCRIBE_CLOUD": "none",
        }  # fmt: skip
        os.environ.update(environment)
        prepared(folder, environment, asked.rounds, asked.model)
        measure(environment, folder / "marks", asked.model)  # files are in the system's memory from here on
        rounds = [measure(environment, folder / "marks", asked.model) for _ in range(asked.rounds)]
    print(f"{asked.model}, {asked.rounds} rounds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(table(rounds))


def prepared(folder: Path, environment: dict[str, str], rounds: int, model: str) -> None:
    """Recordings whose shards wait for a GPU worker."""
    wiring = Wiring(Settings())
    for bucket in (INBOX, OUT, WORK):
        wiring.s3.create_bucket(Bucket=bucket)
    *_, long = recordings(folder)
    for i in range(EACH * (rounds + 1)):
        wiring.s3.put_object(Bucket=INBOX, Key=f"{i}.flac", Body=long.read_bytes() + bytes(i))
    subprocess.run([*PROGRAM, "db", "upgrade"], env=environment, check=True, stdout=subprocess.DEVNULL)
    submit = [*PROGRAM, "submit", f"s3://{INBOX}/", "--model", model]
    subprocess.run(submit, env=environment, check=True, stdout=subprocess.DEVNULL)
    with (folder / "cpu.log").open("wb") as log:
        cpu = subprocess.Popen([*PROGRAM, "worker", "--roles", "cpu"], env=environment, stderr=log)
    from sqlalchemy import text

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with wiring.database.reading() as tx:
            if tx.execute(text("SELECT count(*) FROM jobs WHERE state = 'queued'")).scalar() == 0:
                break
        time.sleep(0.2)
    cpu.terminate()
    cpu.wait(30)
    wiring.database.close()


if __name__ == "__main__":
    main()
