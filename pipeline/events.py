"""Events: messages of object stores, read. Which objects came or went, as far as the message says it.

Pure: a message in, events out. Formats: AWS's `Records` (bare, and as SNS and MinIO wrap them), EventBridge's events,
SeaweedFS's webhook. An event is a hint: it may be late, repeated, out of order or lost, and a listing finds everything.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote_plus

from chunking.errors import PermanentError

MOST_BYTES = 1 << 20
"""Of a message. SQS takes no larger ones either."""
LONGEST_KEY = 1024
"""Bytes of a key in UTF-8: S3's limit."""
ENVELOPES = 2
"""Of SNS, one in the other, that are opened."""
LONGEST_ETAG = 128

Kind = Literal["created", "removed"]


@dataclass(frozen=True, slots=True)
class Event:
    """An object came (or was written again, or restored from an archive), or it went."""

    kind: Kind
    bucket: str
    keys: tuple[str, ...]
    """What its key may be, best guess first: servers do not agree on whether keys are URL-encoded in events."""
    etag: str | None = None
    """Without quotes. None: not said."""
    size: int | None = None
    """In bytes. None: not said."""


class Unreadable(PermanentError):
    """This is no message of an object store that Spotscribe knows."""


def parse(body: str | bytes) -> tuple[Event, ...]:
    """What a message tells of, in its order; nothing where it is a test, or of no interest. Raises Unreadable alone."""
    if len(body) > MOST_BYTES:
        raise Unreadable(f"the message is longer than {MOST_BYTES} bytes")
    return tuple(dict.fromkeys(_events(_json(body), ENVELOPES)))


def _json(body: str | bytes) -> Any:
    """None: an empty message, by which senders find out whether somebody listens."""
    try:
        text = body if isinstance(body, str) else body.decode("utf-8-sig")
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):  # of wrong UTF-8, wrong JSON, numbers of thousands of digits, deep nesting
        raise Unreadable("the message is no JSON") from None


def _events(message: Any, envelopes: int) -> Iterator[Event]:
    match message:
        case None | {"Event": "s3:TestEvent"} | {"Type": "UnsubscribeConfirmation"}:
            pass
        case {"Records": list(records)}:
            for record in records:
                yield from _of_record(record)
        case {"detail-type": str(what), "source": "aws.s3", "detail": dict(detail)}:
            yield from _of_bridge(what, detail)
        case {"event_type": str(), "key": str(path), "message": dict(change)}:
            yield from _of_filer(path, change)
        case {"Type": "Notification", "Message": str(inner)} if envelopes:
            yield from _events(_json(inner), envelopes - 1)
        case {"Type": "SubscriptionConfirmation"}:
            raise Unreadable(
                "SNS asks to confirm a subscription: subscribe an SQS queue to the topic, and name the queue"
            )
        case _ if message != {}:
            raise Unreadable("the message is none that S3, SNS, EventBridge, MinIO or SeaweedFS would send")


def _of_record(record: Any) -> Iterator[Event]:
    """One of AWS's records. Its key is encoded as in a form, with + for a space; some other servers' keys are not."""
    match record:
        case {"eventName": str(name), "s3": dict(s3)}:
            kind = _kind(name)
        case _:
            raise Unreadable("a record in the message is none of S3")
    match s3:
        case _ if kind is None:
            pass
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **about}}:
            yield from _event(kind, bucket, (_decoded(key), key), about.get("eTag"), about.get("size"))
        case _:
            raise Unreadable("a record in the message names no object")


def _kind(name: str) -> Kind | None:
    """`ObjectCreated:Put` and its like; None: the object's bytes stayed as they were."""
    family, _, what = name.removeprefix("s3:").partition(":")
    if family == "ObjectCreated":  # MinIO: also where only what is said of the object was written
        return None if what.endswith(("Tagging", "Retention", "LegalHold")) else "created"
    if family == "ObjectRemoved":
        return None if what == "NoOP" else "removed"
    return "created" if (family, what) == ("ObjectRestore", "Completed") else None


