"""What the queue's tables stand without any model: submitting, claiming, checkpointing. Parts of `make bench-queue`."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url

from chunking.timeline import Chunk, ChunkResult, Segment, Shard, Span
from storage import checkpoints, leases, outputs, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.leases import Step
from storage.outputs import WantedOutput
from storage.records import to_record
from storage.submission import Request
from workers.commands.submit import AT_ONCE

OPTIONS = JobOptions(language="en")
JOBS = 5
"""The shards of the claims belong to so many jobs."""
CHUNKS = 24
"""Of a shard in the claims: ten minutes of speech. Its plan is some 3 kB of JSON, compressed to a fifth; each claim copies it."""
AIM_MS = 10.0
START_S = 120.0
"""Within which all processes of a measurement have started."""
EMPTY_EVERY = 8
"""After every eighth claim a transaction that does nothing is timed, in the same process, for comparison."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    what: str
    value: str
    aim: str = ""


@contextmanager
def fresh_database(server: str) -> Iterator[Database]:
    """An empty, migrated database of its own on that server."""
    name = f"b{uuid.uuid4().hex[:12]}"
    url = make_url(server).set(drivername="postgresql+psycopg")
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    database = Database(url.set(database=name).render_as_string(hide_password=False))
    database.upgrade()
    try:
        yield database
    finally:
        database.close()
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


def submit(database: Database, recordings: int) -> Iterator[Figure]:
    """As `spotscribe submit` does it, from where the bucket has been listed."""
    sources = [MediaObject(f"s3://bucket/calls/{i:07d}.wav", f"{i:032x}-1000000", 1_000_000) for i in range(recordings)]
    for how in ("new", "all known before"):
        began = time.perf_counter()
        for first in range(0, recordings, AT_ONCE):
            part = sources[first : first + AT_ONCE]
            with database.transaction() as tx:
                done = submission.submit_all(tx, part, OPTIONS, Request(label="bench"))
                places = [s.url.replace("calls", "out") for s in part]
                outputs.want_all(tx, [WantedOutput(d.job, "json", p) for d, p in zip(done, places, strict=True)])
        seconds = time.perf_counter() - began
        yield Figure(
            f"{recordings} recordings, {how}, a file wanted of each, {AT_ONCE} to a transaction",
            f"{seconds:.1f} s, {recordings / seconds:.0f} recordings/s",
        )


@dataclass(frozen=True, slots=True)
class ClaimSizes:
    """How the claims are measured."""

    shards: int
    claimers: tuple[int, ...]
    limits: tuple[int, ...]
    seconds: float
    think_s: float
    """What a claimer rests between two claims, as a worker that has something to decode."""
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Claimer:
    """What one claiming process is to do."""

    url: str
    limit: int
    seconds: float
    think_s: float


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim's transaction."""

    at: float
    """Seconds since the start."""
    ms: float
    rows: int
    empty_ms: float | None
    """What a transaction that claims nothing took after some of them: what machine and driver alone take."""


def claims(database: Database, sizes: ClaimSizes) -> Iterator[Figure]:
    """Claimers against a long queue. What one run left dead is vacuumed before the next, and not during it."""
    began = time.perf_counter()
    _queue_shards(database, sizes.shards)
    yield Figure(f"{sizes.shards} shards put into the queue by SQL, for this", f"{time.perf_counter() - began:.0f} s")
    for limit in sizes.limits:
        for count in sizes.claimers:
            _vacuum(database)
            before = _explained(database, limit)
            claimer = Claimer(url_of(database), limit, sizes.seconds, sizes.think_s)
            found = [c for each in _together(_claim, [claimer] * count) for c in each]
            after = _explained(database, limit)
            who = f"{count} claimers, limit {limit}"
            yield from _claim_figures(who, found, sizes)
            yield Figure(f"{who}: the query, before → after the run", f"{_plan(before)} → {_plan(after)}")
            if sizes.explain:
                yield from (Figure(line, "") for line in after)


