"""Whatever workers, users and time do to rows, in whatever order, the tables stand as a small model in Python says.

The rules act with any lease that was ever given out, most of them stale. After each rule every row and every checkpoint
is compared with the model, so a write that a stale lease got through, a lost shard or a job handed on twice shows at
once, and hypothesis finds the shortest way there. In the end one healthy worker does what is left.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, delete, select, text, update

from chunking.errors import Code, LeaseLost, PermanentError, TransientError
from chunking.timeline import Chunk, ChunkResult, Plan, Segment, Shard, Span
from storage import checkpoints, jobs, leases, plans, submission
from storage.database import Database
from storage.jobs import ENDED, JobOptions, MediaObject, Verdict
from storage.leases import SUSPECT_CRASHES, Lease, Step
from storage.moments import now_plus
from storage.submission import Request
from storage.tables import Checkpoint, Job, Recording, ShardRow

WORKERS = ("ann", "bob", "cid")
STEPS = (Step.TRANSCRIBE, Step.PREPARE, Step.FINISH)
LONG_S = 3600.0
"""Leases run out when a rule says so, however slow the machine is."""
LONG_AGO = text("'2001-01-01 00:00:00'")
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
"""A job's shards, each as the number of its chunks."""
CHUNKS = st.sets(st.integers(0, 3), max_size=4)
"""Some of a shard's chunks, by their position in it."""
WHICH = st.integers(0, 5)
"""One of what there is, which a strategy cannot know."""


@dataclass
class Row:
    """What a leasable row should be like."""

    priority: int
    state: str = "queued"
    fence: int = 0
    worker: str | None = None
    crashes: int = 0
    solo_crashes: int = 0
    waits: bool = False
    solo: bool = False
    overslept: bool = False
    """Its lease has run out, and nobody has noticed yet."""

    @property
    def columns(self) -> tuple[object, ...]:
        return (self.state, self.fence, self.worker, self.crashes, self.solo_crashes, self.waits)

    def free(self, state: str, *, fence: int = 0) -> None:
        self.state, self.worker, self.fence = state, None, self.fence + fence
        self.overslept = self.solo = False

    def forgive(self) -> None:
        self.crashes = self.solo_crashes = 0


@dataclass
class JobModel(Row):
    shape: tuple[int, ...] = ()
    shards: list[int] = field(default_factory=list)
    handed_on: int = 0
    """How often, in this attempt."""


@dataclass
class ShardModel(Row):
    job: int = 0
    chunks: tuple[int, ...] = ()


class Undo(Exception):
    """Ends a transaction that was only to look."""


