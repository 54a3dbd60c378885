"""The check of `spotscribe doctor` that looks at the drop folders: whether each can be listed."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from chunking.errors import SpotscribeError
from pipeline.settings import PREFIX
from storage import sources
from storage.folders import LocalFolders
from storage.s3 import S3Bucket
from storage.sources import Source
from workers.doctor_servers import Finding
from workers.wiring import Wiring

MOST = 20
"""Sources that are tried: the check has seconds."""


def check_sources(w: Wiring) -> Finding:
    if w.settings.database_url.startswith("sqlite"):
        return Finding("ok", "one machine: none can be kept")
    try:
        w.database.check()
        with w.database.reading() as tx:
            kept = sources.everything(tx, sources.WATCHED)
    except (SpotscribeError, SQLAlchemyError):  # that is the database's line
        return Finding("ok", "not looked at: they are in the database")
    if not kept:
        return Finding("ok", "none are kept: spotscribe sources add")
    wrong = [f"{s.name}: {why}" for s in kept[:MOST] if (why := _problem(w, s))]
    if wrong:
        todo = f"see the bucket, its s3:ListBucket right, and {PREFIX}S3_ENDPOINT; or spotscribe sources pause NAME"
        return Finding("FAIL", "; ".join(wrong), todo)
    names = ", ".join(s.name for s in kept[:MOST])
    return Finding("ok", f"{names}: listing works{f'; {len(kept) - MOST} more' if len(kept) > MOST else ''}")


def _problem(w: Wiring, source: Source) -> str | None:
    """Why it cannot be listed."""
    place = LocalFolders() if source.url.startswith("file://") else S3Bucket(w.s3)
    try:
        next(place.listing(source.url), None)
    except SpotscribeError as e:
        return str(e)
    return None
