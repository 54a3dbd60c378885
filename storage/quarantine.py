"""Quarantine: work that kills whoever takes it is taken out of the queue, so that the queue flows.

Three deaths without progress are the limit, and the last of them must have been one that nothing else can have caused:
the worker had nothing else in hand (storage/leases.py). Where workers die of other causes as well, as in a storm of
preemptions without notice, one such death proves little: then more are asked for, the more there die without it.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select, update

from chunking.errors import Code, PermanentError
from storage import errands, jobs, plans
from storage.jobs import Verdict
from storage.leases import SUSPECT_CRASHES, Lease, Step
from storage.moments import instant, since
from storage.tables import Job, WorkerRow

CRASHES = 3
SOLO_IN_A_STORM, MOST_SOLO = 3, 12
"""Deaths alone that are asked for where others die as well: these, and half as many more as others died, up to so many.
An hour's recording is alone for seconds, in which a kill storm hits it one time in three."""
STORM_S = 600.0
"""How far back other workers' deaths count."""


def quarantine(tx: Connection) -> int:
    """End what has killed its worker three times without getting on. The answer is how many rows."""
    deaths = tx.execute(
        select(func.count()).select_from(WorkerRow).where(instant(WorkerRow.lost_at) > since(STORM_S))
    ).scalar_one()
    count = 0
    for step in Step:
        t = step.table.c
        # `>= SUSPECT_CRASHES` again: it is what the partial index says.
        bad = select(t.id, t.crashes, t.solo_crashes).where(
            t.state == step.ready, t.crashes >= SUSPECT_CRASHES, t.crashes >= CRASHES, t.solo_crashes >= 1
        )
        for row in tx.execute(bad).all():
            if row.solo_crashes >= _needed(deaths - row.crashes) and (lease := _taken(tx, step, row.id)) is not None:
                _end(tx, lease, row.crashes)
                count += 1
    return count


def _needed(others: int) -> int:
    """Deaths alone that prove it, where so many workers died lately without the row in hand."""
    return 1 if others <= 0 else min(MOST_SOLO, SOLO_IN_A_STORM + others // 2)


def _taken(tx: Connection, step: Step, row: int) -> Lease | None:
    """The row, if nobody took it since we looked, and nobody has it, or its job, locked: who has may be frozen."""
    t = step.table.c
    mine = select(t.id).where(t.id == row, t.state == step.ready, t.crashes >= CRASHES)
    if step in {Step.TRANSCRIBE, Step.DELIVER}:  # jobs are locked before shards and files
        job = select(Job.id).where(Job.id == select(t.job_id).where(t.id == row).scalar_subquery())
        if tx.execute(job.with_for_update(key_share=True, skip_locked=True)).first() is None:
            return None
    if tx.execute(mine.with_for_update(skip_locked=True)).first() is None:
        return None
    take = update(step.table).where(t.id == row).values(state=step.running, fence=t.fence + 1)
    return Lease(step, row, tx.execute(take.returning(t.fence)).scalar_one())


def _end(tx: Connection, lease: Lease, deaths: int) -> None:
    error = PermanentError(f"{deaths} workers died with it in hand", code=Code.QUARANTINED)
    if lease.step is Step.TRANSCRIBE:
        plans.fail_shard(tx, lease, error)
    elif lease.step is Step.DELIVER:
        from storage import outputs

        outputs.failed(tx, lease, str(error))
    elif lease.step is Step.ERRAND:
        errands.dead(tx, lease, str(error))
    else:
        jobs.end_job(tx, lease, "failed", Verdict(error.code, str(error)))
