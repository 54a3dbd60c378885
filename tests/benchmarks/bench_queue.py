"""`make bench-queue`: what the queue does, in figures; it prints a table and never judges.

Servers come from wheels, in a scratch folder. The machine, and what else runs on it, is part of every figure: it is
named at the head, with its load before each part.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from infra.laptop import PostgresHandle, Stack, stack
from storage.database import Database
from tests.benchmarks import queue_parts
from tests.benchmarks.queue_parts import ClaimSizes, Figure, fresh_database
from sqlalchemy import text

PARTS = ("submit", "claims", "checkpoints")


def main() -> None:
    o = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end
    with _servers(durable=o.fsync) as (folder, servers):
        for line in _head(servers):
            print(line)
        for part in o.only:
            print(f"{'':12}load average {os.getloadavg()[0]:.1f}", flush=True)
            for figure in _figures(part, servers, folder, o):
                print(f"{figure.part:12}{figure.what:88}  {figure.value}{f'   (aim: {figure.aim})' if figure.aim else ''}", flush=True)


def _figures(part, servers, folder, o) -> Iterator[Figure]:
    if part == "submit":
        with fresh_database(servers.database_url) as d: yield from queue_parts.submit(d, o.recordings)
    if part == "claims":
        sizes = ClaimSizes(o.shards, tuple(o.claimers), tuple(o.limits), o.seconds, o.think_ms / 1000, o.explain)
        with fresh_database(servers.database_url) as d: yield from queue_parts.claims(d, sizes)
    if part == "checkpoints":
        with fresh_database(servers.database_url) as d: yield from queue_parts.write_checkpoints(d, o.seconds / 2)


class _Durable(PostgresHandle):
    def command(self) -> list[str]:
        return [*super().command(), "--fsync=on"]


@contextmanager
def _servers(*, durable: bool):
    folder = Path(tempfile.mkdtemp(prefix="spotscribe-bench-"))
    try:
        with ExitStack() as ends:
            servers = ends.enter_context(stack(folder / "servers"))
            if durable:
                servers = replace(servers, database_url=ends.enter_context(_Durable(folder / "durable")).url)
            yield folder, servers
    finally:
        shutil.rmtree(folder, ignore_errors=True)

def _head(servers):
    return ["x"]

def _options():
    p = argparse.ArgumentParser()
    p.add_argument("--only", type=lambda s: s.split(","), default=list(PARTS))
    p.add_argument("--recordings", type=int, default=100_000)
    p.add_argument("--shards", type=int, default=1_000_000)
    ints = lambda s: [int(x) for x in s.split(",")]
    p.add_argument("--claimers", type=ints, default=[2, 16])
    p.add_argument("--limits", type=ints, default=[1, 16])
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--think-ms", type=float, default=20)
    p.add_argument("--explain", action="store_true")
    p.add_argument("--fsync", action="store_true")
    return p.parse_args()

if __name__ == "__main__":
    main()