def _claim_figures(who: str, found: Sequence[Claimed], sizes: ClaimSizes) -> Iterator[Figure]:
    rows, tenth = sum(c.rows for c in found), sizes.seconds / 10
    early = [c.ms for c in found if c.at < tenth]
    late = [c.ms for c in found if c.at >= sizes.seconds - tenth]
    empty = [c.empty_ms for c in found if c.empty_ms is not None]
    yield Figure(f"{who}: p50/p95/p99/max of a claim", _spread([c.ms for c in found]), f"p99 < {AIM_MS:.0f} ms")
    yield Figure(f"{who}: the same of SELECT 1 in a transaction, beside it", _spread(empty))
    yield Figure(f"{who}: claims in the first tenth of the run", _spread(early))
    yield Figure(f"{who}: claims in the last tenth, {rows} shards taken", _spread(late))
    rates = f"{len(found) / sizes.seconds:.0f} claims/s, {rows / sizes.seconds:.0f} shards/s"
    yield Figure(f"{who}: rate, {1000 * sizes.think_s:.0f} ms from one claim to the next", rates)


def _queue_shards(database: Database, shards: int) -> None:
    spans = [Span(25.0 * i, 25.0 * i + 24.32) for i in range(CHUNKS)]
    shard = Shard(0, 0, Span(0.0, 600.0), tuple(Chunk(i, s, (s,), 30.0) for i, s in enumerate(spans)))
    sources = [MediaObject(f"s3://bucket/{i}.wav", "1", 1000) for i in range(JOBS)]
    insert = text(
        "INSERT INTO shards (job_id, engine, position, channel, start_s, end_s, chunks, object_key, plan, state,"
        " priority) SELECT :first + i % :jobs, :engine, i / :jobs, 0, 0, 600, :chunks, 'shards/' || i || '-1.flac',"
        " CAST(:plan AS json), 'queued', i % 3 * 10 FROM generate_series(0, :shards - 1) AS i"
    )
    with database.transaction() as tx:
        jobs = [d.job for d in submission.submit_all(tx, sources, OPTIONS, Request())]
        values = {"first": min(jobs), "jobs": JOBS, "engine": OPTIONS.engine, "chunks": CHUNKS, "shards": shards}
        tx.execute(insert, values | {"plan": json.dumps(to_record(shard))})


def _vacuum(database: Database) -> None:
    with database.reading() as tx:
        tx.execute(text("VACUUM (ANALYZE) shards"))


def _claim(claimer: Claimer) -> list[Claimed]:
    """In a process of its own. The first claim is not counted: it builds what a worker builds once."""
    database = Database(claimer.url, pool_size=1)
    found: list[Claimed] = []
    began = 0.0
    while (at := time.perf_counter()) - began < claimer.seconds or not began:
        with database.transaction() as tx:
            taken = leases.claim(tx, Step.TRANSCRIBE, "bench", limit=claimer.limit, engine=OPTIONS.engine)
        if began:
            ms = 1000 * (time.perf_counter() - at)
            time.sleep(claimer.think_s)
            found.append(Claimed(at - began, ms, len(taken), None if len(found) % EMPTY_EVERY else _empty_ms(database)))
        else:
            _barrier.wait()
            began = time.perf_counter()
    database.close()
    return found


def _empty_ms(database: Database) -> float:
    began = time.perf_counter()
    with database.transaction() as tx:
        tx.execute(text("SELECT 1"))
    return 1000 * (time.perf_counter() - began)


def _explained(database: Database, limit: int) -> list[str]:
    """The claiming query as Postgres does it, with what that took; nothing stays claimed."""
    seen: list[tuple[str, Any]] = []
    with database.engine.connect() as tx:
        event.listen(tx, "before_cursor_execute", lambda *a: seen.append((a[2], a[3])))
        leases.claim(tx, Step.TRANSCRIBE, "bench", limit=limit, engine=OPTIONS.engine)
        tx.rollback()
        query, values = seen[0]
        lines = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {query}", values).scalars().all()
        tx.rollback()
    return list(lines)


