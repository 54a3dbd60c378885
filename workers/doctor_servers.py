"""The checks of `spotscribe doctor` that ask servers, or the folders that stand in for them on one machine.

Each is tried in the way that the work will use it; nothing is made that stays, and no finding holds a password.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from redis.exceptions import ResponseError
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from chunking.errors import SpotscribeError, UsageError
from migrations import HEAD
from pipeline.settings import PREFIX
from storage.objects import LocalStore, ObjectStore, path_of
from storage.s3 import translated
from storage.tables import Base
from storage.urls import bucket_and_key, join_url
from workers.nudges import check_broker
from workers.wiring import Wiring

CONTENT = b"spotscribe doctor\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part; `todo`: what to do next, where that is not ok."""

    state: Literal["ok", "warn", "FAIL"]
    found: str
    todo: str = ""


def check_database(w: Wiring) -> Finding:
    url = w.settings.database_url
    if not url.startswith("sqlite"):
        _legible("DATABASE_URL", lambda: str(make_url(url).host))
        return _postgres(w)
    file = Path(make_url(url).database or "").absolute()
    what = f"SQLite {sqlite3.sqlite_version}, {file}"
    writable(file.parent)
    if not file.exists():
        return Finding("ok", f"{what}, made on first use")
    if not os.access(file, os.W_OK):
        raise UsageError(f"{file} may not be written to")
    revision = w.database.revision()
    if revision is None or revision < HEAD:
        return Finding("ok", f"{what}, {f'migrated from {revision}' if revision else 'its tables made'} on first use")
    return Finding("ok", f"{what}, at migration {revision}")


def _postgres(w: Wiring) -> Finding:
    database = w.database
    with database.reading() as tx:
        version = str(tx.execute(text("SHOW server_version")).scalar()).split()[0]
        round_trip, ahead = _round_trip(tx), _clock(tx)
        read_only = tx.execute(text("SELECT current_setting('transaction_read_only')")).scalar() == "on"
    database.check()
    where = database.url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
    what = f"Postgres {version}, {where}, at migration {database.revision()}"
    what += ", behind a pooler" if database.pooled else ""
    if read_only:
        return Finding("FAIL", f"{what}: it is read-only", f"name the primary server in {PREFIX}DATABASE_URL")
    with database.reading() as tx:
        missing = tx.execute(text(_MISSING), {"tables": sorted(Base.metadata.tables)}).scalars().all()
    if missing:
        todo = (
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA …; GRANT USAGE ON ALL SEQUENCES IN SCHEMA …"
        )
        return Finding("FAIL", f"{what}: this user lacks {', '.join(missing)}", f"let its owner say: {todo}")
    clock = f"its clock {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    return Finding("ok", f"{what}, {round_trip * 1000:.1f} ms a round trip, {clock}")


_MISSING = """
    SELECT p || ' on ' || t FROM unnest(CAST(:tables AS text[])) t, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) p
    WHERE NOT has_table_privilege(t, p)
    UNION ALL SELECT 'USAGE on ' || relname FROM pg_class
    JOIN unnest(CAST(:tables AS text[])) t ON relname = t || '_id_seq' AND pg_table_is_visible(oid)
    WHERE CASE WHEN relkind = 'S' THEN NOT has_sequence_privilege(oid, 'USAGE') END
"""


def _round_trip(tx: Connection) -> float:
    """Seconds; the median of five."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        tx.execute(text("SELECT 1"))
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _clock(tx: Connection) -> float:
    """Seconds that the database's clock is ahead of ours. For whoever reads logs: leases go by the database's alone."""
    before = time.time()
    theirs = float(tx.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    return theirs - (before + time.time()) / 2


def check_broker_url(w: Wiring) -> Finding:
    if not w.settings.broker_url:
        if w.settings.database_url.startswith("sqlite"):
            return Finding("ok", "none is set; one machine: not needed")
        return Finding("FAIL", "none is set; a fleet needs a Redis", f"set {PREFIX}BROKER_URL=redis://host:6379/0")
    url = w.settings.broker_url
    _legible("BROKER_URL", lambda: "{0.port}{0.path}{0.query}{0.fragment}".format(urlsplit(url)))
    check_broker(w.app)
    with w.app.connection_for_write() as connection:
        where = connection.as_uri().partition("?")[0]  # without the password
        try:
            policy = connection.default_channel.client.config_get("maxmemory-policy").get("maxmemory-policy")
        except ResponseError:  # many a hosted Redis forbids CONFIG
            policy = None
    if policy not in {None, "noeviction"}:
        found = f"{where} answers, but may drop messages (maxmemory-policy {policy}): harmless, but slow"
        return Finding("warn", found, "CONFIG SET maxmemory-policy noeviction")
    return Finding("ok", f"{where} answers")


def check_work(w: Wiring) -> Finding:
    store, url = w.store, w.settings.work_url
    if isinstance(store, LocalStore):
        fleet = "" if w.settings.database_url.startswith("sqlite") else "; every worker of the fleet must see it"
        if writable(store.root) != store.root:
            return Finding("ok", f"{store.root}, made on first use{fleet}")
        _missing_rights(store)
        return Finding("ok", f"{store.root}: put, get, list and delete work{fleet}")
    try:
        _see_bucket(w.s3, url)
        missing = _missing_rights(store)
    except Exception as e:
        return _of_bucket(e, url, "WORK_URL")
    if missing:
        return _lacking(url, missing)
    return Finding("ok", f"{url}: put, get, list and delete work")


def _missing_rights(store: ObjectStore) -> list[str]:
    """The IAM actions that are denied, after one small object was stored, read, listed and deleted."""
    key = f"doctor/{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "object").write_bytes(CONTENT)
        denied = _denied("s3:PutObject", lambda: store.put_file(key, file))
    if not denied:
        denied += _denied("s3:GetObject", lambda: _same(_read(store, key), CONTENT))
    denied += _denied("s3:ListBucket", lambda: _same(list(store.keys(key)), [] if "s3:PutObject" in denied else [key]))
    return denied + _denied("s3:DeleteObject", lambda: store.delete(key))


def _denied(action: str, step: Callable[[], object]) -> list[str]:
    try:
        step()
    except Exception as e:
        if _code(e) != "AccessDenied":
            raise
        return [action]
    return []


def _read(store: ObjectStore, key: str) -> bytes:
    with store.open(key) as file:
        return file.read()


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise UsageError(f"the store gives {found!r} where {expected!r} was put")


def _see_bucket(client: Any, url: str) -> None:
    """Raises where the bucket is not there: some servers make it when something is put. It may be forbidden to ask."""
    bucket, _ = bucket_and_key(url)
    try:
        with translated(bucket):
            client.head_bucket(Bucket=bucket)
    except SpotscribeError as e:
        if _code(e) in {"", "404"}:
            raise


def _code(error: BaseException | None) -> str:
    """What S3 answered, from the error or what it came from: boto3's uploads wrap it once more. Empty: nothing."""
    while error is not None:
        if isinstance(answer := getattr(error, "response", None), dict):
            return str(answer.get("Error", {}).get("Code", ""))
        error = error.__cause__ or error.__context__
    return ""