class Fleet(RuleBasedStateMachine):
    given = Bundle("given")

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.db = database
        self.jobs: dict[int, JobModel] = {}
        self.shards: dict[int, ShardModel] = {}
        self.accepted: dict[tuple[int, int], tuple[int, int]] = {}
        """By job and chunk: under which shard and fence."""
        self.owners: dict[Lease, str] = {}
        self.fences: dict[tuple[str, int], int] = {}

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None and self.jobs:
                self.one_healthy_worker_ends_all()
        finally:
            with self.db.transaction() as tx:
                for table in (Checkpoint, ShardRow, Job, Recording):
                    tx.execute(delete(table))

    @initialize(
        target=given,
        wanted=st.lists(st.tuples(SHAPES, st.integers(0, 2)), min_size=1, max_size=4),
        unprepared=st.integers(0, 2),
        limit=st.integers(1, 3),
    )
    def submit(self, wanted: list[tuple[tuple[int, ...], int]], unprepared: int, limit: int) -> MultipleResults[Lease]:
        with self.db.transaction() as tx:
            for i, (shape, priority) in enumerate(wanted):
                source = MediaObject(f"file:///{i}.wav", "1", 10)
                (new,) = submission.submit_all(tx, [source], JobOptions(), Request(priority=priority))
                self.jobs[new.job] = JobModel(priority, shape=shape)
        for lease in self.claim_step(Step.PREPARE, "ann", max(1, len(wanted) - unprepared)):
            self.complete(lease)
        return multiple(*self.claim_step(Step.TRANSCRIBE, "bob", limit))

    # What workers do.

    @rule(target=given, worker=st.sampled_from(WORKERS), limit=st.integers(1, 4), which=WHICH)
    def claim(self, worker: str, limit: int, which: int) -> MultipleResults[Lease]:
        step, alone = self.something_ready(which)
        return multiple(*self.claim_step(step, worker, limit, alone=alone))

    @rule(target=given, worker=st.sampled_from(WORKERS), which=WHICH)
    def claim_and_die(self, worker: str, which: int) -> MultipleResults[Lease]:
        taken = self.claim(worker, 1, which)
        if taken.values:
            self.die(self.holders.index(worker))
        return taken

    @rule(target=given, worker=st.sampled_from(WORKERS), which=WHICH, chunks=CHUNKS)
    def claim_and_get_on(self, worker: str, which: int, chunks: set[int]) -> MultipleResults[Lease]:
        taken = self.claim(worker, 2, which)
        for lease in taken.values:
            self.checkpoint(lease, chunks)
        return taken

    @rule(some=st.lists(given, max_size=4, unique=True))
    def renew(self, some: list[Lease]) -> None:
        with self.db.transaction() as tx:
            held = leases.renew(tx, some)
        assert held == {x for x in some if self.live(x)}
        for lease in held:
            self.row(lease).overslept = False

    @rule(lease=given, stale=st.booleans(), chunks=CHUNKS)
    def checkpoint(self, lease: Lease, chunks: set[int], stale: bool = True) -> None:
        lease = self.any_or_live(lease, stale)
        if lease.step is not Step.TRANSCRIBE:
            return
        if not self.live(lease):
            self.refused(lambda tx: checkpoints.write(tx, lease, self.any_job, "late", [result(0)]))
            return
        shard = self.shards[lease.id]
        asked = [c for i, c in enumerate(shard.chunks) if i in chunks]
        self.write(lease, asked)

    @rule(lease=given, stale=st.booleans())
    def complete(self, lease: Lease, stale: bool = True) -> None:
        """The step is done. A shard's last chunks are written in the transaction that ends it."""
        lease = self.any_or_live(lease, stale)
        if not self.live(lease):
            self.refused(lambda tx: leases.end(tx, lease, "done"))
            if lease.step is Step.PREPARE:
                self.refused(lambda tx: plans.store_plan(tx, lease, plan((1,)), ["key"]))
            elif lease.step is Step.FINISH:
                self.refused(lambda tx: jobs.end_job(tx, lease, "done", Verdict(Code.OK)))
        elif lease.step is Step.PREPARE:
            self.store_plan(lease)
        elif lease.step is Step.FINISH:
            self.finish(lease)
        else:
            self.write(lease, self.shards[lease.id].chunks, ending=True)

    @rule(lease=given, stale=st.booleans(), wait=st.booleans())
    def release(self, lease: Lease, stale: bool, wait: bool) -> None:
        lease = self.any_or_live(lease, stale)
        with self.db.transaction() as tx:
            assert leases.release(tx, lease, wait_s=LONG_S if wait else 0.0) == self.live(lease)
        if self.live(lease):
            row = self.row(lease)
            row.free(lease.step.ready)
            row.waits = wait

    @rule(lease=given, stale=st.booleans(), passes=st.booleans())
    def fail(self, lease: Lease, stale: bool, passes: bool) -> None:
        lease = self.any_or_live(lease, stale)
        if lease.step is Step.TRANSCRIBE:
            self.fail_shard(lease, passes=passes)
        elif not self.live(lease):
            self.refused(lambda tx: jobs.end_job(tx, lease, "failed", Verdict(Code.INTERNAL, "late")))
        else:
            with self.db.transaction() as tx:
                jobs.end_job(tx, lease, "failed", Verdict(Code.INTERNAL, "broken"))
            self.end(self.jobs[lease.id], "failed")

    @precondition(lambda self: self.holders)
    @rule(which=WHICH)
    def end_all_in_hand(self, which: int) -> None:
        worker = self.holders[which % len(self.holders)]
        for lease in [x for x in self.owners if self.owners[x] == worker and self.live(x)]:
            self.complete(lease)

    @precondition(lambda self: self.holders)
    @rule(which=WHICH)
    def release_worker(self, which: int) -> None:
        """It is known to be dead: no death of these rows' making."""
        worker = self.holders[which % len(self.holders)]
        held = [r for r in self.all_rows if r.worker == worker]
        with self.db.transaction() as tx:
            assert leases.release_worker(tx, worker) == len(held)
        for row in held:
            row.free(self.ready_state(row), fence=1)

    # What time does.

    @precondition(lambda self: self.holders)
    @rule(which=WHICH)
    def oversleep(self, which: int) -> None:
        worker = self.holders[which % len(self.holders)]
        with self.db.transaction() as tx:
            for table in (Job, ShardRow):
                tx.execute(update(table).where(table.worker == worker).values(lease_until=LONG_AGO))
        for row in self.all_rows:
            row.overslept = row.overslept or row.worker == worker

    @precondition(lambda self: any(r.overslept for r in self.all_rows))
    @rule()
    def reclaim(self) -> None:
        lost = [r for r in self.all_rows if r.overslept]
        steps = Counter(s for s in STEPS for r in self.rows(s).values() if r.overslept and r.state == s.running)
        with self.db.transaction() as tx:
            assert leases.reclaim(tx) == dict(steps)
        for row in lost:
            row.crashes, row.solo_crashes = row.crashes + 1, row.solo_crashes + row.solo
            row.free(self.ready_state(row), fence=1)

    @precondition(lambda self: self.holders)
    @rule(which=WHICH)
    def die(self, which: int) -> None:
        self.oversleep(which)
        self.reclaim()

    @precondition(lambda self: any(r.waits for r in self.all_rows))
    @rule()
    def time_passes(self) -> None:
        with self.db.transaction() as tx:
            for table in (Job, ShardRow):
                tx.execute(update(table).where(table.next_run_at.is_not(None)).values(next_run_at=LONG_AGO))
        for row in self.all_rows:
            row.waits = False

    # What users do.

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        job = self.job(which)
        model = self.jobs[job]
        ended = model.state in ENDED
        with self.db.transaction() as tx:
            assert submission.cancel(tx, [job]) == (not ended)
        if ended:
            return
        for row in (model, *(self.shards[s] for s in model.shards)):
            if row is model or row.state not in {"done", "failed"}:
                row.free("cancelled", fence=1)
                row.forgive()
                row.waits = False

    @rule(which=WHICH, force=st.booleans())
    def start_again(self, which: int, force: bool) -> None:
        """`retry` takes what ended otherwise than well, `submit --force` anything."""
        job = self.job(which)
        model = self.jobs[job]
        taken = force or model.state in submission.RETRIED
        with self.db.transaction() as tx:
            if force:
                position = list(self.jobs).index(job)
                assert (
                    submission.submit(tx, MediaObject(f"file:///{position}.wav", "1", 10), JobOptions(), force=True)
                    == job
                )
            else:
                assert submission.retry(tx, [job]) == taken
        if taken:
            for shard in model.shards:
                del self.shards[shard]
            self.accepted = {k: v for k, v in self.accepted.items() if k[0] != job}
            model.shards, model.handed_on, model.waits = [], 0, False
            model.free("queued", fence=1)
            model.forgive()

    # What has to hold.

    @invariant()
    def the_tables_are_as_the_model_says(self) -> None:
        with self.db.reading() as tx:
            found_jobs, found_shards = columns(tx, Job), columns(tx, ShardRow)
            of_job = {r.id: r.job_id for r in tx.execute(select(ShardRow.id, ShardRow.job_id))}
            rows = tx.execute(select(Checkpoint.job_id, Checkpoint.chunk, Checkpoint.shard_id, Checkpoint.fence)).all()
        assert found_jobs == {i: r.columns for i, r in self.jobs.items()}
        assert found_shards == {i: r.columns for i, r in self.shards.items()}
        assert of_job == {i: r.job for i, r in self.shards.items()}
        assert {(r.job_id, r.chunk): (r.shard_id, r.fence) for r in rows} == self.accepted
        for name, found in (("jobs", found_jobs), ("shards", found_shards)):
            for i, (_, fence, *_) in found.items():
                assert fence >= self.fences.get((name, i), 0)
                self.fences[name, i] = fence

    @invariant()
    def a_row_has_one_holder_at_most(self) -> None:
        with suppress(Undo), self.db.transaction() as tx:
            held = leases.renew(tx, self.owners)
            assert held == {x for x in self.owners if self.live(x)}
            assert len({(x.step.table.name, x.id) for x in held}) == len(held)
            assert leases.holders(tx) == {self.owners[x] for x in held}
            raise Undo

    @invariant()
    def a_job_is_handed_on_once_and_when_its_shards_have_ended(self) -> None:
        for model in self.jobs.values():
            over = [self.shards[s].state in {"done", "failed"} for s in model.shards]
            if model.state in {"transcribed", "finishing", "done", "partial"}:
                assert all(over)
                assert model.handed_on == 1
            elif model.state == "transcribing":
                assert not all(over)
                assert model.handed_on == 0
            assert model.handed_on <= 1

    @invariant()
    def what_is_ready_can_be_claimed(self) -> None:
        """And suspects one at a time, by who asks for them."""
        with suppress(Undo), self.db.transaction() as tx:
            for step in STEPS:
                suspects = self.ready(step, suspects=True)
                assert leases.has_suspects(tx, step, "zoe") == bool(suspects)
                assert [x.id for x in leases.claim(tx, step, "zoe", limit=1000)] == self.ready(step)
                if suspects:
                    alone = leases.claim(tx, step, "zoe", limit=1000, suspects=True)
                    assert [x.id for x in alone] == suspects[:1]
            raise Undo

    def one_healthy_worker_ends_all(self) -> None:
        self.time_passes()
        while self.holders:
            self.die(0)
        busy = True
        while busy:
            busy = False
            for step in STEPS:
                for alone in (False, True):
                    for lease in self.claim_step(step, "healthy", 100, alone=alone):
                        self.complete(lease)
                        busy = True
        self.the_tables_are_as_the_model_says()
        self.a_job_is_handed_on_once_and_when_its_shards_have_ended()
        assert {m.state for m in self.jobs.values()} <= set(ENDED)
        for job, model in self.jobs.items():
            if model.state == "done":
                chunks = [c for s in model.shards for c in self.shards[s].chunks]
                assert (
                    sorted(c for j, c in self.accepted if j == job) == sorted(chunks) == list(range(sum(model.shape)))
                )

    # How the rules are done.

    def claim_step(self, step: Step, worker: str, limit: int, *, alone: bool = False) -> list[Lease]:
        expected = self.ready(step, suspects=alone)[: 1 if alone else limit]
        with self.db.transaction() as tx:
            taken = leases.claim(tx, step, worker, limit=limit, seconds=LONG_S, suspects=alone)
        rows = self.rows(step)
        found = [(x.id, x.fence, x.crashes) for x in taken]
        assert found == [(i, rows[i].fence + 1, rows[i].crashes) for i in expected]
        for lease in taken:
            row = rows[lease.id]
            row.state, row.worker, row.fence, row.solo, row.waits = step.running, worker, lease.fence, alone, False
            given_before = {(x.step.table.name, x.id, x.fence) for x in self.owners}
            assert (step.table.name, lease.id, lease.fence) not in given_before
            self.owners[lease] = worker
        return taken

    def something_ready(self, which: int) -> tuple[Step, bool]:
        """A step that has something to claim, and whether that is a suspect; any step where none has."""
        found = [(s, alone) for s in STEPS for alone in (True, False) if self.ready(s, suspects=alone)]
        found = found or [(s, alone) for s in STEPS for alone in (True, False)]
        return found[which % len(found)]

    @property
    def all_rows(self) -> list[Row]:
        return [*self.jobs.values(), *self.shards.values()]

    @property
    def holders(self) -> list[str]:
        return sorted({r.worker for r in self.all_rows if r.worker})

    @property
    def any_job(self) -> int:
        return next(iter(self.jobs))

    def job(self, which: int) -> int:
        return list(self.jobs)[which % len(self.jobs)]

    def rows(self, step: Step) -> dict[int, Row]:
        return {**(self.shards if step is Step.TRANSCRIBE else self.jobs)}

    def row(self, lease: Lease) -> Row:
        return self.rows(lease.step)[lease.id]

    def any_or_live(self, lease: Lease, stale: bool) -> Lease:
        """That lease, which is most likely stale, or else one that is not, if there is any."""
        live = [x for x in self.owners if self.live(x)]
        return lease if stale or not live or lease in live else live[lease.fence % len(live)]

    def live(self, lease: Lease) -> bool:
        row = self.rows(lease.step).get(lease.id)
        return row is not None and (row.fence, row.state) == (lease.fence, lease.step.running)

    def ready(self, step: Step, *, suspects: bool = False) -> list[int]:
        """What a claim may take, in its order."""
        found = {
            i: r
            for i, r in self.rows(step).items()
            if r.state == step.ready and not r.waits and (r.crashes >= SUSPECT_CRASHES) == suspects
        }
        return sorted(found, key=lambda i: (-found[i].priority, i))

    def ready_state(self, row: Row) -> str:
        return next(
            s.ready for s in STEPS if s.running == row.state and (s is Step.TRANSCRIBE) == isinstance(row, ShardModel)
        )

    def refused(self, write: Callable[[Connection], object]) -> None:
        """That it changed nothing is what the next comparison shows."""
        with pytest.raises(LeaseLost), self.db.transaction() as tx:
            write(tx)

    def end(self, row: Row, state: str) -> None:
        row.free(state)
        row.forgive()
        row.waits = False

    def write(self, lease: Lease, chunks: Sequence[int], *, ending: bool = False) -> None:
        shard = self.shards[lease.id]
        new = [c for c in chunks if (shard.job, c) not in self.accepted]
        with self.db.transaction() as tx:
            worker = self.owners[lease]
            assert checkpoints.write(tx, lease, shard.job, worker, [result(c) for c in chunks]) == len(new)
            handed_on = False
            if ending:
                leases.end(tx, lease, "done")
                handed_on = plans.shards_done(tx, shard.job)
        self.accepted.update({(shard.job, c): (lease.id, lease.fence) for c in new})
        if chunks:
            shard.forgive()
        if ending:
            self.end(shard, "done")
            self.hand_on(shard.job, handed_on)

    def fail_shard(self, lease: Lease, *, passes: bool) -> None:
        error = TransientError("later") if passes else PermanentError("never")
        if not passes and not self.live(lease):
            self.refused(lambda tx: plans.fail_shard(tx, lease, error))
            return
        with self.db.transaction() as tx:
            handed_on = plans.fail_shard(tx, lease, error)
        if not self.live(lease):
            assert not handed_on
        elif passes:
            assert not handed_on
            self.shards[lease.id].free("queued")
            self.shards[lease.id].waits = True
        else:
            self.end(self.shards[lease.id], "failed")
            self.hand_on(self.shards[lease.id].job, handed_on)

    def hand_on(self, job: int, handed_on: bool) -> None:
        """After a shard has ended."""
        model = self.jobs[job]
        last = all(self.shards[s].state in {"done", "failed"} for s in model.shards)
        assert handed_on == last
        if last:
            model.state = "transcribed"
            model.handed_on += 1

    def store_plan(self, lease: Lease) -> None:
        model = self.jobs[lease.id]
        made = plan(model.shape)
        with self.db.transaction() as tx:
            plans.store_plan(tx, lease, made, ["key"] * len(made.shards))
            ids = select(ShardRow.id).where(ShardRow.job_id == lease.id).order_by(ShardRow.position)
            model.shards = list(tx.execute(ids).scalars())
        for i, shard in zip(model.shards, made.shards, strict=True):
            self.shards[i] = ShardModel(model.priority, job=lease.id, chunks=tuple(c.index for c in shard.chunks))
        self.end(model, "transcribing")

    def finish(self, lease: Lease) -> None:
        model = self.jobs[lease.id]
        state = "partial" if any(self.shards[s].state == "failed" for s in model.shards) else "done"
        with self.db.transaction() as tx:
            jobs.end_job(tx, lease, state, Verdict(Code.OK))
        self.end(model, state)