def _plan(lines: Sequence[str]) -> str:
    """What matters of it: how the rows are found, how many pages were looked at, how long it took."""
    plan = "\n".join(lines)
    index = re.search(r"Index(?: Only)? Scan using (ix_\w+)", plan)
    how = index[1] if index else "NO INDEX"
    bad = [b for b in ("Seq Scan on shards", "Sort Key") if b in plan]
    [pages] = re.findall(r"shared hit=(\d+)(?: read=(\d+))?", plan)[:1] or [("0", "0")]
    took = re.search(r"Execution Time: ([\d.]+)", plan)
    count = int(pages[0]) + int(pages[1] or 0)
    return f"{', '.join([how, *bad])}, {count} pages, {float(took[1]) if took else 0.0:.2f} ms"


@dataclass(frozen=True, slots=True)
class Writer:
    """What one checkpointing process is to do."""

    url: str
    position: int
    """Its job's."""
    rows: int
    seconds: float


def write_checkpoints(database: Database, seconds: float) -> Iterator[Figure]:
    """Results of chunks, as batches write them, all of a transaction in one shard."""
    for writers in (1, 4):
        for rows in (16, 64):
            made = [Writer(url_of(database), i, rows, seconds) for i in range(writers)]
            with database.transaction() as tx:
                tx.execute(text("TRUNCATE recordings CASCADE"))
            written = sum(_together(_write, made))
            yield Figure(
                f"{writers} writer{'s' if writers > 1 else ''}, {rows} results of 5 segments to a transaction",
                f"{written / seconds:.0f} rows/s, {written / seconds / rows:.0f} transactions/s",
            )


def _write(writer: Writer) -> int:
    """In a process of its own: rows accepted in the time."""
    database = Database(writer.url, pool_size=1)
    source = MediaObject(f"s3://bucket/{writer.position}.wav", "1", 1000)
    shard = text(
        "INSERT INTO shards (job_id, engine, position, channel, start_s, end_s, chunks, object_key, plan, state, fence)"
        " VALUES (:job, '', 0, 0, 0, 600, 1, '', '{}', 'running', 1) RETURNING id"
    )
    with database.transaction() as tx:
        job = submission.submit(tx, source, OPTIONS)
        lease = leases.Lease(Step.TRANSCRIBE, tx.execute(shard, {"job": job}).scalar_one(), 1)
    accepted = next_chunk = 0
    began = 0.0
    while time.perf_counter() - began < writer.seconds or not began:
        results = [_result(i) for i in range(next_chunk, next_chunk + writer.rows)]
        with database.transaction() as tx:
            written = checkpoints.write(tx, lease, job, "bench", results)
        next_chunk += writer.rows
        if began:
            accepted += written
        else:
            _barrier.wait()
            began = time.perf_counter()
    database.close()
    return accepted


def _result(index: int) -> ChunkResult:
    """Half a minute of speech in five sentences."""
    at, words = 27.5 * index, "and so it went on from one day to the next, as the people of the town had said"
    segments = tuple(
        Segment(at + 5.5 * i, at + 5.5 * i + 5.32, f"{words} {index}-{i}.", "en", 0, -0.23456, 0.01234, 1.4567)
        for i in range(5)
    )
    return ChunkResult(index, 0, Span(at, at + 27.5), False, False, "en", segments)


_barrier: Any = None
"""Where the processes wait for each other before they begin to measure."""


def _wait_at(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603 (a barrier can only be inherited)
    _barrier = barrier


def _together(do: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Each task in a process of its own, all at once."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(len(tasks), _wait_at, (context.Barrier(len(tasks), timeout=START_S),)) as pool:
        return pool.map(do, tasks, chunksize=1)


def _spread(ms: Sequence[float]) -> str:
    ordered = sorted(ms) or [float("nan")]
    return "/".join(f"{ordered[round(q * (len(ordered) - 1))]:.1f}" for q in (0.5, 0.95, 0.99, 1.0)) + " ms"


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)
