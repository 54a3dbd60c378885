"""One worker at a time, whatever happens to it; nobody writes with a lease that is gone. SQLite and Postgres alike."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import select, text, update

from chunking.errors import Code, LeaseLost
from chunking.timeline import Chunk, ChunkResult, Plan, Segment, Shard, Span
from storage import checkpoints, jobs, leases, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.tables import Checkpoint, Job, ShardRow

PLAN = Plan(
    30.0,
    1,
    (
        Shard(
            0,
            0,
            Span(0.0, 20.0),
            tuple(Chunk(i, Span(i * 10.0, i * 10.0 + 9.0), (Span(i * 10.0, i * 10.0 + 8.0),), 10.0) for i in range(2)),
        ),
        Shard(1, 0, Span(20.0, 29.0), (Chunk(2, Span(20.0, 29.0), (Span(20.0, 28.0),), 10.0),)),
    ),
)


def result(index: int, text_: str = "x") -> ChunkResult:
    span = PLAN.chunks[index].span
    return ChunkResult(index, 0, span, False, False, "en", (Segment(span.start, span.end, text_, "en"),))


def submitted(database: Database, count: int = 1) -> list[int]:
    with database.transaction() as tx:
        return [submission.submit(tx, MediaObject(f"file:///{i}.wav", "1", 10), JobOptions()) for i in range(count)]


def prepared(database: Database) -> int:
    (job,) = submitted(database)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
    return job


def expire(database: Database, table: type = Job) -> None:
    with database.transaction() as tx:
        tx.execute(
            update(table).where(table.lease_until.is_not(None)).values(lease_until=text("'2001-01-01 00:00:00'"))
        )  # type: ignore[attr-defined]
        leases.reclaim(tx)


def test_a_row_is_claimed_once(database: Database) -> None:
    submitted(database)
    with database.transaction() as tx:
        assert len(leases.claim(tx, Step.PREPARE, "a")) == 1
    with database.transaction() as tx:
        assert leases.claim(tx, Step.PREPARE, "b") == []


def test_urgent_first_then_oldest(database: Database) -> None:
    ids = submitted(database, 3)
    with database.transaction() as tx:
        tx.execute(update(Job).where(Job.id == ids[2]).values(priority=5))
        claimed = [x.id for x in leases.claim(tx, Step.PREPARE, "a", limit=2)]
    assert claimed == [ids[2], ids[0]]


def test_an_expired_lease_goes_to_another_and_the_first_may_not_write(database: Database) -> None:
    submitted(database)
    with database.transaction() as tx:
        (old,) = leases.claim(tx, Step.PREPARE, "slept")
    expire(database)
    with database.transaction() as tx:
        (new,) = leases.claim(tx, Step.PREPARE, "awake")
        assert new.fence > old.fence
        assert tx.execute(select(Job.crashes)).scalar() == 1
    for write in (
        lambda tx: leases.hold(tx, old),
        lambda tx: leases.end(tx, old, "done"),
        lambda tx: plans.store_plan(tx, old, PLAN, ["a", "b"]),
        lambda tx: jobs.end_job(tx, old, "rejected", Verdict(Code.EMPTY)),
        lambda tx: jobs.claim_content(tx, old, "0" * 64),
    ):
        with pytest.raises(LeaseLost), database.transaction() as tx:
            write(tx)
    with database.transaction() as tx:
        assert leases.renew(tx, [old, new]) == {new}
        assert not leases.release(tx, old)
        assert tx.execute(select(ShardRow.id)).all() == []


def test_renewing_keeps_and_releasing_gives_back(database: Database) -> None:
    submitted(database)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "a", seconds=0.0)
        leases.renew(tx, [replace(lease, seconds=60.0)])
        assert leases.reclaim(tx) == {}
    with database.transaction() as tx:
        assert leases.claim(tx, Step.PREPARE, "b") == []
        assert leases.release(tx, lease)
        assert len(leases.claim(tx, Step.PREPARE, "b")) == 1


def test_what_is_released_to_wait_is_not_claimed_yet(database: Database) -> None:
    submitted(database)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "a")
        leases.release(tx, lease, wait_s=60.0)
        assert leases.claim(tx, Step.PREPARE, "a") == []
        tx.execute(update(Job).values(next_run_at=text("'2001-01-01 00:00:00'")))
        assert len(leases.claim(tx, Step.PREPARE, "a")) == 1


def test_assigned_work_is_for_one_worker(database: Database) -> None:
    ids = submitted(database, 2)
    with database.transaction() as tx:
        jobs.assign(tx, ids[:1], "a")
        assert [x.id for x in leases.claim(tx, Step.PREPARE, "b", limit=5)] == ids[1:]
        assert [x.id for x in leases.claim(tx, Step.PREPARE, "a", limit=5)] == ids[:1]


def test_a_dead_worker_is_freed_at_once(database: Database) -> None:
    prepared(database)
    with database.transaction() as tx:
        (old,) = leases.claim(tx, Step.TRANSCRIBE, "dead")
        assert leases.holders(tx) == {"dead"}
        assert leases.release_worker(tx, "dead") == 1
        (new,) = leases.claim(tx, Step.TRANSCRIBE, "b")
        assert new.id == old.id
        assert new.fence > old.fence


def test_checkpoints_are_accepted_once_and_only_under_the_fence(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        (old,) = leases.claim(tx, Step.TRANSCRIBE, "a")
        assert checkpoints.write(tx, old, job, "a", [result(0, "first")]) == 1
        assert checkpoints.write(tx, old, job, "a", [result(0, "second")]) == 0
    expire(database, ShardRow)
    with database.transaction() as tx:
        (new,) = leases.claim(tx, Step.TRANSCRIBE, "b")
    with pytest.raises(LeaseLost), database.transaction() as tx:
        checkpoints.write(tx, old, job, "a", [result(1)])
    with database.transaction() as tx:
        assert checkpoints.of_shard(tx, new.id) == {0}
        assert [r.segments[0].text for r in checkpoints.of_job(tx, job)] == ["first"]


def test_the_last_shard_hands_the_job_on(database: Database) -> None:
    job = prepared(database)
    for last in (False, True):
        with database.transaction() as tx:
            (lease,) = leases.claim(tx, Step.TRANSCRIBE, "a")
            leases.end(tx, lease, "done")
            assert plans.shards_done(tx, job) is last
    with database.transaction() as tx:
        assert [x.id for x in leases.claim(tx, Step.FINISH, "a")] == [job]


def test_two_last_shards_at_once_hand_the_job_on_once(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        taken = leases.claim(tx, Step.TRANSCRIBE, "a", limit=2)
    handed, barrier = [], threading.Barrier(2)

    def finish(lease: leases.Lease) -> None:
        barrier.wait()
        with database.transaction() as tx:
            plans.lock_jobs(tx, [job])  # else neither may see that the other has ended
            leases.end(tx, lease, "done")
            handed.append(plans.shards_done(tx, job))

    threads = [threading.Thread(target=finish, args=(x,)) for x in taken]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(handed) == [False, True]


def test_many_claimers_share_out_the_rows(database: Database) -> None:
    ids = submitted(database, 60)
    got: Counter[int] = Counter()
    lock = threading.Lock()

    def claimer(name: str) -> None:
        while True:
            with database.transaction() as tx:
                taken = leases.claim(tx, Step.PREPARE, name, limit=3)
            if not taken:
                return
            with lock:
                got.update(x.id for x in taken)

    threads = [threading.Thread(target=claimer, args=(f"w{i}",)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == Counter(ids)


def test_plan_comes_back_as_it_was_stored(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        assert plans.plan_of(tx, job) == PLAN
        assert tx.execute(select(Checkpoint.chunk)).all() == []
