"""What `make bench` transcribes, and how texts are judged: recordings whose lengths are known, each content once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import soundfile

from pipeline import scoring
from pipeline.references import BadManifest, Reference, read_manifest
from pipeline.scoring import Score
from tests.conftest import package_file

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ClipSet:
    """Recordings, and what to call them in a report."""

    name: str
    clips: tuple[Reference, ...]

    @property
    def seconds(self) -> float:
        return sum(c.seconds or 0.0 for c in self.clips)


def chosen(manifest: Path | None, language: str, limit: int | None = None) -> ClipSet:
    """The recordings of the manifest, or those that packages carry. Raises UsageError."""
    return from_manifest(manifest, language, limit) if manifest else from_packages(language, limit)


def from_manifest(manifest: Path, language: str, limit: int | None = None) -> ClipSet:
    """The recordings of a JSONL file that are in that language (`auto`: all). Raises BadManifest."""
    wanted = [c for c in read_manifest(manifest) if language in (AUTO, c.language)]
    if not wanted:
        raise BadManifest(f"{manifest} holds no recording in the language {language!r}")
    return ClipSet(manifest.absolute().parent.name, _distinct(map(_measured, wanted[:limit])))


def from_packages(language: str, limit: int | None = None) -> ClipSet:
    """The clips with texts that pytest-audioeval carries: synthetic voices, a few seconds each. Raises BadManifest."""
    found = list(_packaged(package_file("pytest_audioeval", "samples", "audio"), language))
    if not found:
        raise BadManifest(f"no package carries clips in the language {language!r}: give a --manifest")
    return ClipSet("clips of pytest-audioeval", tuple(found[:limit]))


def score(clips: Sequence[Reference], texts: Sequence[str]) -> Score:
    """Words in error over all recordings together."""
    each = (scoring.score(c.text, t, c.language) for c, t in zip(clips, texts, strict=True))
    return sum(each, Score())


def _packaged(folder: Path, language: str) -> Iterator[Reference]:
    for sound in sorted(folder.glob("*/*.wav")):
        text, spoken = sound.with_suffix(".txt"), sound.parent.name
        if text.is_file() and language in (AUTO, spoken):
            yield _measured(Reference(sound, text.read_text(encoding="utf-8").strip(), spoken))


def _measured(clip: Reference) -> Reference:
    if clip.seconds is not None:
        return clip
    try:
        return replace(clip, seconds=soundfile.info(clip.file).duration)
    except soundfile.SoundFileError:
        raise BadManifest(f"the length of {clip.file.name} cannot be told; give it as 'seconds'") from None


def _distinct(clips: Iterable[Reference]) -> tuple[Reference, ...]:
    """Spotscribe decodes equal bytes once and its peers do not: that is not what is measured here."""
    known: dict[bytes, Reference] = {}
    for clip in clips:
        with clip.file.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").digest()
        if (same := known.setdefault(digest, clip)) is not clip:
            raise BadManifest(f"{clip.file.name} and {same.file.name} are the same bytes: keep one of them")
    return tuple(known.values())
