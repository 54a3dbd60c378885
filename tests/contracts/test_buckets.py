"""A bucket that refuses is left alone, longer each time; one recording that can be read ends that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import Connection, select, update

from chunking.errors import Code
from storage import buckets, fleet, jobs, leases, submission
from storage.buckets import Rest
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.leases import Step
from storage.moments import now_plus
from storage.sources import LONGEST_REST_S, REST_S
from storage.tables import BucketRow, Job

T = TypeVar("T")


@pytest.fixture
def do(database: Database) -> Callable[[Callable[[Connection], T]], T]:
    def done(what: Callable[[Connection], T]) -> T:
        with database.transaction() as tx:
            return what(tx)

    return done


Do = Callable[[Callable[[Connection], T]], T]


def refuse(do: Do, seen: int, why: str = "AccessDenied") -> None:
    do(lambda tx: buckets.refused(tx, "b", why, seen))


def rest(do: Do) -> Rest | None:
    return do(lambda tx: buckets.resting(tx, "b"))


def rested(do: Do) -> None:
    do(lambda tx: tx.execute(update(BucketRow).values(rest_until=now_plus(-1))))


def test_a_bucket_rests_longer_each_time_and_not_at_all_once_it_answers(do: Do) -> None:
    assert rest(do) is None
    for refusals in range(12):
        assert do(lambda tx: buckets.refusals(tx, "b")) == refusals
        refuse(do, refusals, f"no {refusals}")
        found = rest(do)
        assert found is not None
        longest = min(LONGEST_REST_S, REST_S * 2**refusals)
        assert longest - 2 < found.seconds <= longest
        assert found.why == f"no {refusals}"
        assert do(lambda tx: buckets.resting(tx, "another")) is None
    do(lambda tx: buckets.answered(tx, "b"))
    assert rest(do) is None
    assert do(lambda tx: buckets.refusals(tx, "b")) == 0


def test_those_who_are_refused_at_the_same_time_make_one_refusal(do: Do) -> None:
    for _ in range(5):
        refuse(do, 0)
    assert do(lambda tx: buckets.refusals(tx, "b")) == 1
    refuse(do, 1)
    refuse(do, 0)
    assert do(lambda tx: buckets.refusals(tx, "b")) == 2


def test_when_it_has_rested_one_tries_and_the_others_wait_for_him(do: Do) -> None:
    for seen in range(4):
        refuse(do, seen)
    rested(do)
    assert rest(do) is None
    waiting = rest(do)
    assert waiting is not None
    assert 0 < waiting.seconds <= buckets.ATTEMPT_S
    rested(do)  # he died
    assert rest(do) is None
    refuse(do, 4)
    again = rest(do)
    assert again is not None
    assert again.seconds > REST_S * 2**4 - 2


def test_words_are_the_same_for_all_that_wait(do: Do) -> None:
    refuse(do, 0)
    first, second = rest(do), rest(do)
    assert str(first) == str(second)
    assert str(first).startswith("the bucket b refuses: AccessDenied; it is asked again at ")


def test_with_one_job_the_next_ones_of_its_bucket_are_put_off_and_no_others(
    do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "AT_ONCE", 4)
    urls = [f"s3://b/{i}.wav" for i in range(8)] + ["s3://b_/1.wav", "s3://bb/1.wav", "x://b/1.wav"]
    media = [MediaObject(u, "1", 1) for u in urls]
    ids = [s.job for s in do(lambda tx: submission.submit_all(tx, media, JobOptions(), submission.Request()))]
    [lease] = do(lambda tx: leases.claim(tx, Step.PREPARE, "w", limit=1))
    refuse(do, 0)
    why = rest(do)
    assert why is not None
    do(lambda tx: buckets.put_off(tx, lease, why))

    def waiting() -> set[int]:
        mine = select(Job.id).where(Job.next_run_at > now_plus(), Job.error == str(why))
        return set(do(lambda tx: tx.execute(mine).scalars().all()))

    assert waiting() == set(ids[:5])
    assert do(fleet.overview).put_off == (str(why),)
    claimed = do(lambda tx: leases.claim(tx, Step.PREPARE, "w", limit=100))
    assert {x.id for x in claimed} == set(ids[5:])
    do(lambda tx: [leases.release(tx, x) for x in claimed])
    do(lambda tx: tx.execute(update(Job).where(Job.id == ids[0]).values(next_run_at=now_plus(-1))))  # it has waited
    [again] = do(lambda tx: leases.claim(tx, Step.PREPARE, "w", limit=1))
    assert again.id == ids[0]
    do(lambda tx: buckets.put_off(tx, again, why))
    assert waiting() == set(ids[:8])


def test_a_lease_that_was_lost_is_left_as_it_is(do: Do) -> None:
    job = do(lambda tx: submission.submit(tx, MediaObject("s3://b/1", "1", 1), JobOptions()))
    [old] = do(lambda tx: leases.claim(tx, Step.PREPARE, "w", limit=1, seconds=-1.0))
    do(leases.reclaim)
    [new] = do(lambda tx: leases.claim(tx, Step.PREPARE, "v", limit=1))
    refuse(do, 0)
    why = rest(do)
    assert why is not None
    do(lambda tx: buckets.put_off(tx, old, why))
    assert do(lambda tx: leases.renew(tx, [new])) == {new}
    assert job == new.id


def test_who_tries_again_has_it_asked_at_once_and_an_answer_lets_all_go_on(database: Database) -> None:
    with database.transaction() as tx:
        media = [MediaObject(f"s3://calls/{i}.wav", "e-10", 10) for i in range(3)]
        one, two, three = (d.job for d in submission.submit_all(tx, media, JobOptions(), submission.Request()))
        first, second, _ = leases.claim(tx, Step.PREPARE, "w", limit=3)
        jobs.end_job(tx, first, "rejected", jobs.Verdict(Code.DENIED, "no"))
        buckets.refused(tx, "calls", "no", 0)
        rest = buckets.resting(tx, "calls")
        assert rest is not None
        buckets.put_off(tx, second, rest)
        assert submission.retry(tx, [one]) == 1
        assert buckets.resting(tx, "calls") is None
        assert [x.id for x in leases.claim(tx, Step.PREPARE, "w", limit=9)] == [one]
        buckets.answered(tx, "calls")
        assert [x.id for x in leases.claim(tx, Step.PREPARE, "w", limit=9)] == [two]
        assert jobs.view(tx, two).error is None
        assert three
