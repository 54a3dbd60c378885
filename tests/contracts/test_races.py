"""Two at once, and the late: what went wrong before jobs, shards and files were locked in one order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, select, text

from chunking.errors import Code, LeaseLost
from storage import checkpoints, jobs, leases, outputs, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.outputs import WantedOutput
from storage.submission import Request
from storage.tables import Output, ShardRow
from tests.contracts.test_leases import PLAN, prepared, result

ZERO = MediaObject("file:///0.wav", "1", 10)


def beside(database: Database, what: Callable[[], Any]) -> tuple[threading.Thread, dict[str, Any]]:
    """Runs it in a thread; comes back when that waits for a lock of ours, or has ended."""
    out: dict[str, Any] = {"error": None}

    def run() -> None:
        try:
            out["result"] = what()
        except BaseException as e:
            out["error"] = e

    thread = threading.Thread(target=run)
    thread.start()
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while thread.is_alive():
        with database.reading() as tx:
            if tx.execute(waits).scalar():
                break
        time.sleep(0.01)
    return thread, out


def force(database: Database) -> int:
    with database.transaction() as tx:
        return submission.submit(tx, ZERO, JobOptions(), force=True)


def test_a_stale_lease_stays_stale_when_the_job_starts_again(sqlite: Database) -> None:
    job = prepared(sqlite)
    with sqlite.transaction() as tx:
        (old,) = leases.claim(tx, Step.TRANSCRIBE, "old")
    force(sqlite)
    with sqlite.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
        leases.claim(tx, Step.TRANSCRIBE, "new")
    with pytest.raises(LeaseLost), sqlite.transaction() as tx:
        checkpoints.write(tx, old, job, "old", [result(0)])


def test_a_file_asked_for_while_its_job_ends_is_due(postgres: Database) -> None:
    with postgres.transaction() as tx:
        job = submission.submit(tx, ZERO, JobOptions())
        (lease,) = leases.claim(tx, Step.PREPARE, "w")

    def end() -> None:
        with postgres.transaction() as tx:
            jobs.end_job(tx, lease, "done", Verdict(Code.OK))

    with postgres.transaction() as tx:
        outputs.want_all(tx, [WantedOutput(job, "txt", "file:///x")])
        thread, _ = beside(postgres, end)
    thread.join()
    with postgres.reading() as tx:
        assert tx.execute(select(Output.state)).scalar() == "due"


def test_force_while_the_plan_is_stored_leaves_no_shards(postgres: Database) -> None:
    with postgres.transaction() as tx:
        submission.submit(tx, ZERO, JobOptions())
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
    with postgres.transaction() as tx:
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
        thread, _ = beside(postgres, lambda: force(postgres))
    thread.join()
    with postgres.transaction() as tx:
        assert tx.execute(select(ShardRow.state)).all() == []


def test_force_while_a_checkpoint_is_written_works(postgres: Database) -> None:
    job = prepared(postgres)
    with postgres.transaction() as tx:
        (lease,) = leases.claim(tx, Step.TRANSCRIBE, "w")
    with postgres.transaction() as tx:
        checkpoints.write(tx, lease, job, "w", [result(0)])
        thread, out = beside(postgres, lambda: force(postgres))
    thread.join()
    assert out["error"] is None


@pytest.mark.parametrize("what", ["cancel", "priority"])
def test_users_and_workers_do_not_deadlock(postgres: Database, what: str) -> None:
    job = prepared(postgres)
    with postgres.transaction() as tx:
        (first, _) = leases.claim(tx, Step.TRANSCRIBE, "w", limit=2)

    def ask() -> None:
        with postgres.transaction() as tx:
            if what == "cancel":
                submission.cancel(tx, [job])
            else:
                submission.submit_all(tx, [ZERO], JobOptions(), Request(priority=5))

    with postgres.transaction() as tx:
        leases.end(tx, first, "done")
        thread, out = beside(postgres, ask)
        plans.shards_done(tx, job)
    thread.join()
    assert out["error"] is None


def test_two_submitters_do_not_deadlock(postgres: Database) -> None:
    a, b = MediaObject("file:///a", "1", 1), MediaObject("file:///b", "1", 1)
    with postgres.transaction() as tx:
        submission.submit_all(tx, [a], JobOptions(), Request(priority=4))
        submission.submit_all(tx, [b], JobOptions(), Request(priority=0))

    def other() -> None:
        with postgres.transaction() as tx:
            submission.submit_all(tx, [a, b], JobOptions(), Request(priority=5))

    found: list[Any] = []

    def pause(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if "SELECT jobs.id, jobs.metadata" in statement and not found:  # between the two UPDATEs of _note
            found.append(beside(postgres, other))

    with postgres.transaction() as tx:
        event.listen(tx, "before_cursor_execute", pause)
        submission.submit_all(tx, [a, b], JobOptions(), Request(priority=3, metadata={"k": "v"}))
    ((thread, out),) = found
    thread.join()
    assert out["error"] is None


def test_the_first_of_two_who_want_one_place_gets_it(database: Database) -> None:
    with database.transaction() as tx:
        a, b = (submission.submit(tx, MediaObject(f"file:///{n}", "1", 1), JobOptions()) for n in "ab")
        refused = outputs.want_all(tx, [WantedOutput(j, "txt", "file:///x.txt") for j in (a, b)])
    assert [o.job for o in refused] == [b]


def test_a_job_asked_for_again_keeps_the_higher_priority(database: Database) -> None:
    with database.transaction() as tx:
        (new,) = submission.submit_all(tx, [ZERO], JobOptions(), Request(priority=-5))
        submission.submit_all(tx, [ZERO], JobOptions(), Request(priority=0))
        assert jobs.view(tx, new.job).priority == 0


def test_a_priority_is_raised_though_another_submits_the_job_at_once(postgres: Database) -> None:
    with postgres.transaction() as tx:
        submission.submit(tx, ZERO, JobOptions(language="de"))

    def ask() -> None:
        with postgres.transaction() as tx:
            submission.submit_all(tx, [ZERO], JobOptions(), Request(priority=5, metadata={"k": "v"}))

    with postgres.transaction() as tx:
        job = submission.submit(tx, ZERO, JobOptions())
        thread, _ = beside(postgres, ask)
    thread.join()
    with postgres.reading() as tx:
        assert (jobs.view(tx, job).priority, jobs.view(tx, job).meta) == (5, {"k": "v"})


def test_a_place_that_is_taken_over_begins_without_deaths(database: Database) -> None:
    with database.transaction() as tx:
        old = submission.submit(tx, ZERO, JobOptions())
        outputs.want(tx, WantedOutput(old, "txt", "file:///x"))
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        jobs.end_job(tx, lease, "done", Verdict(Code.OK))
    for _ in range(2):
        with database.transaction() as tx:
            leases.claim(tx, Step.DELIVER, "w", seconds=-5.0)
        with database.transaction() as tx:
            leases.reclaim(tx)
    with database.transaction() as tx:
        new = submission.submit(tx, MediaObject(ZERO.url, "2", 10), JobOptions())
        outputs.want(tx, WantedOutput(new, "txt", "file:///x"))
        assert tx.execute(select(Output.crashes)).scalar() == 0
