"""What canaries have shown: one row each time that a worker read one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from sqlalchemy import Connection, insert, select

from storage.moments import instant, now_plus, since
from storage.tables import CanaryRow

KEPT_S = 90 * 86_400.0
"""How far back others are compared with."""


@dataclass(frozen=True, slots=True)
class Result:
    """A worker read a canary."""

    worker: str
    version: str
    """Of Spotscribe and of what decodes."""
    engine: str
    device: str
    recording: str
    """Which canary."""
    wer: float
    rtfx: float
    text: str


@dataclass(frozen=True, slots=True)
class Compared:
    """The latest of one version, engine and device, beside all before it of that engine, device and canary."""

    latest: Result
    at: datetime
    times: int
    """How often that version was heard."""
    wer_before: float | None
    """The median; None: there was nothing before."""
    rtfx_before: float | None


def note(tx: Connection, result: Result) -> None:
    row = {name: getattr(result, name) for name in Result.__slots__}
    tx.execute(insert(CanaryRow).values(**row, created_at=now_plus()))


def compared(tx: Connection) -> list[Compared]:
    """Each version's latest, the newest first."""
    rows = select(CanaryRow).where(instant(CanaryRow.created_at) >= since(KEPT_S)).order_by(CanaryRow.id)
    series: dict[tuple[str, str, str], list[tuple[Result, datetime]]] = {}
    for r in tx.execute(rows):
        result = Result(**{name: getattr(r, name) for name in Result.__slots__})
        series.setdefault((r.engine, r.device, r.recording), []).append((result, r.created_at))
    return sorted(
        (c for sung in series.values() for c in _by_version(sung)), key=lambda c: c.at, reverse=True
    )  # fmt: skip


def _by_version(sung: Sequence[tuple[Result, datetime]]) -> list[Compared]:
    """In the order in which they were heard first."""
    found = []
    for version in dict.fromkeys(result.version for result, _ in sung):
        last = max(i for i, (result, _) in enumerate(sung) if result.version == version)
        before = [result for result, _ in sung[:last]]
        latest, at = sung[last]
        times = sum(result.version == version for result, _ in sung)
        found.append(
            Compared(
                latest, at, times,
                median(r.wer for r in before) if before else None,
                median(r.rtfx for r in before) if before else None,
            )
        )  # fmt: skip
    return found
