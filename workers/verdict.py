"""Whether a fleet kept its promise: the history in the database, held against what ought to have happened.

Each check gives the ways in which it is broken, in words; none: it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from sqlalchemy import Connection, func, select

from chunking.timeline import Coverage, Transcript
from storage import checkpoints, jobs, plans
from storage.tables import Checkpoint, Job, ShardRow, TranscriptRow

SHOWN = 5


def broken(tx: Connection, expected: Mapping[int, Transcript], *, exact: bool = True) -> list[str]:
    """What is wrong with these jobs, given what each ought to have come to. A few words for each kind of fault.

    Not `exact`: the texts may differ, since a real model's INT8 arithmetic depends a little on the batch.
    """
    faults: list[str] = []
    same = _as_undisturbed if exact else _of_the_same_length
    for check in (_ended, _accepted_once, _fences_rise, _one_transcript, same):
        found = list(check(tx, expected))
        faults += found[:SHOWN] + ([f"… and {len(found) - SHOWN} more like it"] if len(found) > SHOWN else [])
    return faults


def _ended(tx: Connection, expected: Mapping[int, Transcript]) -> Iterator[str]:
    """All jobs have ended, and well."""
    for view in jobs.views(tx, sorted(expected)):
        if view.state != "done":
            yield f"job {view.id} is {view.state} ({view.code}): {view.error}"


def _accepted_once(tx: Connection, expected: Mapping[int, Transcript]) -> Iterator[str]:
    """Of each chunk of the plan one result was accepted, and of nothing else."""
    for job in sorted(expected):
        planned = sorted(c.index for c in plans.plan_of(tx, job).chunks)
        accepted = sorted(tx.execute(select(Checkpoint.chunk).where(Checkpoint.job_id == job)).scalars())
        if planned != accepted:
            yield f"job {job}: {len(planned)} chunks are planned, {len(accepted)} results were accepted"


def _fences_rise(tx: Connection, expected: Mapping[int, Transcript]) -> Iterator[str]:
    """No result was accepted under an older fence than one before it, or than one that was never given out."""
    rows = tx.execute(
        select(Checkpoint.shard_id, Checkpoint.fence, ShardRow.fence.label("last"))
        .join(ShardRow, ShardRow.id == Checkpoint.shard_id)
        .where(ShardRow.job_id.in_(expected))
        .order_by(Checkpoint.shard_id, Checkpoint.created_at, Checkpoint.fence)
    ).all()
    for before, after in pairwise(rows):
        if before.shard_id == after.shard_id and after.fence < before.fence:
            yield f"shard {after.shard_id}: a result was accepted under fence {after.fence} after {before.fence}"
    for row in rows:
        if row.fence > row.last:
            yield f"shard {row.shard_id}: a result was accepted under fence {row.fence}, which nobody was given"


def _one_transcript(tx: Connection, expected: Mapping[int, Transcript]) -> Iterator[str]:
    """Each job has a transcript, and no transcript was written twice."""
    ids = list(tx.execute(select(Job.transcript_id).where(Job.id.in_(expected))).scalars())
    shas = select(TranscriptRow.sha256).where(TranscriptRow.id.in_([i for i in ids if i is not None]))
    twice = select(TranscriptRow.sha256, func.count().label("n")).where(TranscriptRow.sha256.in_(shas))
    for row in tx.execute(twice.group_by(TranscriptRow.sha256, TranscriptRow.options_digest).having(func.count() > 1)):
        yield f"the content {row.sha256[:12]} has {row.n} transcripts"


def _as_undisturbed(tx: Connection, expected: Mapping[int, Transcript]) -> Iterator[str]:
    """Each transcript is, to the letter and the millisecond, the one of a run that nobody disturbed."""
    for view in jobs.views(tx, sorted(expected)):
        if view.transcript_id is None:
            continue
        if checkpoints.read_transcript(tx, view.transcript_id) != expected[view.id]:
            yield f"job {view.id}: its transcript differs from that of an undisturbed run"


def _of_the_same_length(tx: Connection, expected: Mapping[int, Transcript]) -> Iterator[str]:
    """Each transcript accounts for as many seconds as that of a run that nobody disturbed, and no more failed."""
    for view in jobs.views(tx, sorted(expected)):
        if view.transcript_id is None:
            continue
        found, ought = checkpoints.read_transcript(tx, view.transcript_id), expected[view.id]
        failed = [t.seconds(Coverage.FAILED) for t in (found, ought)]
        if found.duration != ought.duration or failed[0] > failed[1]:
            yield f"job {view.id}: {failed[0]:.1f} s of {found.duration:.1f} s failed, undisturbed {failed[1]:.1f} s"
