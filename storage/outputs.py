"""Files that somebody wants of a job's transcript: asked for when it is submitted, written when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from storage.database import now_plus, upsert
from storage.tables import Job, Output, Recording

WITH_FILES = ("done", "partial")


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """One file: of which job, in which format, where."""

    job: int
    format: str
    url: str
    written: bool = False


def want(tx: Connection, output: WantedOutput, *, missing: bool = False) -> bool:
    """Note that a file is wanted. False: its place belongs to another recording's transcript.

    A job of the same recording's URL (another version of it, other options) gives its place up. `missing`: the file
    was written once and is not there any more.
    """
    values = {"job_id": output.job, "format": output.format, "url": output.url}
    tx.execute(upsert(tx, Output).values(values).on_conflict_do_nothing())
    row = tx.execute(select(Output.job_id, Output.written_at).where(Output.url == output.url)).one()
    if row.job_id != output.job:
        if _recording_url(tx, row.job_id) != _recording_url(tx, output.job):
            return False
        tx.execute(update(Output).where(Output.url == output.url).values(job_id=output.job, written_at=None))
    elif missing and row.written_at is not None:
        tx.execute(update(Output).where(Output.url == output.url).values(written_at=None))
    return True


def _recording_url(tx: Connection, job: int) -> str:
    found = select(Recording.url).join(Job, Job.recording_id == Recording.id).where(Job.id == job)
    return tx.execute(found).scalar_one()


def due(tx: Connection, jobs: Sequence[int]) -> list[WantedOutput]:
    """Files of those jobs that can be written and have not been."""
    found = []
    for first in range(0, len(jobs), 500):
        rows = tx.execute(
            select(Output.job_id, Output.format, Output.url)
            .join(Job, Job.id == Output.job_id)
            .where(Output.job_id.in_(jobs[first : first + 500]), Output.written_at.is_(None), Job.state.in_(WITH_FILES))
            .order_by(Output.id)
        )
        found += [WantedOutput(r.job_id, r.format, r.url) for r in rows]
    return found


def written(tx: Connection, output: WantedOutput, size: int, sha256: str) -> None:
    tx.execute(
        update(Output)
        .where(Output.url == output.url, Output.job_id == output.job)
        .values(size_bytes=size, sha256=sha256, written_at=now_plus())
    )


def of_jobs(tx: Connection, jobs: Sequence[int]) -> list[WantedOutput]:
    """All files of those jobs."""
    found = []
    for first in range(0, len(jobs), 500):
        rows = tx.execute(
            select(Output.job_id, Output.format, Output.url, Output.written_at)
            .where(Output.job_id.in_(jobs[first : first + 500]))
            .order_by(Output.id)
        )
        found += [WantedOutput(r.job_id, r.format, r.url, r.written_at is not None) for r in rows]
    return found