def _of_bridge(what: str, detail: dict[str, Any]) -> Iterator[Event]:
    """One of EventBridge's events. Its key is not encoded."""
    kinds: dict[str, Kind] = {
        "Object Created": "created",
        "Object Restore Completed": "created",
        "Object Deleted": "removed",
    }
    match detail:
        case _ if what not in kinds and what.startswith("Object "):  # of tags, storage classes, access lists
            pass
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **about}} if what in kinds:
            yield from _event(kinds[what], bucket, (key, _decoded(key)), about.get("etag"), about.get("size"))
        case _:
            raise Unreadable("EventBridge's message names no object: the rule must match events of S3 itself")


def _event(kind: Kind, bucket: str, keys: tuple[str | None, ...], etag: Any, size: Any) -> Iterator[Event]:
    """Raises Unreadable where these are no names of S3's."""
    possible = tuple(dict.fromkeys(k for k in keys if k is not None and _is_key(k)))
    if not possible or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", bucket):
        raise Unreadable("the message names an object that no bucket can hold")
    known = size if type(size) is int and 0 <= size < 1 << 63 else None
    if not (possible[0].endswith("/") and not known):  # which stands for a folder
        tag = etag.strip('"') if isinstance(etag, str) and etag.isascii() and etag.isprintable() else ""
        yield Event(kind, bucket, possible, tag if 0 < len(tag) <= LONGEST_ETAG else None, known)


def _is_key(key: str) -> bool:
    try:
        return 0 < len(key.encode()) <= LONGEST_KEY and "\0" not in key
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def _decoded(key: str) -> str | None:
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class _Stored:
    """An object as SeaweedFS's filer holds it."""

    bucket: str
    key: str
    bytes_of: tuple[Any, ...]
    """What changes when its bytes do."""


def _of_filer(path: str, change: dict[str, Any]) -> Iterator[Event]:
    """A change in SeaweedFS's tree of files. What it calls the change does not matter: what was, and what is now, do.

    A path is told as it is, not encoded. ETags and sizes are left out: for uploads in parts they are not S3's.
    """
    was = _stored(path, change.get("old_entry"))
    now = None
    match change:
        case {"new_entry": {"name": str(name)}, "new_parent_path": str(parent)}:
            now = _stored(f"{parent.rstrip('/')}/{name}", change["new_entry"])
    if was == now:
        return
    if was and not (now and (now.bucket, now.key) == (was.bucket, was.key)):
        yield from _event("removed", was.bucket, (was.key,), None, None)
    if now:
        yield from _event("created", now.bucket, (now.key,), None, None)


_AT = re.compile(r"/buckets/([A-Za-z0-9][^/]*)/(.+)", re.DOTALL)
_VERSION = re.compile(r".+\.versions/v_\w+", re.DOTALL)
_X = "Seaweed-X-Amz-"


def _stored(path: str, entry: Any) -> _Stored | None:
    """The object that a file of the filer is; None for folders, parts of an upload, and what is in no bucket.

    In a bucket with versions those of KEY lie in a folder `KEY.versions`, and what counts is which of them the folder
    points to: when a version's own file appears, whoever reads KEY is still given what was there before.
    """
    at = _AT.fullmatch(path)
    if at is None or not isinstance(entry, dict):
        return None
    bucket, key = at.groups()
    attributes, extended = _plain(entry.get("attributes")), _plain(entry.get("extended"))
    if entry.get("is_directory"):
        latest = extended.get(f"{_X}Latest-Version-Id")
        if latest is None or f"{_X}Latest-Version-Is-Delete-Marker" in extended:
            return None
        return _Stored(bucket, key.removesuffix(".versions"), (latest,))
    if key.startswith(".uploads/") or (_VERSION.fullmatch(key) and f"{_X}Version-Id" in extended):
        return None
    about = (attributes.get(name) for name in ("file_size", "mtime", "mtime_ns", "md5"))
    return _Stored(bucket, key, (*about, extended.get(f"{_X}ETag")))


def _plain(part: Any) -> dict[str, Any]:
    """Those fields that can be compared whatever a stranger sent: what is nested can be too deep for it."""
    return {k: v for k, v in part.items() if isinstance(v, str | int)} if isinstance(part, dict) else {}
