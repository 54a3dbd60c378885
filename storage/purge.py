"""Deleting what is known of recordings: which rows there are, in which order they go, and what still names them.

Locks are taken jobs first, then shards, checkpoints and files, errands (storage/leases.py). Rows are what leads to
objects and files, so they go last: who is killed in between finds everything again and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    case,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    update,
)  # fmt: skip

from storage import arrivals, errands, submission
from storage.jobs import ENDED, WITH_TRANSCRIPT
from storage.leases import unheld
from storage.moments import instant, now_plus, since
from storage.tables import (
    Arrival,
    Checkpoint,
    CoverageRow,
    Errand,
    ExportedJob,
    Job,
    Label,
    Output,
    Recording,
    SegmentRow,
    ShardRow,
    TranscriptRow,
)  # fmt: skip

AT_ONCE = 300
"""Jobs of one transaction."""
ERRANDS_LEFT = ("due", "running", "later")
PURGED = "purged"
"""What an output's row says once its file may go, and nobody may write it any more."""


class What(StrEnum):
    """How much of a job goes: each includes the one before."""

    WORK = "work"
    """Audio in work, plans, checkpoints."""
    RESULTS = "results"
    """The transcript as well. The job stays, and says on which day its result went."""
    RECORDINGS = "recordings"
    """All rows. The drop folders' ledger keeps a digest, so that the same object is not taken again."""


@dataclass(frozen=True, slots=True)
class Old:
    """Ended jobs of that age, all of them or those of a label or of a source."""

    what: What
    older_s: float
    label: str | None = None
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A recording that the database has."""

    id: int
    url: str
    sha256: str | None
    named: bool
    """Asked for by its URL; else it has the same bytes as one that is."""


def find(tx: Connection, url: str | None, sha256: str | None, *, equal: bool = True) -> list[Known]:
    """All recordings at this URL, or with these bytes; `equal`: and those elsewhere that have the same bytes as one."""
    r = Recording
    columns = select(r.id, r.url, r.sha256).order_by(r.url, r.id)
    mine = tx.execute(columns.where(r.url == url if url is not None else r.sha256 == sha256)).all()
    found = [Known(x.id, x.url, x.sha256, url is not None) for x in mine]
    shas = {k.sha256 for k in found if k.sha256}
    if url is not None and equal and shas:
        others = tx.execute(columns.where(r.sha256.in_(shas), r.url != url))
        found += [Known(x.id, x.url, x.sha256, False) for x in others]
    return found


def url_of_job(tx: Connection, job: int) -> str | None:
    return tx.execute(select(Recording.url).join(Job, Job.recording_id == Recording.id).where(Job.id == job)).scalar()


def jobs_of(tx: Connection, recordings: Iterable[int]) -> list[int]:
    """The jobs of these recordings, in order."""
    found: list[int] = []
    for part in parts(recordings):
        found += tx.execute(select(Job.id).where(Job.recording_id.in_(part))).scalars()
    return sorted(found)


def candidates(tx: Connection, old: Old, after: int, *, files: bool) -> list[int]:
    """The next jobs of which something is to go; `files`: their files are to go as well."""
    chosen = _chosen(old, files=files).where(Job.id > after)
    return list(tx.execute(chosen.order_by(Job.id).limit(AT_ONCE)).scalars())


def counts_of_old(tx: Connection, old: Old, *, files: bool) -> dict[str, int]:
    return counts(tx, _chosen(old, files=files), old.what)


def names_of_old(tx: Connection, old: Old, most: int, *, files: bool) -> list[str]:
    """URLs of the recordings of which something is to go, those of the first jobs first."""
    chosen = _chosen(old, files=files).order_by(Job.id).limit(most).subquery().select()
    urls = select(Recording.url).join(Job, Job.recording_id == Recording.id).where(Job.id.in_(chosen))
    return list(tx.execute(urls.order_by(Job.id)).scalars())


def unsettled(tx: Connection, old: Old) -> int:
    """Jobs of that age that stay, because files of theirs or notices are still to come."""
    return int(tx.execute(select(func.count()).select_from(Job).where(*_aged(old), not_(_settled()))).scalar_one())


def counts(tx: Connection, jobs: Any, what: What) -> dict[str, int]:
    """How many rows of each kind the jobs have (a list of ids or a SELECT of them)."""
    if not isinstance(jobs, list):
        jobs = jobs.subquery().select()
    found = {"jobs": _count(tx, Job, Job.id.in_(jobs))}
    found["shards"] = _count(tx, ShardRow, ShardRow.job_id.in_(jobs))
    found["checkpoints"] = _count(tx, Checkpoint, Checkpoint.job_id.in_(jobs))
    if what is not What.WORK:
        mine = select(Job.transcript_id).where(Job.id.in_(jobs), Job.transcript_id.is_not(None))
        shared = select(Job.transcript_id).where(Job.id.not_in(jobs), Job.transcript_id.is_not(None))
        going = select(TranscriptRow.id).where(TranscriptRow.id.in_(mine), TranscriptRow.id.not_in(shared))
        found["transcripts"] = _count(tx, TranscriptRow, TranscriptRow.id.in_(going))
        found["segments"] = _count(tx, SegmentRow, SegmentRow.transcript_id.in_(going))
    found["files"] = _count(tx, Output, Output.job_id.in_(jobs))
    if what is What.RECORDINGS:
        found["errands"] = _count(tx, Errand, Errand.job_id.in_(jobs))
        found["labels"] = _count(tx, Label, Label.job_id.in_(jobs))
        found["arrivals"] = _count(tx, Arrival, Arrival.job_id.in_(jobs))
    return found


def stop(tx: Connection, jobs: Sequence[int]) -> None:
    """End these jobs, wherever they stand: who is at one finds its fence gone."""
    submission.cancel(tx, jobs)


def retire(tx: Connection, jobs: Sequence[int]) -> list[int]:
    """Nobody writes files of these jobs any more, nor tells of them. The answer is those of the jobs that have ended.

    A worker that is writing one finds that out after it (pipeline/finish.py), and takes it back.
    """
    ours = _lock(tx, jobs)
    ended = [j.id for j in ours if j.state in ENDED]
    tx.execute(update(Output).where(Output.job_id.in_(ended)).values(state="failed", error=PURGED, **unheld(Output)))
    left = update(Errand).where(Errand.job_id.in_(ended), Errand.state.in_((*ERRANDS_LEFT, "wanted")))
    tx.execute(left.values(state="void", **unheld(Errand)))
    return ended


def files(tx: Connection, jobs: Sequence[int]) -> list[tuple[int, str]]:
    """Jobs and their files' URLs."""
    rows = tx.execute(select(Output.job_id, Output.url).where(Output.job_id.in_(jobs)).order_by(Output.id))
    return [(r.job_id, r.url) for r in rows]


