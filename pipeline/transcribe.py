"""Transcribe: leased shards in, checkpoints out, with the model never waiting for anything it could have had ready.

One loop, and beside it three small pools: loading shards, log-mel features, the model. The loop claims shards of any
jobs until two batches are at hand, has features computed ahead, sends batches of one window length to the model as soon
as a call is free (where nobody knows their language, first to be listened to), judges each answer, and writes what is
finished in one transaction per batch that checks the fences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from chunking.errors import (
    DatabaseAway,
    DeviceLost,
    OutOfMemory,
    PermanentError,
    SpotscribeError,
)
from pipeline import listening
from pipeline.batching import next_batch
from pipeline.calls import ModelCalls
from pipeline.company import Company
from pipeline.engine import Engine, Floats, Heard
from pipeline.inhand import ClaimOptions, InHand
from pipeline.ledger import Ledger, Work, Written
from pipeline.reading import Reading
from pipeline.shards import ShardLoader
from pipeline.telemetry import Tally
from storage.database import Database
from storage.leases import Lease
from storage.objects import ObjectStore

BATCHES_AHEAD = 2
"""Batches whose features are ready or on their way. The model never waits, and memory stays small."""
PATIENCE_S = 1.0
"""How long a batch that is not full waits for recordings that are being prepared: a batch of 3 takes a model nearly as
long as one of 16, and on CPU the preparing has its cores meanwhile."""
IDLE_S = 0.5
"""With nothing in hand: how long to wait for a nudge before looking whether it is time to look."""
AWAY_S = 1.0
"""How long to wait before a database that did not answer is asked again."""


class Transcriber:
    """A worker's transcribe step. `run` is one loop in one thread; `nudge` may be set from any."""

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        engine: Engine,
        claims: ClaimOptions,
        *,
        batch_size: int,
        tally: Tally,
        company: Company | None = None,
        coming: Callable[[], bool] = lambda: False,
        stall_s: float = 600.0,
    ) -> None:
        """`coming`: whether more will be ready soon, so that a batch had better wait for it.

        `stall_s`: a call of the model that takes longer is taken to hang, and no lease is renewed any more."""
        self.transcribed: Callable[[int], None] = lambda job: None
        """Called with a job whose last shard is done: there is something to finish."""
        self._batch_size = max(batch_size, engine.parallel)
        self._calls = ModelCalls(database, engine, claims, tally, max(1, self._batch_size // engine.parallel), stall_s)
        loader = ShardLoader(database, store, engine, tally)
        self._hand = InHand(database, loader, claims, company or Company(), self._batch_size, tally)
        self.nudge = self._hand.nudge
        self._db, self._engine, self._tally, self._coming = database, engine, tally, coming
        self._held_back: float | None = None
        """Since when a batch waits for what is coming."""
        self._fresh: list[Work] = []
        self._ready: list[Work] = []
        self._begun: set[Work] = set()
        self._ledger = Ledger(database, self._hand, claims, tally, engine.compute_type)
        self._computing: dict[Future[Any], Work] = {}
        self._away_until = 0.0

    @property
    def idle(self) -> bool:
        """Nothing is in hand, and nobody says that there is anything. May be asked from any thread."""
        return self._hand.empty and not self.nudge.is_set()

    @property
    def stalled(self) -> bool:
        """A call of the model hangs. May be asked from any thread."""
        return self._calls.stalled

    def run(
        self, stop: threading.Event, finished: Callable[[], bool], *, grace: Callable[[], float] = lambda: 1.5
    ) -> None:
        """Work until `finished()` says so with nothing in hand, or `stop` is set; then leave within `grace()` seconds.

        `finished` is asked only when there is nothing to claim. Raises DeviceLost, with everything still in hand: its
        leases run out, and what was in hand is a suspect from then on.
        """
        self._featurer = ThreadPoolExecutor(1, "features")
        self._calls.start()
        lost = False
        try:
            while not stop.is_set():
                if not self._turn() and finished():
                    return
        except DeviceLost:
            lost = True
            raise
        finally:
            if not lost:
                self._leave(time.monotonic() + grace())
            self._featurer.shutdown(wait=False, cancel_futures=True)
            self._calls.end()

    def _turn(self) -> bool:
        """Once round the loop. False: there was nothing to do. While the database is away the model goes on."""
        try:
            if time.monotonic() >= self._away_until:
                self._keep_up()
            self._advance()
            if self._futures():
                self._collect(0.1)
                return True
            if self._ledger:
                time.sleep(AWAY_S / 4)
                return True
        except DatabaseAway:
            self._away_until = time.monotonic() + AWAY_S
            self._tally.got_on("transcribe")  # starting this process again would bring no database back
            return True
        if self._hand.empty:
            self._tally.got_on("transcribe")
        self.nudge.wait(IDLE_S)
        return not self._hand.empty

    def _keep_up(self) -> None:
        """What goes through the database, apart from what a batch has finished."""
        if self._ledger:
            self._write()
        listening.agree(self._db, self._hand.shards.values())
        if not self.stalled:
            for lease in self._hand.renew():
                self._lost(lease)
        at_hand = len(self._fresh) + len(self._ready) + len(self._computing)
        self._hand.claim(BATCHES_AHEAD * self._batch_size - at_hand)

    def _futures(self) -> list[Future[Any]]:
        return [*self._hand.loading, *self._computing, *self._calls.futures]

    def _advance(self) -> None:
        self._feed()
        self._launch()

    def _feed(self) -> None:
        """Have features computed for the next windows, what has been through the model first."""
        ahead = BATCHES_AHEAD * self._batch_size - len(self._ready) - len(self._computing)
        possible = [w for w in self._fresh if w.look()]
        again = [w for w in possible if w.been]
        first = [w for w in possible if not w.been]
        for work in [*again, *first[: max(0, ahead - len(again))]]:
            self._fresh.remove(work)
            if work.features is None:
                self._computing[self._featurer.submit(self._features, work)] = work
            else:
                self._ready.append(work)

    def _features(self, work: Work) -> Floats:
        with self._tally.stage("read"):
            sound = work.shard.sound(work.request.span)
        with self._tally.stage("features"):
            return self._engine.features(sound, work.request.window)

    def _launch(self) -> None:
        """Send batches to the model while a call is free."""
        while self._calls.free > 0:
            found = next_batch(
                [w.waiting() for w in self._ready],
                room=self._batch_size - len(self._begun),
                size=self._calls.size,
                calls=self._calls.free,
                more_to_come=self._more_to_come(),
            )
            batch = [w.item for w in found]
            if not batch:
                return
            self._held_back = None
            chosen = set(batch)
            self._ready = [w for w in self._ready if w not in chosen]
            for work in self._ready:
                work.age += 1
            self._begun |= {w for w in batch if not w.listening}
            self._calls.submit(batch)

    def _more_to_come(self) -> bool:
        if self._computing or self._hand.loading:
            return True
        if not self._ready or not self._coming():
            return False
        self._held_back = self._held_back or time.monotonic()
        return time.monotonic() - self._held_back < PATIENCE_S

    def _collect(self, timeout: float) -> None:
        done, _ = wait(self._futures(), timeout=timeout, return_when=FIRST_COMPLETED)
        read = False
        for future in done:
            if future in self._hand.loading:
                self._loaded(future)
            elif future in self._computing:
                self._computed(self._computing.pop(future), future)
            else:
                read |= self._decoded(self._calls.pop(future), future)
        if read:
            self._advance()  # the model goes on while this batch is written
            self._write()

    def _loaded(self, future: Future[Any]) -> None:
        shard = self._hand.opened(future)
        if shard is None:
            return
        if not shard.open:
            self._settle(self._ledger.end(shard))
        for chunk in shard.shard.chunks:
            if chunk.index in shard.open:
                reading = Reading(chunk, shard.shard.channel, "")
                self._fresh.append(Work(shard, reading, reading.first))

    def _computed(self, work: Work, future: Future[Any]) -> None:
        lease = work.shard.lease
        try:
            work.features = future.result()
        except SpotscribeError as e:
            if lease in self._hand.shards:
                self._drop(lease)
                self._hand.unreadable(lease, e)
            return
        if lease in self._hand.shards:
            self._ready.append(work)

    def _decoded(self, batch: Sequence[Work], future: Future[Any]) -> bool:
        """Give each chunk its answer. Whether some are read now; the others wait for another decoding."""
        if batch[0].listening:
            self._heard(batch, future)
            return False
        try:
            for work, answer in zip(batch, future.result(), strict=True):
                work.reading.take(answer)
        except OutOfMemory as e:
            if len(batch) > 1:
                self._halve(batch)
                return False
            self._tally.count("out_of_memory")
            batch[0].reading.fail(str(e))
        except PermanentError as e:
            self._failed(batch, e)
        read = []
        for work in batch:
            work.features = None
            request = work.reading.request
            if request is None:
                read.append(work)
            elif work.shard.lease in self._hand.shards:
                if work.reading.why:
                    self._tally.count("redecodes", work.reading.why)
                work.request, work.age = request, 0
                self._fresh.append(work)
            else:
                self._begun.discard(work)
        self._ledger.add(read)
        return bool(read)

    def _heard(self, batch: Sequence[Work], future: Future[Any]) -> None:
        """Note which languages were heard. Every one of these goes on: to the text, or to wait for its neighbours."""
        try:
            heard: list[Heard | None] = future.result()
        except OutOfMemory:
            if len(batch) > 1:
                self._halve(batch)
                return
            heard = [None]
        listening.note(batch, heard, self._fresh)
        self._fresh[:0] = [w for w in batch if w.shard.lease in self._hand.shards]

    def _failed(self, batch: Sequence[Work], error: SpotscribeError) -> None:
        """A batch that fails is decoded again chunk by chunk, so that one chunk cannot take others with it."""
        for work in batch:
            try:
                for answer in self._calls.decode([work]):
                    work.reading.take(answer)
            except (PermanentError, OutOfMemory) as alone:
                work.reading.fail(str(alone) or str(error))

    def _halve(self, batch: Sequence[Work]) -> None:
        """The device has no memory for so many."""
        self._calls.halve(len(batch))
        for work in batch:
            work.age += 1
        self._begun.difference_update(batch)
        self._ready[:0] = [w for w in batch if w.shard.lease in self._hand.shards]

    def _write(self) -> None:
        self._settle(self._ledger.write())

    def _settle(self, written: Written) -> None:
        self._begun.difference_update(written.settled)
        for lease in written.lost:
            self._lost(lease)
        for job in written.handed_on:
            self.transcribed(job)

    def _lost(self, lease: Lease) -> None:
        """Another worker has the shard."""
        self._tally.count("leases_lost", "transcribe")
        self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        """Forget the shard."""
        self._hand.drop(lease)
        self._fresh = [w for w in self._fresh if w.shard.lease != lease]
        self._ready = [w for w in self._ready if w.shard.lease != lease]
        self._ledger.drop(lease)
        self._begun = {w for w in self._begun if w.shard.lease != lease}

    def _leave(self, deadline: float) -> None:
        """Write what the model finishes in time, give the leases back."""
        self._fresh, self._ready = [], []
        with suppress(DatabaseAway, DeviceLost):
            while self._calls.futures and (left := deadline - time.monotonic()) > 0:
                done, _ = wait(self._calls.futures, timeout=left, return_when=FIRST_COMPLETED)
                for future in done:
                    self._decoded(self._calls.pop(future), future)
                    self._write()
            if self._ledger:
                self._write()
        with suppress(DatabaseAway):
            self._hand.give_back()
