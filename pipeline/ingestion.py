"""From what a user names (files, folders, globs) to recordings, and where their transcripts go."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from urllib.parse import urlsplit

from chunking.errors import Code, Rejected, UsageError
from storage.folders import Place
from storage.jobs import MediaObject
from storage.objects import path_of
from storage.urls import bucket_and_key, file_version

MEDIA_SUFFIXES = frozenset({
    ".3g2", ".3ga", ".3gp", ".aac", ".ac3", ".ac4", ".adts", ".aif", ".aifc", ".aiff", ".alac", ".amr", ".ape",
    ".asf", ".au", ".avi", ".awb", ".caf", ".dsf", ".dts", ".eac3", ".f4a", ".f4v", ".flac", ".flv", ".gsm",
    ".m2ts", ".m4a", ".m4b", ".m4r", ".m4v", ".mka", ".mkv", ".mov", ".mp1", ".mp2", ".mp3", ".mp4", ".mpc",
    ".mpeg", ".mpg", ".mpga", ".mts", ".mxf", ".oga", ".ogg", ".ogm", ".ogv", ".opus", ".qt", ".ra", ".rm", ".rmvb",
    ".sln", ".snd", ".spx", ".tak", ".tta", ".ts", ".voc", ".vob", ".w64", ".wav", ".wave", ".weba", ".webm",
    ".wma", ".wmv", ".wv",
})  # fmt: skip
"""Names that say media. A file that is named itself is taken whatever it is called; its content decides."""
MAGIC = (
    b"ID3", b"RF64", b"OggS", b"fLaC", b".snd", b"caff", b"\x1aE\xdf\xa3", b"#!AMR", b"wvpk", b"\xff\xfb", b"\xff\xf3",
    b"\xff\xf2", b"\xff\xf1", b"\xff\xf9", b"0&\xb2u\x8ef\xcf\x11", b"FLV\x01", b"riff",
)  # fmt: skip
"""How media files begin: in a folder, a file with another suffix or none is taken if it begins like one."""
KINDS = {b"RIFF": (b"WAVE", b"AVI "), b"FORM": (b"AIFF", b"AIFC")}
"""Families with pictures in them: which of their kinds, at byte 8, are media."""
PICTURES = (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis", b"crx ")
"""Kinds of MP4-like files that are pictures."""
LONGEST_NAME = 255
"""Bytes of a file name, on every common file system."""


@dataclass(frozen=True, slots=True)
class Found:
    """A recording on this machine and the path of its transcripts, below the output folder and without suffix."""

    path: Path
    target: Path

    def media(self) -> MediaObject:
        """Raises UsageError where the file is gone."""
        try:
            return MediaObject(self.path.as_uri(), file_version(self.path), self.path.stat().st_size)
        except FileNotFoundError:
            raise UsageError(f"no such file: {self.path}") from None


@dataclass(frozen=True, slots=True)
class Findings:
    """Recordings, each once, and the files in folders that were passed over."""

    found: tuple[Found, ...]
    skipped: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A recording anywhere, and how files made of it are to be named."""

    media: MediaObject
    path: PurePath
    """Its path or key."""
    target: PurePath
    """Of its transcripts, below the place for outputs and without suffix."""


def find_everywhere(names: Iterable[str], s3: Callable[[], Place]) -> tuple[list[Named], int]:
    """Recordings in S3 and on this machine, each once, and how many others were passed over. Raises UsageError.

    `s3://bucket/key` is one object; with `/` at its end, or a bucket alone, everything below it.
    """
    found: dict[str, Named] = {}
    skipped = 0
    local: list[str] = []
    for name in names:
        scheme = urlsplit(name).scheme if "://" in name else ""
        if scheme == "s3":
            taken, others = _in_bucket(name, s3())
            found.update({n.media.identity: n for n in taken})
            skipped += others
        elif scheme == "file":
            local.append(str(path_of(name)))
        elif scheme:
            raise UsageError(f"{name} is neither an S3 address (s3://bucket/key) nor a file")
        else:
            local.append(name)
    if local:
        findings = find_recordings(local)
        skipped += len(findings.skipped)
        for f in findings.found:
            named = Named(f.media(), f.path, f.target)
            found[named.media.identity] = named
    return list(found.values()), skipped


