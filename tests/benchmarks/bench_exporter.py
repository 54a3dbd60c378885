"""`make bench-exporter`: what the exporter asks of a database with a million jobs, a tenth of which wait.

A Postgres of its own. Seconds that the whole takes, the median of rounds, and its dearest statements. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import event, text

from infra import laptop
from pipeline.scaler import decisions
from pipeline.scaling import Policy
from storage.canaries import compared
from storage.database import Database
from storage.figures import figures
from storage.jobs import JobOptions
from workers.exporter import CANARIES_S

RECORDINGS = """INSERT INTO recordings (url, identity, size_bytes, created_at)
SELECT 's3://bucket/' || i, i, 9000000, now() FROM generate_series(1, :n) i"""
JOBS = """INSERT INTO jobs (recording_id, options, options_digest, model, state, code, duration_s, created_at, finished_at)
SELECT id, '{}', 'd', 'tiny.en',
  CASE WHEN id % 20 = 0 THEN 'queued' WHEN id % 20 = 1 THEN 'transcribing' ELSE 'done' END,
  CASE WHEN id % 20 > 1 THEN 'ok' END, 600, now() - interval '9 days' * random(),
  CASE WHEN id % 20 > 1 THEN now() - interval '9 days' * random() END FROM recordings"""
SHARDS = """INSERT INTO shards (job_id, position, channel, start_s, end_s, chunks, engine, object_key, plan, state)
SELECT j.id, i, 0, i * 200, (i + 1) * 200, 8, :engine, 'k' || j.id || '-' || i, '{}', 'queued'
FROM jobs j, generate_series(0, 2) i WHERE j.state = 'transcribing'"""
WORKERS = """INSERT INTO workers (name, host, version, roles, engine, device, market, started_at, seen_at, left_at)
SELECT 'w' || i, 'h', '1', 'cpu gpu', :engine, 'cuda', 'spot', now() - interval '1 day' * random(), now(),
  CASE WHEN i % 10 > 0 THEN now() END FROM generate_series(1, :n) i"""
CANARIES = """INSERT INTO canaries (worker, version, engine, device, recording, wer, rtfx, text, created_at)
SELECT 'w' || i % :workers, '1', :engine, 'cuda', 'r', 0.01 * (i % 3), 100 + i % 50, 'words that were read',
  now() - interval '90 days' * random() FROM generate_series(1, :n) i"""
ROUNDS = 5


def fill(database: Database, jobs: int, workers: int, canaries: int) -> None:
    engine = JobOptions().engine
    with database.transaction() as tx:
        tx.execute(text(RECORDINGS), {"n": jobs})
        tx.execute(text(JOBS))
        tx.execute(text(SHARDS), {"engine": engine})
        tx.execute(text(WORKERS), {"engine": engine, "n": workers})
        tx.execute(text(CANARIES), {"engine": engine, "n": canaries, "workers": workers})
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.execute(text("VACUUM ANALYZE"))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-exporter", description=__doc__)
    ask.add_argument("--jobs", type=int, default=1_000_000)
    ask.add_argument("--workers", type=int, default=1000)
    ask.add_argument("--canaries", type=int, default=100_000)
    asked = ask.parse_args(arguments)
    statements: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # Postgres runs as nobody where we are root
        with laptop.postgres_server(folder / "postgres") as url:
            database = Database(url)
            database.upgrade()
            fill(database, asked.jobs, asked.workers, asked.canaries)

            @event.listens_for(database.engine, "before_cursor_execute")
            def began(conn: Any, *_: Any) -> None:
                conn.info["began"] = time.perf_counter()

            @event.listens_for(database.engine, "after_cursor_execute")
            def ended(conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
                statements.setdefault(statement, []).append(time.perf_counter() - conn.info["began"])

            took, canaries = [], []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                with database.reading() as tx:
                    figures(tx)
                decisions(database, Policy())
                took.append(time.perf_counter() - start)
                with database.reading() as tx:
                    compared(tx)
                canaries.append(time.perf_counter() - start - took[-1])
            database.close()
    print(f"{asked.jobs} jobs, {asked.workers} workers of a day, {asked.canaries} canaries")
    print(f"asked in {median(took):.2f} s (median of {ROUNDS}; {min(took):.2f} to {max(took):.2f})")
    print(f"canaries, every {CANARIES_S:.0f} s, in {median(canaries):.2f} s; the dearest:")
    dearest = sorted(statements.items(), key=lambda item: -sum(item[1]))
    for statement, each in dearest[:6]:
        print(f"{1000 * sum(each) / ROUNDS:7.0f} ms  {' '.join(statement.split())[:110]}")


if __name__ == "__main__":
    main()
