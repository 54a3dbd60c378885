"""Putting recordings away once they are transcribed: moved, tagged or deleted. One interface, chosen by URL's scheme.

Only the bytes that were transcribed are ever touched. What has been overwritten since, or is gone, is left alone, and
the answer says so. Everything may be killed at any point and done again. Where a recording was copied and not deleted,
it is deleted the next time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from chunking.errors import Code, PermanentError, Rejected, TransientError, UsageError
from storage.jobs import MediaObject
from storage.objects import path_of
from storage.urls import bucket_and_key, file_version, s3_url

OVERWRITTEN = "it has been overwritten since: nothing was done"
GONE = "it is not there any more: nothing was done"
THERE_ALREADY = "it lies there already: nothing was done"


LONGEST_TARGET = 1000
"""Bytes of a prefix: the tables' indexes take no more than 2 700 in all."""


class PlaceTaken(PermanentError):
    """Another file has this name."""


class Shelf(Protocol):
    """Puts recordings of one scheme away.

    The answers are empty, or say why nothing was done. All raise Rejected (no right to do it), UsageError,
    TransientError.
    """

    def move(self, media: MediaObject, place: str) -> str:
        """Copy, make sure, delete. Raises PlaceTaken, and nothing is done."""
        ...

    def tag(self, media: MediaObject) -> str:
        """`spotscribe=done` beside the tags that it has."""
        ...

    def delete(self, media: MediaObject) -> str: ...


class Shelves:
    """Shelves by scheme. Safe to share by threads if they are."""

    def __init__(self, shelves: Mapping[str, Shelf] | None = None) -> None:
        self._shelves: dict[str, Shelf] = {"file": LocalShelf(), **(shelves or {})}

    def of(self, url: str) -> Shelf:
        """Raises UsageError for a scheme that nobody here reaches."""
        shelf = self._shelves.get(urlsplit(url).scheme)
        if shelf is None:
            raise UsageError(f"{urlsplit(url).scheme}:// is no place that recordings can be put away from here")
        return shelf


class After(NamedTuple):
    """What becomes of recordings: `move` (whither, as a URL), `tag` or `delete`."""

    kind: str
    target: str


def after_of(text: str, source: str) -> After:
    """What `--after` asks for, of recordings below this URL. Raises UsageError."""
    kind, colon, target = text.strip().partition(":")
    scheme = urlsplit(source).scheme
    if text.strip() in {"tag", "delete"}:
        if kind == "tag" and scheme != "s3":
            raise UsageError("--after tag: only objects in S3 have tags")
        return After(kind, "")
    if kind != "move" or not colon or not target.strip("/ "):
        raise UsageError(f"--after: {text!r}; possible: move:PREFIX, tag, delete")
    whither = _prefix(target.strip(), source)
    if len(whither.encode()) > LONGEST_TARGET:
        raise UsageError(f"--after move: a prefix may have {LONGEST_TARGET} characters as a URL, this one is longer")
    if f"{whither.rstrip('/')}/" == f"{source.rstrip('/')}/":  # below it is well: what lies there is not taken again
        raise UsageError(f"--after {text}: that is where recordings are taken from")
    return After("move", whither)


def places(media: MediaObject, prefix: str, below: str | None) -> tuple[str, str]:
    """Where a recording is moved to: under what its URL has below its source's (none: under its name). If another file
    lies there, the second: the same with a digest of the recording in its name."""
    base = below[: below.rfind("/") + 1] if below is not None and media.url.startswith(below) else ""
    name = media.url[len(base) :] if base.count("/") > 2 else media.url.rpartition("/")[2]
    place = f"{prefix.rstrip('/')}/{name.lstrip('/')}"
    folder, _, last = place.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    digest = hashlib.sha256(f"{media.url}#{media.version}".encode()).hexdigest()[:8]
    other = f"{stem}-{digest}{dot}{suffix}" if stem else f"{last}-{digest}"
    return place, f"{folder}/{other}"


class LocalShelf:
    """Files of this machine. A hard link is the one way to give a file another name that never replaces one."""

    def move(self, media: MediaObject, place: str) -> str:
        source, target = path_of(media.url), path_of(place)
        with _translated(source):
            if _same_entry(source, target):
                return THERE_ALREADY
            if not os.path.lexists(source):
                return "" if target.is_file() and file_version(target) == media.version else GONE
            if file_version(source) != media.version:
                return OVERWRITTEN
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                _name_too(source, target)
            except FileExistsError:
                if not target.is_file() or _sha256(source) != _sha256(target):
                    raise PlaceTaken() from None
            return _unlink(source, media)

    def tag(self, media: MediaObject) -> str:
        raise UsageError("only objects in S3 have tags")

    def delete(self, media: MediaObject) -> str:
        source = path_of(media.url)
        with _translated(source):
            return _unlink(source, media)


def _prefix(target: str, source: str) -> str:
    """`move:`'s prefix as a URL without a slash at its end: in the source's bucket, another one, or a folder."""
    scheme = urlsplit(source).scheme
    if scheme == "s3":
        if "://" not in target:
            return s3_url(bucket_and_key(source)[0], target.strip("/"))
        if target.startswith("s3://"):
            bucket, key = bucket_and_key(target)
            return s3_url(bucket, key.strip("/")).rstrip("/")
    elif "://" not in target or target.startswith("file://"):
        path = path_of(target) if target.startswith("file://") else Path(target)
        if not path.is_absolute():  # who moves it stands in another folder than who asks for it
            raise UsageError(f"--after move:{target}: name the whole path of the folder, from /")
        return path.as_uri().rstrip("/")
    raise UsageError(f"--after move:{target}: recordings in {source} cannot be moved there")


def _name_too(source: Path, target: Path) -> None:
    """The same bytes under another name as well. Raises FileExistsError, whatever is there."""
    if not source.is_symlink():
        try:
            os.link(source, target)
        except OSError as e:
            if e.errno == errno.EEXIST:
                raise
        else:
            _sync(target.parent)
            return
    temporary = target.with_name(f".{uuid.uuid4().hex}.part")  # another file system, or one without hard links
    try:
        with source.open("rb") as read, temporary.open("wb") as written:
            shutil.copyfileobj(read, written, 1 << 20)
            written.flush()
            os.fsync(written.fileno())
        shutil.copystat(source, temporary)
        try:
            os.link(temporary, target)
        except OSError as e:
            if e.errno == errno.EEXIST or target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(target.parent)


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _unlink(source: Path, media: MediaObject) -> str:
    """Delete the file if it still is what was transcribed."""
    if not os.path.lexists(source):
        return GONE
    if file_version(source) != media.version:
        return OVERWRITTEN
    source.unlink()
    return ""


def _same_entry(source: Path, target: Path) -> bool:
    """Whether both are one name of one file, by whatever way: to delete the one would be to delete the other."""
    if source.parent.resolve() / source.name == target.parent.resolve() / target.name:
        return True
    return source.exists() and target.exists() and source.samefile(target) and source.lstat().st_nlink == 1


def _sync(folder: Path) -> None:
    """The names in it are on disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """The system's errors as ours."""
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError) as e:
        raise Rejected(f"{path.name} cannot be put away: {e.strerror}", code=Code.DENIED) from e
    except OSError as e:
        raise TransientError(f"{path.name} cannot be put away now: {e.strerror}") from e
