"""Transcribe: leased shards in, checkpoints out, with the model never waiting for anything it could have had ready.

One loop, and beside it three small pools: loading shards, log-mel features, the model. The loop claims shards of any
jobs until two batches are at hand, has features computed ahead, sends batches of one window length to the model as soon
as a call is free, judges each answer, and writes what is finished in one transaction per batch that checks the fences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from chunking.errors import LeaseLost, PermanentError, SpotscribeError
from pipeline.batching import Waiting, next_batch
from pipeline.engine import Answer, Ask, Engine, Floats
from pipeline.reading import Reading, Request
from pipeline.shards import OpenShard, ShardLoader
from pipeline.telemetry import Tally
from storage import checkpoints, leases, plans
from storage.database import Database
from storage.leases import LEASE_S, Lease, Step
from storage.objects import ObjectStore

BATCHES_AHEAD = 2
"""Batches whose features are ready or on their way. The model never waits, and memory stays small."""
FIRST_GUESS = 40.0
"""Chunks of a shard, until some have been seen: ten minutes of speech. A low guess would load hours of audio."""
POLL_S = 0.5
"""How long nothing is claimed after nothing was found, unless a nudge comes."""


@dataclass(eq=False)
class _Work:
    """A chunk on its way through the model."""

    shard: OpenShard
    reading: Reading
    request: Request
    features: Floats | None = None
    age: int = 0


class Transcriber:
    """A worker's transcribe step. `run` is one loop in one thread; `nudge` may be set from any."""

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        engine: Engine,
        *,
        worker: str,
        batch_size: int,
        tally: Tally,
        transcribed: Callable[[], None] = lambda: None,
    ) -> None:
        """`transcribed` is called when a job's last shard is done: there is something to finish."""
        self.nudge = threading.Event()
        self._transcribed = transcribed
        self._loader = ShardLoader(database, store, engine, tally)
        self._db, self._engine, self._worker, self._tally = database, engine, worker, tally
        self._batch_size = max(batch_size, engine.parallel)
        self._call_size = max(1, self._batch_size // engine.parallel)
        self._shards: dict[Lease, OpenShard] = {}
        self._fresh: list[_Work] = []
        self._ready: list[_Work] = []
        self._begun: set[_Work] = set()
        self._loading: dict[Future[Any], Lease] = {}
        self._computing: dict[Future[Any], _Work] = {}
        self._decoding: dict[Future[Any], list[_Work]] = {}
        self._renewed = time.monotonic()
        self._chunks_per_shard = FIRST_GUESS
        self._nothing_until = 0.0

    def run(self, stop: threading.Event, finished: Callable[[], bool], *, grace_s: float = 1.5) -> None:
        """Work until `finished()` says so with nothing in hand, or `stop` is set; then leave within `grace_s`.

        `finished` is asked only when there is nothing to claim.
        """
        self._loading_pool = ThreadPoolExecutor(1, "load")
        self._featurer = ThreadPoolExecutor(1, "features")
        self._model = ThreadPoolExecutor(self._engine.parallel, "model")
        try:
            while not stop.is_set():
                self._claim()
                self._advance()
                if self._futures():
                    self._collect(0.1)
                elif finished():
                    return
                else:
                    self.nudge.wait(POLL_S)
                self._heartbeat()
        finally:
            self._leave(time.monotonic() + grace_s)
            for pool in (self._loading_pool, self._featurer, self._model):
                pool.shutdown(wait=False, cancel_futures=True)

    def _futures(self) -> list[Future[Any]]:
        return [*self._loading, *self._computing, *self._decoding]

    def _advance(self) -> None:
        self._feed()
        self._launch()

    def _claim(self) -> None:
        """Lease shards until two batches are at hand."""
        at_hand = len(self._fresh) + len(self._ready) + len(self._computing)
        missing = BATCHES_AHEAD * self._batch_size - at_hand
        if missing <= 0 or self._loading:  # what is being loaded may already be enough
            return
        if not self.nudge.is_set() and time.monotonic() < self._nothing_until:
            return
        self.nudge.clear()
        limit = max(1, min(self._batch_size, round(missing / self._chunks_per_shard)))
        with self._db.transaction() as tx:
            taken = leases.claim(tx, Step.TRANSCRIBE, self._worker, limit=limit)
        if not taken:
            self._nothing_until = time.monotonic() + POLL_S
        for lease in taken:
            self._loading[self._loading_pool.submit(self._loader.load, lease)] = lease

    def _feed(self) -> None:
        """Have features computed for the next windows, second attempts first."""
        ahead = BATCHES_AHEAD * self._batch_size - len(self._ready) - len(self._computing)
        again = [w for w in self._fresh if w.reading.begun]
        first = [w for w in self._fresh if not w.reading.begun]
        for work in [*again, *first[: max(0, ahead - len(again))]]:
            self._fresh.remove(work)
            self._computing[self._featurer.submit(self._features, work)] = work

    def _features(self, work: _Work) -> Floats:
        with self._tally.stage("read"):
            sound = work.shard.sound(work.request.span)
        with self._tally.stage("features"):
            return self._engine.features(sound, work.request.window)

    def _launch(self) -> None:
        """Send batches to the model while a call is free."""
        while len(self._decoding) < self._engine.parallel:
            waiting = [
                Waiting(w, w.request.window, w.request.temperature, w.reading.expected_tokens, w.reading.begun, w.age)
                for w in self._ready
            ]
            found = next_batch(
                waiting,
                room=self._batch_size - len(self._begun),
                size=self._fits,
                calls=self._engine.parallel - len(self._decoding),
                more_to_come=bool(self._computing or self._loading),
            )
            batch = [w.item for w in found]
            if not batch:
                return
            chosen = set(batch)
            self._ready = [w for w in self._ready if w not in chosen]
            for work in self._ready:
                work.age += 1
            self._begun |= chosen
            fill = len(batch) / self._fits(batch[0].request.window)
            self._tally.add(batches=1, batch_fill=fill)
            self._decoding[self._model.submit(self._decode, batch)] = batch

    def _fits(self, window: float) -> int:
        return self._engine.fits(window, self._call_size)

    def _decode(self, batch: Sequence[_Work]) -> list[Answer]:
        with self._tally.stage("decode"):
            return self._engine.decode([_ask(w) for w in batch])

    def _collect(self, timeout: float) -> None:
        done, _ = wait(self._futures(), timeout=timeout, return_when=FIRST_COMPLETED)
        finished: list[_Work] = []
        for future in done:
            if future in self._loading:
                self._loaded(self._loading.pop(future), future)
            elif future in self._computing:
                self._computed(self._computing.pop(future), future)
            else:
                finished += self._decoded(self._decoding.pop(future), future)
        if finished:
            self._advance()  # the model goes on while this batch is written
            self._checkpoint(finished)

    def _loaded(self, lease: Lease, future: Future[Any]) -> None:
        try:
            shard = future.result()
        except SpotscribeError as e:
            self._unreadable(lease, e)
            return
        self._shards[lease] = shard
        self._chunks_per_shard = max(1.0, 0.5 * self._chunks_per_shard + 0.5 * len(shard.open))
        if not shard.open:  # a kill came between the last checkpoint and the end
            self._end(shard)
        for chunk in shard.shard.chunks:
            if chunk.index in shard.open:
                reading = Reading(chunk, shard.shard.channel, shard.language)
                self._fresh.append(_Work(shard, reading, reading.first))

    def _computed(self, work: _Work, future: Future[Any]) -> None:
        lease = work.shard.lease
        try:
            work.features = future.result()
        except SpotscribeError as e:
            if lease in self._shards:
                self._unreadable(lease, e)
            return
        if lease in self._shards:
            self._ready.append(work)

    def _unreadable(self, lease: Lease, error: SpotscribeError) -> None:
        """A shard whose sound cannot be had ends, or waits, alone."""
        self._drop(lease)
        with suppress(LeaseLost), self._db.transaction() as tx:
            plans.fail_shard(tx, lease, error)

    def _end(self, shard: OpenShard) -> None:
        self._shards.pop(shard.lease).close()
        with suppress(LeaseLost):
            with self._db.transaction() as tx:
                self._write(tx, shard, [])
            self._transcribed()

    def _decoded(self, batch: Sequence[_Work], future: Future[Any]) -> list[_Work]:
        """Give each chunk its answer. The chunks that are read come back; the others wait for another decoding."""
        try:
            for work, answer in zip(batch, future.result(), strict=True):
                work.reading.take(answer)
        except SpotscribeError as e:
            self._failed(batch, e)
        finished = []
        for work in batch:
            work.features = None
            request = work.reading.request
            if request is None:
                finished.append(work)
            elif work.shard.lease in self._shards:
                work.request, work.age = request, 0
                self._fresh.append(work)
            else:
                self._begun.discard(work)
        return finished

    def _failed(self, batch: Sequence[_Work], error: SpotscribeError) -> None:
        """A batch that fails is decoded again chunk by chunk, so that one chunk cannot take others with it."""
        for work in batch:
            try:
                for answer in self._engine.decode([_ask(work)]):
                    work.reading.take(answer)
            except PermanentError as alone:
                work.reading.fail(str(alone) or str(error))

    def _checkpoint(self, finished: Sequence[_Work]) -> None:
        """One transaction for all that a batch finished, which checks the fence of every shard in it.

        A shard that has another worker now takes nothing with it: its chunks are dropped, the others' are written.
        """
        shards = {w.shard.lease: w.shard for w in finished if w.shard.lease in self._shards}
        lost: list[Lease] = []
        handed_on = False
        with self._tally.stage("write"), self._db.transaction() as tx:
            for shard in shards.values():
                try:
                    handed_on |= self._write(tx, shard, [w for w in finished if w.shard is shard])
                except LeaseLost:
                    lost.append(shard.lease)
        for lease in lost:
            self._drop(lease)
        kept = [w for w in finished if w.shard.lease in self._shards]
        self._begun.difference_update(finished)
        self._tally.add(chunks_decoded=len(kept), audio_s=sum(w.reading.chunk.span.duration for w in kept))
        for shard in shards.values():
            shard.open -= {w.reading.chunk.index for w in kept if w.shard is shard}
            if not shard.open:
                self._shards.pop(shard.lease).close()
        if handed_on:
            self._transcribed()

    def _write(self, tx: Connection, shard: OpenShard, works: Sequence[_Work]) -> bool:
        """Checkpoint, and end the shard with its last chunk. True: that was the job's last shard."""
        checkpoints.write(tx, shard.lease, shard.job, self._worker, [w.reading.result() for w in works])
        if shard.open - {w.reading.chunk.index for w in works}:
            return False
        leases.end(tx, shard.lease, "done")
        return plans.shards_done(tx, shard.job)

    def _heartbeat(self) -> None:
        if time.monotonic() - self._renewed < LEASE_S / 3:
            return
        self._renewed = time.monotonic()
        with self._db.transaction() as tx:
            held = leases.renew(tx, {*self._shards, *self._loading.values()})
        for lease in [x for x in self._shards if x not in held]:
            self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        """Another worker has the shard: forget it."""
        self._shards.pop(lease, None)
        self._fresh = [w for w in self._fresh if w.shard.lease != lease]
        self._ready = [w for w in self._ready if w.shard.lease != lease]
        self._begun = {w for w in self._begun if w.shard.lease != lease}

    def _leave(self, deadline: float) -> None:
        """Write what the model finishes in time, give the leases back."""
        self._fresh, self._ready = [], []
        while self._decoding and (left := deadline - time.monotonic()) > 0:
            done, _ = wait(self._decoding, timeout=left, return_when=FIRST_COMPLETED)
            for future in done:
                self._checkpoint(self._decoded(self._decoding.pop(future), future))
        with self._db.transaction() as tx:
            for lease in {*self._shards, *self._loading.values()}:
                leases.release(tx, lease)
        self._shards.clear()


def _ask(work: _Work) -> Ask:
    chunk, options = work.reading.chunk, work.shard.options
    if work.features is None:
        raise PermanentError("a chunk went to the model without features")
    return Ask(
        features=work.features,
        window=work.request.window,
        duration=work.request.span.duration,
        language=work.shard.language,
        task=options.task,
        temperature=work.request.temperature,
        words=options.word_timestamps or chunk.cut_before or chunk.cut_after,
    )
