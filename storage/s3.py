"""S3 by boto3: an object store in a bucket, recordings read from one, listings. AWS, SeaweedFS, MinIO, R2.

The only importer of boto3, the client that AWS itself keeps. Its errors become ours here: what a retry cannot help is
permanent, the rest transient. Credentials come from boto3's usual places and are never logged.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as S3ConnectionError
from urllib3.exceptions import HTTPError

from chunking.errors import Code, Rejected, TransientError, UsageError
from storage.jobs import Listed, MediaObject
from storage.readers import Fetched
from storage.urls import bucket_and_key, s3_url

IN_MEMORY = 4 << 20
"""An object of up to so many bytes is not written to a temporary file while it is read."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where the bucket is served. Timeouts in seconds."""

    endpoint: str | None = None
    """None: AWS."""
    region: str = "us-east-1"
    connect_s: float = 5.0
    read_s: float = 60.0
    attempts: int = 4
    """Of boto3 itself, with its back-off; only then an error reaches us."""
    connections: int = 16


def s3_client(options: S3Options) -> Any:
    """A boto3 client; safe to share by threads."""
    config = Config(
        connect_timeout=options.connect_s,
        read_timeout=options.read_s,
        retries={"mode": "standard", "total_max_attempts": options.attempts},
        max_pool_connections=options.connections,
        request_checksum_calculation="when_required",  # TLS and the signature cover it; others than AWS may not know it
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if options.endpoint else "auto"},
    )
    return boto3.Session().client("s3", endpoint_url=options.endpoint, region_name=options.region, config=config)


class S3Store:
    """A bucket, or what lies below a prefix in one: `s3://bucket/prefix`."""

    def __init__(self, url: str, client: Any) -> None:
        self._client = client
        self._bucket, prefix = bucket_and_key(url)
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""

    def put_file(self, key: str, source: Path) -> None:
        with _in_work(key), source.open("rb") as file:
            # As bytes where it is small: for a file botocore first asks whether it may send it.
            body = file.read() if source.stat().st_size <= IN_MEMORY else file
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=body)

    def open(self, key: str) -> BinaryIO:
        """The object's bytes, all of them, in a file that goes when it is closed."""
        file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (the caller closes it)
        with _in_work(key):
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            for block in found["Body"].iter_chunks(1 << 20):
                file.write(block)
            if file.tell() != found["ContentLength"]:
                raise TransientError(f"{key} was cut while it was read")
        file.seek(0)
        return cast(BinaryIO, file)

    def delete(self, key: str) -> None:
        with _in_work(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        with _in_work(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"].removeprefix(self._prefix)


class S3Reader:
    """Recordings in S3. A body that is cut is gone on with where it ended, as long as the object is the same."""

    TRIES = 5
    PAUSE_S = 0.5

    def __init__(self, client: Any) -> None:
        self._client = client

    def fetch(self, url: str, version: str, folder: Path) -> Fetched:
        bucket, key = bucket_and_key(url)
        etag, _, size = version.rpartition("-")
        digest, at = hashlib.sha256(), 0
        path = folder / "source"
        with path.open("wb") as out:
            for attempt in range(self.TRIES):
                if attempt:
                    time.sleep(self.PAUSE_S * 2 ** (attempt - 1))
                try:
                    for block in self._body(bucket, key, etag, at):
                        out.write(block)
                        digest.update(block)
                        at += len(block)
                except _CUT:
                    continue
                if at == int(size):
                    return Fetched(path, digest.hexdigest())
        raise TransientError(f"{url} was cut again and again while it was read: {at} of {size} bytes")

    def _body(self, bucket: str, key: str, etag: str, at: int) -> Iterator[bytes]:
        part = {"Range": f"bytes={at}-"} if at else {}
        with translated(key):
            got = self._client.get_object(Bucket=bucket, Key=key, IfMatch=f'"{etag}"', **part)
        yield from got["Body"].iter_chunks(1 << 20)


class S3Writer:
    """Finished files in S3."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def write(self, url: str, content: bytes, content_type: str) -> None:
        bucket, key = bucket_and_key(url)
        with translated(key):
            self._client.put_object(Bucket=bucket, Key=key, Body=content, ContentType=content_type)


_OF_THIS_MACHINE = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired",
    "RequestTimeTooSkewed", "RequestExpired", "AuthorizationHeaderMalformed",
}  # fmt: skip
"""Refusals that say nothing of the object: another worker may be served."""
_CUT = (
    IncompleteReadError, ResponseStreamingError, S3ConnectionError, HTTPClientError, HTTPError, ConnectionError,
    TimeoutError,
)  # fmt: skip
"""How a body ends before its end, by whoever notices first."""


class S3Bucket:
    """What lies in a bucket."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def head(self, url: str) -> Listed:
        """The object at this address. Raises Rejected (gone, denied), UsageError, TransientError."""
        bucket, key = bucket_and_key(url)
        with translated(key):
            found = self._client.head_object(Bucket=bucket, Key=key)
        size = found["ContentLength"]
        media = MediaObject(s3_url(bucket, key), _version(found["ETag"], size), size)
        return Listed(media, int(found["LastModified"].timestamp()))

    def listing(self, url: str) -> Iterator[Listed]:
        """Every object below a prefix, in order, but what stands for a folder (its key ends in `/`, it is empty)."""
        bucket, prefix = bucket_and_key(url)
        with translated(prefix):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for item in page.get("Contents", ()):
                    key, size = item["Key"], item["Size"]
                    if not (key.endswith("/") and not size):
                        media = MediaObject(s3_url(bucket, key), _version(item["ETag"], size), size)
                        yield Listed(media, int(item["LastModified"].timestamp()))


def _version(etag: str, size: int) -> str:
    """ETag and size: a head and a listing say the same, versioned bucket or not."""
    return f"{etag.strip(chr(34))}-{size}"


@contextmanager
def translated(key: str) -> Iterator[None]:
    """boto3's errors as ours."""
    try:
        yield
    except ClientError as e:
        raise _of_answer(e, key) from e
    except ParamValidationError as e:
        raise UsageError(f"S3 cannot take this name: {str(e).splitlines()[-1]}") from e
    except (NoCredentialsError, PartialCredentialsError) as e:
        raise UsageError("no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role") from e
    except (BotoCoreError, HTTPClientError, HTTPError, OSError) as e:
        raise TransientError(f"the object store does not answer: {type(e).__name__}") from e


@contextmanager
def _in_work(key: str) -> Iterator[None]:
    """The same for audio in work: that it may not be read or written is a fault of the set-up, and of no recording."""
    try:
        with translated(key):
            yield
    except Rejected as e:
        if e.code is not Code.DENIED:
            raise
        raise UsageError(str(e)) from e


def _of_answer(error: ClientError, key: str) -> Exception:
    name = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if name in {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}:
        return Rejected(f"there is no object {key}", code=Code.GONE)
    if name == "NoSuchBucket":
        return UsageError("there is no such bucket")
    if name in _OF_THIS_MACHINE:
        return UsageError(f"S3 does not take this machine's credentials, or its clock: {name}")
    if status == 412:
        return Rejected("the object was overwritten since it was submitted; submit it again", code=Code.GONE)
    if status == 403 or name in {"AccessDenied", "InvalidObjectState", "KMS.DisabledException"}:
        return Rejected(f"{key} is out of reach: {name} (credentials, rights)", code=Code.DENIED)
    return TransientError(f"the object store answers {name or status}")
