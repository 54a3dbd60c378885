"""What the decoder said of a recording, and how its sound was made fit to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, bindparam, select, update

from storage.tables import Job, Recording


@dataclass(frozen=True, slots=True)
class Media:
    """All of it is None until the recording has been decoded; the columns of `recordings` say what each is.

    Jobs that read other channels or another track of the same recording each note theirs: the last one stands.
    """

    container: str | None = None
    codec: str | None = None
    sample_rate: int | None = None
    channels: int | None = None
    track: int | None = None
    tracks: int | None = None
    mixed: str | None = None
    expected_s: float | None = None
    decoded_s: float | None = None
    duration_s: float | None = None
    decode_errors: int | None = None
    loudest_db: float | None = None
    clipped: float | None = None
    dc_offset: float | None = None
    gain_db: float | None = None
    highpass_hz: float | None = None


_NAMES = [f.name for f in fields(Media)]
_MEDIA = (
    select(Job.id, *(getattr(Recording, name) for name in _NAMES))
    .join(Recording, Recording.id == Job.recording_id)
    .where(Job.id.in_(bindparam("jobs", expanding=True)))
)
"""Built once: to build it takes longer than to run it."""


def describe(tx: Connection, jobs: Sequence[int], media: Media) -> None:
    """Note this of the jobs' recordings."""
    theirs = select(Job.recording_id).where(Job.id.in_(jobs))
    tx.execute(update(Recording).where(Recording.id.in_(theirs)).values(asdict(media)))


def media_of(tx: Connection, jobs: Sequence[int]) -> dict[int, Media]:
    """What is known of the recording of each job."""
    found: dict[int, Media] = {}
    for first in range(0, len(jobs), 500):
        for row in tx.execute(_MEDIA, {"jobs": jobs[first : first + 500]}):
            found[row.id] = Media(**{name: getattr(row, name) for name in _NAMES})
    return found


def alike(tx: Connection, job: int, others: Sequence[int]) -> None:
    """The other jobs' recordings have the same bytes as this one's, so what is known of it holds for them."""
    if others:
        describe(tx, others, media_of(tx, [job])[job])
