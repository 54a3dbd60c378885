"""S3: an object store in a bucket, recordings read from one, listings. AWS, SeaweedFS, MinIO, R2.

The client comes from storage/aws.py. What S3 answers becomes an error of ours here: what a retry cannot help is
permanent, the rest transient.
"""

from __future__ import annotations

import errno
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError, ResponseStreamingError
from botocore.exceptions import ConnectionError as S3ConnectionError
from urllib3.exceptions import HTTPError

from chunking.errors import Archived, Code, Rejected, TransientError, UsageError
from storage import aws
from storage.aws import AwsOptions, aws_client, status_of
from storage.jobs import Listed, MediaObject
from storage.readers import Fetched
from storage.urls import bucket_and_key, s3_url

IN_MEMORY = 4 << 20
"""An object of up to so many bytes is not written to a temporary file while it is read."""


class S3Options(AwsOptions):
    """Where the bucket is served."""


def s3_client(options: AwsOptions) -> Any:
    """A client of S3; safe to share by threads."""
    return aws_client(
        "s3",
        options,
        request_checksum_calculation="when_required",  # TLS and the signature cover it; others than AWS may not know it
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if options.endpoint else "auto"},
    )


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

    def remove(self, url: str) -> None:
        bucket, key = bucket_and_key(url)
        with translated(key):
            self._client.delete_object(Bucket=bucket, Key=key)


_OF_THE_NAME = {"KeyTooLongError", "InvalidRequest", "InvalidURI", "InvalidObjectName", "XMinioInvalidObjectName"}
"""What servers answer to keys that they cannot have: too long, or with `..` or NUL in them where keys are files."""
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
        found = head_of(self._client, url)
        media = MediaObject(s3_url(*bucket_and_key(url)), version_of(found), found["ContentLength"])
        return Listed(media, int(found["LastModified"].timestamp()))

    def small(self, url: str, most: int) -> bytes:
        """The first bytes of an object, up to `most`. Raises as `head` does."""
        bucket, key = bucket_and_key(url)
        with translated(key):
            body = self._client.get_object(Bucket=bucket, Key=key)["Body"]
            try:
                return bytes(body.read(most))
            finally:
                body.close()

    def download(self, url: str, target: Path) -> None:
        """A large object into a file, in parts side by side. Raises as `head` does."""
        bucket, key = bucket_and_key(url)
        with translated(key):
            try:
                self._client.download_file(bucket, key, str(target))
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                raise UsageError(f"there is no room for {key} at {target.parent}") from e

    def listing(self, url: str, problem: Callable[[str], None] = lambda why: None) -> Iterator[Listed]:
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


def head_of(client: Any, url: str) -> Any:
    """What HEAD says of an object. Raises Rejected (gone, denied), UsageError, TransientError."""
    bucket, key = bucket_and_key(url)
    with translated(key):
        try:
            return client.head_object(Bucket=bucket, Key=key)
        except ClientError as e:
            if status_of(e) in {400, 403}:  # an answer to HEAD has no words; one to GET says why
                client.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()
            raise


def version_of(head: Any) -> str:
    """The version of the object that HEAD or GET found."""
    return _version(head["ETag"], head["ContentLength"])


def delete_version(client: Any, bucket: str, key: str, version: str) -> None:
    """Delete an object if it is this version of it. A server that knows no such condition deletes whatever it has.

    Raises Rejected (gone: it is another version), and as all do.
    """
    etag = version.rpartition("-")[0]
    with translated(key):
        try:
            client.delete_object(Bucket=bucket, Key=key, IfMatch=f'"{etag}"')
        except ClientError as e:
            if status_of(e) != 501:
                raise
            client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def translated(key: str) -> Iterator[None]:
    """boto3's errors as ours."""
    with aws.translated("S3", lambda error, code: _of_answer(error, code, key)):
        yield


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


def _of_answer(error: ClientError, name: str, key: str) -> Exception:
    if name in {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}:
        return Rejected(f"there is no object {key}", code=Code.GONE)
    if name == "NoSuchBucket":
        return UsageError("there is no such bucket")
    if status_of(error) == 412:
        return Rejected("the object was overwritten since it was submitted; submit it again", code=Code.GONE)
    if why := _denied(error, name):
        kind = Archived if name == "InvalidObjectState" else Rejected
        return kind(f"{key} is {why}", code=Code.DENIED)
    if name in _OF_THE_NAME:
        return Rejected(f"there is no object {key}: the server takes no such name ({name})", code=Code.GONE)
    return TransientError(f"S3 answers {name or status_of(error)}")


def _denied(error: ClientError, name: str) -> str:
    """Why an object may not be read, or empty: that is not what was said."""
    said = error.response.get("Error", {})
    message = (said.get("Message") or "").lower()
    if name == "InvalidObjectState":
        tier = said.get("StorageClass") or error.response.get("StorageClass")
        return f"in an archive{f' ({tier})' if tier else ''}: restore it, and then `spotscribe retry`"
    if name.startswith("KMS.") or (name == "AccessDenied" and "kms" in message):
        return f"encrypted, and its key of KMS may not be used: {name}"
    if name == "InvalidRequest" and "encryption" in message:
        return "encrypted with a key that only its owner has (SSE-C)"
    return f"out of reach: {name} (credentials, rights)" if status_of(error) == 403 or name == "AccessDenied" else ""
