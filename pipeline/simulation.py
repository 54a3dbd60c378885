"""A fleet in simulated time: what a load will take and cost, before anything is paid for.

What is real: the planner's cuts, jobs, shards, leases and their reclaiming (in SQL, on a database whose clock is the
simulation's), the backlog, the scaling policy. What is assumed: that a worker decodes and a core prepares at so many
times real time, when recordings come and how long they are, when machines are taken away.
"""

from __future__ import annotations

import heapq
import random
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from chunking.errors import Code
from pipeline.scaling import CPU_RTFX, Policy, Standing, decide
from pipeline.scenario import Arrival, Machines, Outcome, cut_of
from storage import backlog, jobs, leases, plans, submission
from storage.backlog import Backlog
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Lease, Step
from storage.simulated import Clock, simulated
from storage.submission import Request
from storage.tables import ShardRow

LOOK_S = 60.0
"""How often the number of workers is looked at."""


@dataclass(eq=False, slots=True)
class _Worker:
    name: str
    spot: bool
    began: float
    ready: float
    held: Lease | None = None
    since: float = 0.0
    """Of the shard in hand."""
    turn: int = 0
    """Which of its plans stands: what was planned before is void."""
    gone: bool = False


def simulate(arrivals: Sequence[Arrival], machines: Machines, policy: Policy, *, seed: int = 0) -> Outcome:
    """Until all that came is done. The same seed gives the same."""
    with tempfile.TemporaryDirectory() as folder:
        return _Simulation(Path(folder), arrivals, machines, policy, seed).run()


