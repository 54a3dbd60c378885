"""Whether a recording that is to be put away may go, and whither: what the database says of it.

What is done then is storage/putaway.py's.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, exists, not_, or_, select, update
from sqlalchemy.exc import IntegrityError

from chunking.errors import TransientError
from storage import errands, leases
from storage.errands import Due
from storage.leases import Lease
from storage.moments import now_plus
from storage.tables import Arrival, Errand, Job, Output, Recording, SourceRow


def may_put_away(tx: Connection, lease: Lease, due: Due) -> bool:
    """Whether the recording may still go. If not, the errand waits for files of its job, or is void by now.

    Raises TransientError while another job may have to read the recording, or has files to write.
    """
    errands.lock(tx, [due.job])
    leases.hold(tx, lease)
    if tx.execute(errands.clean([due.job])).first() is None:
        leases.end(tx, lease, "wanted")
        errands.settle(tx, [due.job])
        return False
    why = _why_it_stays(tx, due)
    if why:
        leases.end(tx, lease, "void", error=why, done_at=now_plus())
    return not why


def source_url(tx: Connection, due: Due) -> str | None:
    """The URL of the source that the recording came from; None: it was submitted."""
    s = select(SourceRow.url).join(Arrival, Arrival.source_id == SourceRow.id).where(Arrival.job_id == due.job)
    return tx.execute(s.order_by(Arrival.id.desc()).limit(1)).scalar()


def reserve(tx: Connection, lease: Lease, place: str) -> bool:
    """Keep this place for the leased errand's recording. False where another errand has it: two recordings that are
    moved to one place at once would otherwise overwrite each other."""
    leases.hold(tx, lease)
    try:
        with tx.begin_nested():
            tx.execute(update(Errand).where(Errand.id == lease.id).values(place=place))
    except IntegrityError:
        return False
    return True


def _why_it_stays(tx: Connection, due: Due) -> str:
    """Empty: nothing speaks for it. Raises TransientError where that is not known yet.

    A later job of its URL may have taken the places of this one's files (storage/outputs.py), and has not written them;
    another one of the recording itself may have gone wrong without any. Either is a reason to keep the bytes.
    """
    mine = select(Recording.id, Recording.superseded_by).join(Job, Job.recording_id == Recording.id)
    recording = tx.execute(mine.where(Job.id == due.job)).one()
    if recording.superseded_by is not None:
        return "it has been overwritten since: nothing was done"
    unwritten = exists().where(Output.job_id == Job.id, Output.state != "written")
    of_it = Job.recording_id == recording.id
    gone_wrong = and_(of_it, Job.state.not_in(("done", "cancelled")))
    others = select(Job.id, not_(errands.over(and_cancelled=True)).label("waits"))
    others = others.join(Recording, Recording.id == Job.recording_id).where(Recording.url == due.url, Job.id != due.job)
    bad = or_(gone_wrong, and_(unwritten, or_(of_it, Job.id > due.job)))
    found = tx.execute(others.where(bad).order_by(Job.id)).all()
    if any(r.waits for r in found):
        raise TransientError("another job of this recording has not ended")
    return f"job {found[0].id} of this recording did not go well: it stays" if found else ""
