"""The tables. Their history is in migrations/; a test holds the two together.

Times in a recording are seconds (`_s`); times of day are the database's, in UTC. The records that a query never looks
into (a shard's plan, a checkpoint's content, a segment's words, a source's settings) are JSON; everything else is a
column. One file, though a long one: the schema is read as a whole.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage.moments import now_plus

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}

LEADER = text("leader = 1")
SUSPECT = text("crashes >= 2")
LATER = text("state = 'later'")
DUE = text("state = 'due' AND receiver <> ''")  # the second half keeps claims away from this index: they need an order
Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """The metadata and how columns are typed."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text,
        float: Float,
        int: Integer,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }


class Leased:
    """What makes a row leasable (storage/leases.py)."""

    state: Mapped[str]
    priority: Mapped[int] = mapped_column(server_default="0")
    assigned: Mapped[str | None]
    """The only worker that may take it: one machine's run takes its own jobs and no others. None: any."""
    fence: Mapped[int] = mapped_column(server_default="0")
    worker: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    next_run_at: Mapped[datetime | None]
    crashes: Mapped[int] = mapped_column(server_default="0")
    """Workers that died with it in hand since it last got on."""
    solo: Mapped[int] = mapped_column(server_default="0")
    """1: the lease is held by a process that has nothing else in hand."""
    solo_crashes: Mapped[int] = mapped_column(server_default="0")
    """Those of the deaths that nothing else can have caused."""


class Recording(Base):
    """One source media object. `identity` says which bytes are meant: URL and version, or URL, size and change time."""

    __tablename__ = "recordings"
    __table_args__ = (Index("ix_recordings_url", "url", postgresql_using="hash"),)  # a B-tree takes 2 700 bytes

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    url: Mapped[str]
    identity: Mapped[str] = mapped_column(unique=True)
    version: Mapped[str] = mapped_column(server_default="")
    """What changes when the bytes do: ETag and size, or size and change time."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(index=True)
    container: Mapped[str | None]
    codec: Mapped[str | None]
    sample_rate: Mapped[int | None]
    channels: Mapped[int | None]
    expected_s: Mapped[float | None]
    decoded_s: Mapped[float | None]
    duration_s: Mapped[float | None]
    decode_errors: Mapped[int | None]
    track: Mapped[int | None]
    """Which of its audio tracks was decoded, from 0."""
    tracks: Mapped[int | None]
    """Audio tracks that it has."""
    mixed: Mapped[str | None]
    """How its channels became one: mono, average, left, right, downmix; or split."""
    loudest_db: Mapped[float | None]
    """Level of its loudest second without rumble, in dB below full scale."""
    clipped: Mapped[float | None]
    """Share of samples at full scale, 0 to 1."""
    dc_offset: Mapped[float | None]
    """The mean of its samples, -1 to 1."""
    gain_db: Mapped[float | None]
    """By how much it was made louder before speech was looked for."""
    highpass_hz: Mapped[float | None]
    """Below which frequency its sound was taken away; null: nothing was."""
    superseded_by: Mapped[int | None] = mapped_column(ForeignKey("recordings.id"), index=True)
    """What lies at its URL now, other bytes: the transcript of these stands, and is not the current one."""
    created_at: Mapped[datetime] = mapped_column(default=now_plus())


class Job(Leased, Base):
    """The request to transcribe one recording with one set of options."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("recording_id", "options_digest"),
        Index("ix_jobs_claim", "state", text("priority DESC"), "id"),
        Index("ix_jobs_suspect", "state", sqlite_where=SUSPECT, postgresql_where=SUSPECT),
        Index("uq_jobs_leader", "content_key", unique=True, sqlite_where=LEADER, postgresql_where=LEADER),
        {"sqlite_autoincrement": True},  # a purged job's number must never come again: old leases carry it
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    recording_id: Mapped[int] = mapped_column(ForeignKey("recordings.id"))
    options: Mapped[dict[str, Any]]
    options_digest: Mapped[str]
    model: Mapped[str]
    code: Mapped[str | None]
    error: Mapped[str | None]
    content_key: Mapped[str | None]
    """SHA-256 of the bytes and the options' digest: equal keys are decoded once."""
    leader: Mapped[int] = mapped_column(server_default="0")
    """1 for the one job of its content key that is decoded; the others wait for it."""
    follows: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    force: Mapped[int] = mapped_column(server_default="0")
    language: Mapped[str | None]
    language_probability: Mapped[float | None]
    duration_s: Mapped[float | None]
    channels: Mapped[int | None]
    lost: Mapped[list[Any] | None]
    """[start_s, end_s] of each stretch that the file could not give."""
    transcript_id: Mapped[int | None] = mapped_column(ForeignKey("transcripts.id"), index=True)
    device_s: Mapped[float] = mapped_column(server_default="0")
    """Seconds of the device that its accepted results took: a GPU, or all the cores that a model runs on."""
    cost: Mapped[float] = mapped_column(server_default="0")
    """Those seconds at the price of the machines that spent them."""
    meta: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    """The user's own keys and values."""
    trace: Mapped[str | None]
    """W3C `traceparent` of the span that all its steps hang on; null: it is not traced."""
    created_at: Mapped[datetime] = mapped_column(default=now_plus())
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    purged_at: Mapped[datetime | None]
    """When its result was deleted by `spotscribe purge` or its source's retention; null: it was not."""


