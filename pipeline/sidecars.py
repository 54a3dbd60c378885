"""Sidecars: what a NAME.json beside a recording asks for. Whatever is in it, it is read, and what is wrong is said.

    {"label": "november", "priority": 5, "metadata": {"team": "blue"}, "formats": ["txt"],
     "options": {"language": "de", "task": "transcribe", "channels": "split", "word_timestamps": true,
                 "hotwords": "Kovacs, Spotscribe", "initial_prompt": "…", "track": 1}}

Model, precision and beam are the source's own: a worker must have them. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from chunking.errors import UsageError
from pipeline.exports import Format
from pipeline.languages import MULTI
from pipeline.prompts import cleaned

MOST_BYTES = 64 << 10
LONGEST = 255
"""Characters of a label and of a metadata key: an index takes no more than some 2 700 bytes."""
PRIORITIES = range(-100, 101)
TRACKS = range(100)
TASKS = ("transcribe", "translate")
CHANNELS = ("mix", "split", "left", "right", "auto")
_OURS = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*"\d+\.\d+"\s*,\s*"source"\s*:\s*\{\s*"url"')
"""How our own transcripts begin (pipeline/exports.py), however long they are."""
_OUR_FIELDS = frozenset({"schema_version", "segments", "coverage"})
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""What UTF-8 or a text column of Postgres cannot hold."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a sidecar says. None, or nothing: as the source has it."""

    label: str | None = None
    priority: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str | int | None] = field(default_factory=dict)
    """Fields of `JobOptions`: language, task, channels, word_timestamps, hotwords, initial_prompt, track."""
    formats: tuple[str, ...] = ()


class _Wrong(Exception):
    """A value that cannot be taken."""


def candidates(url: str) -> tuple[str, str]:
    """Where a recording's sidecars may lie: NAME.EXT.json counts before NAME.json, which may be another's as well."""
    return f"{url}.json", f"{without_suffix(url)}.json"


def without_suffix(url: str) -> str:
    """A URL without its last part's suffix. A name that begins with its only dot has none."""
    folder, slash, name = url.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return f"{folder}{slash}{stem}" if dot and stem else url


def parse(content: bytes, *, model: str) -> tuple[Sidecar | None, str | None]:
    """The sidecar, and what was wrong with it. A field that is wrong is left out, and the others count.

    (None, None): it is a transcript of ours, and no sidecar. `content` may be cut after MOST_BYTES + 1.
    `model`: a language that it does not know is wrong.
    """
    if _OURS.match(content):
        return None, None
    try:
        said, notes = _object(content)
    except _Wrong as e:
        return None, f"the sidecar is {e}"
    if said.keys() >= _OUR_FIELDS:
        return None, None
    values: dict[str, Any] = {}
    readers: dict[str, Callable[[Any], tuple[Any, list[str]]]] = {
        "label": _alone(_label), "priority": _alone(lambda v: _whole(v, PRIORITIES)), "metadata": _metadata,
        "options": lambda v: _options(v, model), "formats": _formats,
    }  # fmt: skip
    for name, value in said.items():
        if name not in readers:
            notes.append(f"there is no field {_short(name)}")
            continue
        try:
            values[name], wrong = readers[name](value)
            notes += [f"{name}: {w}" for w in wrong]
        except _Wrong as e:
            notes.append(f"{name}: {e}")
    return Sidecar(**values), _note(notes)


def to_json(sidecar: Sidecar) -> dict[str, Any]:
    """For the column `arrivals.sidecar`: what it says, and nothing of what it does not."""
    return {name: value for name, value in asdict(sidecar).items() if value not in (None, {}, ())}


def from_json(stored: Mapping[str, Any]) -> Sidecar:
    """The other way round. What a newer version has stored may have more fields."""
    known = {k: v for k, v in stored.items() if k in Sidecar.__dataclass_fields__}
    return Sidecar(**{**known, "formats": tuple(known.get("formats", ()))})


