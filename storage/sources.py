"""Sources: prefixes and folders whose recordings are taken as they appear, each with options of its own.

A source is listed by one ingester at a time. One that cannot be listed rests, longer each time, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, or_, select, update

from storage.database import upsert
from storage.jobs import JobOptions
from storage.moments import now_plus
from storage.tables import SourceRow

REST_S, LONGEST_REST_S = 5.0, 900.0
"""How long a source or a bucket rests after its first refusal, and at most; twice as long each time."""
WATCHED = ("active",)
OWNERS = ("active", "paused")
"""Sources that objects belong to. Of several, to the one with the longest URL."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What is taken from a source, how it is decoded, where its transcripts go and who is told."""

    job: JobOptions
    include: tuple[str, ...] = ()
    """Globs over the path below the source's URL. None: names that say media."""
    exclude: tuple[str, ...] = ()
    min_age_s: float = 0.0
    done_marker: str | None = None
    """A recording is taken once KEY + this exists."""
    max_bytes: int | None = None
    sidecars: bool = True
    """Whether NAME.json beside a recording is heeded (pipeline/sidecars.py)."""
    label: str = "{source}"
    """A template (pipeline/layout.py). Empty: none."""
    priority: int = 0
    out: str = ""
    """Where files go, as a URL; empty: the database only."""
    formats: tuple[str, ...] = ()
    key: str = "{dir}/{name}.{format}"
    """A template for a file's place below `out` (pipeline/layout.py)."""
    after: str | None = None
    """`move:PREFIX`, `tag` or `delete`: what becomes of a recording once its transcript is delivered. None: nothing."""
    notify: tuple[str, ...] = ()
    """Who is told of each end: webhooks, `sqs:` and `sns:` addresses (pipeline/notices.py)."""
    daily_hours: float | None = None
    """Audio that is taken a day (UTC). None: no limit."""
    at_once: int = 500
    """Recordings of it that may be in the queue: its share, so that the others' are not far behind."""
    keep_work_s: float | None = None
    """How long audio in work and checkpoints stay after a job's end (pipeline/retention.py). None: always."""
    keep_results_s: float | None = None
    """The same of transcripts."""
    keep_recordings_s: float | None = None
    """The same of all that is known of a recording."""

    @property
    def keeps(self) -> bool:
        """Whether anything of it is to go some day."""
        return any(s is not None for s in (self.keep_work_s, self.keep_results_s, self.keep_recordings_s))


@dataclass(frozen=True, slots=True)
class Source:
    """A source as it stands."""

    id: int
    name: str
    url: str
    state: str
    settings: SourceSettings
    listed_at: datetime | None = None
    rest_until: datetime | None = None
    problem: str | None = None


_SETTINGS = TypeAdapter(SourceSettings)


def put(tx: Connection, name: str, url: str, settings: SourceSettings, state: str = "active") -> Source:
    """Make the source of this name, or change it to this. The ledger of what has been taken stays."""
    values = {"url": url, "settings": asdict(settings), "state": state}
    row = upsert(tx, SourceRow).values(name=name, **values)
    row = row.on_conflict_do_update(index_elements=["name"], set_={**values, "refusals": 0, "rest_until": None})
    tx.execute(row)
    [made] = named(tx, [name])
    return made


def named(tx: Connection, names: Sequence[str]) -> list[Source]:
    """Those sources that there are and were not removed, by name."""
    return _of(tx, SourceRow.name.in_(names), SourceRow.state != "removed")


def by_id(tx: Connection, ids: Sequence[int]) -> list[Source]:
    return _of(tx, SourceRow.id.in_(ids))


def at(tx: Connection, url: str) -> Source | None:
    """The source with exactly this URL: a kept one before one named on a command line."""
    found = sorted(_of(tx, SourceRow.url == url, SourceRow.state != "removed"), key=lambda s: s.state == "ad_hoc")
    return found[0] if found else None


def everything(tx: Connection, states: Sequence[str] = OWNERS) -> list[Source]:
    return _of(tx, SourceRow.state.in_(states))


def set_state(tx: Connection, name: str, state: str) -> bool:
    """False where there is no such source."""
    change = update(SourceRow).where(SourceRow.name == name, SourceRow.state != "removed").values(state=state)
    return tx.execute(change.returning(SourceRow.id)).first() is not None


def claim_listing(tx: Connection, source: Source, every_s: float) -> bool:
    """Whether it is our turn to list it: nobody began within `every_s`, and it does not rest."""
    s = SourceRow
    due = (
        s.id == source.id,
        s.state.in_((*WATCHED, "ad_hoc")),
        or_(s.listed_at.is_(None), s.listed_at <= now_plus(-every_s)),
        or_(s.rest_until.is_(None), s.rest_until <= now_plus()),
    )
    mine = update(s).where(*due).values(listed_at=now_plus()).returning(s.id)
    return tx.execute(mine).first() is not None


def listed(tx: Connection, source: Source) -> None:
    """It could be listed."""
    tx.execute(update(SourceRow).where(SourceRow.id == source.id).values(refusals=0, rest_until=None, problem=None))


def refused(tx: Connection, source: Source, why: str) -> float:
    """It could not be listed, and rests. The answer is for how many seconds."""
    refusals = tx.execute(select(SourceRow.refusals).where(SourceRow.id == source.id)).scalar_one() + 1
    seconds = rest_s(refusals)
    values = {"refusals": refusals, "rest_until": now_plus(seconds), "problem": why}
    tx.execute(update(SourceRow).where(SourceRow.id == source.id).values(values))
    return seconds


def complain(tx: Connection, source: int, why: str) -> None:
    """Something else is wrong with it."""
    tx.execute(update(SourceRow).where(SourceRow.id == source).values(problem=why))


def claim_purge(tx: Connection, source: Source, every_s: float) -> bool:
    """Whether it is our turn to carry out its retention: nobody did within `every_s`."""
    s = SourceRow
    due = (s.id == source.id, or_(s.purged_at.is_(None), s.purged_at <= now_plus(-every_s)))
    return tx.execute(update(s).where(*due).values(purged_at=now_plus()).returning(s.id)).first() is not None


def purge_soon(tx: Connection, source: Source) -> None:
    """There is more to be deleted than was."""
    tx.execute(update(SourceRow).where(SourceRow.id == source.id).values(purged_at=None))


def rest_s(refusals: int) -> float:
    """How long to rest after so many refusals, one after the other."""
    return float(min(LONGEST_REST_S, REST_S * 2 ** min(refusals - 1, 20)))


def owner(sources: Sequence[Source], url: str) -> Source | None:
    """The source that an object belongs to: of those above it the one with the longest URL."""
    above = [s for s in sources if url.startswith(s.url)]
    return max(above, key=lambda s: (len(s.url), s.state != "ad_hoc"), default=None)


def _of(tx: Connection, *where: Any) -> list[Source]:
    s = SourceRow
    columns = select(s.id, s.name, s.url, s.state, s.settings, s.listed_at, s.rest_until, s.problem)
    rows = tx.execute(columns.where(*where).order_by(s.name))
    return [Source(**{**r._mapping, "settings": _settings(r.settings)}) for r in rows]


def _settings(stored: dict[str, Any]) -> SourceSettings:
    """Those of a newer version may have fields that this one does not know."""
    known = {k: v for k, v in stored.items() if k in SourceSettings.__dataclass_fields__}
    job = {k: v for k, v in stored["job"].items() if k in JobOptions.__dataclass_fields__}
    return _SETTINGS.validate_python({**known, "job": job})
