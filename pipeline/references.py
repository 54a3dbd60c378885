"""Recordings and what is truly said in them, as a manifest lists them: a JSON object a line (docs/evaluation.md)."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunking.errors import UsageError


class BadManifest(UsageError):
    """The recordings cannot be measured: one line that says which and why."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording and what is said in it."""

    file: Path
    """Absolute."""
    text: str
    """Empty: nobody speaks."""
    language: str
    """A code as Whisper has it, in small letters: `en-US` is `en`."""
    seconds: float | None = None
    """Where the manifest tells."""
    label: str = ""
    """The user's name for recordings of a kind."""


def read_manifest(manifest: Path) -> tuple[Reference, ...]:
    """All lines but empty ones; paths are relative to the manifest. Raises BadManifest that names the line."""
    try:
        text = manifest.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise BadManifest(f"{manifest} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    rows = [(f"{manifest.name}, line {i}", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = tuple(_reference(where, _row(where, line), manifest.parent) for where, line in rows)
    if not found:
        raise BadManifest(f"{manifest} holds no recording")
    return found


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise BadManifest(f"{where}: this is no JSON") from None
    if not isinstance(row, dict):
        raise BadManifest(f"{where}: a JSON object is wanted")
    for key in ("path", "text", "language"):
        if not isinstance(row.get(key), str) or (key != "text" and not row[key].strip()):
            raise BadManifest(f"{where}: {key!r} is missing")
    if not isinstance(row.get("label") or "", str):
        raise BadManifest(f"{where}: 'label' is {row['label']!r}, and no text")
    return row


def _reference(where: str, row: dict[str, Any], folder: Path) -> Reference:
    file = folder / row["path"]
    if "\0" in row["path"] or not file.is_file():
        raise BadManifest(f"{where}: there is no file {row['path']!r}")
    language = re.split("[-_]", row["language"].strip().lower())[0]
    file = Path(os.path.abspath(file))
    return Reference(file, row["text"], language, _seconds(where, row.get("seconds")), row.get("label") or "")


def _seconds(where: str, given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < float("inf"):
        raise BadManifest(f"{where}: 'seconds' is {given!r}, and no length")
    return float(given)
