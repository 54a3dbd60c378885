"""Putting recordings in S3 away: moved, tagged or deleted, as storage/putaway.py asks for it.

S3 has no rename: a move is a copy on the server and then a delete. The copy carries a mark that says which bytes of
which object it is, since the ETag of a copy that was made in parts is another one.
"""

from __future__ import annotations

import hashlib
from typing import Any

from chunking.errors import Code, PermanentError, Rejected, TransientError
from storage.jobs import MediaObject
from storage.putaway import GONE, OVERWRITTEN, THERE_ALREADY, PlaceTaken
from storage.s3 import delete_version, head_of, translated, version_of
from storage.urls import bucket_and_key

ONE_COPY = 5 << 30
"""Larger objects are copied in parts, says S3; what is copied in parts leaves its tags behind."""
MARK = "spotscribe-moved"
TAG, DONE = "spotscribe", "done"
MOST_TAGS = 10
KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "StorageClass")
"""What an object says of itself that its copy is to say as well."""


class S3Shelf:
    """Objects in S3."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def move(self, media: MediaObject, place: str) -> str:
        if bucket_and_key(media.url) == bucket_and_key(place):
            return THERE_ALREADY
        there = self._head(place)
        mine = there is not None and there["Metadata"].get(MARK) == _mark(media)
        found = self._head(media.url)
        if found is None:
            return "" if mine else GONE  # the last try was killed when all was done
        if version_of(found) != media.version:
            return OVERWRITTEN
        if there is None:
            try:
                self._copy(media, place, found)
            except Rejected as e:
                if e.code is not Code.GONE or not _not_it(self._head(media.url), media):
                    raise
                return OVERWRITTEN
            there = self._head(place)
            if there is None or there["ContentLength"] != media.size_bytes:
                raise TransientError(f"the copy in {place} is not whole")
        elif not mine and version_of(there) != media.version:
            raise PlaceTaken()
        return self.delete(media)

    def tag(self, media: MediaObject) -> str:
        found = self._head(media.url)
        if (why := _not_it(found, media)) or found is None:
            return why
        bucket, key = bucket_and_key(media.url)
        # In a bucket with versions this one is meant, whatever is written there between the look and the tag.
        versions = {} if found.get("VersionId", "null") == "null" else {"VersionId": found["VersionId"]}
        with translated(key):
            tags = self._client.get_object_tagging(Bucket=bucket, Key=key, **versions)["TagSet"]
        merged = [t for t in tags if t["Key"] != TAG] + [{"Key": TAG, "Value": DONE}]
        if len(merged) > MOST_TAGS:
            raise PermanentError(f"{key} has {MOST_TAGS} tags already")
        if merged != tags:
            with translated(key):
                self._client.put_object_tagging(Bucket=bucket, Key=key, Tagging={"TagSet": merged}, **versions)
        return ""

    def delete(self, media: MediaObject) -> str:
        if why := _not_it(self._head(media.url), media):
            return why
        bucket, key = bucket_and_key(media.url)
        try:
            delete_version(self._client, bucket, key, media.version)
        except Rejected as e:
            if e.code is not Code.GONE:
                raise
            return OVERWRITTEN
        return ""

    def _copy(self, media: MediaObject, place: str, found: Any) -> None:
        source, key = bucket_and_key(media.url)
        bucket, target = bucket_and_key(place)
        said = {name: found[name] for name in KEPT if found.get(name)}
        metadata = {**found["Metadata"], MARK: _mark(media)}
        how = {**said, "Metadata": metadata, "MetadataDirective": "REPLACE", "CopySourceIfMatch": found["ETag"]}
        origin = {"Bucket": source, "Key": key}
        with translated(key):
            if media.size_bytes <= ONE_COPY:
                self._client.copy_object(Bucket=bucket, Key=target, CopySource=origin, **how)
            else:
                self._client.copy(origin, bucket, target, ExtraArgs=how)

    def _head(self, url: str) -> Any | None:
        try:
            return head_of(self._client, url)
        except Rejected as e:
            if e.code is not Code.GONE:
                raise
            return None


def _not_it(found: Any | None, media: MediaObject) -> str:
    """Why this is not what was transcribed; empty: it is."""
    if found is None:
        return GONE
    return "" if version_of(found) == media.version else OVERWRITTEN


def _mark(media: MediaObject) -> str:
    return hashlib.sha256(media.identity.encode()).hexdigest()[:32]
