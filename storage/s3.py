"""An object store in an S3 bucket: AWS, SeaweedFS, MinIO, R2, by their endpoint.

The only importer of boto3, the client that AWS itself keeps. Its errors become ours here: what a retry cannot help is
permanent, the rest transient. Credentials come from boto3's usual places and are never logged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from chunking.errors import Code, Rejected, TransientError, UsageError

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


def s3_client(options: S3Options) -> Any:
    """A boto3 client; safe to share by threads."""
    config = Config(
        connect_timeout=options.connect_s,
        read_timeout=options.read_s,
        retries={"mode": "standard", "total_max_attempts": options.attempts},
        s3={"addressing_style": "path" if options.endpoint else "auto"},
    )
    return boto3.Session().client("s3", endpoint_url=options.endpoint, region_name=options.region, config=config)


class S3Store:
    """A bucket, or what lies below a prefix in one: `s3://bucket/prefix`."""

    def __init__(self, url: str, client: Any) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise UsageError(f"{url} is no S3 address; it looks like s3://bucket/prefix")
        self._client, self._bucket = client, parts.netloc
        self._prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""

    def put_file(self, key: str, source: Path) -> None:
        with translated(key):
            self._client.upload_file(str(source), self._bucket, self._prefix + key)

    def open(self, key: str) -> BinaryIO:
        """The object's bytes, all of them, in a file that goes when it is closed."""
        file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (the caller closes it)
        with translated(key):
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            for block in found["Body"].iter_chunks(1 << 20):
                file.write(block)
            if file.tell() != found["ContentLength"]:
                raise TransientError(f"{key} was cut while it was read")
        file.seek(0)
        return cast(BinaryIO, file)

    def delete(self, key: str) -> None:
        with translated(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        with translated(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"].removeprefix(self._prefix)


@contextmanager
def translated(key: str) -> Iterator[None]:
    """boto3's errors as ours."""
    try:
        yield
    except ClientError as e:
        raise _of_answer(e, key) from e
    except (BotoCoreError, HTTPClientError, OSError) as e:
        raise TransientError(f"the object store does not answer: {type(e).__name__}") from e


def _of_answer(error: ClientError, key: str) -> Exception:
    name = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if name in {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}:
        return Rejected(f"the object {key} is gone", code=Code.GONE)
    if name == "NoSuchBucket":
        return UsageError("there is no such bucket")
    if status == 403 or name in {"AccessDenied", "InvalidObjectState", "KMS.DisabledException"}:
        return Rejected(f"the object {key} may not be read: {name}", code=Code.DENIED)
    return TransientError(f"the object store answers {name or status}")
