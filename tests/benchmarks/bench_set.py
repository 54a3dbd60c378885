"""What `make bench` transcribes, and how texts are judged: the manifest, the Whisper normalisers, WER and its parts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import soundfile
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from tests.conftest import package_file

UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}
"""Written without spaces: each letter counts as a word."""
AUTO = "auto"


class BadSet(Exception):
    """The recordings cannot be measured: one line that says which and why."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording and what is said in it."""

    file: Path
    text: str
    language: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ClipSet:
    """Recordings, and what to call them in a report."""

    name: str
    clips: tuple[Clip, ...]

    @property
    def seconds(self) -> float:
        return sum(c.seconds for c in self.clips)


@dataclass(frozen=True, slots=True)
class Score:
    """Words that are wrong, over all recordings together."""

    words: int
    """In the references."""
    substitutions: int
    deletions: int
    insertions: int

    @property
    def wer(self) -> float:
        return (self.substitutions + self.deletions + self.insertions) / max(1, self.words)


def from_manifest(manifest: Path, language: str, limit: int | None = None) -> ClipSet:
    """The recordings of a JSONL file that are in that language (`auto`: all). Raises BadSet."""
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise BadSet(f"{manifest} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    rows = [(f"{manifest.name}, line {i}", line) for i, line in enumerate(lines, 1) if line.strip()]
    clips = (_clip(where, _row(where, line), manifest.parent) for where, line in rows)
    wanted = [c for c in clips if language in (AUTO, c.language)]
    if not wanted:
        raise BadSet(f"{manifest} holds no recording in the language {language!r}")
    return ClipSet(manifest.absolute().parent.name, _distinct(wanted[:limit]))


def from_packages(language: str, limit: int | None = None) -> ClipSet:
    """The clips with texts that pytest-audioeval carries: synthetic voices, a few seconds each. Raises BadSet."""
    found = list(_packaged(package_file("pytest_audioeval", "samples", "audio"), language))
    if not found:
        raise BadSet(f"no package carries clips in the language {language!r}: give a --manifest")
    return ClipSet("clips of pytest-audioeval", tuple(found[:limit]))


def score(clips: Sequence[Clip], texts: Sequence[str]) -> Score:
    """Words after Whisper's English normaliser for English, its basic one for other languages."""
    references = [normalised(c.text, c.language) for c in clips]
    heard = [normalised(t, c.language) for c, t in zip(clips, texts, strict=True)]
    found = jiwer.process_words(references, heard)
    words = found.hits + found.substitutions + found.deletions
    return Score(words, found.substitutions, found.deletions, found.insertions)


_NORMALISERS: dict[str, Any] = {}


def normalised(text: str, language: str) -> str:
    """As WER is taken of it."""
    kind = "en" if language == "en" else "letters" if language in UNSPACED else "basic"
    if kind not in _NORMALISERS:
        made = EnglishTextNormalizer() if kind == "en" else BasicTextNormalizer(split_letters=kind == "letters")
        _NORMALISERS[kind] = made
    return re.sub(r"\s+", " ", _NORMALISERS[kind](re.sub(r"\s+", " ", text))).strip()


def _packaged(folder: Path, language: str) -> Iterator[Clip]:
    for sound in sorted(folder.glob("*/*.wav")):
        text, spoken = sound.with_suffix(".txt"), sound.parent.name
        if text.is_file() and language in (AUTO, spoken):
            yield Clip(sound, text.read_text(encoding="utf-8").strip(), spoken, soundfile.info(sound).duration)


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise BadSet(f"{where}: this is no JSON") from None
    if not isinstance(row, dict):
        raise BadSet(f"{where}: a JSON object is wanted")
    for key in ("path", "text", "language"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise BadSet(f"{where}: {key!r} is missing")
    return row


def _clip(where: str, row: dict[str, Any], folder: Path) -> Clip:
    file = folder / row["path"]
    if not file.is_file():
        raise BadSet(f"{where}: there is no file {row['path']}")
    seconds = row.get("seconds")
    if seconds is None:
        try:
            seconds = soundfile.info(file).duration
        except soundfile.SoundFileError:
            raise BadSet(f"{where}: the length of {row['path']} cannot be told; give it as 'seconds'") from None
    if not isinstance(seconds, (int, float)) or seconds <= 0:
        raise BadSet(f"{where}: 'seconds' is {seconds!r}, and no length")
    return Clip(file.absolute(), row["text"], row["language"], float(seconds))


def _distinct(clips: Iterable[Clip]) -> tuple[Clip, ...]:
    """Spotscribe decodes equal bytes once and its peers do not: that is not what is measured here."""
    known: dict[bytes, Clip] = {}
    for clip in clips:
        with clip.file.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").digest()
        if (same := known.setdefault(digest, clip)) is not clip:
            raise BadSet(f"{clip.file.name} and {same.file.name} are the same bytes: keep one of them")
    return tuple(known.values())
