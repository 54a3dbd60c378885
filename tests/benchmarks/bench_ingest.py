"""`make bench-ingest`: what an ingester takes to list a bucket, in seconds and memory. It prints figures, judges nothing.

Servers come from wheels, into a scratch folder, on the same cores; the machine is named at the head. The objects are
real ones in a real S3 server, one byte each: a listing does not open them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from infra.laptop import stack
from pipeline.settings import Settings
from workers.bootstrap import end_tidily
from workers.wiring import Wiring

BUCKET = "inbox"
WRITERS = 4
FOLDERS = 100


def main() -> None:
    """Three listings: all new, nothing new, a hundred new."""
    end_tidily()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    objects = parser.parse_args().objects
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {objects} objects", flush=True)
    with _servers() as environment:
        wiring = Wiring(Settings())
        began = time.monotonic()
        _put(wiring, range(objects))
        print(f"{objects} objects written in {time.monotonic() - began:.0f} s", flush=True)
        for what, more in (("all new", 0), ("nothing new", 0), ("100 new", 100)):
            _put(wiring, range(objects, objects + more))
            seconds, megabytes = _ingest(environment)
            with wiring.database.reading() as tx:
                arrivals, jobs = tx.execute(
                    text("SELECT (SELECT count(*) FROM arrivals), (SELECT count(*) FROM jobs)")
                ).one()
            print(f"{what}: {seconds:.1f} s, {megabytes:.0f} MB; ledger {arrivals}, jobs {jobs}", flush=True)
        wiring.database.close()


def _ingest(environment: dict[str, str]) -> tuple[float, float]:
    """`spotscribe ingest` from start to end: seconds, and the most memory that it had."""
    began = time.monotonic()
    command = [sys.executable, "-m", "workers", "ingest", f"s3://{BUCKET}/", "--out", "none", "--once"]
    process = subprocess.Popen(command, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"ingest ended with {process.returncode}")
    return time.monotonic() - began, usage.ru_maxrss / 1024


def _put(wiring: Wiring, numbers: Sequence[int]) -> None:
    def write(part: Sequence[int]) -> None:
        for i in part:
            wiring.s3.put_object(Bucket=BUCKET, Key=f"{i % FOLDERS:03d}/call {i:07d}+é.wav", Body=b"x")

    writers = [threading.Thread(target=write, args=(numbers[i::WRITERS],)) for i in range(WRITERS)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="spotscribe-"))
    try:
        with stack(folder / "servers") as servers:
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPOTSCRIBE_", "AWS_"))}
            environment = {**kept, **servers.environment(), "SPOTSCRIBE_HOME": str(folder / "home")}
            os.environ.update({k: v for k, v in environment.items() if k.startswith(("SPOTSCRIBE_", "AWS_"))})
            wiring = Wiring(Settings())
            wiring.s3.create_bucket(Bucket=BUCKET)
            wiring.database.upgrade()
            yield environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
