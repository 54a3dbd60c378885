"""What kills its workers is taken out of the queue, and nothing else is; who is at work, and how much there is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import Table, select, text, update

from chunking.errors import Code
from storage import checkpoints, fleet, jobs, leases, outputs, plans, submission
from storage.database import Database
from storage.fleet import Backlog, JobProgress, Worker
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Lease, Step
from storage.moments import now_plus
from storage.outputs import WantedOutput
from storage.quarantine import MOST_SOLO, SOLO_IN_A_STORM, quarantine
from storage.submission import Request
from storage.tables import Job, Output, ShardRow, WorkerRow
from tests.contracts.test_jobs import claim, content, finish, submit, view
from tests.contracts.test_leases import PLAN, prepared, result

LONG_AGO = text("'2001-01-01 00:00:00'")
ENGINE = JobOptions().engine


def dies(database: Database, step: Step, *, alone: bool = False, worker: str = "killed") -> Lease:
    """A worker takes the most urgent row of that step and is heard of no more."""
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, step, worker, suspects=alone)
    expire(database, step.table, worker)
    with database.transaction() as tx:
        assert leases.reclaim(tx) == {step: 1}
    return lease


def expire(database: Database, table: Table, worker: str) -> None:
    with database.transaction() as tx:
        tx.execute(update(table).where(table.c.worker == worker).values(lease_until=LONG_AGO))


def quarantined(database: Database) -> int:
    with database.transaction() as tx:
        return quarantine(tx)


def register(database: Database, *names: str, lost_s: float | None = None, engine: str = ENGINE) -> None:
    """Workers; `lost_s`: how long ago they were lost."""
    with database.transaction() as tx:
        for name in names:
            fleet.register(tx, Worker(name, "host", "1", ("cpu", "gpu"), engine))
        if lost_s is not None:
            tx.execute(update(WorkerRow).where(WorkerRow.name.in_(names)).values(lost_at=now_plus(-lost_s)))


def crashes(database: Database, step: Step) -> list[tuple[int, int]]:
    t = step.table.c
    with database.reading() as tx:
        return [(r.crashes, r.solo_crashes) for r in tx.execute(select(t.crashes, t.solo_crashes).order_by(t.id))]


def ready_for(database: Database, step: Step) -> int:
    """A job whose row of that step is ready, and there is no other."""
    if step is Step.PREPARE:
        return submit(database, "a")
    if step is Step.DELIVER:
        job = submit(database, "a")
        with database.transaction() as tx:
            outputs.want(tx, WantedOutput(job, "txt", "file:///x.txt"))
        lease = claim(database)
        content(database, lease)
        finish(database, lease)
        return job
    job = prepared(database)
    with database.transaction() as tx:
        for lease in leases.claim(tx, Step.TRANSCRIBE, "w", limit=1 if step is Step.TRANSCRIBE else 2):
            leases.end(tx, lease, "done")
            plans.shards_done(tx, job)
    return job


@pytest.mark.parametrize("step", [Step.PREPARE, Step.FINISH])
def test_a_job_that_kills_thrice_and_then_alone_fails(database: Database, step: Step) -> None:
    job = ready_for(database, step)
    for _ in range(2):
        assert quarantined(database) == 0
        dies(database, step)
    assert quarantined(database) == 0
    with database.transaction() as tx:
        assert leases.claim(tx, step, "w", limit=9) == []
    last = dies(database, step, alone=True)
    assert quarantined(database) == 1
    found = view(database, job)
    assert (found.state, found.code, found.error) == ("failed", "quarantined", "3 workers died with it in hand")
    assert found.finished_at is not None
    assert quarantined(database) == 0
    with database.transaction() as tx:
        assert leases.renew(tx, [last]) == set()
        assert leases.claim(tx, step, "w") == leases.claim(tx, step, "w", suspects=True) == []
        assert submission.retry(tx, [job]) == 1
        assert len(leases.claim(tx, Step.PREPARE, "w")) == 1


def test_a_shard_that_kills_thrice_fails_and_the_job_is_handed_on(database: Database) -> None:
    job = ready_for(database, Step.TRANSCRIBE)
    for alone in (False, False, True):
        dies(database, Step.TRANSCRIBE, alone=alone)
    assert quarantined(database) == 1
    found = view(database, job)
    assert (found.state, found.code) == ("transcribed", "quarantined")
    with database.transaction() as tx:
        assert tx.execute(select(ShardRow.state).order_by(ShardRow.id)).scalars().all() == ["done", "failed"]
        assert [x.id for x in leases.claim(tx, Step.FINISH, "w")] == [job]


def test_a_job_waits_for_its_other_shards_when_one_is_quarantined(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        first, other = leases.claim(tx, Step.TRANSCRIBE, "busy", limit=2)
        leases.release(tx, first)
    for alone in (False, False, True):
        dies(database, Step.TRANSCRIBE, alone=alone)
    assert quarantined(database) == 1
    assert view(database, job).state == "transcribing"
    with database.transaction() as tx:
        assert checkpoints.write(tx, other, job, "busy", [result(2)]) == 1
        leases.end(tx, other, "done")
        assert plans.shards_done(tx, job)


def test_a_file_whose_delivery_kills_is_given_up_and_can_be_asked_for_again(database: Database) -> None:
    job = ready_for(database, Step.DELIVER)
    for alone in (False, False, True):
        dies(database, Step.DELIVER, alone=alone)
    assert quarantined(database) == 1
    assert view(database, job).state == "done"
    with database.transaction() as tx:
        assert tx.execute(select(Output.state, Output.error)).one() == ("failed", "3 workers died with it in hand")
        assert leases.claim(tx, Step.DELIVER, "w") == []
        outputs.want(tx, WantedOutput(job, "txt", "file:///x.txt"))
        assert len(leases.claim(tx, Step.DELIVER, "w")) == 1


def test_who_waited_for_a_quarantined_job_fails_with_it(database: Database) -> None:
    a, b = submit(database, "a"), submit(database, "b")
    first, second = claim(database), claim(database)
    assert (content(database, first), content(database, second)) == ("lead", "wait")
    with database.transaction() as tx:
        leases.release(tx, first)
    for alone in (False, False, True):
        dies(database, Step.PREPARE, alone=alone)
    assert quarantined(database) == 1
    assert [(view(database, j).state, view(database, j).code) for j in (a, b)] == [("failed", "quarantined")] * 2


def test_a_third_death_in_company_proves_nothing(database: Database) -> None:
    job = submit(database, "a")
    for _ in range(2):
        dies(database, Step.PREPARE)
    with database.transaction() as tx:
        assert len(leases.claim(tx, Step.PREPARE, "killed", suspects=True)) == 1
        tx.execute(update(Job).values(solo=0))  # as a worker that knows nothing of suspects would have it
    expire(database, Step.PREPARE.table, "killed")
    with database.transaction() as tx:
        assert leases.reclaim(tx) == {Step.PREPARE: 1}
    assert crashes(database, Step.PREPARE) == [(3, 0)]
    assert quarantined(database) == 0
    dies(database, Step.PREPARE, alone=True)
    assert quarantined(database) == 1
    assert view(database, job).error == "4 workers died with it in hand"


def test_preemptions_with_notice_are_no_deaths(database: Database) -> None:
    prepared(database)
    for i in range(20):
        with database.transaction() as tx:
            taken = leases.claim(tx, Step.TRANSCRIBE, f"w{i}", limit=2)
            assert len(taken) == 2
            if i % 2:
                assert all(leases.release(tx, lease) for lease in taken)
            else:
                assert leases.release_worker(tx, f"w{i}") == 2
        assert quarantined(database) == 0
    assert crashes(database, Step.TRANSCRIBE) == [(0, 0), (0, 0)]


def test_a_release_does_not_wipe_deaths_out(database: Database) -> None:
    submit(database, "a")
    for _ in range(2):
        dies(database, Step.PREPARE)
        with database.transaction() as tx:
            for lease in leases.claim(tx, Step.PREPARE, "gentle"):
                leases.release(tx, lease)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "gentle", suspects=True)
        leases.release(tx, lease)
    dies(database, Step.PREPARE, alone=True)
    assert quarantined(database) == 1


def test_progress_in_between_starts_the_count_again(database: Database) -> None:
    job = ready_for(database, Step.TRANSCRIBE)
    for _ in range(2):
        dies(database, Step.TRANSCRIBE)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.TRANSCRIBE, "killed", suspects=True)
        assert checkpoints.write(tx, lease, job, "killed", []) == 0
    assert crashes(database, Step.TRANSCRIBE)[1] == (2, 0)
    with database.transaction() as tx:
        checkpoints.write(tx, lease, job, "killed", [result(2)])
    expire(database, Step.TRANSCRIBE.table, "killed")
    with database.transaction() as tx:
        leases.reclaim(tx)
    assert crashes(database, Step.TRANSCRIBE)[1] == (1, 1)
    assert quarantined(database) == 0
    dies(database, Step.TRANSCRIBE)
    assert quarantined(database) == 0
    dies(database, Step.TRANSCRIBE, alone=True)
    assert quarantined(database) == 1


def test_what_ends_begins_the_next_step_without_deaths(database: Database) -> None:
    job = submit(database, "a")
    for _ in range(2):
        dies(database, Step.PREPARE)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "w", suspects=True)
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
        for shard in leases.claim(tx, Step.TRANSCRIBE, "w", limit=2):
            leases.end(tx, shard, "done")
        plans.shards_done(tx, job)
    assert crashes(database, Step.FINISH) == [(0, 0)]
    dies(database, Step.FINISH)
    assert quarantined(database) == 0


def test_in_a_storm_more_deaths_alone_are_asked_for(database: Database) -> None:
    job = submit(database, "a")
    others = 6
    register(database, *(f"lost{i}" for i in range(others)), lost_s=300.0)
    for i in range(2 + SOLO_IN_A_STORM + others // 2):
        assert quarantined(database) == 0
        register(database, f"k{i}")
        dies(database, Step.PREPARE, alone=i >= 2, worker=f"k{i}")
    assert quarantined(database) == 1
    with database.reading() as tx:
        assert jobs.view(tx, job).code == "quarantined"


def test_however_bad_the_storm_there_is_an_end(database: Database) -> None:
    submit(database, "a")
    register(database, *(f"lost{i}" for i in range(100)), lost_s=300.0)
    for i in range(2 + MOST_SOLO):
        assert quarantined(database) == 0
        dies(database, Step.PREPARE, alone=i >= 2)
    assert quarantined(database) == 1


def test_a_storm_that_is_over_does_not_count(database: Database) -> None:
    submit(database, "a")
    register(database, *(f"lost{i}" for i in range(20)), lost_s=601.0)
    for alone in (False, False, True):
        dies(database, Step.PREPARE, alone=alone)
    assert quarantined(database) == 1


def test_its_own_victims_are_no_storm(database: Database) -> None:
    submit(database, "a")
    register(database, "k1", "k2", "k3", "fine")
    for worker, alone in (("k1", False), ("k2", False), ("k3", True)):
        dies(database, Step.PREPARE, alone=alone, worker=worker)
    assert quarantined(database) == 1


def test_one_death_more_than_its_own_is_a_storm(database: Database) -> None:
    submit(database, "a")
    register(database, "k1", "k2", "k3")
    register(database, "other", lost_s=1.0)
    for worker, alone in (("k1", False), ("k2", False), ("k3", True)):
        dies(database, Step.PREPARE, alone=alone, worker=worker)
    assert quarantined(database) == 0


def test_only_what_kills_is_taken_out(database: Database) -> None:
    bad, good = submit(database, "bad"), submit(database, "good")
    for alone in (False, False, True):
        dies(database, Step.PREPARE, alone=alone)
    assert quarantined(database) == 1
    assert (view(database, bad).state, view(database, good).state) == ("failed", "queued")


def test_reclaim_marks_the_workers_lost_and_counts_by_step(database: Database) -> None:
    prepared(database)
    submit(database, "b")
    register(database, "dead", "gone", "well")
    with database.transaction() as tx:
        assert len(leases.claim(tx, Step.TRANSCRIBE, "dead", limit=2)) == 2
        assert len(leases.claim(tx, Step.PREPARE, "gone")) == 1
    for name, table in (("dead", Step.TRANSCRIBE.table), ("gone", Step.PREPARE.table)):
        expire(database, table, name)
    with database.transaction() as tx:
        assert leases.reclaim(tx) == {Step.TRANSCRIBE: 2, Step.PREPARE: 1}
        assert leases.reclaim(tx) == {}
        assert [w.name for w in fleet.alive(tx)] == ["well"]
        lost = select(WorkerRow.name).where(WorkerRow.lost_at.is_not(None)).order_by(WorkerRow.name)
        assert tx.execute(lost).scalars().all() == ["dead", "gone"]


def test_reclaim_leaves_a_renewed_lease_alone(database: Database) -> None:
    prepared(database)
    register(database, "slow")
    with database.transaction() as tx:
        late, kept = leases.claim(tx, Step.TRANSCRIBE, "slow", limit=2)
    expire(database, Step.TRANSCRIBE.table, "slow")
    with database.transaction() as tx:
        assert leases.renew(tx, [kept]) == {kept}
        assert leases.reclaim(tx) == {Step.TRANSCRIBE: 1}
        assert leases.renew(tx, [late, kept]) == {kept}


def test_reclaim_and_quarantine_leave_alone_what_another_transaction_has_locked(postgres: Database) -> None:
    job = prepared(postgres)
    register(postgres, "frozen", "dead")
    with postgres.transaction() as tx:
        (held,) = leases.claim(tx, Step.TRANSCRIBE, "frozen")
        (free,) = leases.claim(tx, Step.TRANSCRIBE, "dead")
    expire(postgres, Step.TRANSCRIBE.table, "frozen")
    expire(postgres, Step.TRANSCRIBE.table, "dead")
    with postgres.transaction() as theirs:
        leases.hold(theirs, held)
        with postgres.transaction() as tx:
            tx.execute(text("SET LOCAL lock_timeout = '1s'"))
            assert leases.reclaim(tx) == {Step.TRANSCRIBE: 1}
        assert checkpoints.write(theirs, held, job, "frozen", [result(0)]) == 1
    with postgres.reading() as tx:
        assert [w.name for w in fleet.alive(tx)] == ["frozen"]
        assert leases.holders(tx) == {"frozen"}
    with postgres.transaction() as tx:
        assert leases.reclaim(tx) == {Step.TRANSCRIBE: 1}
        tx.execute(update(ShardRow).values(crashes=3, solo_crashes=1))
    with postgres.transaction() as theirs:
        theirs.execute(select(ShardRow.id).where(ShardRow.id == free.id).with_for_update())
        with postgres.transaction() as tx:
            tx.execute(text("SET LOCAL lock_timeout = '1s'"))
            assert quarantine(tx) == 1
    with postgres.reading() as tx:
        assert tx.execute(select(ShardRow.state).order_by(ShardRow.id)).scalars().all() == ["failed", "queued"]


def test_a_claim_leaves_alone_what_another_transaction_has_locked(postgres: Database) -> None:
    first, second = submit(postgres, "a"), submit(postgres, "b")
    with postgres.transaction() as theirs:
        assert [x.id for x in leases.claim(theirs, Step.PREPARE, "a")] == [first]
        with postgres.transaction() as tx:
            tx.execute(text("SET LOCAL lock_timeout = '1s'"))
            assert [x.id for x in leases.claim(tx, Step.PREPARE, "b", limit=5)] == [second]


def test_alive_is_who_was_seen_lately_and_neither_left_nor_was_lost(database: Database) -> None:
    register(database, "here", "left", "lost", "silent")
    with database.transaction() as tx:
        fleet.register(tx, Worker("here", "another host", "2", ("cpu",)))  # says its name twice
        fleet.left(tx, "left")
        tx.execute(update(WorkerRow).where(WorkerRow.name == "lost").values(lost_at=now_plus()))
        tx.execute(update(WorkerRow).where(WorkerRow.name == "silent").values(seen_at=now_plus(-31.0)))
        assert fleet.alive(tx) == [Worker("here", "host", "1", ("cpu", "gpu"), ENGINE)]
    with database.transaction() as tx:
        tx.execute(update(WorkerRow).where(WorkerRow.name == "lost").values(lost_at=now_plus(-1.0)))
        fleet.seen(tx, "lost")
        fleet.seen(tx, "silent")
        assert {w.name for w in fleet.alive(tx)} == {"here", "lost", "silent"}


def test_the_overview_counts_all_and_by_label(database: Database) -> None:
    register(database, "w")
    register(database, "other model", engine="large int8 beam 1")
    with database.transaction() as tx:
        big = submission.submit_all(tx, [MediaObject("file:///big", "1", 1)], JobOptions(), Request(label="mine"))[
            0
        ].job
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
        (shard,) = leases.claim(tx, Step.TRANSCRIBE, "w")
        checkpoints.write(tx, shard, big, "w", [result(0)])
    done, bad, put_off = submit(database, "done"), submit(database, "bad"), submit(database, "put off")
    with database.transaction() as tx:
        outputs.want_all(tx, [WantedOutput(j, "txt", f"file:///{j}.txt") for j in (big, done)])
        first, second, third = leases.claim(tx, Step.PREPARE, "w", limit=3)
        jobs.end_job(tx, first, "done", Verdict(Code.OK), duration_s=12.5)
        jobs.end_job(tx, second, "rejected", Verdict(Code.EMPTY))
        leases.release(tx, third, wait_s=60.0, error="no credentials")
    assert (done, bad, put_off) == (first.id, second.id, third.id)
    with database.reading() as tx:
        whole, mine, nothing = fleet.overview(tx), fleet.overview(tx, "mine"), fleet.overview(tx, "none such")
    assert whole.jobs == {"transcribing": 1, "done": 1, "rejected": 1, "queued": 1}
    assert (whole.codes, whole.left, whole.undelivered) == ({"empty": 1}, 2, 1)
    assert (whole.chunks, whole.chunks_done, whole.audio_s) == (3, 1, 42.5)
    assert whole.put_off == ("no credentials",)
    assert [replace(b, oldest=None) for b in whole.backlog] == [Backlog(ENGINE, 1, 9.0, None, 1)]
    assert whole.backlog[0].oldest == view(database, big).created_at
    assert {w.name for w in whole.workers} == {"w", "other model"}
    assert (mine.jobs, mine.codes, mine.left, mine.undelivered, mine.put_off) == ({"transcribing": 1}, {}, 1, 0, ())
    assert (mine.chunks, mine.chunks_done, mine.audio_s, mine.backlog) == (3, 1, 30.0, whole.backlog)
    assert (nothing.jobs, nothing.left, nothing.chunks, nothing.audio_s, nothing.backlog) == ({}, 0, 0, 0.0, ())


def test_a_jobs_progress_says_who_is_at_it(database: Database) -> None:
    with database.transaction() as tx:
        source = [MediaObject("file:///a", "1", 1)]
        (new,) = submission.submit_all(tx, source, JobOptions(), Request(label="x"))
        submission.submit_all(tx, source, JobOptions(), Request(label="b"))
        (lease,) = leases.claim(tx, Step.PREPARE, "cpu")
        assert fleet.progress(tx, new.job) == JobProgress(0, 0, 0, 0, ("cpu",), ("b", "x"))
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
        first, second = [*leases.claim(tx, Step.TRANSCRIBE, "g1"), *leases.claim(tx, Step.TRANSCRIBE, "g2")]
        checkpoints.write(tx, first, new.job, "g1", [result(0), result(1)])
        assert fleet.progress(tx, new.job) == JobProgress(2, 0, 3, 2, ("g1", "g2"), ("b", "x"))
        leases.end(tx, first, "done")
        leases.release(tx, second)
        assert fleet.progress(tx, new.job) == JobProgress(2, 1, 3, 2, (), ("b", "x"))


def test_the_largest_batch_is_remembered_by_engine_and_device(database: Database) -> None:
    with database.transaction() as tx:
        assert fleet.batch_limit(tx, "e", "T4") is None
        fleet.limit_batch(tx, "e", "T4", 32)
        fleet.limit_batch(tx, "e", "A10", 64)
        fleet.limit_batch(tx, "f", "T4", 8)
    with database.transaction() as tx:
        fleet.limit_batch(tx, "e", "T4", 16)
    with database.reading() as tx:
        found = Counter({(e, d): fleet.batch_limit(tx, e, d) or 0 for e in "ef" for d in ("T4", "A10")})
    assert found == {("e", "T4"): 16, ("e", "A10"): 64, ("f", "T4"): 8, ("f", "A10"): 0}
