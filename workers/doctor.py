"""The checks of `spotscribe doctor`: each part of the set-up is tried in the way that the work will use it.

None makes anything that stays, and no finding holds a password. What a check raises is a finding as well; that, and
that none waits for another, is the command's business (workers/commands/doctor.py).
"""

from __future__ import annotations

import ctypes
import difflib
import importlib.util
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import wave
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import ctranslate2
from faster_whisper.utils import available_models, download_model
from redis.exceptions import ResponseError
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from chunking.audio import DecodeOptions, DecoderPool
from chunking.errors import SpotscribeError, UsageError
from migrations import HEAD
from pipeline import models
from pipeline.engine import cuda_devices
from pipeline.settings import CONFIG, PREFIX, Settings, config_file, engine_options
from storage.objects import LocalStore, ObjectStore, path_of
from storage.s3 import S3Options, s3_client, translated
from storage.sources import bucket_and_key, join_url
from storage.tables import Base
from workers.nudges import check_broker
from workers.spot import by_name
from workers.wiring import Wiring

LOW_DISK = 2e9
"""Bytes: a model and some hours of audio in work."""
HUB_S = DECODER_S = 5.0
CONTENT = b"spotscribe doctor\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part; `todo`: what to do next, where that is not ok."""

    state: Literal["ok", "warn", "FAIL"]
    found: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    part: str
    look: Callable[[Wiring], Finding]
    todo: str
    """What to do where it raises something that does not say so itself."""


class Hasty(Wiring):
    """The wiring with an S3 client that does not try again: what is wrong is to be said at once."""

    @cached_property
    def s3(self) -> Any:
        s = self.settings
        return s3_client(S3Options(s.s3_endpoint or None, s.s3_region, connect_s=3.0, read_s=5.0, attempts=1))


def _legible(setting: str, host: Callable[[], str]) -> None:
    """Raises UsageError where a library would take a part of the password for the host or port, and quote it."""
    try:
        legible = "@" not in host()
    except ValueError:
        legible = False
    if not legible:
        raise UsageError(f"{PREFIX}{setting} cannot be read: see that / : @ ? # in a password are %2F %3A %40 %3F %23")


def check_settings(settings: Settings) -> Finding:
    known = {f"{PREFIX}{name.upper()}" for name in type(settings).model_fields} | {CONFIG}
    given = sorted(n for n in os.environ if n.upper().startswith(PREFIX))
    odd = [n for n in given if n.upper() not in known]
    found = f"{config_file() or 'no TOML file'}; variables: {', '.join(given) or 'none'}"
    if not odd:
        return Finding("ok", found)
    advice = []
    for name in odd:
        near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known], 1)
        advice.append(f"did you mean {PREFIX}{near[0]}, not {name}?" if near else f"unset {name}")
    return Finding("warn", f"{found}; no setting: {', '.join(odd)}", " ".join(advice))


def _home(w: Wiring) -> Finding:
    home = w.settings.home
    place = _writable(home)
    free = shutil.disk_usage(place).free
    found = f"{home}{' (will be made)' if place != home else ''}, {free / 1e9:.1f} GB free"
    if free < LOW_DISK:
        return Finding("warn", found, f"make room there, or set {PREFIX}HOME: models and audio in work need it")
    return Finding("ok", found)