def object_keys(tx: Connection, jobs: Sequence[int]) -> list[str]:
    """Audio in work, as far as there are shards of it."""
    return list(tx.execute(select(ShardRow.object_key).where(ShardRow.job_id.in_(jobs))).scalars())


def erase(tx: Connection, jobs: Sequence[int], what: What, *, files: bool) -> set[int]:
    """Delete so much of these jobs. The answer is those of which it is gone: one that began again meanwhile is not.

    `files`: they have been retired, and the files are gone; else rows of files go with `recordings` alone.
    """
    ended = [j for j in _lock(tx, jobs) if j.state in ENDED]
    busy = _with_files_to_come(tx, [j.id for j in ended], retired=files) if files or what is not What.WORK else set()
    going = [j for j in ended if j.id not in busy]
    ids = [j.id for j in going]
    tx.execute(select(ShardRow.id).where(ShardRow.job_id.in_(ids)).order_by(ShardRow.id).with_for_update()).all()
    tx.execute(delete(Checkpoint).where(Checkpoint.job_id.in_(ids)))
    tx.execute(delete(ShardRow).where(ShardRow.job_id.in_(ids)))
    if what is What.WORK:
        return set(ids)
    if files or what is What.RECORDINGS:
        tx.execute(delete(Output).where(Output.job_id.in_(ids)))
    if what is What.RESULTS:
        over = {"transcript_id": None, "leader": 0, "purged_at": now_plus()}
        tx.execute(update(Job).where(Job.id.in_(ids)).values(over))
    else:
        _erase_jobs(tx, ids)
    drop_transcripts(tx, TranscriptRow.id.in_({j.transcript_id for j in going if j.transcript_id is not None}))
    _hand_on(tx, [j.content_key for j in going if j.leader])
    if what is What.RECORDINGS:
        drop_recordings(tx, {j.recording_id for j in going})
    return set(ids)


def drop_transcripts(tx: Connection, which: Any) -> int:
    """Those of these transcripts that no job has. How many."""
    orphans = select(TranscriptRow.id).where(which, ~exists().where(Job.transcript_id == TranscriptRow.id))
    count = 0
    while ids := list(tx.execute(orphans.limit(AT_ONCE)).scalars()):
        for table in (SegmentRow, CoverageRow):
            tx.execute(delete(table).where(table.transcript_id.in_(ids)))
        count += tx.execute(delete(TranscriptRow).where(TranscriptRow.id.in_(ids))).rowcount
    return count


def left_behind(older_s: float) -> Any:
    """Transcripts of that age; those that no job has were left behind when it was started again."""
    return instant(TranscriptRow.created_at) <= since(older_s)


def of_bytes(sha256: str) -> Any:
    """Transcripts of these bytes."""
    return TranscriptRow.sha256 == sha256