def columns(tx: Connection, table: Any) -> dict[int, tuple[object, ...]]:
    t = table
    found = select(
        t.id, t.state, t.fence, t.worker, t.crashes, t.solo_crashes, (t.next_run_at > now_plus()).label("waits")
    )
    return {r.id: (r.state, r.fence, r.worker, r.crashes, r.solo_crashes, bool(r.waits)) for r in tx.execute(found)}


def plan(shape: tuple[int, ...]) -> Plan:
    """Chunks of nine seconds, numbered through."""
    shards, first = [], 0
    for position, count in enumerate(shape):
        chunks = tuple(chunk(i) for i in range(first, first + count))
        shards.append(Shard(position, 0, Span(chunks[0].span.start, chunks[-1].span.end), chunks))
        first += count
    return Plan(10.0 * first, 1, tuple(shards))


def chunk(index: int) -> Chunk:
    span = Span(10.0 * index, 10.0 * index + 9.0)
    return Chunk(index, span, (span,), 10.0)


def result(index: int) -> ChunkResult:
    span = chunk(index).span
    return ChunkResult(index, 0, span, False, False, "en", (Segment(span.start, span.end, "x", "en"),))


def test_the_tables_are_as_the_model_says_whatever_happens(database: Database) -> None:
    run_state_machine_as_test(
        lambda: Fleet(database),
        settings=settings(
            max_examples=40
            if database.is_sqlite
            else 15,  # the rules are the same, and Postgres takes three times as long
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
