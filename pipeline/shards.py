"""A leased shard, opened: its sound, what is left to do in it, and which language its words are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from chunking.audio import read_flac
from chunking.timeline import Shard, Span
from pipeline import tracing
from pipeline.engine import Engine, Samples
from pipeline.hearing import EachChunk, Hearing, OneLanguage
from pipeline.languages import MULTI, UNHEARD
from pipeline.telemetry import Tally
from storage import checkpoints, jobs, plans
from storage.database import Database
from storage.jobs import JobOptions, JobView
from storage.leases import Lease
from storage.objects import ObjectStore


@dataclass(eq=False)
class OpenShard:
    """A shard under lease. Its sound stays in its file and is read chunk by chunk, so its length costs no memory."""

    lease: Lease
    job: int
    shard: Shard
    flac: BinaryIO
    """Exactly the shard's span."""
    options: JobOptions
    hearing: Hearing
    open: set[int]
    """Chunks that are not checkpointed yet."""
    prompt: tuple[int, ...] = ()
    """What stands before each chunk, in the model's tokens."""
    claimed_at: float = 0.0
    """By the monotonic clock; 0 once its first checkpoint is written."""
    trace: tracing.Span = tracing.NO_SPAN
    """The span of its stay here, in its recording's trace."""

    def sound(self, span: Span) -> Samples:
        """The samples of a span of the recording, int16 at 16 kHz. One thread at a time."""
        at = self.shard.span.start
        self.flac.seek(0)
        return read_flac(self.flac, Span(max(0.0, span.start - at), span.end - at))

    def close(self) -> None:
        self.flac.close()
        self.trace.note(left_here=len(self.open))
        self.trace.end()


class ShardLoader:
    """Opens shards. Safe to share by threads."""

    def __init__(self, database: Database, store: ObjectStore, engine: Engine, tally: Tally) -> None:
        self._db, self._store, self._engine, self._tally = database, store, engine, tally

    def load(self, lease: Lease, claimed_at: float = 0.0) -> OpenShard:
        """Read a shard and its plan; chunks whose checkpoints stand are not open any more.

        Raises PermanentError where its prompt is too long for this model.
        """
        with self._db.reading() as tx:
            job, key, shard = plans.shard_of(tx, lease)
            done = checkpoints.of_shard(tx, lease.id)
            view = jobs.view(tx, job)
            languages = checkpoints.languages_of_shard(tx, lease.id) if view.options.language == MULTI else {}
        left = {c.index for c in shard.chunks} - done
        prompt = self._engine.prompt(view.options.prompt)
        hearing = self._hearing(view, shard, left, languages)
        opened = OpenShard(lease, job, shard, self._store.open(key), view.options, hearing, left, prompt, claimed_at)
        opened.trace = tracing.begin(
            "shard", view.trace, row=lease.id, fence=lease.fence, chunks=len(shard.chunks), left=len(left)
        )
        reused = sum(c.span.duration for c in shard.chunks if c.index in done)
        self._tally.add(reused_s=reused)
        return opened

    def _hearing(self, job: JobView, shard: Shard, left: set[int], languages: Mapping[int, tuple[str, str]]) -> Hearing:
        """Who finds out what is spoken. A job's language that stands, from another shard or an earlier run, counts."""
        told = job.options.language
        if told == MULTI and self._engine.multilingual:
            return EachChunk(shard.chunks, languages)
        if told and told != MULTI:
            return OneLanguage(shard.chunks, told, 1.0)
        if job.language:
            return OneLanguage(shard.chunks, job.language, job.language_probability or 0.0)
        hearing = OneLanguage([c for c in shard.chunks if c.index in left])
        if not self._engine.multilingual:
            hearing.verdict = (UNHEARD, 1.0)
        return hearing
