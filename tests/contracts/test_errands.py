"""What is to be done at a job's end is done once its files are there, whatever came first; and never by a stale lease."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import Connection, event, func, select, text, update

from chunking.errors import Code, LeaseLost, TransientError
from pipeline.notices import notice_of
from storage import departures, errands, jobs, leases, outputs, receivers, submission
from storage.database import Database
from storage.errands import Wanted
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Lease, Step
from storage.moments import now_plus
from storage.outputs import WantedOutput
from storage.quarantine import quarantine
from storage.submission import Request
from storage.tables import Errand, Job, Output, Recording
from tests.contracts.test_jobs import claim, content, finish, submit
from tests.contracts.test_quarantine import dies
from workers.reconciler import _ready

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
        outputs.written(tx, [(a, 1, "x")])
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
        lambda tx: departures.reserve(tx, held, "s3://b/x"),
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
            assert receivers.come_due(tx) == 0
            tx.execute(update(Errand).values(next_run_at=now_plus()))
        with database.transaction() as tx:
            assert receivers.come_due(tx) == 1
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
        assert errands.listing(tx)[0].state == "later"


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
        assert [(e.job, e.state, e.attempts) for e in seen] == [(ids[1], "later", 1), (ids[0], "dead", 1)]
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
        assert not departures.may_put_away(tx, move, errands.of_lease(tx, move))
    assert states(database)["move"] == "wanted"
    deliver(database, fails=True)
    assert states(database)["move"] == "void"
    with database.transaction() as tx:
        assert outputs.again(tx, [job]) == 1
    assert states(database)["move"] == "wanted"
    deliver(database)
    (move,) = take(database)
    with database.transaction() as tx:
        assert departures.may_put_away(tx, move, errands.of_lease(tx, move))


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


def goes(database: Database) -> bool | str:
    """What becomes of the one recording that is to be put away: it goes, waits, or stays."""
    (lease,) = take(database)
    try:
        with database.transaction() as tx:
            gone = departures.may_put_away(tx, lease, errands.of_lease(tx, lease))
    except TransientError:
        with database.transaction() as tx:
            assert leases.release(tx, lease)
        return "waits"
    if gone:
        with database.transaction() as tx:
            assert leases.release(tx, lease)
        return "goes"
    (state,) = set(states(database).values())
    return "stays" if state == "void" else state


def becomes(database: Database, job: int, state: str) -> None:
    with database.transaction() as tx:
        tx.execute(update(Job).where(Job.id == job).values(state=state))


def test_a_recording_that_another_job_needs_waits(database: Database) -> None:
    job = submit(database, "a")
    other = submit(database, "a", language="de")
    want(database, job, ("delete", ""))
    end(database, job, "done")
    assert goes(database) == "waits"
    becomes(database, other, "done")
    assert goes(database) == "goes"
    becomes(database, other, "cancelled")
    assert goes(database) == "goes"


@pytest.mark.parametrize("state", ["failed", "rejected", "partial"])
def test_a_recording_of_which_another_job_went_wrong_stays(database: Database, state: str) -> None:
    job = submit(database, "a")
    other = submit(database, "a", language="de")
    want(database, job, ("delete", ""))
    end(database, job, "done")
    becomes(database, other, state)
    assert goes(database) == "stays"
    with database.reading() as tx:
        assert f"job {other}" in (errands.listing(tx)[0].error or "")


@pytest.mark.parametrize("state", ["failed", "rejected", "cancelled", "partial", "done"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_file_that_another_job_took_over_and_never_wrote_keeps_the_recording(
    database: Database, state: str, version: str
) -> None:
    """The first one's transcript lies in the database alone, and none of its files is missing: it has none left."""
    job = submit(database, "a")
    want(database, job, ("delete", ""))
    file(database, job)
    other = submit(database, "a", version=version, language="de")
    if version == "2":  # one that was overwritten before it was heard of: the first one's bytes lie there
        with database.transaction() as tx:
            tx.execute(update(Recording).where(Recording.version == "1").values(superseded_by=None))
    file(database, other)
    end(database, job, "done")
    assert goes(database) == "waits"
    if state in {"done", "partial"}:
        end(database, other, state)
        assert goes(database) == "waits"
        deliver(database)
        assert goes(database) == ("stays" if (state, version) == ("partial", "1") else "goes")
    else:
        becomes(database, other, state)
        assert goes(database) == "stays"


def test_an_older_version_that_failed_keeps_no_recording(database: Database) -> None:
    old = submit(database, "a")
    file(database, old, "old")
    end(database, old, "failed")
    job = submit(database, "a", version="2")
    want(database, job, ("delete", ""))
    end(database, job, "done")
    assert goes(database) == "goes"


