"""Calls of the model: in threads of their own, as many side by side as it takes, each with a batch of one size.

Not safe to share by threads, but for `stalled`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from chunking.errors import TransientError
from pipeline import listening, tracing
from pipeline.engine import Answer, Engine, Heard
from pipeline.inhand import ClaimOptions
from pipeline.ledger import Work
from pipeline.telemetry import Tally
from storage import fleet
from storage.database import Database


class ModelCalls:
    """Start it, submit batches while a call is `free`, take each batch back with its ended future."""

    def __init__(
        self, database: Database, engine: Engine, claims: ClaimOptions, tally: Tally, size: int, stall_s: float
    ) -> None:
        """`size`: windows of one call, until the device has no memory for so many."""
        self.size = size
        self._db, self._engine, self._tally, self._stall_s = database, engine, tally, stall_s
        self._claims = claims
        self._running: dict[Future[Any], list[Work]] = {}
        self._began: dict[Future[Any], float] = {}

    @property
    def futures(self) -> Collection[Future[Any]]:
        return self._running.keys()

    @property
    def free(self) -> int:
        """Calls that could begin now."""
        return self._engine.parallel - len(self._running)

    @property
    def stalled(self) -> bool:
        """A call hangs. May be asked from any thread."""
        began = list(self._began.values())
        return bool(began) and time.monotonic() - min(began) > self._stall_s

    def start(self) -> None:
        """Before the first call: what a worker on such a device found to be too much is not tried again."""
        self._pool = ThreadPoolExecutor(self._engine.parallel, "model")
        with suppress(TransientError), self._db.reading() as tx:
            limit = fleet.batch_limit(tx, self._claims.engine or "", self._engine.device)
            self.size = min(self.size, limit or self.size)

    def end(self) -> None:
        """Does not wait: a call cannot be ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, batch: list[Work]) -> None:
        """Have the batch listened to, if that is what it waits for, or decoded."""
        if batch[0].listening:
            call: Future[Any] = self._pool.submit(self._listen, batch)
        else:
            self._tally.add(batches=1, batch_fill=len(batch) / self.size)
            self._tally.observe("batch_fill_ratio", len(batch) / self.size)
            call = self._pool.submit(self.decode, batch)
        self._running[call] = batch
        self._began[call] = time.monotonic()

    def pop(self, future: Future[Any]) -> list[Work]:
        """The batch of an ended call."""
        self._began.pop(future)
        return self._running.pop(future)

    def halve(self, tried: int) -> None:
        """The device has no memory for so many: go on with half, and have every worker on such a device know."""
        self._tally.count("out_of_memory")
        self.size = max(1, min(self.size, tried) // 2)
        with suppress(TransientError), self._db.transaction() as tx:
            fleet.limit_batch(tx, self._claims.engine or "", self._engine.device, self.size)

    def decode(self, batch: Sequence[Work]) -> list[Answer]:
        """In the thread that asks, counted as any call."""
        with self._tally.stage("decode"), self._shared_out(batch):
            return self._engine.decode([w.ask() for w in batch])

    def _listen(self, batch: Sequence[Work]) -> list[Heard | None]:
        with self._tally.stage("listen"), self._shared_out(batch):
            return listening.listen(self._engine, batch)

    @contextmanager
    def _shared_out(self, batch: Sequence[Work]) -> Iterator[None]:
        """The call's time is the device's, or its part where several calls share it; all windows are equally long."""
        began = time.perf_counter()
        parents = [p for w in batch if (p := w.shard.trace.parent) is not None]
        kind, window = "listen" if batch[0].listening else "decode", batch[0].request.window
        try:
            with tracing.batch(parents, kind=kind, window=window, size=len(batch), device=self._engine.device):
                yield
        finally:
            spent = (time.perf_counter() - began) / self._engine.parallel
            self._tally.add(device_s=spent)
            self._count(batch)
            for work in batch:
                work.device_s += spent / len(batch)

    def _count(self, batch: Sequence[Work]) -> None:
        requests = [w.request for w in batch]
        windows = sum(r.window for r in requests)
        self._tally.count("batches", "listen" if batch[0].listening else "decode")
        self._tally.count("window_seconds", by=windows)
        self._tally.count("padding_seconds", by=max(0.0, windows - sum(r.span.duration for r in requests)))