def _object(content: bytes) -> tuple[dict[str, Any], list[str]]:
    """The JSON object, and which of its names were there twice. Raises _Wrong."""
    if len(content) > MOST_BYTES:
        raise _Wrong(f"larger than {MOST_BYTES} bytes")
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                twice.append(f"{_short(name)} is there twice, and the last one counts")
            made[name] = value
        return made

    try:
        said = json.loads(content.decode("utf-8-sig"), object_pairs_hook=once, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise _Wrong("not UTF-8") from None
    except RecursionError:
        raise _Wrong("nested too deeply") from None
    except json.JSONDecodeError as e:
        raise _Wrong(f"no JSON: {e.msg} in line {e.lineno}") from None
    except ValueError:  # a number of thousands of digits
        raise _Wrong("no JSON that can be read: it has a number beyond all bounds") from None
    if not isinstance(said, dict):
        raise _Wrong("no JSON object")
    return said, twice


def _no_number(name: str) -> NoReturn:
    raise _Wrong(f"no JSON: {name} is no number")


def _alone(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, list[str]]]:
    return lambda value: (read(value), [])


def _label(value: Any) -> str:
    label = _text(value).strip()
    if not 0 < len(label) <= LONGEST:
        raise _Wrong(f"it must have 1 to {LONGEST} characters")
    return label


def _whole(value: Any, possible: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in possible:
        raise _Wrong(f"{_short(value)} is no whole number from {possible[0]} to {possible[-1]}")
    return value


def _metadata(value: Any) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    wrong: list[str] = []
    for name, inner in _pairs(value):
        try:
            if not 0 < len(_text(name)) <= LONGEST:
                raise _Wrong(f"a name must have 1 to {LONGEST} characters")
            found[name] = _number(inner) if isinstance(inner, (bool, int, float)) else _text(inner)
        except _Wrong as e:
            wrong.append(f"{_short(name)}: {e}")
    return found, wrong


def _options(value: Any, model: str) -> tuple[dict[str, str | int | None], list[str]]:
    readers: dict[str, Callable[[Any], str | int | None]] = {
        "language": lambda v: _language(v, model),
        "task": lambda v: _task(v, model),
        "channels": lambda v: _one_of(v, CHANNELS),
        "word_timestamps": _boolean,
        "hotwords": _prompt,
        "initial_prompt": _prompt,
        "track": lambda v: _whole(v, TRACKS),
    }
    found: dict[str, str | int | None] = {}
    wrong: list[str] = []
    for name, inner in _pairs(value):
        if name not in readers:
            wrong.append(f"there is no field {_short(name)}; possible: {', '.join(readers)}")
            continue
        try:
            found[name] = readers[name](inner)
        except _Wrong as e:
            wrong.append(f"{name}: {e}")
    return found, wrong


def _formats(value: Any) -> tuple[tuple[str, ...], list[str]]:
    if not isinstance(value, list):
        raise _Wrong("it is no list")
    known = [v for v in value if isinstance(v, str) and v in set(Format)]
    wrong = [f"{_short(v)} is none of {', '.join(Format)}" for v in value if v not in known]
    return tuple(dict.fromkeys(known)), wrong if value else ["it names none"]


def _language(value: Any, model: str) -> str:
    from pipeline.whisper import LANGUAGES  # it takes a second, and few sidecars name a language

    code = _text(value).strip().lower()
    if code not in (MULTI, *LANGUAGES):
        raise _Wrong(f"{_short(value)} is no language code of Whisper")
    if code != "en" and _english_only(model):
        raise _Wrong(f"{code}: the source's model knows English only")
    return code


def _task(value: Any, model: str) -> str:
    task = _one_of(value, TASKS)
    if task == "translate" and _english_only(model):
        raise _Wrong("translate: the source's model knows English only")
    return task


def _prompt(value: Any) -> str | None:
    """Empty: none, whatever the source has."""
    try:
        return cleaned(_text(value))
    except UsageError as e:
        raise _Wrong(str(e)) from None


def _english_only(model: str) -> bool:
    from pipeline.models import is_english_only

    directory = Path(model)
    return is_english_only(directory) if directory.is_dir() else model.endswith(".en")


def _one_of(value: Any, possible: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in possible:
        raise _Wrong(f"{_short(value)} is none of {', '.join(possible)}")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{_short(value)} is neither true nor false")
    return value


def _number(value: bool | int | float) -> str:
    if not math.isfinite(value):
        raise _Wrong("a number beyond all bounds")
    return json.dumps(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{_short(value)} is no text")
    if _UNSTORABLE.search(value):
        raise _Wrong("it has characters that cannot be stored")
    return value


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _Wrong("it is no object")
    return list(value.items())


def _short(value: Any) -> str:
    """A value as a note may show it, whatever it is."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value) if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"


def _note(notes: list[str], most: int = 5) -> str | None:
    more = [f"and {len(notes) - most} more"] if len(notes) > most else []
    return "; ".join(notes[:most] + more) or None
