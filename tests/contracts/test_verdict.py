"""The oracle itself: of a good history it says nothing, and each way of tampering with it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Connection, delete, insert, select, update

from chunking.errors import Code
from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript
from storage import checkpoints, jobs, leases, plans
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import Verdict
from storage.leases import Step
from storage.tables import Checkpoint, Job, SegmentRow, ShardRow, TranscriptRow
from tests.contracts.test_leases import PLAN, prepared, result
from workers.verdict import broken

TRANSCRIPT = Transcript(
    PLAN.duration, 1, "en", 1.0, (Segment(0.0, 1.0, "x", "en"),),
    (CoverageSpan(Span(0.0, PLAN.duration), Coverage.TRANSCRIBED, "", 0),),
)  # fmt: skip


@pytest.fixture
def job(database: Database) -> int:
    """A job that was done as it ought to be, by two workers one after the other."""
    made = prepared(database)
    for shard in PLAN.shards:
        for chunk, worker in zip(shard.chunks, "ab", strict=False):
            with database.transaction() as tx:
                (lease,) = leases.claim(tx, Step.TRANSCRIBE, worker)
                checkpoints.write(tx, lease, made, worker, [result(chunk.index)])
                if chunk is shard.chunks[-1]:
                    plans.lock_jobs(tx, [made])
                    leases.end(tx, lease, "done")
                    plans.shards_done(tx, made)
                else:
                    leases.release(tx, lease)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.FINISH, "a")
        row = checkpoints.write_transcript(tx, TRANSCRIPT, Made("s", "o", "m", "int8", "transcribe"))
        jobs.end_job(tx, lease, "done", Verdict(Code.OK), transcript_id=row)
    return made


def faults(database: Database, job: int, expected: Transcript = TRANSCRIPT, *, exact: bool = True) -> str:
    with database.reading() as tx:
        return "\n".join(broken(tx, {job: expected}, exact=exact))


def test_of_a_good_history_it_says_nothing(database: Database, job: int) -> None:
    assert faults(database, job) == ""
    assert faults(database, job, exact=False) == ""


def ended_badly(tx: Connection) -> None:
    tx.execute(update(Job).values(state="failed", code="internal"))


def not_ended(tx: Connection) -> None:
    tx.execute(update(Job).values(state="transcribing", transcript_id=None))


def result_lost(tx: Connection) -> None:
    tx.execute(delete(Checkpoint).where(Checkpoint.chunk == 1))


def result_of_no_chunk(tx: Connection) -> None:
    row = tx.execute(select(Checkpoint.__table__).where(Checkpoint.chunk == 1)).one()._mapping
    tx.execute(insert(Checkpoint).values(**{**row, "chunk": 99}))


def stale_write(tx: Connection) -> None:
    tx.execute(update(Checkpoint).where(Checkpoint.chunk == 0).values(fence=2))
    tx.execute(update(Checkpoint).where(Checkpoint.chunk == 1).values(fence=1))


def fence_out_of_the_air(tx: Connection) -> None:
    tx.execute(update(ShardRow).values(fence=0))


def transcript_twice(tx: Connection) -> None:
    row = dict(tx.execute(select(TranscriptRow.__table__)).one()._mapping)
    del row["id"]
    tx.execute(insert(TranscriptRow).values(**row))


def word_changed(tx: Connection) -> None:
    tx.execute(update(SegmentRow).values(text="y"))


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (ended_badly, "is failed (internal)"),
        (not_ended, "is transcribing"),
        (result_lost, "3 chunks are planned, 2 results were accepted"),
        (result_of_no_chunk, "3 chunks are planned, 4 results were accepted"),
        (stale_write, "under fence 1 after 2"),
        (fence_out_of_the_air, "which nobody was given"),
        (transcript_twice, "has 2 transcripts"),
        (word_changed, "differs from that of an undisturbed run"),
    ],
)
def test_each_way_of_tampering_is_told(database: Database, job: int, tamper: object, told: str) -> None:
    with database.transaction() as tx:
        tamper(tx)  # type: ignore[operator]
    assert told in faults(database, job)


def test_with_a_real_model_seconds_that_failed_are_told(database: Database, job: int) -> None:
    with database.transaction() as tx:
        tx.execute(update(Job).values(state="done"))
    failed = replace(TRANSCRIPT, duration=TRANSCRIPT.duration + 1)
    assert "failed, undisturbed" in faults(database, job, failed, exact=False)
