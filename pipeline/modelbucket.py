"""A model that lies in a bucket: s3://bucket/models/large-v3/, fetched once, whole and as its SHA256SUMS says.

A job and its worker know such a model by its last part (`large-v3`): whoever submits need not know where workers get
it from, and a bucket may move. So two models need two names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from chunking.errors import Code, Rejected, UsageError
from pipeline.models import SUMS, check_sums, listed_sums, verified
from storage.urls import job_model

MOST_SUMS = 1 << 20
"""Bytes of a SHA256SUMS that are read."""
FILES_AT_ONCE = 4
"""Each in parts as well: one of them, model.bin, is nearly all."""


class Bucket(Protocol):
    """What is asked of a bucket: storage/s3.py has one."""

    def small(self, url: str, most: int) -> bytes: ...
    def download(self, url: str, target: Path) -> None: ...


def fetched_model(url: str, bucket: Bucket, cache: Path, tell: Callable[[str], None]) -> Path:
    """The model's directory below `cache`, fetched unless it is there already as the bucket has it now.

    Any number of processes may ask at once: one fetches, the others wait. What is fetched lies beside until it is
    whole, and has its name only then. Raises UsageError where the bucket has no such model or another one than its
    SHA256SUMS says, TransientError where it does not answer.
    """
    name, prefix = job_model(url), url.rstrip("/")
    sums = _sums(bucket, prefix)
    files = _listed(sums, prefix)
    target = cache / f"{name}@{hashlib.sha256(sums).hexdigest()[:12]}"
    with _alone(cache / f".{name}.lock"):
        if target.is_dir():
            return verified(target)
        for left in cache.glob(f".{target.name}-*"):  # by a process that was killed: nobody else fetches now
            shutil.rmtree(left, ignore_errors=True)
        tell(f"fetching model {name} from {prefix}/")
        building = cache / f".{target.name}-{uuid.uuid4().hex}"
        building.mkdir()
        try:
            _fetch(bucket, prefix, tuple(files), building)
            (building / SUMS).write_bytes(sums)
            check_sums(building)
            verified(building)
            building.rename(target)
        except UsageError as e:
            raise UsageError(str(e).replace(str(building), prefix)) from e
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return target


def bucket_files(url: str, bucket: Bucket) -> tuple[str, ...]:
    """Names of the model's files there, as its SHA256SUMS lists them. Raises as `fetched_model` does."""
    job_model(url)
    prefix = url.rstrip("/")
    return tuple(_listed(_sums(bucket, prefix), prefix))


def _listed(sums: bytes, prefix: str) -> dict[str, str]:
    return listed_sums(sums.decode("utf-8", "replace"), f"{prefix}/{SUMS}")


def _sums(bucket: Bucket, prefix: str) -> bytes:
    """What the bucket's SHA256SUMS says."""
    try:
        return bucket.small(f"{prefix}/{SUMS}", MOST_SUMS)
    except Rejected as e:
        if e.code is not Code.GONE:
            raise UsageError(f"model {prefix}/: {e}") from e
        make = f"sha256sum * > {SUMS}"
        raise UsageError(
            f"there is no {prefix}/{SUMS}: run `{make}` in the model's directory, and copy all of it"
        ) from e


def _fetch(bucket: Bucket, prefix: str, names: tuple[str, ...], folder: Path) -> None:
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        asked = {name: pool.submit(bucket.download, f"{prefix}/{name}", folder / name) for name in names}
    for name, done in asked.items():
        try:
            done.result()
        except Rejected as e:
            raise UsageError(f"{prefix}/ lacks {name}, which its {SUMS} lists: {e}") from e


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process of this machine at a time; any death lets go."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