class ShardRow(Leased, Base):
    """About ten minutes of prepared audio and how it is cut into chunks."""

    __tablename__ = "shards"
    __table_args__ = (
        UniqueConstraint("job_id", "position"),
        Index("ix_shards_claim", "state", "engine", text("priority DESC"), "id"),
        Index("ix_shards_suspect", "state", sqlite_where=SUSPECT, postgresql_where=SUSPECT),
        {"sqlite_autoincrement": True},  # a shard's number must never come again: old leases carry it
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    engine: Mapped[str] = mapped_column(server_default="")
    """Which model, in which precision, may decode it: `JobOptions.engine`."""
    position: Mapped[int]
    channel: Mapped[int]
    start_s: Mapped[float]
    end_s: Mapped[float]
    chunks: Mapped[int]
    object_key: Mapped[str]
    plan: Mapped[dict[str, Any]]


class Checkpoint(Base):
    """A chunk's result, written in the transaction that checked the fence."""

    __tablename__ = "checkpoints"

    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    chunk: Mapped[int] = mapped_column(primary_key=True)
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id"), index=True)
    fence: Mapped[int]
    worker: Mapped[str]
    decodes: Mapped[int]
    result: Mapped[dict[str, Any]]
    device_s: Mapped[float] = mapped_column(server_default="0")
    """Its share of the model's calls that it was in."""
    cost: Mapped[float] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(default=now_plus())


class TranscriptRow(Base):
    """The finished result of a job, and of every job with the same content and options."""

    __tablename__ = "transcripts"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sha256: Mapped[str] = mapped_column(index=True)
    options_digest: Mapped[str]
    model: Mapped[str]
    compute_type: Mapped[str]
    task: Mapped[str]
    language: Mapped[str]
    language_probability: Mapped[float]
    duration_s: Mapped[float]
    channels: Mapped[int]
    words: Mapped[int]
    transcribed_s: Mapped[float]
    no_speech_s: Mapped[float]
    failed_s: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(default=now_plus())


class SegmentRow(Base):
    """A piece of a transcript: a sentence where the text allows it."""

    __tablename__ = "segments"

    transcript_id: Mapped[int] = mapped_column(ForeignKey("transcripts.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[int]
    start_s: Mapped[float]
    end_s: Mapped[float]
    text: Mapped[str]
    language: Mapped[str] = mapped_column(index=True)
    avg_logprob: Mapped[float]
    no_speech_prob: Mapped[float]
    compression_ratio: Mapped[float]
    temperature: Mapped[float]
    flags: Mapped[str]
    """Names of quality flags, separated by space."""
    words: Mapped[list[Any] | None]
    """[start_s, end_s, text, probability] for each word, where word times were asked for."""
    language_probability: Mapped[float | None]


class Term(Base):
    """A word that was said in some segment, in small letters: for names whose spelling nobody is sure of."""

    __tablename__ = "terms"

    term: Mapped[str] = mapped_column(primary_key=True)


class CoverageRow(Base):
    """What became of a stretch of one channel. A channel's stretches add up to the recording's duration."""

    __tablename__ = "coverage"
    __table_args__ = (CheckConstraint("kind IN ('transcribed', 'no_speech', 'failed')", name="kind"),)

    transcript_id: Mapped[int] = mapped_column(ForeignKey("transcripts.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[int]
    start_s: Mapped[float]
    end_s: Mapped[float]
    kind: Mapped[str]
    reason: Mapped[str]


class Output(Leased, Base):
    """A file that somebody wants of a job's transcript: `wanted` until the job ends, then `due`, then `written`."""

    __tablename__ = "outputs"
    __table_args__ = (
        UniqueConstraint("url"),
        Index("ix_outputs_claim", "state", text("priority DESC"), "id"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    state: Mapped[str] = mapped_column(server_default="wanted")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    format: Mapped[str]
    url: Mapped[str]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    sha256: Mapped[str | None]
    error: Mapped[str | None]
    """Why it could not be written, the last time it was tried."""
    written_at: Mapped[datetime | None]


class Label(Base):
    """A user's name for a group of jobs. A job may have several."""

    __tablename__ = "labels"

    label: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True, index=True)


class WorkerRow(Base):
    """A process of the fleet, from its start to its leaving."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    version: Mapped[str]
    roles: Mapped[str]
    """`cpu`, `gpu` or both, separated by space."""
    engine: Mapped[str]
    """Which jobs it can decode: `JobOptions.engine`. Empty without the role `gpu`."""
    started_at: Mapped[datetime] = mapped_column(default=now_plus())
    seen_at: Mapped[datetime] = mapped_column(default=now_plus())
    left_at: Mapped[datetime | None]
    """It said goodbye."""
    lost_at: Mapped[datetime | None] = mapped_column(index=True)
    """Its leases ran out while it held them."""
    device: Mapped[str] = mapped_column(server_default="")
    """What its model runs on, as `Engine.device` says it."""
    device_s: Mapped[float] = mapped_column(server_default="0")
    """Seconds that its device was at work, whatever became of that."""
    audio_s: Mapped[float] = mapped_column(server_default="0")
    """Seconds of sound of the chunks whose result was accepted."""
    price_per_hour: Mapped[float] = mapped_column(server_default="0")
    """Of its device, as it was told."""
    market: Mapped[str] = mapped_column(server_default="")
    """How the machine was bought: `spot`, `on_demand`, or whatever it was told."""


class CanaryRow(Base):
    """A worker decoded the canary, a recording whose words are known: what decays in silence is seen by it."""

    __tablename__ = "canaries"
    __table_args__ = (Index("ix_canaries_created_at", "created_at"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    worker: Mapped[str]
    version: Mapped[str]
    """Of Spotscribe and of what decodes: `0.1.0, ctranslate2 4.8.5`."""
    engine: Mapped[str]
    device: Mapped[str]
    recording: Mapped[str]
    """Which canary: SHA-256 of its bytes and of its text, so that another one is another series."""
    wer: Mapped[float]
    rtfx: Mapped[float]
    text: Mapped[str]
    """What was read."""
    created_at: Mapped[datetime] = mapped_column(default=now_plus())


class Scaling(Base):
    """How many workers an engine was last said to want, so that `fewer` comes late and `more` at once."""

    __tablename__ = "scaling"

    queue: Mapped[str] = mapped_column(primary_key=True)
    wanted: Mapped[int]
    fewer_since: Mapped[datetime | None]
    """Since when fewer would do; null: they would not."""
    decided_at: Mapped[datetime] = mapped_column(default=now_plus())


class Chore(Base):
    """What one worker of the fleet does every so often: who took it last did so then."""

    __tablename__ = "chores"

    name: Mapped[str] = mapped_column(primary_key=True)
    taken_at: Mapped[datetime] = mapped_column(default=now_plus())


class EngineLimit(Base):
    """The largest batch that a device was found to have memory for."""

    __tablename__ = "engine_limits"

    engine: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    batch_size: Mapped[int]
    found_at: Mapped[datetime] = mapped_column(default=now_plus())


class SourceRow(Base):
    """A prefix in a bucket, or a folder, whose recordings are taken as they appear: a drop folder."""

    __tablename__ = "sources"
    __table_args__ = (CheckConstraint("state IN ('active', 'paused', 'ad_hoc', 'removed')", name="state"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str] = mapped_column(index=True)
    """s3://bucket/prefix or file:///folder/."""
    state: Mapped[str]
    """`ad_hoc`: named on the command line of one `ingest`, and watched by that one alone."""
    settings: Mapped[dict[str, Any]]
    """`storage.sources.SourceSettings`."""
    listed_at: Mapped[datetime | None]
    """When the last listing of it began."""
    refusals: Mapped[int] = mapped_column(server_default="0")
    """Listings, one after the other, that could not be made."""
    rest_until: Mapped[datetime | None]
    problem: Mapped[str | None]
    """Why the last listing could not be made."""
    purged_at: Mapped[datetime | None]
    """When its retention was carried out last."""
    created_at: Mapped[datetime] = mapped_column(default=now_plus())


class Arrival(Base):
    """The drop folders' ledger: an object that was seen there, once for each identity.

    Rows are never deleted. Of what was purged a row keeps a digest of its identity alone, and its URL is empty."""

    __tablename__ = "arrivals"
    __table_args__ = (
        Index("ix_arrivals_source", "source_id", "state", "modified_s", "id"),
        Index("ix_arrivals_admitted", "source_id", "admitted_at"),
        CheckConstraint("state IN ('held', 'submitted', 'ended')", name="state"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    source_id: Mapped[int] = mapped_column(ForeignKey("sources.id"))
    identity: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str]
    version: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    modified_s: Mapped[int] = mapped_column(BigInteger)
    """When the object was written, in seconds since 1970: written again with the same bytes it is a later one."""
    state: Mapped[str] = mapped_column(server_default="held")
    """`held` until the source's share and budget allow it, then `submitted`; `ended` once its job's end was noted."""
    overtaken: Mapped[int] = mapped_column(server_default="0")
    """1: when it was first heard of, something else lay at its URL already."""
    sidecar: Mapped[dict[str, Any] | None]
    """What a NAME.json beside it asked for (`storage.arrivals.Sidecar`)."""
    note: Mapped[str | None]
    """What was wrong with the sidecar."""
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    seen_at: Mapped[datetime] = mapped_column(default=now_plus())
    admitted_at: Mapped[datetime | None]


class Errand(Leased, Base):
    """What is to be done when a job has ended and its files are delivered: somebody told, the recording put away."""

    __tablename__ = "errands"
    __table_args__ = (
        UniqueConstraint("job_id", "kind", "target"),
        Index("ix_errands_claim", "state", text("priority DESC"), "id"),
        Index("ix_errands_suspect", "state", sqlite_where=SUSPECT, postgresql_where=SUSPECT),
        Index("ix_errands_receiver", "receiver", sqlite_where=DUE, postgresql_where=DUE),
        Index("ix_errands_later", "next_run_at", sqlite_where=LATER, postgresql_where=LATER),
        CheckConstraint("kind IN ('webhook', 'sqs', 'sns', 'move', 'tag', 'delete')", name="kind"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    state: Mapped[str] = mapped_column(server_default="wanted")
    """`wanted` until the job has ended and its files are delivered, then `due`, `running`, `later` (put off until
    `next_run_at`), and `done`, `dead` (given up) or `void` (the job's end does not call for it)."""
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str]
    target: Mapped[str]
    """A URL, a queue, a topic, a prefix."""
    receiver: Mapped[str] = mapped_column(server_default="")
    """Whom it asks (`storage.receivers`): the errands of one wait together."""
    round: Mapped[int] = mapped_column(server_default="1")
    """Which end of the job it is about: a job that is tried again ends again."""
    attempts: Mapped[int] = mapped_column(server_default="0")
    error: Mapped[str | None]
    place: Mapped[str | None] = mapped_column(unique=True)
    """Where a recording is moved to: no two errands may have the same, or one recording would overwrite the other."""
    due_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]


class BucketRow(Base):
    """A bucket that refused recordings: it is left alone for a while, longer each time, until it gives one again."""

    __tablename__ = "buckets"

    bucket: Mapped[str] = mapped_column(primary_key=True)
    refusals: Mapped[int] = mapped_column(server_default="0")
    """One after the other."""
    rest_until: Mapped[datetime | None]
    why: Mapped[str | None]


class Export(Base):
    """A name under which transcripts are exported: a cursor's, or one made of what an export without one asks for."""

    __tablename__ = "exports"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    asked: Mapped[str]
    """What is exported, as what and to where, as JSON: a name stands for one of these and keeps to it."""
    rounds: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(default=now_plus())


class ExportedJob(Base):
    """That an end of a job has been planned into a part of an export. Another end of it is another `finished_at`."""

    __tablename__ = "exported_jobs"
    __table_args__ = (Index("ix_exported_jobs_part", "export_id", "round", "part"),)

    export_id: Mapped[int] = mapped_column(ForeignKey("exports.id"), primary_key=True)
    job_id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=False)
    """No foreign key: what was exported is known even when the job is deleted."""
    finished_at: Mapped[datetime]
    state: Mapped[str]
    round: Mapped[int]
    part: Mapped[int]
    """0: it has no transcript."""


class ExportPart(Base):
    """Some of the jobs of one round of an export, whose files are written together."""

    __tablename__ = "export_parts"

    export_id: Mapped[int] = mapped_column(ForeignKey("exports.id"), primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    part: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    day: Mapped[str]
    """`2026-12-01` where the export is parted by day (UTC), else empty."""
    urls: Mapped[list[Any] | None]
    """Of its files, once they are written."""
    segments: Mapped[int | None]
    written_at: Mapped[datetime | None]
