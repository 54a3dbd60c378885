"""Files that somebody wants of a job's transcript: asked for when it is submitted, written when it has ended.

Who notes that a file is written, or that it cannot be, has its job locked: with a job's last file its errands are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from chunking.errors import LeaseLost
from storage import errands, leases
from storage.database import upsert
from storage.jobs import TRY_AGAIN_S, WITH_TRANSCRIPT
from storage.leases import Lease, unheld
from storage.moments import now_plus
from storage.tables import Job, Output, Recording

AT_ONCE = 500
"""Rows of one statement."""


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """One file: of which job, in which format, where."""

    job: int
    format: str
    url: str
    written: bool = False
    assigned: str | None = None
    """The only worker that may write it; None: any."""


def want(tx: Connection, output: WantedOutput, *, missing: bool = False) -> bool:
    """Note that a file is wanted. False: its place belongs to another recording's transcript.

    A job of the same recording's URL (another version of it, other options) gives its place up. `missing`: the file
    was written once and is not there any more.
    """
    return not want_all(tx, [output], missing=missing)


def want_all(tx: Connection, wanted: Sequence[WantedOutput], *, missing: bool = False) -> list[WantedOutput]:
    """Note that these files are wanted; the answer is those whose place belongs to another recording's transcript."""
    refused = []
    for first in range(0, len(wanted), AT_ONCE):
        part = wanted[first : first + AT_ONCE]
        # Locked, so that none ends between this look and our rows, which its end is to make due; and so that no other
        # file is written of a job whose place we take.
        owners = {p.job_id for p in _places(tx, [o.url for o in part]).values()}
        mine = select(Job.id, Job.state).where(Job.id.in_({o.job for o in part} | owners)).order_by(Job.id)
        jobs = tx.execute(mine.with_for_update(key_share=True))
        states = {r.id: "due" if r.state in WITH_TRANSCRIPT else "wanted" for r in jobs}
        taken = _places(tx, [o.url for o in part])
        fresh: dict[str, dict[str, Any]] = {}
        for o in part:
            if o.url not in taken:
                fresh.setdefault(o.url, _values(o, states[o.job]))
        if fresh:
            rows = [fresh[url] | {"url": url} for url in sorted(fresh)]
            tx.execute(upsert(tx, Output).on_conflict_do_nothing(), rows)
            taken |= _places(tx, list(fresh))
        refused += [o for o in part if not _settle(tx, o, taken[o.url], states[o.job], missing=missing)]
        errands.settle(tx, sorted(owners - {o.job for o in part}))
    return refused


def _settle(tx: Connection, output: WantedOutput, place: Any, state: str, *, missing: bool) -> bool:
    """Make the row that has this place ours, if it may be."""
    ours = place.job_id == output.job
    if not ours and _recording_url(tx, place.job_id) != _recording_url(tx, output.job):
        return False
    row = update(Output).where(Output.url == output.url)
    if not ours or (missing and place.state == "written") or place.state == "failed":
        tx.execute(row.values(written_at=None, error=None, **unheld(Output), **_values(output, state)))
    elif place.state in {"wanted", "due"} and place.assigned != output.assigned:
        tx.execute(row.values(assigned=output.assigned))
    return True


def _values(output: WantedOutput, state: str) -> dict[str, Any]:
    return {"job_id": output.job, "format": output.format, "state": state, "assigned": output.assigned}


def _places(tx: Connection, urls: Sequence[str]) -> dict[str, Any]:
    columns = select(Output.url, Output.job_id, Output.state, Output.assigned)
    return {r.url: r for r in tx.execute(columns.where(Output.url.in_(urls)))}


def _recording_url(tx: Connection, job: int) -> str:
    found = select(Recording.url).join(Job, Job.recording_id == Recording.id).where(Job.id == job)
    return tx.execute(found).scalar_one()


def unwanted(tx: Connection, urls: Sequence[str]) -> list[str]:
    """Those of these places that no transcript is to be at: what was written there meanwhile must go."""
    found: list[str] = []
    for first in range(0, len(urls), AT_ONCE):
        part = urls[first : first + AT_ONCE]
        kept = select(Output.url).where(Output.url.in_(part), Output.state != "failed")
        wanted = set(tx.execute(kept).scalars())
        found += [url for url in part if url not in wanted]
    return found


