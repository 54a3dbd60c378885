"""A leased shard, opened: its sound, what is left to do in it, and the language that its words are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from chunking.audio import read_flac
from chunking.timeline import Shard, Span
from pipeline.engine import Engine, Samples
from pipeline.telemetry import Tally
from storage import checkpoints, jobs, plans
from storage.database import Database
from storage.jobs import JobOptions
from storage.leases import Lease
from storage.objects import ObjectStore

LANGUAGE_SAMPLES = 3
"""Chunks that vote for a recording's language."""


@dataclass(eq=False)
class OpenShard:
    """A shard under lease. Its sound stays in its file and is read chunk by chunk, so its length costs no memory."""

    lease: Lease
    job: int
    shard: Shard
    flac: BinaryIO
    """Exactly the shard's span."""
    options: JobOptions
    language: str
    open: set[int]
    """Chunks that are not checkpointed yet."""
    prompt: tuple[int, ...] = ()
    """What stands before each chunk, in the model's tokens."""

    def sound(self, span: Span) -> Samples:
        """The samples of a span of the recording, int16 at 16 kHz. One thread at a time."""
        at = self.shard.span.start
        self.flac.seek(0)
        return read_flac(self.flac, Span(max(0.0, span.start - at), span.end - at))

    def close(self) -> None:
        self.flac.close()


class ShardLoader:
    """Opens shards. Safe to share by threads."""

    def __init__(self, database: Database, store: ObjectStore, engine: Engine, tally: Tally) -> None:
        self._db, self._store, self._engine, self._tally = database, store, engine, tally

    def load(self, lease: Lease) -> OpenShard:
        """Read a shard and its plan; chunks whose checkpoints stand are not open any more.

        Raises PermanentError where its prompt is too long for this model.
        """
        with self._db.reading() as tx:
            job, key, shard = plans.shard_of(tx, lease)
            done = checkpoints.of_shard(tx, lease.id)
            view = jobs.view(tx, job)
        left = {c.index for c in shard.chunks} - done
        language = view.options.language or view.language or ""
        prompt = self._engine.prompt(view.options.prompt)
        opened = OpenShard(lease, job, shard, self._store.open(key), view.options, language, left, prompt)
        if not opened.language:
            opened.language = self._detect(opened)
        reused = sum(c.span.duration for c in shard.chunks if c.index in done)
        self._tally.add(reused_s=reused)
        return opened

    def _detect(self, shard: OpenShard) -> str:
        """The job's language, by the vote of a few of its longest chunks; the first answer of any shard stands."""
        chunks = sorted(shard.shard.chunks, key=lambda c: -c.span.duration)[:LANGUAGE_SAMPLES]
        votes: dict[str, float] = {}
        for chunk in chunks:
            features = self._engine.features(shard.sound(chunk.span), chunk.window)
            for language, probability in self._engine.languages([features])[0].items():
                votes[language] = votes.get(language, 0.0) + probability / len(chunks)
        language = max(votes, key=lambda x: votes[x])
        with self._db.transaction() as tx:
            return plans.set_language(tx, shard.job, language, votes[language])[0]
