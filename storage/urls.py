"""URLs of recordings and outputs: objects in S3 and files of this machine, whatever characters are in their names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from chunking.errors import UsageError

S3 = "s3://"
_MODEL = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)


def file_version(path: Path) -> str:
    """What changes when a local file's bytes do."""
    return version_of(path.stat())


def version_of(stat: os.stat_result) -> str:
    """The same, of a file that has been looked at."""
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def s3_url(bucket: str, key: str) -> str:
    """The URL of an object, whatever characters are in its key."""
    return f"s3://{bucket}/{quote(key, safe='/-_.~')}"


def bucket_and_key(url: str) -> tuple[str, str]:
    """The other way round. Raises UsageError for what is no S3 address."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise UsageError(f"{url} is no S3 address; it looks like s3://bucket/prefix")
    if "?" in url or "#" in url:  # else what is behind it would be left out without a word
        raise UsageError(f"{url}: write ? as %3F and # as %23 in an S3 address")
    return parts.netloc, unquote(parts.path.removeprefix("/"))


def bucket_of(url: str) -> str | None:
    """The bucket that an object is in; None for what is not in S3."""
    return urlsplit(url).netloc if url.startswith("s3://") else None


def join_url(prefix: str, path: str) -> str:
    """A place below a prefix, for an output; `path` is a relative path of any characters."""
    return f"{prefix.rstrip('/')}/{quoted(path)}"


def quoted(part: str) -> str:
    """A part of a path or key as it is in a URL."""
    return quote(os.fsencode(part), safe="/-_.~")


def job_model(model: str) -> str:
    """What jobs call a model: what it was given as, or of a prefix in a bucket the last part. Raises UsageError."""
    if not model.startswith(S3):
        return model
    name = model.rstrip("/").rpartition("/")[2]
    if model.rstrip("/").count("/") < 3 or not _MODEL.fullmatch(name):
        raise UsageError(f"{model} names no model; it looks like s3://bucket/models/large-v3/")
    return name