def test_what_was_overwritten_is_not_put_away(database: Database) -> None:
    job = submit(database, "a")
    want(database, job, ("delete", ""))
    end(database, job, "done")
    submit(database, "a", version="2")
    assert goes(database) == "stays"


def test_what_is_told_is_of_one_round(database: Database) -> None:
    """The job is tried again between two looks: nobody may hear of that with the key of the old end."""
    job = submit(database, "a")
    want(database, job, ("webhook", HOOK))
    end(database, job, "failed", Code.INTERNAL)
    (lease,) = take(database)
    with database.reading() as tx:
        due = errands.of_lease(tx, lease)
        assert notice_of(tx, due).event == "failed"
    with database.transaction() as tx:
        submission.retry(tx, [job])
    with pytest.raises(LeaseLost), database.reading() as tx:
        notice_of(tx, due)
    end(database, job, "done")
    with pytest.raises(LeaseLost), database.reading() as tx:
        notice_of(tx, due)
    (lease,) = take(database)
    with database.reading() as tx:
        assert notice_of(tx, errands.of_lease(tx, lease)).event == "done"


ASKED = [
    ("webhook", "https://me:pw@Example.com:8443/a/b?c", "https://example.com:8443"), ("webhook", "http://h", "http://h"),
    ("webhook", "http://a@b@[::1]:80?x", "http://[::1]:80"),
    ("sqs", "https://sqs/1/q", "sqs:https://sqs/1/q"), ("sns", "arn:aws:sns:r:1:t", "sns:arn:aws:sns:r:1:t"),
    ("move", "s3://other/done", "file://"), ("delete", "", "file://"),
]  # fmt: skip


def test_errands_know_whom_they_ask(database: Database) -> None:
    job = submit(database, "a")
    want(database, job, *((kind, target) for kind, target, _ in ASKED))
    with database.transaction() as tx:
        (new,) = submission.submit_all(tx, [MediaObject("s3://b/x", "1", 1)], JobOptions(), Request())
        errands.want_all(tx, [Wanted(new.job, "tag", "")])
        rows = tx.execute(select(Errand.kind, Errand.target, Errand.receiver)).all()
    assert {tuple(r) for r in rows} == {*ASKED, ("tag", "", "s3://b")}


def due_for(database: Database, targets: Sequence[str]) -> None:
    """An ended job for each, and its notice."""
    with database.transaction() as tx:
        media = [MediaObject(f"file:///{n}", "1", 1) for n in range(len(targets))]
        ids = [d.job for d in submission.submit_all(tx, media, JobOptions(), Request())]
        errands.want_all(tx, [Wanted(job, "webhook", t) for job, t in zip(ids, targets, strict=True)])
        tx.execute(update(Job).values(state="done"))
        errands.settle(tx, ids)


def test_all_that_is_due_of_a_receiver_waits_together(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "TOGETHER", 4)
    due_for(database, ["http://dead/1"] * 5 + ["http://dead/2", "http://good/1"])
    with database.reading() as tx:
        assert receivers.others_wait(tx, "http://dead")
        assert receivers.others_wait(tx, "http://good")
        assert receivers.others_wait(tx, "http://middle")
    with database.transaction() as tx:
        tx.execute(update(Errand).where(Errand.id == 2).values(due_at=now_plus(-errands.GIVE_UP_S)))
        assert receivers.put_off_others(tx, "http://dead", 60.0, "it does not answer") == 4
    with database.transaction() as tx:
        assert receivers.put_off_others(tx, "http://dead", 60.0, "it does not answer") == 2
        assert receivers.others_wait(tx, "http://dead")
        assert not receivers.others_wait(tx, "http://good")
        assert receivers.come_due(tx) == 0
        seen = {e.id: (e.state, e.error, e.next_run_at is None) for e in errands.listing(tx, states=("dead", "later"))}
    assert seen.pop(2) == ("dead", "it does not answer", True)
    assert len(seen) == 5
    assert set(seen.values()) == {("later", "it does not answer", False)}
    (lease,) = take(database)
    with database.transaction() as tx:
        assert errands.of_lease(tx, lease).receiver == "http://good"
        errands.later(tx, lease, 5.0)
        tx.execute(update(Errand).values(next_run_at=now_plus(-1.0)))
    with database.transaction() as tx:
        assert [receivers.come_due(tx) for _ in range(3)] == [4, 2, 0]
    assert len(take(database)) == 6


def test_who_stands_back_is_never_given_up_for_it(database: Database) -> None:
    due_for(database, ["http://slow/1"] * 2)
    with database.transaction() as tx:
        tx.execute(update(Errand).values(due_at=now_plus(-2 * errands.GIVE_UP_S), error="500", attempts=1))
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.ERRAND, "w")
        errands.later(tx, lease, 5.0)
        assert receivers.put_off_others(tx, "http://slow", 5.0) == 1
        assert {(e.state, e.error, e.attempts) for e in errands.listing(tx)} == {("later", "500", 1)}
        assert len(errands.listing(tx, states=("dead",), retried=True)) == 2