def of_lease(tx: Connection, lease: Lease) -> WantedOutput:
    """The leased file. Raises LeaseLost where it is gone."""
    row = tx.execute(select(Output.job_id, Output.format, Output.url).where(Output.id == lease.id)).first()
    if row is None:
        raise LeaseLost()
    return WantedOutput(row.job_id, row.format, row.url)


def due(tx: Connection, jobs: Sequence[int]) -> list[WantedOutput]:
    """Files of those jobs that can be written and have not been."""
    return [o for o in _of(tx, jobs, "due") if not o.written]


def written(tx: Connection, files: Sequence[tuple[WantedOutput, int, str]]) -> None:
    """These files are there, with their sizes in bytes and their SHA-256. A job that began again is left alone."""
    mine = sorted({output.job for output, _, _ in files})
    errands.lock(tx, mine)
    rows = [{"_url": o.url, "_job": o.job, "size_bytes": size, "sha256": sha256} for o, size, sha256 in files]
    if rows:
        tx.execute(_NOTE, rows)
    errands.settle(tx, mine)


def delivered(tx: Connection, lease: Lease, size: int, sha256: str) -> None:
    """The leased file is there."""
    _end(tx, lease, **_written(size, sha256))


def put_off(tx: Connection, lease: Lease, why: str) -> None:
    """The leased file could not be written now; it is tried again, however often that takes."""
    leases.release(tx, lease, wait_s=TRY_AGAIN_S, error=why)


def failed(tx: Connection, lease: Lease, why: str) -> None:
    """The leased file cannot be written there at all. The transcript stands; asking for the file again tries again."""
    _end(tx, lease, state="failed", error=why)


def again(tx: Connection, jobs: Sequence[int]) -> int:
    """Write the files of these jobs again, or try to: those that are written, failed or put off. How many files."""
    count = 0
    for first in range(0, len(jobs), AT_ONCE):
        part = jobs[first : first + AT_ONCE]
        errands.lock(tx, part)
        there = select(Job.id).where(Job.id.in_(part), Job.state.in_(WITH_TRANSCRIPT))
        mine = update(Output).where(Output.job_id.in_(there), Output.state.in_(("written", "failed", "due")))
        mine = mine.values(state="due", written_at=None, error=None, **unheld(Output))
        count += len(tx.execute(mine.returning(Output.id)).all())
        errands.put_away_after_all(tx, part)
        errands.settle(tx, part)
    return count


def _end(tx: Connection, lease: Lease, **values: Any) -> None:
    job = select(Output.job_id).where(Output.id == lease.id).scalar_subquery()
    owner = tx.execute(select(Job.id).where(Job.id == job).with_for_update(key_share=True)).scalar()
    if owner is None:  # purged
        raise LeaseLost()
    leases.end(tx, lease, **values)
    errands.settle(tx, [owner])


def _written(size: Any, sha256: Any) -> dict[str, Any]:
    return {"state": "written", "size_bytes": size, "sha256": sha256, "written_at": now_plus(), "error": None}


_NOTE = (
    update(Output)
    .where(Output.url == bindparam("_url"), Output.job_id == bindparam("_job"), Output.state == "due")
    .values(**_written(bindparam("size_bytes"), bindparam("sha256")), worker=None)
)


def of_jobs(tx: Connection, jobs: Sequence[int]) -> list[WantedOutput]:
    """All files of those jobs."""
    return _of(tx, jobs)


def _of(tx: Connection, jobs: Sequence[int], state: str | None = None) -> list[WantedOutput]:
    found = []
    for first in range(0, len(jobs), AT_ONCE):
        rows = select(Output.job_id, Output.format, Output.url, Output.state).order_by(Output.id)
        rows = rows.where(Output.job_id.in_(jobs[first : first + AT_ONCE]))
        mine = tx.execute(rows.where(Output.state == state) if state else rows)
        found += [WantedOutput(r.job_id, r.format, r.url, r.state == "written") for r in mine]
    return found