def _writable(folder: Path) -> Path:
    """The folder, or the one in which it would be made. Raises UsageError where nothing can be written there."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    if not place.is_dir():
        raise UsageError(f"{place} is a file")
    try:
        with tempfile.TemporaryFile(dir=place):
            return place
    except OSError as e:
        raise UsageError(f"{place} cannot be written to ({e.strerror})") from e


def _database(w: Wiring) -> Finding:
    url = w.settings.database_url
    if not url.startswith("sqlite"):
        _legible("DATABASE_URL", lambda: str(make_url(url).host))
        return _postgres(w)
    file = Path(make_url(url).database or "").absolute()
    what = f"SQLite {sqlite3.sqlite_version}, {file}"
    _writable(file.parent)
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
    if read_only:
        return Finding("FAIL", f"{what}: it is read-only", "name the primary server, not a standby")
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
    WHERE relkind = 'S' AND pg_table_is_visible(oid) AND NOT has_sequence_privilege(oid, 'USAGE')
    AND relname IN (SELECT t || '_id_seq' FROM unnest(CAST(:tables AS text[])) t)
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


def _broker(w: Wiring) -> Finding:
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


def _store(w: Wiring) -> Finding:
    store, url = w.store, w.settings.work_url
    if isinstance(store, LocalStore):
        if _writable(store.root) != store.root:
            return Finding("ok", f"{store.root}, made on first use")
        _missing_rights(store)
        fleet = "" if w.settings.database_url.startswith("sqlite") else "; every worker of the fleet must see it"
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
        denied += _denied("s3:GetObject", lambda: _same(store.open(key).read(), CONTENT))
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


def _out(w: Wiring) -> Finding:
    out = w.settings.out_url
    if not out:
        return Finding("ok", "none is set: transcripts stay in the database")
    if out.startswith("s3://"):
        return _out_bucket(w, out)
    if "://" in out and not out.startswith("file://"):
        raise UsageError(f"{out} is neither s3:// nor a folder")
    folder = path_of(out) if "://" in out else Path(out).absolute()
    if _writable(folder) != folder:
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


def _model(w: Wiring) -> Finding:
    s, name = w.settings, w.settings.model
    if s.engine == "paced":
        return Finding("ok", "none: the engine is paced, which makes its text up")
    directory = _local_model(name, s.models)
    if directory is None:
        return _remote_model(name, s.models)
    size = (directory / "model.bin").stat().st_size
    knows = "English only" if models.is_english_only(directory) else "multilingual"
    return Finding("ok", f"{name}, {size / 1e6:,.0f} MB, {knows}, in {directory}")


def _local_model(name: str, cache: Path) -> Path | None:
    """Where find_model finds it without fetching it, else None. Raises its UsageError for what it would never find."""
    local = Path(name).expanduser().is_dir() or (cache / name).is_dir() or len(_packages(name)) == 1
    if local or name.startswith((".", "/", "~")) or ("/" not in name and name not in available_models()):
        return models.find_model(name, cache)
    try:
        return models.verified(Path(download_model(name, cache_dir=str(cache / "hub"), local_files_only=True)))
    except Exception:  # not there, or not all of it
        return None


def _packages(name: str) -> list[str]:
    """The installed Python packages that carry this model; none unless all do."""
    package = models.PACKAGED.get(name)
    modules = [module for module, _ in package.folders] if package else []
    return modules if all(importlib.util.find_spec(m) for m in modules) else []


def _remote_model(name: str, cache: Path) -> Finding:
    if found := _packages(name):
        return Finding("ok", f"{name}, in the packages {', '.join(found)}; put together on first use")
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_S)
    except Exception as e:
        away = f"{name} is not on this machine, and the model hub does not answer ({type(e).__name__})"
        return Finding("FAIL", away, f"put a CTranslate2 directory at {cache / name}, or set {PREFIX}MODEL to one")
    todo = f"to spare a new machine that, put a CTranslate2 directory at {cache / name}"
    return Finding("warn", f"{name} is not on this machine; it will be fetched by name on first use", todo)


def _device(w: Wiring) -> Finding:
    s = w.settings
    if s.engine == "paced":
        return Finding("ok", "none is needed: the engine is paced")
    how, gpus = engine_options(s, s.device, s.compute_type, 1), cuda_devices()
    if how.device == "cuda" and not gpus:
        todo = f"see what nvidia-smi says, or set {PREFIX}DEVICE=cpu"
        return Finding("FAIL", "CTranslate2 sees no CUDA device", todo)
    on = f"{gpus} CUDA devices" if how.device == "cuda" else f"CPU, {s.cores} cores to use"
    possible = sorted(ctranslate2.get_supported_compute_types(how.device))
    if s.compute_type not in {"auto", "default", *possible}:
        found = f"{on}: cannot compute in {s.compute_type}; can in {', '.join(possible)}"
        return Finding("FAIL", found, f"set {PREFIX}COMPUTE_TYPE to one of these, or to auto")
    if how.device == "cuda" and not _loads("libcublas.so.12"):
        todo = "install CUDA 12's cuBLAS, and name its folder in LD_LIBRARY_PATH"
        return Finding("warn", f"{on}; libcublas.so.12 is not found, without which no model runs there", todo)
    return Finding("ok", f"{on}; computes in {s.compute_type} (can in {', '.join(possible)})")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _decoder(w: Wiring) -> Finding:
    with tempfile.TemporaryDirectory() as folder, DecoderPool() as pool:
        wav, pcm = Path(folder) / "silence.wav", Path(folder) / "silence.pcm"
        with wave.open(str(wav), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(8000))
        report = pool.decode(wav, pcm, DecodeOptions(wall_s=DECODER_S))
    if not 0.4 < report.decoded_s < 0.6:
        raise UsageError(f"half a second of sound came back as {report.decoded_s:.2f} s")
    # asked in a process of its own: what decodes strangers' files is not loaded here
    ask = [sys.executable, "-P", "-c", "import av; print(av.ffmpeg_version_info)"]
    version = subprocess.run(ask, capture_output=True, text=True, timeout=DECODER_S, check=False).stdout.strip()
    return Finding("ok", f"FFmpeg {version or '?'} inside PyAV decodes in its sandbox; no ffmpeg binary is used")


def _cloud(w: Wiring) -> Finding:
    s = w.settings
    cloud = by_name(s.cloud, s.metadata_url)
    if s.cloud == "none":
        return Finding("ok", "notices of preemption are not asked for")
    if cloud is None:
        return Finding("ok", "no cloud's metadata service answers; there will be no notices of preemption")
    try:
        here = s.cloud == "auto" or cloud.here(2.0)
    except OSError:
        here = False
    if not here:
        return Finding("warn", f"{cloud.name}'s metadata service does not answer", f"set {PREFIX}CLOUD=auto or none")
    return Finding("ok", f"{cloud.name}'s metadata service answers; its notices of preemption are heeded")


CHECKS = (
    Check("home", _home, f"set {PREFIX}HOME to a folder that can be written to"),
    Check("database", _database, f"see {PREFIX}DATABASE_URL"),
    Check("broker", _broker, f"see {PREFIX}BROKER_URL"),
    Check("work", _store, f"see {PREFIX}WORK_URL and {PREFIX}S3_ENDPOINT"),
    Check("output", _out, f"see {PREFIX}OUT_URL and {PREFIX}S3_ENDPOINT"),
    Check("model", _model, f"set {PREFIX}MODEL to one that there is"),
    Check("device", _device, f"see {PREFIX}DEVICE and {PREFIX}COMPUTE_TYPE"),
    Check("decoder", _decoder, "install PyAV (the package av) anew; the sandbox needs Linux"),
    Check("cloud", _cloud, f"see {PREFIX}CLOUD and {PREFIX}METADATA_URL"),
)