def test_what_is_put_off_costs_no_claim_anything(postgres: Database) -> None:
    """No query of a worker's or the reconciler's turn may read what is put off or done, however much that is."""
    with postgres.transaction() as tx:
        for sql in (
            "INSERT INTO recordings (url, identity, size_bytes, created_at) SELECT 'a'||i, 'a'||i, 1, now() FROM generate_series(1, 20000) i",
            "INSERT INTO jobs (recording_id, options, options_digest, model, state, created_at) SELECT id, '{}', 'd', 'm', 'done', now() FROM recordings",
            "INSERT INTO errands (job_id, kind, target, receiver, state, next_run_at) SELECT id, 'webhook', 'http://x/y', 'http://x', CASE WHEN id % 2 = 0 THEN 'done' ELSE 'later' END, now() + interval '1 hour' FROM jobs",
        ):
            tx.execute(text(sql))
    with postgres.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.execute(text("VACUUM ANALYZE errands"))
    asked: list[tuple[str, object]] = []
    event.listen(postgres.engine, "before_cursor_execute", lambda c, cu, sql, values, *_: asked.append((sql, values)))
    with postgres.transaction() as tx:
        leases.claim(tx, Step.ERRAND, "w")
        leases.has_suspects(tx, Step.ERRAND, "w")
        quarantine(tx)
        _ready(tx)
        receivers.come_due(tx)
        receivers.others_wait(tx, "http://good")
    queries = [(sql, values) for sql, values in asked if "errands" in sql]
    assert len(queries) == 6, queries
    for sql, values in queries:
        with postgres.reading() as tx:
            rows = (
                tx.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {sql}", values).scalars().all()
            )  # type: ignore[arg-type]
        plan = "\n".join(rows)
        pages = max(map(int, re.findall(r"Buffers: shared hit=(\d+)", plan)), default=0)
        assert "Seq Scan" not in plan, plan
        assert pages < 50, plan


def test_two_recordings_never_get_one_place(database: Database) -> None:
    for name in "ab":
        job = submit(database, name)
        want(database, job, ("move", "s3://b/done"))
        end(database, job, "done")
    first, second = take(database)
    with database.transaction() as tx:
        assert departures.reserve(tx, first, "s3://b/done/x.wav")
        assert departures.reserve(tx, first, "s3://b/done/x.wav")
        assert not departures.reserve(tx, second, "s3://b/done/x.wav")
        assert departures.reserve(tx, second, "s3://b/done/x-1.wav")
        errands.done(tx, first)
        errands.done(tx, second, "gone")
        assert [e.place for e in errands.listing(tx)] == [None, "s3://b/done/x.wav"]


def test_a_storm_of_ends_files_and_wishes_leaves_none_behind(postgres: Database) -> None:
    """Threads submit, end, deliver and ask in any order; when all is quiet every errand of an ended job is due."""
    ids = [submit(postgres, str(n)) for n in range(30)]
    chance = random.Random(3)

    def remaining() -> int:
        with postgres.reading() as tx:
            return tx.execute(select(func.count()).where(Job.state == "queued")).scalar_one()

    def wish() -> None:
        for job in chance.sample(ids, len(ids)):
            want(postgres, job)
            file(postgres, job, f"{job}-{chance.randrange(3)}")

    def work() -> None:
        while remaining():
            with postgres.transaction() as tx:
                held = leases.claim(tx, Step.PREPARE, "w")
            if not held:  # somebody else is at the row just now
                continue
            with postgres.transaction() as tx:
                jobs.end_job(tx, held[0], chance.choice(["done", "partial", "failed"]), Verdict(Code.OK))
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


def test_those_that_wait_for_their_files_hide_no_forgotten_ones(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands, "AT_ONCE", 2)
    ids = [submit(database, str(n)) for n in range(9)]
    for job in ids:
        want(database, job, ("webhook", HOOK))
    with database.transaction() as tx:
        outputs.want_all(tx, [WantedOutput(job, "txt", f"file:///{job}.txt") for job in ids[:3]])
        tx.execute(update(Job).values(state="done"))
        tx.execute(update(Output).values(state="due"))
    after: int | None = 0
    parts = 0
    while after is not None:
        with database.transaction() as tx:
            after = errands.settle_forgotten(tx, after)
        parts += 1
    with database.reading() as tx:
        left = [e.job for e in errands.listing(tx, states=("wanted",))]
    assert (sorted(left), parts) == (ids[:3], 4)
