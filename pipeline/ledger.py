"""Chunks on their way through the model, and how their results get into the database: once each, under the fence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from chunking.errors import LeaseLost, PermanentError
from pipeline.batching import Waiting
from pipeline.engine import Ask, Encoded, Floats, Heard
from pipeline.inhand import ClaimOptions, InHand
from pipeline.languages import listening_window
from pipeline.mixed import MixedReading, reading_of
from pipeline.reading import Reading, Request
from pipeline.shards import OpenShard
from pipeline.telemetry import Tally
from storage import checkpoints, leases, plans
from storage.database import Database
from storage.leases import Lease


@dataclass(eq=False)
class Work:
    """A chunk on its way."""

    shard: OpenShard
    reading: Reading | MixedReading
    request: Request
    features: Floats | Encoded | None = None
    age: int = 0
    listening: bool = True
    """Its language is not known yet: what goes through the model is listened to, and not decoded."""
    heard: Encoded | None = None
    """What the encoder made of the chunk when it was listened to, until it is decoded from there."""
    rounds: int = 0
    """How often it was listened to."""
    device_s: float = 0.0
    """Its share of the calls that it was in."""

    def look(self) -> bool:
        """Whether there is something to ask the model by now, `request`: which language it is, then the text."""
        if not self.listening:
            return True
        chunk, channel, hearing = self.reading.chunk, self.shard.shard.channel, self.shard.hearing
        if spoken := hearing.spoken(chunk.index):
            self.reading = reading_of(chunk, channel, spoken, self.shard.options.prompt)
            self.request, self.listening = self.reading.first, False
            self.features, self.heard = self.heard, None
            return True
        span = hearing.wanted(chunk.index)
        if span is not None:
            self.request = Request(span, chunk.window if span == chunk.span else listening_window(span), 0.0)
        return span is not None

    def hear(self, heard: Heard | None) -> None:
        """What listening to `request` gave; None: it cannot be listened to."""
        self.rounds += 1
        index, span = self.reading.chunk.index, self.request.span
        self.shard.hearing.take(index, span, heard.languages if heard else {})
        if heard and span == self.reading.chunk.span:
            self.heard = heard.encoded
        self.features = None

    @property
    def again(self) -> bool:
        """Decoded before, or only listened to: it takes nothing of the room for chunks that begin."""
        return self.reading.begun or self.listening

    @property
    def been(self) -> bool:
        """It has been through the model, to be listened to or decoded."""
        return self.reading.begun or self.rounds > 0

    @property
    def prompt(self) -> tuple[int, ...]:
        """What stands before it now."""
        return self.shard.prompt if self.request.prompted else ()

    def waiting(self) -> Waiting[Work]:
        """How it may share a batch."""
        r, reading = self.request, self.reading
        prompt = 0 if self.listening else len(self.prompt)
        tokens, again, age = reading.expected_tokens, self.again, self.age
        return Waiting(self, r.window, r.temperature, tokens, again, age, prompt, self.listening)

    def ask(self) -> Ask:
        """What the model is to decode now."""
        if self.features is None:
            raise PermanentError("a chunk went to the model without features")
        chunk, options = self.reading.chunk, self.shard.options
        return Ask(
            features=self.features,
            window=self.request.window,
            duration=self.request.span.duration,
            language=self.request.language,
            task=options.task,
            temperature=self.request.temperature,
            words=options.word_timestamps or chunk.cut_before or chunk.cut_after,
            prompt=self.prompt,
        )


@dataclass(frozen=True, slots=True)
class Written:
    """What came of writing."""

    settled: tuple[Work, ...] = ()
    """Written, or nobody's any more."""
    lost: tuple[Lease, ...] = ()
    """Shards that other workers have now."""
    handed_on: tuple[int, ...] = ()
    """Jobs whose last shard is done."""


class Ledger:
    """Results that are read and not written yet; one thread owns it."""

    def __init__(self, database: Database, hand: InHand, claims: ClaimOptions, tally: Tally, compute_type: str) -> None:
        """`compute_type`: what the model of this process really computes in."""
        self._db, self._hand, self._tally = database, hand, tally
        self._worker, self._price_per_hour = claims.worker, claims.price_per_hour
        self._compute_type = compute_type
        self._unwritten: list[Work] = []

    def __bool__(self) -> bool:
        return bool(self._unwritten)

    def add(self, read: Sequence[Work]) -> None:
        """These chunks are read. Kept from now on, whatever goes wrong before they are written."""
        self._unwritten += read

    def write(self) -> Written:
        """One transaction for all that has been read, which checks the fence of every shard in it.

        A shard that another worker has now takes nothing with it: its chunks are dropped, the others' are written.
        Where the database does not answer, all of it is kept for the next time. Raises DatabaseAway then.
        """
        kept = [w for w in self._unwritten if w.shard.lease in self._hand.shards]
        shards = {w.shard.lease: w.shard for w in kept}
        lost: list[Lease] = []
        handed_on: list[int] = []
        ending = {s.job for s in shards.values() if not s.open - {w.reading.chunk.index for w in kept if w.shard is s}}
        with self._tally.stage("write"), self._db.transaction() as tx:
            plans.lock_jobs(tx, ending)
            for lease in sorted(shards, key=lambda x: x.id):  # in order, so that two workers cannot deadlock
                try:
                    if self._checkpoint(tx, shards[lease], [w for w in kept if w.shard.lease == lease]):
                        handed_on.append(shards[lease].job)
                except LeaseLost:
                    lost.append(lease)
        settled, self._unwritten = tuple(self._unwritten), []
        self._note([w for w in kept if w.shard.lease not in lost])
        return Written(settled, tuple(lost), tuple(handed_on))

    def end(self, shard: OpenShard) -> Written:
        """End a shard that has nothing left to decode: a kill came between its last checkpoint and its end."""
        self._hand.drop(shard.lease)
        try:
            with self._db.transaction() as tx:
                plans.lock_jobs(tx, [shard.job])
                return Written(handed_on=(shard.job,) if self._checkpoint(tx, shard, []) else ())
        except LeaseLost:
            return Written()

    def drop(self, lease: Lease) -> None:
        """Forget what was read of this shard."""
        self._unwritten = [w for w in self._unwritten if w.shard.lease != lease]

    def _checkpoint(self, tx: Connection, shard: OpenShard, works: Sequence[Work]) -> bool:
        """Checkpoint, and end the shard with its last chunk. True: that was the job's last shard."""
        results = [replace(w.reading.result(), compute_type=self._compute_type) for w in works]
        spent = {w.reading.chunk.index: w.device_s for w in works}
        checkpoints.write(
            tx, shard.lease, shard.job, self._worker, results, spent=spent, price_per_hour=self._price_per_hour
        )
        if shard.open - {w.reading.chunk.index for w in works}:
            return False
        leases.end(tx, shard.lease, "done")
        return plans.shards_done(tx, shard.job)

    def _note(self, written: Sequence[Work]) -> None:
        self._tally.add(chunks_decoded=len(written), audio_s=sum(w.reading.chunk.span.duration for w in written))
        if written:
            self._tally.got_on("transcribe")
        for work in written:
            work.shard.open.discard(work.reading.chunk.index)
        now = time.monotonic()
        for shard in {w.shard for w in written}:
            shard.trace.event("checkpoint", chunks=sum(w.shard is shard for w in written))
            if shard.claimed_at:
                self._tally.observe("checkpoint_latency_seconds", now - shard.claimed_at)
                shard.claimed_at = 0.0
            if not shard.open:
                self._hand.drop(shard.lease)
