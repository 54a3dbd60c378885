"""Plans and shards: stored once, before the first chunk is decoded, and done when the last shard is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, insert, or_, select, update

from chunking.errors import LeaseLost, SpotscribeError, TransientError, UsageError
from chunking.timeline import Plan, Shard, Span
from storage import leases
from storage.jobs import TRY_AGAIN_S, JobOptions, Verdict
from storage.leases import Lease
from storage.records import from_record, to_record
from storage.tables import Job, ShardRow


def store_plan(
    tx: Connection, lease: Lease, plan: Plan, object_keys: Sequence[str], verdict: Verdict | None = None
) -> None:
    """Shards become claimable, the prepare lease ends. `verdict`: what is already known against the recording."""
    leases.hold(tx, lease)
    job = tx.execute(_ABOUT, {"job": lease.id}).one()
    engine = JobOptions(**job.options).engine
    rows = [
        {
            "job_id": lease.id,
            "position": shard.index,
            "channel": shard.channel,
            "start_s": shard.span.start,
            "end_s": shard.span.end,
            "chunks": len(shard.chunks),
            "object_key": key,
            "plan": to_record(shard),
            "state": "queued",
            "engine": engine,
            "priority": job.priority,
            "assigned": job.assigned,
        }
        for shard, key in zip(plan.shards, object_keys, strict=True)
    ]
    if rows:
        tx.execute(insert(ShardRow), rows)
    state = "transcribing" if plan.shards else "transcribed"
    code, error = (verdict.code.value, verdict.error) if verdict else (None, None)
    lost = [[s.start, s.end] for s in plan.lost] or None
    leases.end(tx, lease, state, duration_s=plan.duration, channels=plan.channels, lost=lost, code=code, error=error)


def shard_of(tx: Connection, lease: Lease) -> tuple[int, str, Shard]:
    """The leased shard: its job, where its audio lies, and how it is cut. Raises LeaseLost where it is gone."""
    row = tx.execute(_SHARD, {"shard": lease.id}).first()
    if row is None:
        raise LeaseLost()
    return row.job_id, row.object_key, from_record(Shard, row.plan)


def plan_of(tx: Connection, job: int) -> Plan:
    """The plan as it was stored."""
    row = tx.execute(_CUT, {"job": job}).one()
    shards = tx.execute(_PLANS, {"job": job}).scalars()
    lost = tuple(Span(start, end) for start, end in row.lost or ())
    return Plan(row.duration_s or 0.0, row.channels or 1, tuple(from_record(Shard, s) for s in shards), lost)


def object_keys(tx: Connection, job: int) -> list[str]:
    """Where the job's shards lie in the work store."""
    return list(tx.execute(_KEYS, {"job": job}).scalars())


def lock_jobs(tx: Connection, jobs: Iterable[int]) -> None:
    """Before shards of these jobs end: two last shards must see each other, and jobs are locked before shards."""
    tx.execute(_LOCK, {"jobs": sorted(set(jobs))}).all()


def shards_done(tx: Connection, job: int) -> bool:
    """After a shard has ended, with its job locked: hand the job on to finish if it was the last one."""
    return tx.execute(_HAND_ON, {"transcribed": job}).first() is not None


def fail_shard(tx: Connection, lease: Lease, error: SpotscribeError) -> bool | None:
    """A shard that cannot be decoded: later, if it may help, else without it. True: that was the job's last shard.

    None: it was put off.

    What the job's other shards hold is kept: the transcript says of this one's speech that it was not decoded.
    """
    if isinstance(error, TransientError | UsageError):  # the latter is this machine's fault, not the recording's
        leases.release(tx, lease, wait_s=TRY_AGAIN_S)
        return None
    job = tx.execute(select(ShardRow.job_id).where(ShardRow.id == lease.id)).scalar()
    lock_jobs(tx, [job] if job is not None else [])
    leases.end(tx, lease, "failed")
    assert job is not None
    tx.execute(update(Job).where(Job.id == job).values(code=error.code.value, error=str(error)))
    return shards_done(tx, job)


def queued_audio_s(tx: Connection, worker: str) -> float:
    """Seconds of prepared audio that wait for this worker."""
    mine = or_(ShardRow.assigned.is_(None), ShardRow.assigned == worker)
    waiting = select(func.sum(ShardRow.end_s - ShardRow.start_s)).where(ShardRow.state == "queued", mine)
    return float(tx.execute(waiting).scalar() or 0.0)


# Kept: to build a statement takes longer than to run it.
_JOB: Any = bindparam("job")
_ABOUT = select(Job.priority, Job.assigned, Job.options).where(Job.id == _JOB)
_CUT = select(Job.duration_s, Job.channels, Job.lost).where(Job.id == _JOB)
_PLANS = select(ShardRow.plan).where(ShardRow.job_id == _JOB).order_by(ShardRow.position)
_KEYS = select(ShardRow.object_key).where(ShardRow.job_id == _JOB)
_SHARD = select(ShardRow).where(ShardRow.id == bindparam("shard"))
_LOCK = (
    select(Job.id).where(Job.id.in_(bindparam("jobs", expanding=True))).order_by(Job.id).with_for_update(key_share=True)
)
_HAND_ON = (
    update(Job)
    .where(Job.id == bindparam("transcribed"), Job.state == "transcribing")
    .where(~exists().where(ShardRow.job_id == Job.id, ShardRow.state.not_in(("done", "failed"))))
    .values(state="transcribed")
    .returning(Job.id)
)


def set_language(tx: Connection, job: int, language: str, probability: float) -> tuple[str, float]:
    """The job's language: the first answer stands, so that all shards and a resumed run agree."""
    first = update(Job).where(Job.id == job, Job.language.is_(None))
    tx.execute(first.values(language=language, language_probability=probability))
    row = tx.execute(select(Job.language, Job.language_probability).where(Job.id == job)).first()
    if row is None:  # purged: nobody will ask
        return language, probability
    return row.language or language, row.language_probability or probability
