"""Which segments a person should listen to first: those that the model was least certain of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, literal, or_, select

from chunking.timeline import Span
from storage.tables import Job, Label, SegmentRow


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A segment, and the job that it is of."""

    job: int
    position: int
    channel: int
    span: Span
    text: str
    avg_logprob: float
    flags: str


def least_certain(tx: Connection, label: str, count: int, flags: Sequence[str] = ()) -> list[Doubtful]:
    """The label's segments with the lowest mean log-probability, the lowest first; with `flags`: that have one of them.

    What several jobs share, having equal content, comes once, with the oldest of them.
    """
    s = SegmentRow
    mine = select(func.min(Job.id).label("job"), Job.transcript_id).join(Label, Label.job_id == Job.id)
    of = mine.where(Label.label == label, Job.transcript_id.is_not(None)).group_by(Job.transcript_id).subquery()
    rows = select(of.c.job, s.position, s.channel, s.start_s, s.end_s, s.text, s.avg_logprob, s.flags)
    rows = rows.join(of, of.c.transcript_id == s.transcript_id)
    if flags:
        padded = literal(" ").concat(s.flags).concat(" ")
        rows = rows.where(or_(*(padded.contains(f" {flag} ", autoescape=True) for flag in flags)))
    rows = rows.order_by(s.avg_logprob, of.c.job, s.position).limit(count)
    return [
        Doubtful(r.job, r.position, r.channel, Span(r.start_s, r.end_s), r.text, r.avg_logprob, r.flags)
        for r in tx.execute(rows)
    ]