def drop_recordings(tx: Connection, recordings: Iterable[int]) -> None:
    """Those of these recordings that no job has."""
    r = Recording
    for part in parts(recordings):
        gone = list(tx.execute(select(r.id).where(r.id.in_(part), ~exists().where(Job.recording_id == r.id))).scalars())
        # An older version at its URL stays superseded, though by nothing that is known any more: hence by itself.
        by = case((r.id.in_(gone), None), else_=r.id)
        tx.execute(update(r).where(r.superseded_by.in_(gone)).values(superseded_by=by))
        tx.execute(delete(r).where(r.id.in_(gone)))


def forget_arrivals_at(tx: Connection, url: str | None) -> int:
    """What was seen at this URL is no arrival any more, whether it is a job yet or not."""
    return arrivals.forget(tx, Arrival.url == url) if url is not None else 0


def forget_arrivals(tx: Connection, recordings: Sequence[Known]) -> int:
    """The ledger keeps digests of what lay at these URLs, or, of recordings that are not meant by URL, of their bytes.

    What is held and not a job yet becomes none.
    """
    urls = {k.url for k in recordings if k.named}
    count = sum(arrivals.forget(tx, Arrival.url.in_(part)) for part in parts(urls))
    for part in parts(k.id for k in recordings if not k.named):
        mine = select(Recording.identity).where(Recording.id.in_(part))
        count += arrivals.forget(tx, Arrival.identity.in_(mine))
    return count


def parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rows = sorted(set(items))
    for first in range(0, len(rows), AT_ONCE):
        yield rows[first : first + AT_ONCE]


def _lock(tx: Connection, jobs: Sequence[int]) -> Sequence[Any]:
    columns = select(Job.id, Job.state, Job.transcript_id, Job.recording_id, Job.content_key, Job.leader)
    return tx.execute(columns.where(Job.id.in_(jobs)).order_by(Job.id).with_for_update()).all()


def _with_files_to_come(tx: Connection, jobs: Sequence[int], *, retired: bool) -> set[int]:
    """Those of these jobs of which a file may yet be written. `retired`: unless it is retired (`retire`)."""
    if retired:
        open_ = or_(Output.error.is_(None), Output.error != PURGED)
    else:
        open_ = and_(Output.state.in_(errands.UNDELIVERED), Job.state.in_(WITH_TRANSCRIPT))
    rows = select(Output.job_id).join(Job, Job.id == Output.job_id).where(Output.job_id.in_(jobs), open_)
    return set(tx.execute(rows).scalars())


def _erase_jobs(tx: Connection, jobs: Sequence[int]) -> None:
    arrivals.forget_jobs(tx, jobs)
    for table in (Errand, Label, ExportedJob):
        tx.execute(delete(table).where(table.job_id.in_(jobs)))
    waits = case((Job.state == "waiting", "queued"), else_=Job.state)
    tx.execute(update(Job).where(Job.follows.in_(jobs)).values(follows=None, state=waits))
    tx.execute(delete(Job).where(Job.id.in_(jobs)))


def _hand_on(tx: Connection, keys: Sequence[str]) -> None:
    """Of jobs with the same content that stay, one leads from now on."""
    heirs = select(func.min(Job.id)).where(Job.content_key.in_(keys), Job.transcript_id.is_not(None))
    led = select(Job.content_key).where(Job.content_key.in_(keys), Job.leader == 1)
    heirs = heirs.where(Job.state.in_(WITH_TRANSCRIPT), Job.content_key.not_in(led)).group_by(Job.content_key)
    ids = list(tx.execute(heirs).scalars())
    tx.execute(update(Job).where(Job.id.in_(ids)).values(leader=1))


def _chosen(old: Old, *, files: bool) -> Any:
    work = or_(exists().where(ShardRow.job_id == Job.id), exists().where(Checkpoint.job_id == Job.id))
    some = [] if old.what is What.RECORDINGS else [work]
    if old.what is What.RESULTS:
        some.append(Job.transcript_id.is_not(None))
    if old.what is not What.RECORDINGS and files:
        some.append(exists().where(Output.job_id == Job.id))
    rules = [*_aged(old), *([or_(*some)] if some else [])]
    return select(Job.id).where(*rules, *([] if old.what is What.WORK else [_settled()]))


def _aged(old: Old) -> list[Any]:
    rules = [Job.state.in_(ENDED), instant(Job.finished_at) <= since(old.older_s)]
    if old.label is not None:
        rules.append(Job.id.in_(select(Label.job_id).where(Label.label == old.label)))
    if old.source is not None:
        rules.append(Job.id.in_(select(Arrival.job_id).where(Arrival.source_id == old.source)))
    return rules


def _settled() -> Any:
    """Everything is delivered that there can be, and everybody told."""
    left = exists().where(Errand.job_id == Job.id, Errand.state.in_(ERRANDS_LEFT))
    return and_(errands.over(and_cancelled=True), not_(left))


def _count(tx: Connection, table: Any, where: Any) -> int:
    return int(tx.execute(select(func.count()).select_from(table).where(where)).scalar_one())
