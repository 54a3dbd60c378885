"""`make bench-export`: a million segments with their words to Parquet: seconds, megabytes on disk and in memory.

`spotscribe export` as a process of its own, from a Postgres of its own; DuckDB counts what came out. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb

from infra import laptop
from storage.database import Database
from tests.benchmarks.bench_search import Speech, fill
from workers.usage import measured


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-export", description=__doc__)
    ask.add_argument("--segments", type=int, default=1_000_000)
    asked = ask.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # Postgres runs as nobody where we are root
        with laptop.postgres_server(folder / "postgres") as url:
            database = Database(url)
            database.upgrade()
            fill(database, asked.segments, Speech(1), timed_words=True)
            database.close()
            out = folder / "out"
            command = [
                sys.executable,
                "-m",
                "workers",
                "export",
                "--since",
                "7d",
                "--format",
                "parquet",
                "--out",
                str(out),
            ]
            mine = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
            took = measured(
                command, folder, mine | {"SPOTSCRIBE_DATABASE_URL": url, "SPOTSCRIBE_HOME": str(folder / "home")}
            )
        files = list(out.rglob("*.parquet"))
        megabytes = sum(f.stat().st_size for f in files) / 1e6
        rows, words = duckdb.sql(f"SELECT count(*), sum(len(words)) FROM '{out}/**/*.parquet'").fetchall()[0]
        print(f"{rows} rows, {words} words in {len(files)} files: {took.process_s:.0f} s, {took.cpu_s:.0f} s of CPU")
        print(f"{megabytes:.0f} MB of Parquet, at most {took.memory_mb:.0f} MB of memory")
        print(f"other work took {100 * took.others:.0f}% of the cores, Postgres included")


if __name__ == "__main__":
    main()
