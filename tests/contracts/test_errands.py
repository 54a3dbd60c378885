"""What is to be done at a job's end is done once its files are there, whatever came first; and never by a stale lease."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, select, text, update

from chunking.errors import Code, LeaseLost
from storage import errands, jobs, leases, outputs, submission
from storage.database import Database, now_plus
from storage.errands import Wanted
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Lease, Step
from storage.outputs import WantedOutput
from storage.quarantine import quarantine
from storage.submission import Request
from storage.tables import Errand, Job, Output
from tests.contracts.test_jobs import claim, content, finish, submit
from tests.contracts.test_quarantine import dies

HOOK = "https://example.com/hook"
KINDS = (("webhook", HOOK), ("move", "s3://b/done"))


def want(database: Database, job: int, *kinds: tuple[str, str]) -> None:
    with database.transaction() as tx:
        errands.want_all(tx, [Wanted(job, kind, target) for kind, target in kinds or KINDS])


def states(database: Database, job: int | None = None) -> dict[str, str]:
    rows = select(Errand.kind, Errand.state).order_by(Errand.id)
    with database.reading() as tx:
        return {r.kind: r.state for r in tx.execute(rows if job is None else rows.where(Errand.job_id == job))}


def take(database: Database, *, worker: str = "w") -> list[Lease]:
    with database.transaction() as tx:
        return leases.claim(tx, Step.ERRAND, worker, limit=9)


def end(database: Database, job: int, state: str, code: Code = Code.OK) -> None:
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        assert lease.id == job
        jobs.end_job(tx, lease, state, Verdict(code))


def file(database: Database, job: int, name: str = "x") -> WantedOutput:
    made = WantedOutput(job, "txt", f"file:///{name}.txt")
    with database.transaction() as tx:
        assert outputs.want(tx, made)
    return made


def deliver(database: Database, *, fails: bool = False) -> None:
    """A worker writes, or cannot write, each file that is due."""
    while True:
        with database.transaction() as tx:
            held = leases.claim(tx, Step.DELIVER, "w")
        if not held:
            return
        with database.transaction() as tx:
            outputs.failed(tx, held[0], "no") if fails else outputs.delivered(tx, held[0], 3, "ab")


ENDS = {
    ("done", False): {"webhook": "due", "move": "due"},
    ("done", True): {"webhook": "due", "move": "void"},
    ("partial", False): {"webhook": "due", "move": "void"},
    ("rejected", False): {"webhook": "due", "move": "void"},
    ("failed", False): {"webhook": "due", "move": "void"},
}


@pytest.mark.parametrize(("state", "fails"), ENDS)
@pytest.mark.parametrize("order", list(itertools.permutations(("errand", "file", "end"))))
def test_errands_are_due_once_the_job_has_ended_and_its_files_are_there(
    database: Database, order: tuple[str, ...], state: str, fails: bool
) -> None:
    job = submit(database, "a.wav")
    for n, step in enumerate(order):
        if step == "errand":
            want(database, job)
        elif step == "file":
            file(database, job)
            file(database, job, "y")
        else:
            end(database, job, state)
        seen = states(database)
        waits = "end" not in order[: n + 1] or ("file" in order[: n + 1] and state in {"done", "partial"})
        if seen and waits and order[-1] != "file":
            assert set(seen.values()) == {"wanted"}, order[: n + 1]
    deliver(database, fails=fails)
    expected = ENDS[state, fails]
    if order[-1] == "file":  # it was asked for when all was due; the move looks again before it does anything
        expected = ENDS[state, False]
    assert states(database) == expected
    assert len(take(database)) == list(expected.values()).count("due")


def test_the_last_of_two_files_makes_them_due(database: Database) -> None:
    job = submit(database, "a.wav")
    want(database, job)
    a, _ = file(database, job, "a"), file(database, job, "b")
    end(database, job, "done")
    with database.transaction() as tx:
        outputs.written(tx, a, 1, "x")
    assert set(states(database).values()) == {"wanted"}
    deliver(database)
    assert set(states(database).values()) == {"due"}


def test_two_workers_that_deliver_at_once_do_not_wait_for_each_other_for_ever(postgres: Database) -> None:
    for round_ in range(20):
        job = submit(postgres, f"{round_}.wav")
        want(postgres, job)
        for name in "abcd":
            file(postgres, job, f"{round_}{name}")
        end(postgres, job, "done")
        with postgres.transaction() as tx:
            held = leases.claim(tx, Step.DELIVER, "w", limit=4)
        gate = threading.Barrier(5)

        def write(lease: Lease, gate: threading.Barrier = gate) -> None:
            gate.wait()
            with postgres.transaction() as tx:
                outputs.delivered(tx, lease, 1, "x")

        def ask(job: int = job, gate: threading.Barrier = gate) -> None:
            gate.wait()
            want(postgres, job, ("webhook", "https://late"))

        threads = [threading.Thread(target=write, args=(lease,)) for lease in held] + [threading.Thread(target=ask)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with postgres.reading() as tx:
            mine = tx.execute(select(Errand.state).where(Errand.job_id == job)).scalars().all()
        assert mine == ["due"] * 3


def test_who_followed_is_told_as_well(database: Database) -> None:
    a, b = submit(database, "a"), submit(database, "b")
    want(database, a)
    want(database, b)
    file(database, b, "b")
    first, second = claim(database), claim(database)
    assert (content(database, first), content(database, second)) == ("lead", "wait")
    finish(database, first)
    assert states(database, a) == {"webhook": "due", "move": "due"}
    assert states(database, b) == {"webhook": "wanted", "move": "wanted"}
    deliver(database)
    assert states(database, b) == {"webhook": "due", "move": "due"}


def test_a_cancelled_job_is_nobodys_news_until_it_is_tried_again(database: Database) -> None:
    job = submit(database, "a")
    want(database, job)
    with database.transaction() as tx:
        submission.cancel(tx, [job])
    want(database, job, ("webhook", "https://other"))
    assert set(states(database).values()) == {"wanted"}
    with database.transaction() as tx:
        submission.retry(tx, [job])
    end(database, job, "done")
    assert set(states(database).values()) == {"due"}


def test_a_place_that_another_job_takes_holds_nothing_up(database: Database) -> None:
    """The old version's file was not written yet; the new version's has its place now."""
    old = submit(database, "a.wav")
    want(database, old)
    file(database, old)
    end(database, old, "done")
    assert set(states(database).values()) == {"wanted"}
    new = submit(database, "a.wav", version="2")
    file(database, new)
    assert set(states(database, old).values()) == {"due"}


def test_a_retry_is_a_new_round_and_the_old_lease_is_refused(database: Database) -> None:
    job = submit(database, "a")
    want(database, job)
    end(database, job, "failed", Code.INTERNAL)
    (held,) = take(database)
    with database.transaction() as tx:
        assert submission.retry(tx, [job]) == 1
    assert set(states(database).values()) == {"wanted"}
    writes: list[Callable[[Connection], object]] = [
        lambda tx: errands.done(tx, held), lambda tx: errands.dead(tx, held, "x"), lambda tx: errands.of_lease(tx, held),
        lambda tx: errands.reserve(tx, held, "s3://b/x"),
    ]  # fmt: skip
    for write in writes:
        with pytest.raises(LeaseLost), database.transaction() as tx:
            write(tx)
    with database.transaction() as tx:
        errands.put_off(tx, held, "x", 5.0)
    assert set(states(database).values()) == {"wanted"}
    end(database, job, "done")
    again = take(database)
    with database.transaction() as tx:
        due = [errands.of_lease(tx, lease) for lease in again]
        assert [(d.kind, d.round, d.attempts) for d in due] == [("move", 2, 0), ("webhook", 2, 0)]
        for lease in again:
            errands.done(tx, lease)
    assert set(states(database).values()) == {"done"}


def test_asked_for_again_it_is_done_again_if_it_is_over(database: Database) -> None:
    job = submit(database, "a")
    want(database, job)
    want(database, job)
    end(database, job, "done")
    want(database, job)
    with database.reading() as tx:
        assert set(tx.execute(select(Errand.round, Errand.state)).all()) == {(1, "due")}
    move, hook = take(database)
    want(database, job)
    with database.transaction() as tx:
        errands.done(tx, hook)
        errands.dead(tx, move, "no right")
    want(database, job)
    with database.reading() as tx:
        rows = tx.execute(select(Errand.round, Errand.state, Errand.error, Errand.attempts)).all()
    assert set(rows) == {(2, "due", None, 0)}


def test_it_is_tried_for_a_day(database: Database) -> None:
    job = submit(database, "a")
    want(database, job, ("webhook", HOOK))
    end(database, job, "done")
    for attempt in range(3):
        (lease,) = take(database)
        with database.transaction() as tx:
            assert errands.of_lease(tx, lease).attempts == attempt
            errands.put_off(tx, lease, f"no {attempt}", 10.0)
        assert take(database) == []
        with database.transaction() as tx:
            tx.execute(update(Errand).values(next_run_at=None))
    with database.transaction() as tx:
        tx.execute(update(Errand).values(due_at=now_plus(-errands.GIVE_UP_S)))
    (lease,) = take(database)
    with database.transaction() as tx:
        errands.put_off(tx, lease, "still not", 10.0)
        (seen,) = errands.listing(tx, states=("dead",))
        assert (seen.state, seen.error, seen.attempts) == ("dead", "still not", 4)
        assert errands.retry(tx, [seen.id]) == 1
        (seen,) = errands.listing(tx)
        assert (seen.state, seen.round, seen.attempts) == ("due", 1, 0)
    (lease,) = take(database)
    with database.transaction() as tx:
        errands.put_off(tx, lease, "no", 10.0)
        assert errands.listing(tx)[0].state == "due"


def test_the_view_has_the_dead_and_those_that_are_tried_again(database: Database) -> None:
    with database.transaction() as tx:
        ids = [d.job for d in submission.submit_all(
            tx, [MediaObject(f"file:///{n}", "1", 1) for n in range(4)], JobOptions(), Request(label="mine")
        )]  # fmt: skip
        errands.want_all(tx, [Wanted(job, "webhook", HOOK) for job in ids])
    for job in ids:
        end(database, job, "done")
    a, b, c, _ = take(database)
    with database.transaction() as tx:
        errands.dead(tx, a, "gone")
        errands.put_off(tx, b, "busy", 10)
        errands.done(tx, c)
        seen = errands.listing(tx, states=("dead",), retried=True)
        assert [(e.job, e.state, e.attempts) for e in seen] == [(ids[1], "due", 1), (ids[0], "dead", 1)]
        assert errands.listing(tx, states=("dead",), retried=True, label="mine") == seen
        assert errands.listing(tx, label="other") == []
        assert len(errands.listing(tx)) == 4
        assert [e.job for e in errands.listing(tx, ids=[seen[0].id])] == [ids[1]]


def test_what_kills_three_workers_is_dead(database: Database) -> None:
    job = submit(database, "a")
    want(database, job, ("webhook", HOOK))
    end(database, job, "done")
    for alone in (False, False, True):
        dies(database, Step.ERRAND, alone=alone)
    with database.transaction() as tx:
        assert quarantine(tx) == 1
        (seen,) = errands.listing(tx, states=("dead",))
        assert seen.error == "3 workers died with it in hand"
        assert jobs.view(tx, job).state == "done"


def test_a_recording_stays_while_files_of_it_are_to_be_written_again(database: Database) -> None:
    job = submit(database, "a")
    want(database, job)
    file(database, job)
    end(database, job, "done")
    deliver(database)
    move, _ = take(database)
    with database.transaction() as tx:
        assert outputs.again(tx, [job]) == 1
    with database.transaction() as tx:
        assert not errands.may_put_away(tx, move, errands.of_lease(tx, move))
    assert states(database)["move"] == "wanted"
    deliver(database, fails=True)
    assert states(database)["move"] == "void"
    with database.transaction() as tx:
        assert outputs.again(tx, [job]) == 1
    assert states(database)["move"] == "wanted"
    deliver(database)
    (move,) = take(database)
    with database.transaction() as tx:
        assert errands.may_put_away(tx, move, errands.of_lease(tx, move))


def test_files_are_written_again_on_request_and_nobody_is_told_of_it(database: Database) -> None:
    job, other = submit(database, "a"), submit(database, "b")
    want(database, job, ("webhook", HOOK))
    file(database, job)
    file(database, other, "other")
    end(database, job, "done")
    deliver(database)
    (lease,) = take(database)
    with database.transaction() as tx:
        errands.done(tx, lease)
        assert outputs.again(tx, [job, other]) == 1
    deliver(database)
    assert states(database) == {"webhook": "done"}
    with database.reading() as tx:
        assert tx.execute(select(Output.state).order_by(Output.id)).scalars().all() == ["written", "wanted"]


def test_a_recording_that_another_job_needs_waits(database: Database) -> None:
    job = submit(database, "a")
    submit(database, "a", language="de")
    want(database, job, ("delete", ""))
    end(database, job, "done")
    (lease,) = take(database)
    with database.transaction() as tx:
        due = errands.of_lease(tx, lease)
        assert errands.needed_elsewhere(tx, due)
        tx.execute(update(Job).where(Job.id != job).values(state="done"))
        assert not errands.needed_elsewhere(tx, due)


def test_two_recordings_never_get_one_place(database: Database) -> None:
    for name in "ab":
        job = submit(database, name)
        want(database, job, ("move", "s3://b/done"))
        end(database, job, "done")
    first, second = take(database)
    with database.transaction() as tx:
        assert errands.reserve(tx, first, "s3://b/done/x.wav")
        assert errands.reserve(tx, first, "s3://b/done/x.wav")
        assert not errands.reserve(tx, second, "s3://b/done/x.wav")
        assert errands.reserve(tx, second, "s3://b/done/x-1.wav")
        errands.done(tx, first)
        errands.done(tx, second, "gone")
        assert [e.place for e in errands.listing(tx)] == [None, "s3://b/done/x.wav"]


def test_a_storm_of_ends_files_and_wishes_leaves_none_behind(postgres: Database) -> None:
    """Threads submit, end, deliver and ask in any order; when all is quiet every errand of an ended job is due."""
    ids = [submit(postgres, str(n)) for n in range(30)]
    chance = random.Random(3)

    def wish() -> None:
        for job in chance.sample(ids, len(ids)):
            want(postgres, job)
            file(postgres, job, f"{job}-{chance.randrange(3)}")

    def work() -> None:
        while True:
            with postgres.transaction() as tx:
                held = leases.claim(tx, Step.PREPARE, "w")
            if not held:
                break
            with postgres.transaction() as tx:
                jobs.end_job(tx, held[0], chance.choice(["done", "partial", "failed"]), Verdict(Code.OK))
            deliver(postgres)
        deliver(postgres)

    threads = [threading.Thread(target=t) for t in (wish, wish, work, work, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deliver(postgres)
    with postgres.reading() as tx:
        assert "wanted" not in tx.execute(select(Errand.state)).scalars().all()
        void = select(Job.state).join(Errand, Errand.job_id == Job.id).where(Errand.state == "void")
        assert set(tx.execute(void).scalars()) <= {"partial", "failed"}
        assert tx.execute(text("SELECT count(*) FROM errands")).scalar() == 60


def test_what_an_older_worker_ended_is_not_forgotten(database: Database) -> None:
    """It knows nothing of errands: the job's row says that it has ended, and nobody settled what was wanted."""
    with database.transaction() as tx:
        media = [MediaObject(f"s3://b/{i}.wav", "e-1", 1) for i in range(2)]
        one, two = (d.job for d in submission.submit_all(tx, media, JobOptions(), submission.Request()))
        errands.want_all(tx, [errands.Wanted(j, "webhook", "https://x") for j in (one, two)])
        tx.execute(update(Job).where(Job.id == one).values(state="done"))
        errands.settle_forgotten(tx)
        assert {e.job: e.state for e in errands.listing(tx)} == {one: "due", two: "wanted"}