_NONE, _KEYS, _REGION = (
    f"make the bucket, or set {PREFIX}{{setting}} to one that is there",
    "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or this machine's role",
    f"set {PREFIX}S3_REGION to the bucket's region",
)
ADVICE = {
    "404": _NONE,
    "NoSuchBucket": _NONE,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "ExpiredToken": _KEYS,
    "InvalidToken": _KEYS,
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": "set this machine's clock",
}
"""By the code of S3's answer."""


def _of_bucket(error: Exception, url: str, setting: str) -> Finding:
    """What S3 answered, with what to do. What is no answer is raised again."""
    code = _code(error)
    if not code:
        raise error
    advice = ADVICE.get(code, f"see {PREFIX}{{setting}} and {PREFIX}S3_ENDPOINT")
    what = "there is no such bucket" if advice is _NONE else f"S3 answers {code}"
    return Finding("FAIL", f"{url}: {what}", advice.format(setting=setting))


def _lacking(url: str, actions: list[str]) -> Finding:
    bucket, prefix = bucket_and_key(url)
    below = f"arn:aws:s3:::{bucket}/{prefix.strip('/') + '/' if prefix.strip('/') else ''}*"
    where = " and ".join(dict.fromkeys(f"arn:aws:s3:::{bucket}" if a == "s3:ListBucket" else below for a in actions))
    return Finding("FAIL", f"{url}: AccessDenied for {', '.join(actions)}", f"allow {', '.join(actions)} on {where}")


def check_output(w: Wiring) -> Finding:
    out = w.settings.out_url
    if not out:
        return Finding("ok", "none is set: transcripts stay in the database")
    if out.startswith("s3://"):
        return _out_bucket(w, out)
    if "://" in out and not out.startswith("file://"):
        raise UsageError(f"{out} is neither s3:// nor a folder")
    folder = path_of(out) if "://" in out else Path(out).absolute()
    if writable(folder) != folder:
        return Finding("ok", f"{folder}, made on first use")
    file = folder / f".doctor-{uuid.uuid4().hex}"
    w.destinations.write(file.as_uri(), CONTENT, "text/plain")
    file.unlink()
    return Finding("ok", f"{folder}: writing works")


def _out_bucket(w: Wiring, out: str) -> Finding:
    url = join_url(out, f"doctor/{uuid.uuid4().hex}")
    bucket, key = bucket_and_key(url)
    try:
        _see_bucket(w.s3, out)
        if denied := _denied("s3:PutObject", lambda: w.destinations.write(url, CONTENT, "text/plain")):
            return _lacking(out, denied)
        left = _denied("s3:DeleteObject", lambda: w.s3.delete_object(Bucket=bucket, Key=key))
    except Exception as e:
        return _of_bucket(e, out, "OUT_URL")
    note = f"; {url} stays there, as deleting is not allowed, nor needed" if left else ""
    return Finding("ok", f"{out}: put works{note}")


def _legible(setting: str, host: Callable[[], str]) -> None:
    """Raises UsageError where a library would take a part of the password for the host or port, and quote it."""
    try:
        legible = "@" not in host()
    except ArgumentError:
        return  # Database says what is wrong with it
    except ValueError:
        legible = False
    if not legible:
        raise UsageError(f"{PREFIX}{setting} cannot be read: see that / : @ ? # in a password are %2F %3A %40 %3F %23")


def writable(folder: Path) -> Path:
    """The folder, or the one in which it would be made. Raises UsageError where nothing can be written there."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    if not place.is_dir():
        raise UsageError(f"{place} is a file")
    try:
        with tempfile.TemporaryFile(dir=place):
            return place
    except OSError as e:
        raise UsageError(f"{place} cannot be written to ({e.strerror})") from e
