"""The views that analysts read. They are stable: columns are only ever added, and tests hold the documents to them.

They are made anew after each migration (storage/published.py), in the dialect of the database: labels and flags are
arrays in Postgres and text in SQLite. Times of day are in UTC, times in a recording in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """One view: what a row of it is, what its columns are, and its query."""

    name: str
    about: str
    columns: Mapping[str, str]
    query: str


_JOB = {
    "job_id": "The job.",
    "url": "Where the recording was read from, such as s3://bucket/key.",
    "labels": "The names under which the job was submitted.",
}
_TIMES = {
    "created_at": "When the job was submitted.",
    "finished_at": "When it ended; null while it has not.",
}
_OF_SEGMENT = {
    "job_id": _JOB["job_id"],
    "transcript_id": "The transcript; jobs over equal bytes with equal options share one.",
    "url": _JOB["url"],
    "channel": "Channel of the recording, from 0; 0 where the channels were mixed.",
    "start_s": "Where it begins, in seconds of the recording.",
    "end_s": "Where it ends.",
}
_SPENT = {
    "device_s": "Seconds of the device (a GPU, or all cores of a machine) that its accepted results took.",
    "cost": "Those seconds at the price of the machines that spent them (SPOTSCRIBE_PRICE_PER_HOUR).",
}
_CURRENT = {"current": "Whether nothing else lies at the recording's URL by now."}
_JOINED = "jobs j JOIN recordings r ON r.id = j.recording_id"
_ENDED = ("done", "partial", "rejected", "failed", "cancelled")


def views(*, postgres: bool) -> tuple[View, ...]:
    """All views, in an order in which they can be made."""
    sql = _Postgres() if postgres else _Sqlite()
    return (
        _jobs(sql), _transcripts(sql), _segments(sql), _words(sql), _coverage(), _failures(sql), _quality(sql),
        _daily_usage(sql),
    )  # fmt: skip


class _Postgres:
    labels = "ARRAY(SELECT l.label FROM labels l WHERE l.job_id = j.id ORDER BY l.label)"
    flags = "array_remove(string_to_array(s.flags, ' '), '')"
    text = "(SELECT string_agg(s.text, ' ' ORDER BY s.start_s, s.channel) FROM segments s WHERE s.transcript_id = t.id)"
    day = "(j.finished_at AT TIME ZONE 'UTC')::date"
    words = (
        "CROSS JOIN LATERAL json_array_elements(CASE WHEN json_typeof(s.words) = 'array' THEN s.words END) "
        "WITH ORDINALITY AS w (value, n)"
    )
    place = "(w.n - 1)::integer"
    worst = (
        "CROSS JOIN LATERAL (SELECT count(*) AS segments, count(*) FILTER (WHERE flags <> '') AS flagged, "
        "sum(avg_logprob * (end_s - start_s)) / NULLIF(sum(end_s - start_s), 0) AS mean, min(avg_logprob) AS lowest "
        "FROM segments WHERE transcript_id = t.id) s"
    )

    @staticmethod
    def option(name: str) -> str:
        return f"j.options->>'{name}'"

    @staticmethod
    def of_word(index: int) -> str:
        kind = "" if index == 2 else "::double precision"
        return f"(w.value->>{index}){kind}"


class _Sqlite:
    labels = "(SELECT group_concat(l.label, ' ') FROM labels l WHERE l.job_id = j.id)"
    flags = "s.flags"
    text = (
        "(SELECT group_concat(text, ' ') FROM "
        "(SELECT s.text FROM segments s WHERE s.transcript_id = t.id ORDER BY s.start_s, s.channel))"
    )
    day = "date(j.finished_at)"
    words = "JOIN json_each(CASE WHEN json_type(s.words) = 'array' THEN s.words ELSE '[]' END) w"
    place = "w.key"
    worst = (
        "LEFT JOIN (SELECT transcript_id, count(*) AS segments, sum(flags <> '') AS flagged, "
        "sum(avg_logprob * (end_s - start_s)) / NULLIF(sum(end_s - start_s), 0) AS mean, min(avg_logprob) AS lowest "
        "FROM segments GROUP BY transcript_id) s ON s.transcript_id = t.id"
    )

    @staticmethod
    def option(name: str) -> str:
        return f"json_extract(j.options, '$.{name}')"

    @staticmethod
    def of_word(index: int) -> str:
        return f"json_extract(w.value, '$[{index}]')"


_Sql = _Postgres | _Sqlite


def _select(columns: Mapping[str, tuple[str, str]], source: str) -> tuple[dict[str, str], str]:
    """Columns (name: what it is, its expression) → what they are, and the SELECT."""
    listed = ", ".join(f"{expression} AS {name}" for name, (_, expression) in columns.items())
    return {name: about for name, (about, _) in columns.items()}, f"SELECT {listed} FROM {source}"


def _jobs(sql: _Sql) -> View:
    about, query = _select(
        {
            "job_id": (_JOB["job_id"], "j.id"),
            "url": (_JOB["url"], "r.url"),
            "sha256": ("SHA-256 of the recording's bytes; null before they were read.", "r.sha256"),
            "labels": (_JOB["labels"], sql.labels),
            "state": ("How far it is; at the end done, partial, rejected, failed or cancelled.", "j.state"),
            "code": ("Why it ended so (README, the table of codes).", "j.code"),
            "error": ("The same in words.", "j.error"),
            "model": ("The model asked for.", "j.model"),
            "compute_type": ("The precision asked for.", sql.option("compute_type")),
            "task": ("transcribe, or translate into English.", sql.option("task")),
            "channels_asked": ("What becomes of channels: mix, split, left, right or auto.", sql.option("channels")),
            "language_asked": ("The language told; null: detected.", sql.option("language")),
            "language": ("The language that is spoken longest.", "j.language"),
            "priority": ("Higher is sooner.", "j.priority"),
            "metadata": ("The user's own keys and values, as JSON.", "j.metadata"),
            "size_bytes": ("Of the recording.", "r.size_bytes"),
            "container": ("Container format, as FFmpeg names it.", "r.container"),
            "codec": ("Codec of the sound.", "r.codec"),
            "sample_rate": ("Samples a second, of the source.", "r.sample_rate"),
            "source_channels": ("Channels of the source.", "r.channels"),
            "expected_s": ("Seconds that the container promises.", "r.expected_s"),
            "decoded_s": ("Seconds that could be decoded.", "r.decoded_s"),
            "duration_s": ("Length of the recording.", "coalesce(j.duration_s, r.duration_s)"),
            "decode_errors": ("Packets that could not be decoded.", "r.decode_errors"),
            "loudest_db": ("Level of the loudest second, in dB below full scale.", "r.loudest_db"),
            "clipped": ("Share of samples at full scale, 0 to 1.", "r.clipped"),
            "gain_db": ("By how much it was made louder before speech was looked for.", "r.gain_db"),
            "device_s": (_SPENT["device_s"], "j.device_s"),
            "cost": (_SPENT["cost"], "j.cost"),
            "created_at": (_TIMES["created_at"], "j.created_at"),
            "finished_at": (_TIMES["finished_at"], "j.finished_at"),
            "current": (_CURRENT["current"], "r.superseded_by IS NULL"),
        },
        _JOINED,
    )  # fmt: skip
    return View("jobs_v", "Each job: the request to transcribe one recording with one set of options.", about, query)


def _transcripts(sql: _Sql) -> View:
    about, query = _select(
        {
            "job_id": (_JOB["job_id"], "j.id"),
            "transcript_id": (_OF_SEGMENT["transcript_id"], "t.id"),
            "url": (_JOB["url"], "r.url"),
            "sha256": ("SHA-256 of the recording's bytes.", "t.sha256"),
            "labels": (_JOB["labels"], sql.labels),
            "state": ("done, or partial where some of the recording could not be read.", "j.state"),
            "code": ("ok, no_speech, or why it is partial.", "j.code"),
            "model": ("The model that made it.", "t.model"),
            "compute_type": ("What was really computed in; several joined by +.", "t.compute_type"),
            "task": ("transcribe, or translate into English.", "t.task"),
            "language": ("The language that is spoken longest.", "t.language"),
            "language_probability": ("How sure that is, 0 to 1.", "t.language_probability"),
            "duration_s": ("Length of the recording.", "t.duration_s"),
            "channels": ("Channels that were read apart; 1 for a mix.", "t.channels"),
            "words": ("Words of the text.", "t.words"),
            "words_per_minute": ("Of transcribed speech.", "t.words * 60.0 / NULLIF(t.transcribed_s, 0)"),
            "transcribed_s": ("Seconds with text.", "t.transcribed_s"),
            "no_speech_s": ("Seconds in which nobody speaks.", "t.no_speech_s"),
            "failed_s": ("Seconds of which the text is missing; coverage_v says why.", "t.failed_s"),
            "metadata": ("The user's own keys and values, as JSON.", "j.metadata"),
            "device_s": (_SPENT["device_s"], "j.device_s"),
            "cost": (_SPENT["cost"], "j.cost"),
            "created_at": (_TIMES["created_at"], "j.created_at"),
            "finished_at": (_TIMES["finished_at"], "j.finished_at"),
            "current": (_CURRENT["current"], "r.superseded_by IS NULL"),
            "text": ("All of the text, in the order of time. Costs nothing where it is not asked for.", sql.text),
        },
        f"{_JOINED} JOIN transcripts t ON t.id = j.transcript_id",
    )
    return View("transcripts_v", "Each job that has a transcript.", about, query)


def _of_segment(query: str) -> str:
    return f"{query} JOIN jobs j ON j.transcript_id = s.transcript_id JOIN recordings r ON r.id = j.recording_id"


def _segments(sql: _Sql) -> View:
    about, query = _select(
        {
            "job_id": (_OF_SEGMENT["job_id"], "j.id"),
            "transcript_id": (_OF_SEGMENT["transcript_id"], "s.transcript_id"),
            "url": (_OF_SEGMENT["url"], "r.url"),
            "position": ("Its place in the transcript, from 0.", "s.position"),
            "channel": (_OF_SEGMENT["channel"], "s.channel"),
            "start_s": (_OF_SEGMENT["start_s"], "s.start_s"),
            "end_s": (_OF_SEGMENT["end_s"], "s.end_s"),
            "text": ("What is said.", "s.text"),
            "language": ("In which language.", "s.language"),
            "language_probability": ("How sure that is, 0 to 1; null where it was told.", "s.language_probability"),
            "avg_logprob": ("Mean log-probability of its tokens; under -1 it is in doubt.", "s.avg_logprob"),
            "confidence": ("The same as a probability, 0 to 1.", "exp(s.avg_logprob)"),
            "no_speech_prob": ("Probability of silence, by the model.", "s.no_speech_prob"),
            "compression_ratio": ("Over 2.4 the text repeats itself.", "s.compression_ratio"),
            "temperature": ("At which it was decoded.", "s.temperature"),
            "flags": ("What is doubted about it (docs/quality.md).", sql.flags),
            "finished_at": (_TIMES["finished_at"], "j.finished_at"),
        },
        _of_segment("segments s"),
    )
    return View("segments_v", "Each piece of a transcript: a sentence where the text allows it.", about, query)


def _words(sql: _Sql) -> View:
    about, query = _select(
        {
            "job_id": (_OF_SEGMENT["job_id"], "j.id"),
            "transcript_id": (_OF_SEGMENT["transcript_id"], "s.transcript_id"),
            "url": (_OF_SEGMENT["url"], "r.url"),
            "segment": ("The segment's place in the transcript, from 0.", "s.position"),
            "position": ("The word's place in its segment, from 0.", sql.place),
            "channel": (_OF_SEGMENT["channel"], "s.channel"),
            "start_s": (_OF_SEGMENT["start_s"], sql.of_word(0)),
            "end_s": (_OF_SEGMENT["end_s"], sql.of_word(1)),
            "word": ("As it is written, without spaces around it.", f"trim({sql.of_word(2)})"),
            "probability": ("How sure the model is of it, 0 to 1.", sql.of_word(3)),
        },
        f"segments s {sql.words} JOIN jobs j ON j.transcript_id = s.transcript_id "
        "JOIN recordings r ON r.id = j.recording_id",
    )
    return View("words_v", "Each word with its time, of jobs with --word-timestamps.", about, query)


def _coverage() -> View:
    about, query = _select(
        {
            "job_id": (_OF_SEGMENT["job_id"], "j.id"),
            "transcript_id": (_OF_SEGMENT["transcript_id"], "s.transcript_id"),
            "url": (_OF_SEGMENT["url"], "r.url"),
            "channel": (_OF_SEGMENT["channel"], "s.channel"),
            "start_s": (_OF_SEGMENT["start_s"], "s.start_s"),
            "end_s": (_OF_SEGMENT["end_s"], "s.end_s"),
            "kind": ("transcribed, no_speech or failed.", "s.kind"),
            "reason": ("Why there is no text.", "s.reason"),
        },
        _of_segment("coverage s"),
    )
    return View(
        "coverage_v",
        "What became of each stretch of a channel: together they are the recording's length.",
        about,
        query,
    )


def _failures(sql: _Sql) -> View:
    about, query = _select(
        {
            "job_id": (_JOB["job_id"], "j.id"),
            "url": (_JOB["url"], "r.url"),
            "labels": (_JOB["labels"], sql.labels),
            "state": ("partial, rejected or failed.", "j.state"),
            "code": ("Why (README, the table of codes).", "j.code"),
            "error": ("The same in words.", "j.error"),
            "size_bytes": ("Of the recording.", "r.size_bytes"),
            "duration_s": ("Length of the recording, where it is known.", "coalesce(j.duration_s, r.duration_s)"),
            "failed_s": ("Seconds without text, of a partial one.", "t.failed_s"),
            "device_s": (_SPENT["device_s"], "j.device_s"),
            "created_at": (_TIMES["created_at"], "j.created_at"),
            "finished_at": (_TIMES["finished_at"], "j.finished_at"),
            "current": (_CURRENT["current"], "r.superseded_by IS NULL"),
        },
        f"{_JOINED} LEFT JOIN transcripts t ON t.id = j.transcript_id "
        "WHERE j.state IN ('partial', 'rejected', 'failed')",
    )
    return View("failures_v", "Each job that did not end well, and why.", about, query)


def _quality(sql: _Sql) -> View:
    whole = "NULLIF(t.duration_s * t.channels, 0)"
    about, query = _select(
        {
            "job_id": (_JOB["job_id"], "j.id"),
            "url": (_JOB["url"], "r.url"),
            "labels": (_JOB["labels"], sql.labels),
            "model": ("The model that made it.", "t.model"),
            "language": ("The language that is spoken longest.", "t.language"),
            "duration_s": ("Length of the recording.", "t.duration_s"),
            "words": ("Words of the text.", "t.words"),
            "segments": ("Segments of the text.", "s.segments"),
            "flagged": ("Segments with a flag.", "s.flagged"),
            "avg_logprob": ("Mean over all segments, by their length.", "s.mean"),
            "confidence": ("The same as a probability, 0 to 1.", "exp(s.mean)"),
            "lowest_logprob": ("Of the least certain segment.", "s.lowest"),
            "transcribed": ("Share of the recording with text, 0 to 1.", f"t.transcribed_s / {whole}"),
            "no_speech": ("Share in which nobody speaks.", f"t.no_speech_s / {whole}"),
            "failed": ("Share of which the text is missing.", f"t.failed_s / {whole}"),
            "finished_at": (_TIMES["finished_at"], "j.finished_at"),
        },
        f"{_JOINED} JOIN transcripts t ON t.id = j.transcript_id {sql.worst}",
    )  # fmt: skip
    return View("quality_v", "How good each transcript is, as far as the model itself can tell.", about, query)


def _daily_usage(sql: _Sql) -> View:
    counted = {s: (f"Jobs that ended {s}.", f"sum(CASE WHEN j.state = '{s}' THEN 1 ELSE 0 END)") for s in _ENDED}
    about, query = _select(
        {
            "day": ("The day, in UTC, on which the jobs ended.", sql.day),
            "model": ("The model asked for.", "j.model"),
            "jobs": ("Jobs that ended.", "count(*)"),
            **counted,
            "audio_s": ("Length of their recordings.", "sum(coalesce(j.duration_s, 0))"),
            "transcribed_s": ("Seconds with text.", "sum(coalesce(t.transcribed_s, 0))"),
            "words": ("Words of their texts.", "sum(coalesce(t.words, 0))"),
            "device_s": (_SPENT["device_s"], "sum(j.device_s)"),
            "cost": (_SPENT["cost"], "sum(j.cost)"),
        },
        f"jobs j LEFT JOIN transcripts t ON t.id = j.transcript_id WHERE j.state IN {_ENDED} "
        f"AND j.finished_at IS NOT NULL GROUP BY {sql.day}, j.model",
    )
    return View("daily_usage_v", "What was done on each day, by model.", about, query)