def _in_bucket(url: str, s3: Place) -> tuple[list[Named], int]:
    _, key = bucket_and_key(url)
    if key and not key.endswith("/"):
        try:
            return [_named(s3.head(url).media)], 0
        except Rejected as e:
            hint = f"; to take everything below it: {url}/" if e.code is Code.GONE else ""
            raise UsageError(f"{url}: {e}{hint}") from None
    objects = list(s3.listing(url))
    taken = [_named(o.media) for o in objects]
    taken = [n for n in taken if n.path.suffix.lower() in MEDIA_SUFFIXES]
    if not taken:
        raise UsageError(f"no recordings below {url} ({len(objects)} other objects)")
    return taken, len(objects) - len(taken)


def _named(media: MediaObject) -> Named:
    """Its transcripts lie where it lies: the key's parts, without those that a path could be led astray by."""
    _, key = bucket_and_key(media.url)
    parts = [p for p in key.split("/") if p not in {"", ".", ".."}]
    path = PurePosixPath(*parts) if parts else PurePosixPath("recording")
    return Named(media, path, path.with_suffix(""))


def find_recordings(named: Sequence[str]) -> Findings:
    """Files as they are, folders with everything below them, patterns as a shell would. Raises UsageError."""
    found: dict[Path, Found] = {}
    skipped: list[Path] = []
    for name in named:
        for path in _expanded(name):
            if path.is_dir():
                inside = list(_walk(path))
                taken = [p for p in inside if _is_media(p)]
                skipped += [p for p in inside if p not in set(taken)]
                if not taken and len(named) == 1:
                    raise UsageError(f"no recordings in {path} ({len(inside)} other files)")
                for p in taken:
                    found.setdefault(p, Found(p, p.relative_to(path).with_suffix("")))
            elif path.is_file():
                found.setdefault(path, Found(path, Path(path.stem)))
            else:
                raise UsageError(f"{path} is neither a file nor a folder")
    if not found:
        raise UsageError(f"no recordings in {', '.join(named)}")
    return Findings(tuple(found.values()), tuple(skipped))


def target_paths(path: PurePath, target: PurePath, suffix: str) -> Iterator[PurePath]:
    """Where a file made of the recording at `path` may go, best first; the last is nobody else's."""
    t = target
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    for name in (f"{t.name}{suffix}", f"{t.name}{path.suffix}{suffix}", f"{t.name}-{digest}{suffix}"):
        if len(os.fsencode(name)) <= LONGEST_NAME - len(".part") - 33:  # the temporary name must fit as well
            yield t.with_name(name)
    yield t.with_name(f"{digest}{suffix}")


def _expanded(name: str) -> list[Path]:
    if not name:
        raise UsageError("a path is empty")
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if path.exists():
        return [path]
    if name.startswith("s3://"):
        raise UsageError(f"{name}: this command reads local files")
    matches = sorted(glob.glob(os.path.expanduser(name), recursive=True)) if glob.has_magic(name) else []
    if not matches:
        raise UsageError(f"no such file or folder: {name}")
    return [Path(os.path.abspath(m)) for m in matches]


def _walk(folder: Path) -> Iterator[Path]:
    """Regular files below, in order, without hidden ones; links to folders are not followed."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            path = Path(root) / name
            if not name.startswith(".") and path.is_file():
                yield path


def _is_media(path: Path) -> bool:
    if path.suffix.lower() in MEDIA_SUFFIXES:
        return True
    try:
        with path.open("rb") as f:
            head = f.read(12)
    except OSError:
        return False
    if head[4:8] == b"ftyp":
        return head[8:12] not in PICTURES
    return head.startswith(MAGIC) or head[8:12] in KINDS.get(head[:4], ())
