"""The shards that a worker has in hand: claimed, opened, kept alive, given back.

Nothing more is taken while a shard is in hand that may kill its worker, nor beside one (storage/quarantine.py).
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from chunking.errors import LeaseLost, SpotscribeError
from pipeline.company import Company
from pipeline.shards import OpenShard, ShardLoader
from pipeline.telemetry import Tally
from storage import leases, plans
from storage.database import Database
from storage.leases import LEASE_S, Lease, Step

FIRST_GUESS = 40.0
"""Chunks of a shard, until some have been seen: ten minutes of speech. A low guess would load hours of audio."""
POLL_S = 0.5
"""How long nothing is claimed after nothing was found, unless a nudge comes; twice as long each time, up to a limit."""
SUSPECTS_S = 5.0
"""How often a worker looks for shards that must be claimed alone."""


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """Whose name stands on a lease, for how long, and what may be claimed."""

    worker: str
    engine: str | None = None
    """Shards of jobs that this engine decodes; None: any."""
    lease_s: float = LEASE_S
    poll_s: float = POLL_S
    """The longest time between two looks for work."""
    price_per_hour: float = 0.0
    """Of the device."""


class InHand:
    """One thread owns it; `nudge` may be set from any."""

    def __init__(
        self, database: Database, loader: ShardLoader, options: ClaimOptions, company: Company, most: int, tally: Tally
    ) -> None:
        """`most`: shards that one claim may take."""
        self._tally = tally
        self.nudge = threading.Event()
        self.shards: dict[Lease, OpenShard] = {}
        self.loading: dict[Future[OpenShard], Lease] = {}
        self._db, self._loader, self._options, self._company = database, loader, options, company
        self._most = most
        self._pool = ThreadPoolExecutor(1, "load")
        self._chunks_per_shard = FIRST_GUESS
        self._pause, self._nothing_until = POLL_S, 0.0
        self._joined = self._solo = self._suspect = False
        self._looked = -SUSPECTS_S
        self._renewed = time.monotonic()

    @property
    def empty(self) -> bool:
        return not self.shards and not self.loading

    def claim(self, missing: int) -> None:
        """Lease shards that come to about so many chunks, and have them opened."""
        if self.empty:
            self._rest()
        if missing <= 0 or self.loading or self._solo:  # what is being opened may already be enough
            return
        if not self.nudge.is_set() and time.monotonic() < self._nothing_until:
            return
        self.nudge.clear()
        taken = self._suspects() or self._ordinary(missing)
        self._pause = POLL_S if taken else min(self._options.poll_s, 2 * self._pause)
        if not taken:
            self._nothing_until = time.monotonic() + self._pause
        for lease in taken:
            self.loading[self._pool.submit(self._loader.load, lease, time.monotonic())] = lease

    def opened(self, future: Future[OpenShard]) -> OpenShard | None:
        """A shard whose loading has ended. None: its sound cannot be had, and it waits or ends alone."""
        lease = self.loading.pop(future)
        try:
            shard = future.result()
        except SpotscribeError as e:
            self.unreadable(lease, e)
            return None
        self.shards[lease] = shard
        self._chunks_per_shard = max(1.0, 0.5 * self._chunks_per_shard + 0.5 * len(shard.open))
        return shard

    def unreadable(self, lease: Lease, error: SpotscribeError) -> None:
        """End or put off a shard that cannot be decoded."""
        self.drop(lease)
        with suppress(LeaseLost), self._db.transaction() as tx:
            if plans.fail_shard(tx, lease, error) is None:
                self._tally.count("put_off", "transcribe")

    def renew(self) -> list[Lease]:
        """Every quarter of a lease: prolong. The answer is what another worker has now."""
        if time.monotonic() - self._renewed < self._options.lease_s / 4:
            return []
        with self._db.transaction() as tx:
            held = leases.renew(tx, {*self.shards, *self.loading.values()})
        self._renewed = time.monotonic()
        return [lease for lease in self.shards if lease not in held]

    def drop(self, lease: Lease) -> None:
        """Forget a shard: it is done, or somebody else's."""
        shard = self.shards.pop(lease, None)
        if shard is not None:
            shard.close()

    def give_back(self) -> None:
        """Everything to the queue, for others to take at once."""
        try:
            with self._db.transaction() as tx:
                for lease in {*self.shards, *self.loading.values()}:
                    leases.release(tx, lease)
        finally:
            for shard in self.shards.values():
                shard.close()
            self.shards.clear()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _ordinary(self, missing: int) -> list[Lease]:
        if self._company.closed or not (self._joined or self._company.join()):
            return []
        self._joined = True
        return self._taken(limit=max(1, min(self._most, round(missing / self._chunks_per_shard))))

    def _suspects(self) -> list[Lease]:
        """A shard that has to be alone, once nothing is in hand. Until then nothing more is taken."""
        if not self._suspect and time.monotonic() - self._looked > SUSPECTS_S:
            self._looked = time.monotonic()
            with self._db.reading() as tx:
                self._suspect = leases.has_suspects(tx, Step.TRANSCRIBE, self._options.worker, self._options.engine)
        if not self._suspect or not self._company.alone(self):
            return []
        taken = self._taken(suspects=True)
        self._suspect, self._solo = False, bool(taken)
        if not taken:
            self._company.end_alone(self)
        return taken

    def _taken(self, *, limit: int = 1, suspects: bool = False) -> list[Lease]:
        o = self._options
        with self._db.transaction() as tx:
            taken = leases.claim(
                tx, Step.TRANSCRIBE, o.worker, limit=limit, seconds=o.lease_s, engine=o.engine, suspects=suspects
            )
        if taken:
            self._tally.count("claims", "transcribe", by=len(taken))
        return taken

    def _rest(self) -> None:
        """Nothing is in hand: whoever wants to be alone may be."""
        if self._joined:
            self._company.leave()
        if self._solo:
            self._company.end_alone(self)
        self._joined = self._solo = False
