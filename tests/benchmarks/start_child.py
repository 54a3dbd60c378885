"""A worker that notes when its steps end: run by bench_start in a process of its own. Imports nothing that it measures."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKS = "BENCH_START_MARKS"
"""Names the file that marks are written to."""


def child() -> None:
    """`spotscribe worker`, with marks."""
    marks = Path(os.environ[MARKS])

    def mark(step: str) -> None:
        with marks.open("a") as file:
            file.write(json.dumps([step, time.monotonic()]) + "\n")

    mark("python")
    from workers import cli

    mark("command line")
    sys.argv = ["spotscribe", *sys.argv[1:]]
    with cli.all_to_stay():
        from workers.commands import worker
    mark("imports")
    from storage import leases

    after(worker, "read_settings", lambda _: mark("settings"))
    after(worker.Wiring, "check_fleet", lambda _: mark("servers"))
    after(worker, "_decoder", lambda _: mark("device, model"))
    after(leases, "claim", lambda found: mark("claim") if found else mark("empty claim"))

    def loaded(engine: Any) -> None:
        mark("load")
        decode = type(engine).decode

        @functools.wraps(decode)
        def first(*arguments: Any) -> Any:
            mark("sound")
            found = decode(*arguments)
            mark("decode")
            return found

        type(engine).decode = first

    after(worker, "load_engine", loaded)
    before(worker.FleetWorker, "_celery_worker", lambda: mark("threads"))
    cli.main()


def after(place: Any, name: str, note: Callable[[Any], None]) -> None:
    """Note each end of this function, and what it returned."""
    inner = getattr(place, name)

    @functools.wraps(inner)
    def noted(*arguments: Any, **named: Any) -> Any:
        found = inner(*arguments, **named)
        note(found)
        return found

    setattr(place, name, noted)


def before(place: Any, name: str, note: Callable[[], None]) -> None:
    """Note each beginning of this function."""
    inner = getattr(place, name)

    @functools.wraps(inner)
    def noted(*arguments: Any, **named: Any) -> Any:
        note()
        return inner(*arguments, **named)

    setattr(place, name, noted)


if __name__ == "__main__":
    child()
