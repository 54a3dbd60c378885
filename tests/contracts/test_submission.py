"""What users ask for: thousands of jobs at once, labels, priorities; to cancel, to try again; and files of it all."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import Connection, func, select, update

from chunking.errors import Code, LeaseLost
from storage import checkpoints, jobs, leases, outputs, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Lease, Step
from storage.outputs import WantedOutput
from storage.submission import Request, Submitted
from storage.tables import Checkpoint, Job, Output, Recording, ShardRow
from tests.contracts.test_jobs import claim, content, finish, submit, view
from tests.contracts.test_leases import PLAN, prepared, result

STATES = (
    ("queued", None), ("done", "ok"), ("failed", "internal"), ("rejected", "gone"), ("rejected", "too_long"),
    ("rejected", "empty"), ("cancelled", None), ("partial", "truncated"),
)  # fmt: skip
AGAIN = {("failed", "internal"), ("rejected", "gone"), ("rejected", "too_long")}


def source(name: object, version: str = "1") -> MediaObject:
    return MediaObject(f"file:///{name}", version, 10)


def ask(database: Database, names: Sequence[object], request: Request | None = None) -> list[Submitted]:
    with database.transaction() as tx:
        return submission.submit_all(tx, [source(n) for n in names], JobOptions(), request or Request())


def put(database: Database, job: int, state: str, code: str | None = None) -> None:
    with database.transaction() as tx:
        tx.execute(update(Job).where(Job.id == job).values(state=state, code=code))


def cancel(database: Database, *ids: int) -> int:
    with database.transaction() as tx:
        return submission.cancel(tx, ids)


def retry(database: Database, *ids: int) -> int:
    with database.transaction() as tx:
        return submission.retry(tx, ids)


def want(database: Database, *wanted: WantedOutput, missing: bool = False) -> list[WantedOutput]:
    with database.transaction() as tx:
        return outputs.want_all(tx, wanted, missing=missing)


def output_states(database: Database) -> dict[str, str]:
    with database.reading() as tx:
        return {r.url: r.state for r in tx.execute(select(Output.url, Output.state))}


def by_identity(database: Database) -> dict[str, int]:
    with database.reading() as tx:
        rows = tx.execute(select(Recording.identity, Job.id).outerjoin(Job, Job.recording_id == Recording.id)).all()
    found = {r.identity: r.id for r in rows}
    assert len(found) == len(rows)
    return found


def shard_states(database: Database) -> list[str]:
    with database.reading() as tx:
        return list(tx.execute(select(ShardRow.state).order_by(ShardRow.id)).scalars())


def refused(database: Database, write: Callable[[Connection], object]) -> None:
    with pytest.raises(LeaseLost), database.transaction() as tx:
        write(tx)


def all_lost(database: Database, *held: Lease) -> None:
    with database.transaction() as tx:
        assert leases.renew(tx, held) == set()
        assert not any(leases.release(tx, lease) for lease in held)
    for lease in held:
        refused(database, lambda tx, lease=lease: leases.hold(tx, lease))  # type: ignore[misc]
        refused(database, lambda tx, lease=lease: leases.end(tx, lease, "done"))  # type: ignore[misc]


def test_a_bulk_is_answered_in_its_order_whatever_was_there(database: Database) -> None:
    names = list(range(2500))
    random.Random(0).shuffle(names)
    old = {d.job: STATES[i % len(STATES)] for i, d in enumerate(ask(database, names[:1200]))}
    for job, (state, code) in old.items():
        put(database, job, state, code)
    there = dict(zip(names, old, strict=False))
    random.Random(1).shuffle(names)
    first = ask(database, [*names, *names[:10]])
    assert first[2500:] == first[:10]
    stored = by_identity(database)
    for name, done in zip(names, first, strict=False):
        state, code = old.get(done.job, ("queued", None))
        assert done.job == stored[source(name).identity] == there.get(name, done.job)
        assert done.known is (name in there)
        assert done.state == ("queued" if (state, code) in AGAIN else state)
    second = ask(database, names)
    assert second == [Submitted(d.job, d.state, True) for d in first[:2500]]
    assert by_identity(database) == stored
    assert len(stored) == 2500
    with database.reading() as tx:
        assert [v.state for v in jobs.views(tx, [d.job for d in second])] == [d.state for d in second]


def test_nothing_asked_for_is_nothing_done(database: Database) -> None:
    assert ask(database, [], Request(label="x", priority=3, metadata={"a": "b"}, force=True)) == []
    with database.transaction() as tx:
        assert submission.labelled(tx, "x") == []
        assert submission.cancel(tx, []) == submission.retry(tx, []) == 0


def test_a_job_may_have_several_labels(database: Database) -> None:
    a, b, c = (d.job for d in ask(database, "abc", Request(label="first")))
    ask(database, "cb", Request(label="second"))
    ask(database, "cb", Request(label="second"))
    put(database, b, "done", "ok")
    put(database, c, "failed", "internal")
    with database.reading() as tx:
        assert submission.labelled(tx, "first") == [a, b, c]
        assert submission.labelled(tx, "second") == [b, c]
        assert submission.labelled(tx, "first", ("done", "queued")) == [a, b]
        assert submission.labelled(tx, "second", ("failed",)) == [c]
        assert submission.labelled(tx, "third") == []
        assert submission.existing(tx, [a, c, 10_000]) == {a, c}


def test_a_priority_is_raised_and_never_lowered(database: Database) -> None:
    job = prepared(database)  # file:///0.wav
    (other,) = ask(database, ["1.wav"], Request(priority=2))

    def priorities() -> tuple[int, set[int]]:
        with database.reading() as tx:
            return jobs.view(tx, job).priority, set(tx.execute(select(ShardRow.priority)).scalars())

    for asked, then in ((0, 0), (5, 5), (3, 5), (0, 5), (-1, 5), (9, 9)):
        ask(database, ["0.wav", "1.wav"], Request(priority=asked))
        assert priorities() == (then, {then})
    assert view(database, other.job).priority == 9


def test_shards_get_the_priority_that_their_job_has_by_then(database: Database) -> None:
    ask(database, ["a"])
    lease = claim(database)
    ask(database, ["a"], Request(priority=7))
    with database.transaction() as tx:
        plans.store_plan(tx, lease, PLAN, ["x", "y"])
        assert set(tx.execute(select(ShardRow.priority)).scalars()) == {7}


def test_metadata_is_merged_and_the_last_word_stands(database: Database) -> None:
    a, b = (d.job for d in ask(database, "ab"))
    assert view(database, a).meta is None
    ask(database, "a", Request(metadata={"case": "1", "who": "x"}))
    ask(database, "ab", Request(metadata={"who": "y"}))
    ask(database, "ab")
    assert view(database, a).meta == {"case": "1", "who": "y"}
    assert view(database, b).meta == {"who": "y"}


def test_force_starts_again_whatever_stood(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        held = leases.claim(tx, Step.TRANSCRIBE, "w", limit=2)
        checkpoints.write(tx, held[0], job, "w", [result(0)])
    want(database, WantedOutput(job, "txt", "file:///x.txt"))
    (done,) = ask(database, ["0.wav"], Request(force=True))
    assert (done.job, done.state, done.known) == (job, "queued", True)
    assert view(database, job).force
    all_lost(database, *held)
    with database.transaction() as tx:
        assert tx.execute(select(Checkpoint.chunk)).all() == tx.execute(select(ShardRow.id)).all() == []
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, PLAN, ["x", "y"])
        assert len(leases.claim(tx, Step.TRANSCRIBE, "w", limit=5)) == 2


def test_force_takes_what_ends_the_job_from_who_is_at_it(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        for lease in leases.claim(tx, Step.TRANSCRIBE, "w", limit=2):
            leases.end(tx, lease, "done")
        assert plans.shards_done(tx, job)
        (finishing,) = leases.claim(tx, Step.FINISH, "w")
    ask(database, ["0.wav"], Request(force=True))
    refused(database, lambda tx: jobs.end_job(tx, finishing, "done", Verdict(Code.OK)))
    assert view(database, job).state == "queued"


def test_two_who_submit_at_once_in_different_order_get_the_same_jobs(postgres: Database) -> None:
    for turn in range(4):
        mine = [f"{turn}-{i}" for i in range(400)]
        yours = [f"{turn}-{i}" for i in reversed(range(200, 600))]
        barrier = threading.Barrier(2)
        got: dict[str, dict[str, int]] = {}
        errors: list[BaseException] = []

        def submitting(who: str, names: list[str]) -> None:
            barrier.wait()  # noqa: B023
            try:
                for _ in range(2):
                    answer = ask(postgres, names, Request(label="all"))
                    got[who] = {n: d.job for n, d in zip(names, answer, strict=True)}  # noqa: B023
            except BaseException as e:
                errors.append(e)  # noqa: B023

        threads = [threading.Thread(target=submitting, args=x) for x in (("me", mine), ("you", yours))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert errors == []
        assert all(got["me"][n] == got["you"][n] for n in set(mine) & set(yours))
    with postgres.reading() as tx:
        assert tx.execute(select(func.count()).select_from(Job)).scalar() == 4 * 600
        assert len(submission.labelled(tx, "all")) == 4 * 600


def test_who_waited_for_a_cancelled_job_goes_on(database: Database) -> None:
    a, b, c = submit(database, "a"), submit(database, "b"), submit(database, "c")
    first, second, third = claim(database), claim(database), claim(database)
    assert [content(database, x) for x in (first, second, third)] == ["lead", "wait", "wait"]
    assert cancel(database, a) == 1
    assert [view(database, j).state for j in (a, b, c)] == ["cancelled", "queued", "queued"]
    all_lost(database, first)
    again = claim(database)
    assert (again.id, content(database, again)) == (b, "lead")
    assert content(database, claim(database)) == "wait"
    finish(database, again)
    assert [view(database, j).state for j in (a, b, c)] == ["cancelled", "done", "done"]


def test_who_waits_can_be_cancelled_alone_or_with_whom_it_waits_for(database: Database) -> None:
    a, b, c = submit(database, "a"), submit(database, "b"), submit(database, "c")
    first = claim(database)
    assert [content(database, x) for x in (first, claim(database), claim(database))] == ["lead", "wait", "wait"]
    assert cancel(database, b) == 1
    assert [view(database, j).state for j in (a, b, c)] == ["preparing", "cancelled", "waiting"]
    assert cancel(database, c, a, b, a) == 2
    assert {view(database, j).state for j in (a, b, c)} == {"cancelled"}
    with database.transaction() as tx:
        assert leases.claim(tx, Step.PREPARE, "w", limit=9) == []


@pytest.mark.parametrize("step", [Step.PREPARE, Step.TRANSCRIBE, Step.FINISH])
def test_who_is_at_a_cancelled_job_finds_its_lease_gone(database: Database, step: Step) -> None:
    job = submit(database, "a") if step is Step.PREPARE else prepared(database)
    with database.transaction() as tx:
        if step is Step.FINISH:
            for lease in leases.claim(tx, Step.TRANSCRIBE, "w", limit=2):
                leases.end(tx, lease, "done")
            plans.shards_done(tx, job)
        held = leases.claim(tx, step, "w", limit=2)
    assert held
    assert cancel(database, job) == 1
    all_lost(database, *held)
    assert view(database, job).state == "cancelled"
    assert view(database, job).finished_at is not None
    assert cancel(database, job) == 0


def test_a_cancelled_job_keeps_what_it_had(database: Database) -> None:
    job = prepared(database)
    want(database, WantedOutput(job, "txt", "file:///x.txt"))
    with database.transaction() as tx:
        (done, held) = leases.claim(tx, Step.TRANSCRIBE, "w", limit=2)
        checkpoints.write(tx, done, job, "w", [result(0), result(1)])
        leases.end(tx, done, "done")
        plans.shards_done(tx, job)
    cancel(database, job)
    assert shard_states(database) == ["done", "cancelled"]
    refused(database, lambda tx: checkpoints.write(tx, held, job, "w", [result(2)]))
    with database.transaction() as tx:
        assert len(checkpoints.of_job(tx, job)) == 2
        assert leases.claim(tx, Step.TRANSCRIBE, "w", limit=9) == []
    assert output_states(database) == {"file:///x.txt": "wanted"}


def test_a_shard_that_was_put_off_is_cancelled_as_well(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.TRANSCRIBE, "w")
        leases.release(tx, lease, wait_s=60.0)
    cancel(database, job)
    assert shard_states(database) == ["cancelled", "cancelled"]


def test_what_has_ended_is_not_cancelled(database: Database) -> None:
    job = submit(database, "a")
    want(database, WantedOutput(job, "txt", "file:///x.txt"))
    lease = claim(database)
    content(database, lease)
    finish(database, lease)
    assert cancel(database, job) == 0
    assert view(database, job).state == "done"
    assert output_states(database) == {"file:///x.txt": "due"}


@pytest.mark.parametrize("state", ["failed", "rejected", "partial", "cancelled"])
def test_what_ended_otherwise_than_well_can_be_tried_again(database: Database, state: str) -> None:
    job = prepared(database)
    want(database, WantedOutput(job, "txt", "file:///x.txt"))
    with database.transaction() as tx:
        held = leases.claim(tx, Step.TRANSCRIBE, "w", limit=2)
        checkpoints.write(tx, held[0], job, "w", [result(0)])
        if state != "cancelled":
            tx.execute(update(ShardRow).values(state="done"))
            tx.execute(update(Output).values(state="due"))
            values = {"state": state, "code": "damaged", "error": "why", "language": "de", "language_probability": 0.5}
            tx.execute(update(Job).values(**values))
    if state == "cancelled":
        cancel(database, job)
    assert retry(database, job, job) == 1
    found = view(database, job)
    assert (found.state, found.code, found.error, found.language, found.force) == ("queued", None, None, None, True)
    assert found.transcript_id is found.finished_at is None
    all_lost(database, *held)
    assert output_states(database) == {"file:///x.txt": "wanted"}
    with database.transaction() as tx:
        assert checkpoints.of_job(tx, job) == []
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, PLAN, ["x", "y"])
    assert shard_states(database) == ["queued", "queued"]


def test_what_ended_well_or_is_at_work_is_not_tried_again(database: Database) -> None:
    job = prepared(database)
    for state in ("done", "queued", "preparing", "waiting", "transcribing", "transcribed", "finishing"):
        put(database, job, state)
        before = view(database, job)
        assert retry(database, job) == 0
        assert view(database, job) == before
    assert shard_states(database) == ["queued", "queued"]


def test_nothing_is_held_against_what_starts_again(database: Database) -> None:
    job = submit(database, "a")
    for force in (True, False):
        with database.transaction() as tx:
            (lease,) = leases.claim(tx, Step.PREPARE, "w")
            leases.release(tx, lease, wait_s=60.0)
            tx.execute(update(Job).values(crashes=2, solo_crashes=1))
            assert leases.claim(tx, Step.PREPARE, "w") == leases.claim(tx, Step.PREPARE, "w", suspects=True) == []
        if force:
            ask(database, ["a"], Request(force=True))
        else:
            assert (cancel(database, job), retry(database, job)) == (1, 1)
        with database.transaction() as tx:
            assert tx.execute(select(Job.crashes, Job.solo_crashes)).one() == (0, 0)
            (again,) = leases.claim(tx, Step.PREPARE, "w")
            assert again.fence > lease.fence + 1
            leases.release(tx, again)


def test_a_retry_decodes_though_equal_bytes_were_decoded(database: Database) -> None:
    submit(database, "a")
    lease = claim(database)
    content(database, lease)
    finish(database, lease)
    b = submit(database, "b")
    cancel(database, b)
    assert retry(database, b) == 1
    assert content(database, claim(database)) == "lead"


def test_many_jobs_are_cancelled_and_tried_again_at_once(database: Database) -> None:
    ids = [d.job for d in ask(database, range(1201))]
    put(database, ids[7], "done", "ok")
    assert cancel(database, *ids, *ids) == 1200
    assert retry(database, *ids) == 1200
    with database.reading() as tx:
        assert submission.existing(tx, ids) == set(ids)
        assert Counter(v.state for v in jobs.views(tx, ids)) == {"queued": 1200, "done": 1}


def test_places_of_other_recordings_are_answered(database: Database) -> None:
    ids = [d.job for d in ask(database, range(1201))]
    taken = [WantedOutput(ids[0], "txt", f"file:///{i}.txt") for i in range(0, 1201, 7)]
    assert want(database, *taken) == []
    wanted = [WantedOutput(job, "txt", f"file:///{i}.txt") for i, job in enumerate(ids)]
    refused_ = want(database, *wanted)
    assert refused_ == wanted[7::7]
    assert want(database, *wanted) == refused_
    elsewhere = [WantedOutput(o.job, "txt", o.url + ".txt") for o in refused_]
    assert want(database, *elsewhere) == []
    with database.reading() as tx:
        assert {o.url for o in outputs.of_jobs(tx, ids[1:])} == {o.url for o in wanted[1:] + elsewhere} - {
            o.url for o in taken
        }
        assert len(outputs.of_jobs(tx, ids)) == 1201 + len(elsewhere)


def test_another_version_of_the_recording_takes_its_place(database: Database) -> None:
    old, new = submit(database, "a"), submit(database, "a", version="2")
    other = submit(database, "a", language="de")
    want(database, WantedOutput(old, "txt", "file:///x.txt"))
    lease = claim(database)
    content(database, lease)
    finish(database, lease)
    with database.transaction() as tx:
        (delivering,) = leases.claim(tx, Step.DELIVER, "w")
    for job in (new, other):
        assert want(database, WantedOutput(job, "txt", "file:///x.txt")) == []
        with database.reading() as tx:
            assert outputs.of_jobs(tx, [old]) == []
            assert outputs.of_jobs(tx, [job]) == [WantedOutput(job, "txt", "file:///x.txt")]
        assert output_states(database) == {"file:///x.txt": "wanted"}
    all_lost(database, delivering)


def test_a_file_is_due_at_once_where_the_transcript_is_there(database: Database) -> None:
    states = ("done", "partial", "queued", "transcribing", "failed")
    ids = [d.job for d in ask(database, states)]
    for job, state in zip(ids, states, strict=True):
        put(database, job, state)
    wanted = [WantedOutput(job, "txt", f"file:///{state}") for job, state in zip(ids, states, strict=True)]
    assert want(database, *wanted) == []
    assert output_states(database) == {
        f"file:///{state}": "due" if state in {"done", "partial"} else "wanted" for state in states
    }
    with database.transaction() as tx:
        assert outputs.due(tx, ids) == wanted[:2]
        assert len(leases.claim(tx, Step.DELIVER, "w", limit=5)) == 2


def test_a_written_file_is_written_again_only_if_it_is_missing(database: Database) -> None:
    job = submit(database, "a")
    put(database, job, "done", "ok")
    wanted = WantedOutput(job, "txt", "file:///x.txt")
    want(database, wanted)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.DELIVER, "w")
        assert outputs.of_lease(tx, lease) == wanted
        leases.end(tx, lease, "written")
    want(database, wanted)
    assert output_states(database) == {"file:///x.txt": "written"}
    want(database, wanted, missing=True)
    assert output_states(database) == {"file:///x.txt": "due"}


def test_a_file_that_could_not_be_written_is_tried_again_when_asked_for(database: Database) -> None:
    job = submit(database, "a")
    put(database, job, "done", "ok")
    wanted = WantedOutput(job, "txt", "file:///x.txt")
    want(database, wanted)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.DELIVER, "w")
        outputs.put_off(tx, lease, "disk full")
        assert leases.claim(tx, Step.DELIVER, "w") == []
        tx.execute(update(Output).values(next_run_at=None))
        (lease,) = leases.claim(tx, Step.DELIVER, "w")
        outputs.failed(tx, lease, "no such bucket")
    assert output_states(database) == {"file:///x.txt": "failed"}
    want(database, wanted)
    assert output_states(database) == {"file:///x.txt": "due"}
    with database.transaction() as tx:
        assert tx.execute(select(Output.error)).scalar() is None
        assert len(leases.claim(tx, Step.DELIVER, "w")) == 1


def test_files_of_all_who_waited_are_due_together(database: Database) -> None:
    a, b = submit(database, "a"), submit(database, "b")
    want(database, *(WantedOutput(j, "txt", f"file:///{j}.txt") for j in (a, b)))
    first, second = claim(database), claim(database)
    content(database, first)
    content(database, second)
    finish(database, first)
    assert set(output_states(database).values()) == {"due"}


def test_an_assigned_file_is_for_one_worker(database: Database) -> None:
    job = submit(database, "a")
    put(database, job, "done", "ok")
    want(database, WantedOutput(job, "txt", "file:///x.txt", assigned="me"))
    with database.transaction() as tx:
        assert leases.claim(tx, Step.DELIVER, "you") == []
    want(database, WantedOutput(job, "txt", "file:///x.txt", assigned="you"))
    with database.transaction() as tx:
        assert len(leases.claim(tx, Step.DELIVER, "you")) == 1
