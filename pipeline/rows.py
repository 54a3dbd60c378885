"""Segments as rows, for those who count and search: one table, written as CSV or JSON lines (parquet.py: Parquet)."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from storage.jobs import JobView


@dataclass(frozen=True, slots=True)
class Column:
    """`kind`: int, float, text, time, texts (a list), words (a list of `WORD`)."""

    name: str
    kind: str
    meaning: str


COLUMNS = (
    Column("job_id", "int", "the job"),
    Column("recording", "text", "URL of the recording"),
    Column("version", "text", "which bytes at that URL: ETag and size, or size and time of change"),
    Column("sha256", "text", "of the recording's bytes"),
    Column("labels", "texts", "of the job"),
    Column("metadata", "text", "the job's own keys and values, as a JSON object"),
    Column("state", "text", "`done` or `partial`"),
    Column("code", "text", "why it ended so: `ok`, `truncated`, …"),
    Column("model", "text", "by which it was transcribed"),
    Column("compute_type", "text", "in which the model computed"),
    Column("task", "text", "`transcribe` or `translate`"),
    Column("finished_at", "time", "when the job ended, UTC"),
    Column("duration_s", "float", "of the recording"),
    Column("segment", "int", "position in the transcript, from 0"),
    Column("channel", "int", "from 0"),
    Column("start_s", "float", "in the recording"),
    Column("end_s", "float", "in the recording"),
    Column("text", "text", "what was said"),
    Column("language", "text", "of the segment"),
    Column("language_probability", "float", "0 to 1"),
    Column("avg_logprob", "float", "mean log-probability of its tokens"),
    Column("no_speech_prob", "float", "0 to 1"),
    Column("compression_ratio", "float", "high where it repeats itself"),
    Column("temperature", "float", "at which it was decoded"),
    Column("flags", "texts", "what the quality checks saw (docs/quality.md)"),
    Column("words", "words", "where word times were asked for; not in CSV"),
)
"""What each row says, in order."""
WORD = ("start_s", "end_s", "text", "probability")
"""Of a word: its times in the recording, its text with the space before it, and how sure the model was of it."""
NAMES = tuple(c.name for c in COLUMNS)
Row = tuple[Any, ...]


def rows_of(job: JobView, made: Any, labels: Sequence[str], segments: Iterable[Any]) -> list[Row]:
    """The rows of one job. `made`: its transcript's own row; `segments`: rows of that table.

    Values are as Python has them: times with their zone, lists, None where there is none. Words stay lists in the
    order of WORD.
    """
    known = (
        job.id, job.url, _valid(job.version), made.sha256, [_valid(x) for x in labels], _valid(_json(job.meta)),
        job.state, job.code or "", _valid(made.model), made.compute_type, made.task, _utc(job.finished_at),
        _finite(made.duration_s),
    )  # fmt: skip
    return [
        (
            *known, s.position, s.channel, s.start_s, s.end_s, _valid(s.text), s.language,
            _finite(s.language_probability), _finite(s.avg_logprob), _finite(s.no_speech_prob),
            _finite(s.compression_ratio), _finite(s.temperature), s.flags.split(), s.words,
        )
        for s in segments
    ]  # fmt: skip


def csv_of(rows: Iterable[Row], *, header: bool) -> str:
    """RFC 4180: lines end in CR LF. Lists are JSON, times ISO 8601, missing values empty; words are left out."""
    shown = [i for i, c in enumerate(COLUMNS) if c.kind != "words"]
    out = io.StringIO()
    writer = csv.writer(out)
    if header:
        writer.writerow([COLUMNS[i].name for i in shown])
    writer.writerows([_cell(row[i]) for i in shown] for row in rows)
    return out.getvalue()


def jsonl_of(rows: Iterable[Row]) -> str:
    """A JSON object a line: times ISO 8601, `metadata` an object, `words` a list of objects or null."""
    return "".join(json.dumps(_object(row), ensure_ascii=False) + "\n" for row in rows)


def _object(row: Row) -> dict[str, Any]:
    made = dict(zip(NAMES, row, strict=True))
    made["finished_at"] = _time(made["finished_at"])
    made["metadata"] = json.loads(made["metadata"])
    if made["words"] is not None:
        made["words"] = [dict(zip(WORD, word, strict=True)) for word in made["words"]]
    return made


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return _time(value) if isinstance(value, datetime) else value


def _json(meta: dict[str, Any] | None) -> str:
    return json.dumps(meta or {}, ensure_ascii=False)


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _utc(moment: datetime | None) -> datetime | None:
    """SQLite gives the database's UTC without a zone, Postgres in its own."""
    return None if moment is None else (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _valid(text: str) -> str:
    """Without lone surrogates, which no UTF-8 has."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)