class _Simulation:
    def __init__(
        self, folder: Path, arrivals: Sequence[Arrival], machines: Machines, policy: Policy, seed: int
    ) -> None:
        self._clock = Clock()
        self._db = simulated(folder, self._clock)
        self._arrivals, self._m, self._policy = arrivals, machines, policy
        self._chance = random.Random(seed)  # noqa: S311 (a simulation must be repeatable)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._workers: list[_Worker] = []
        self._names = count()
        self._job_of: dict[int, Arrival] = {}
        self._chunks: dict[int, tuple[int, float]] = {}
        """Of each shard: chunks, seconds of sound in them."""
        self._kept: dict[int, int] = {}
        """Of each shard: chunks whose results stand."""
        self._unprepared: deque[float] = deque()
        """Seconds of the recordings that wait for a core."""
        self._preparing = 0
        self._standing: Standing | None = None
        self._fewer_since: float | None = None
        self._out = Outcome(audio_s=sum(a.seconds for a in arrivals))

    def run(self) -> Outcome:
        for i, arrival in enumerate(self._arrivals):
            self._at(arrival.at, lambda i=i, arrival=arrival: self._arrive(i, arrival))  # type: ignore[misc]
        for moment in self._m.kills:
            self._at(moment, self._kill_any)
        self._at(0.0, self._look)
        while self._events and len(self._out.took_s) < len(self._arrivals):
            self._clock.now, _, do = heapq.heappop(self._events)
            do()
        self._out.done_s = self._clock.now
        for worker in list(self._workers):
            self._end(worker)
        self._db.close()
        return self._out

    def _at(self, moment: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), do))

    def _in(self, seconds: float, do: Callable[[], None]) -> None:
        self._at(self._clock.now + seconds, do)

    def _arrive(self, i: int, arrival: Arrival) -> None:
        with self._db.transaction() as tx:
            media = MediaObject(f"s3://simulated/{i}", "1", 1)
            job = submission.submit_all(tx, [media], JobOptions(), Request())[0].job
        self._job_of[job] = arrival
        self._unprepared.append(arrival.seconds)
        self._start_preparing()

    def _start_preparing(self) -> None:
        while self._unprepared and (not self._m.cores or self._preparing < self._m.cores):
            self._preparing += 1
            self._in(self._unprepared.popleft() / CPU_RTFX, self._prepared)

    def _prepared(self) -> None:
        """A core is done with a recording, the next one in the queue."""
        self._preparing -= 1
        self._start_preparing()
        with self._db.transaction() as tx:
            for lease in leases.claim(tx, Step.PREPARE, "cpu"):
                jobs.claim_content(tx, lease, f"{lease.id:064x}")
                cut = cut_of(self._job_of[lease.id].seconds)
                plans.store_plan(tx, lease, cut, [f"{lease.id}/{s.index}" for s in cut.shards])
                if not cut.shards:
                    self._in(0.0, self._finish)
        for worker in self._workers:
            if worker.held is None and worker.ready <= self._clock.now:
                self._claim(worker)

    def _claim(self, worker: _Worker) -> None:
        if worker.gone or worker.held is not None:
            return
        with self._db.transaction() as tx:
            taken = leases.claim(
                tx, Step.TRANSCRIBE, worker.name, seconds=self._m.lease_s, engine=JobOptions().engine
            )  # fmt: skip
            if not taken:
                return  # who prepares the next one wakes it
            (worker.held,) = taken
            if worker.held.id not in self._chunks:
                self._chunks[worker.held.id] = _content(tx, worker.held.id)
        worker.since, worker.turn = self._clock.now, worker.turn + 1
        chunks, seconds = self._chunks[worker.held.id]
        left = seconds * (1 - self._kept.get(worker.held.id, 0) / chunks)
        turn = worker.turn
        self._in(left / self._m.rtfx, lambda: self._done(worker, turn))

    def _done(self, worker: _Worker, turn: int) -> None:
        if worker.gone or worker.turn != turn or worker.held is None:
            return
        lease, worker.held = worker.held, None
        with self._db.transaction() as tx:
            leases.renew(tx, [lease])  # as it did all the time
            leases.end(tx, lease, "done")
            job = tx.execute(ShardRow.__table__.select().where(ShardRow.id == lease.id)).one().job_id
            last = plans.shards_done(tx, job)
        self._out.working_s += self._clock.now - worker.since
        self._out.shards += 1
        self._out.chunks += self._chunks[lease.id][0]
        if last:
            self._in(0.0, self._finish)
        self._claim(worker)

    def _finish(self) -> None:
        with self._db.transaction() as tx:
            for lease in leases.claim(tx, Step.FINISH, "cpu"):
                jobs.end_job(tx, lease, "done", Verdict(Code.OK), duration_s=self._job_of[lease.id].seconds)
                self._out.took_s.append(self._clock.now - self._job_of[lease.id].at)

    def _look(self) -> None:
        """How many workers are wanted, by the real backlog and the real policy."""
        load = Backlog(JobOptions().engine)
        if len(self._out.took_s) < len(self._job_of):  # else all that has come is done
            with self._db.reading() as tx:
                load = next((b for b in backlog.backlogs(tx) if b.queue != backlog.CPU), load)
        self._out.peak_s = max(self._out.peak_s, load.audio_s)
        now = self._clock.now
        before = self._standing
        if before is not None and self._fewer_since is not None:
            before = Standing(before.wanted, now - self._fewer_since)
        decision = decide(load, self._policy, before)
        self._fewer_since = None if decision.fewer_for_s is None else (self._fewer_since or now)
        self._standing = Standing(decision.wanted)
        while len(self._workers) < decision.wanted:
            self._launch()
        spare = sorted(self._workers, key=lambda w: (w.held is not None, -w.began))
        for worker in spare[: max(0, len(self._workers) - decision.wanted)]:
            self._leave(worker)
        self._out.workers.append((now, len(self._workers)))
        self._in(LOOK_S, self._look)

    def _launch(self) -> None:
        on_demand = sum(not w.spot for w in self._workers)
        spot = on_demand >= round(self._m.on_demand * (len(self._workers) + 1))
        now = self._clock.now
        worker = _Worker(f"w{next(self._names)}", spot, now, now + self._m.start_s)
        self._workers.append(worker)
        self._at(worker.ready, lambda: self._claim(worker))
        if spot and self._m.interruptions > 0:
            noticed = self._chance.random() < self._m.noticed
            end = self._leave if noticed else self._kill
            self._in(self._chance.expovariate(self._m.interruptions / 3600), lambda: end(worker, interrupted=True))

    def _kill_any(self) -> None:
        busy = [w for w in self._workers if w.held is not None]
        if busy:
            self._kill(busy[0], interrupted=True)

    def _leave(self, worker: _Worker, *, interrupted: bool = False) -> None:
        """It is told so, checkpoints what it has, and gives its leases back."""
        if worker.gone:
            return
        self._out.interrupted += interrupted
        if worker.held is not None:
            self._keep(worker, lost=0)
            with self._db.transaction() as tx:
                leases.renew(tx, [worker.held])
                leases.release(tx, worker.held)
        self._end(worker)
        self._wake()

    def _kill(self, worker: _Worker, *, interrupted: bool = False) -> None:
        """Without a word: its leases run out, and others go on from its last batch."""
        if worker.gone:
            return
        self._out.interrupted += interrupted
        if worker.held is not None:
            self._keep(worker, lost=self._m.batch)
            with self._db.transaction() as tx:
                leases.renew(tx, [worker.held])  # the last time
            self._in(self._m.lease_s + 1.0, self._reclaim)
        self._end(worker)

    def _reclaim(self) -> None:
        with self._db.transaction() as tx:
            leases.renew(tx, [w.held for w in self._workers if w.held is not None])
            leases.reclaim(tx)
        self._wake()

    def _wake(self) -> None:
        for worker in self._workers:
            if worker.held is None and worker.ready <= self._clock.now:
                self._claim(worker)

    def _keep(self, worker: _Worker, *, lost: int) -> None:
        """What of the shard in hand stands: all whole batches, or, told to leave, all that is decoded."""
        assert worker.held is not None
        chunks, seconds = self._chunks[worker.held.id]
        kept = self._kept.get(worker.held.id, 0)
        decoded = min(chunks - 1, kept + int((self._clock.now - worker.since) * self._m.rtfx * chunks / seconds))
        stands = kept + (decoded - kept) // lost * lost if lost else decoded
        self._kept[worker.held.id] = stands
        self._out.repeated_s += (decoded - stands) * seconds / chunks
        self._out.working_s += self._clock.now - worker.since

    def _end(self, worker: _Worker) -> None:
        worker.gone = True
        self._workers.remove(worker)
        alive = self._clock.now - worker.began
        self._out.machine_s += alive
        self._out.starting_s += min(alive, self._m.start_s)
        self._out.cost += alive / 3600 * (self._m.price_spot if worker.spot else self._m.price_on_demand)


def _content(tx: object, shard: int) -> tuple[int, float]:
    row = tx.execute(ShardRow.__table__.select().where(ShardRow.id == shard)).one()  # type: ignore[attr-defined]
    return row.chunks, row.end_s - row.start_s
