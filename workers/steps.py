"""The threads that do the steps in one process, for `spotscribe run` and for a fleet's worker alike.

Some threads finish, deliver and prepare; one transcribes. They wake each other by events, and each also looks for work
by itself, so a lost nudge costs seconds and no work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from structlog.contextvars import bound_contextvars

from chunking.errors import Code, LeaseLost, TransientError
from pipeline import tracing
from pipeline.company import Company
from pipeline.inhand import SUSPECTS_S, ClaimOptions
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from storage import errands, jobs, leases, outputs
from storage.database import Database
from storage.jobs import Verdict
from storage.leases import Lease, Step

LOG = logging.getLogger("spotscribe.steps")
Do = Callable[[Lease], None]
FIRST_PAUSE_S = 0.5
"""How long a thread that found nothing waits for a nudge; twice as long each time, up to `poll_s`."""
EMPTY_S = 0.25
"""How long a step in which nothing was found is not looked at again, unless somebody says that there is something."""
AT_ONCE = {Step.DELIVER: 4}
"""Rows of one claim, where it is more than one: files are small."""
AWAY_S = 1.0
"""How long to wait before a database that did not answer is asked again."""


class Steps:
    """Start them, nudge them, end them. `broken` is what ended a thread that should not have ended."""

    def __init__(
        self,
        database: Database,
        claims: ClaimOptions,
        company: Company,
        *,
        tally: Tally,
        part: str = "cpu",
        cpu: Sequence[tuple[Step, Do]] = (),
        cpu_threads: int = 0,
        transcriber: Transcriber | None = None,
        room_ahead: Callable[[], bool] = lambda: True,
        ready: Callable[[Step, int], None] = lambda step, row: None,
        keeps_out: bool = True,
        debug: bool = False,
    ) -> None:
        """`part`: how the process's part is called that these threads are.

        `cpu`: what the CPU threads do, most urgent first. `room_ahead`: whether more should be prepared now.

        `ready` is called when a step has made work for the next one, with its job. `keeps_out`: nothing more is taken
        until a suspect can be alone; else the suspect waits until it happens to be, since others may take an hour.
        `debug`: a step's unforeseen error ends its thread, and does not only fail its job.
        """
        self._db, self._claims, self._company = database, claims, company
        self._tally, self._part = tally, part
        self._cpu_steps, self._transcriber = tuple(cpu), transcriber
        self._room_ahead, self._ready, self._keeps_out, self._debug = room_ahead, ready, keeps_out, debug
        self.stop, self.done = threading.Event(), threading.Event()
        self.cpu_nudge = threading.Event()
        self.broken: BaseException | None = None
        self._grace_s = 1.5
        self._looked = -SUSPECTS_S
        self._threads = [self._thread(f"cpu{i}", self._cpu) for i in range(cpu_threads if cpu else 0)]
        self._empty_until: dict[Step, float] = {}
        self._waiting = 0
        self._counting = threading.Lock()
        if transcriber is not None:
            transcriber.transcribed = self._transcribed
            self._threads.append(self._thread("transcribe", lambda: self._transcribe(transcriber)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def nudge(self) -> None:
        """There is work."""
        self._empty_until.clear()
        self.cpu_nudge.set()
        if self._transcriber is not None:
            self._transcriber.nudge.set()

    @property
    def has_room(self) -> bool:
        """Whether every kind of thread has one that looks for work and finds none."""
        cpu = not self._cpu_steps or (self._waiting > 0 and not self.cpu_nudge.is_set())
        return cpu and (self._transcriber is None or self._transcriber.idle)

    def halt(self, grace_s: float) -> None:
        """Begin to leave: the model's calls get so many seconds to end. Does not wait."""
        self._grace_s = grace_s
        self.done.set()
        self.stop.set()
        self.nudge()

    def join(self, seconds: float) -> bool:
        """Wait for the threads to end, but no longer than that. Whether they have ended."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(t.is_alive() for t in self._threads)

    def _transcribe(self, transcriber: Transcriber) -> None:
        transcriber.run(self.stop, self.done.is_set, grace=lambda: self._grace_s)

    def _cpu(self) -> None:
        """One CPU thread: the first step that has something to do, else wait for a nudge."""
        pause = FIRST_PAUSE_S
        while not self.stop.is_set():
            self.cpu_nudge.clear()
            try:
                worked = self._suspect() or self._turn()
            except TransientError:  # the database is away
                worked = False
                self.stop.wait(AWAY_S)
            if worked:
                pause = FIRST_PAUSE_S
            else:
                self._rest(pause)
                pause = min(2 * pause, self._claims.poll_s)

    def _rest(self, seconds: float) -> None:
        self._tally.got_on(self._part)
        with self._counting:
            self._waiting += 1
        self.cpu_nudge.wait(seconds)
        with self._counting:
            self._waiting -= 1

    def _transcribed(self, job: int) -> None:
        self._empty_until.pop(Step.FINISH, None)
        self.cpu_nudge.set()
        self._ready(Step.FINISH, job)

    def _turn(self) -> bool:
        """Do one thing, if there is one."""
        if not self._company.join():
            return False
        try:
            return any(
                self._claimed(step, do)
                for step, do in self._cpu_steps
                if step is not Step.PREPARE or self._room_ahead()
            )
        finally:
            self._company.leave()

    def _suspect(self) -> bool:
        """Do what has to be done alone, once nobody else in this process has anything in hand."""
        me = threading.get_ident()
        if not self._company.closed and time.monotonic() - self._looked < SUSPECTS_S:
            return False
        self._looked = time.monotonic()
        with self._db.reading() as tx:
            found = [s for s in self._cpu_steps if leases.has_suspects(tx, s[0], self._claims.worker)]
        if not found:
            self._company.end_alone(me)
            return False
        if not self._company.alone(me):
            if not self._keeps_out:
                self._company.end_alone(me)
            return False
        try:
            return self._claimed(*found[0], suspects=True)
        finally:
            self._company.end_alone(me)

    def _claimed(self, step: Step, do: Do, *, suspects: bool = False) -> bool:
        c = self._claims
        if not suspects and time.monotonic() < self._empty_until.get(step, 0.0):
            return False
        self._empty_until[step] = time.monotonic() + EMPTY_S  # before the look: what is said meanwhile must count
        with self._db.transaction() as tx:
            limit = AT_ONCE.get(step, 1)
            claimed = leases.claim(tx, step, c.worker, limit=limit, seconds=c.lease_s, suspects=suspects)
        if claimed:
            self._empty_until.pop(step, None)
            self._tally.count("claims", step.name.lower(), by=len(claimed))
        for lease in claimed:
            self._guarded(do, lease)
        return bool(claimed)

    def _guarded(self, do: Do, lease: Lease) -> None:
        """A step that goes wrong in a way nobody thought of fails its own job and no other."""
        row = "output" if lease.step is Step.DELIVER else "errand" if lease.step is Step.ERRAND else "job"
        try:
            with bound_contextvars(step=lease.step.name.lower(), **{row: lease.id}):
                self._do(do, lease)
        except LeaseLost:
            self._tally.count("leases_lost", lease.step.name.lower())
            return
        self._tally.got_on(self._part)
        if lease.step is Step.FINISH:
            self._empty_until.pop(Step.DELIVER, None)
        if lease.step is Step.PREPARE:
            if self._transcriber is not None:
                self._transcriber.nudge.set()
            self._ready(Step.TRANSCRIBE, lease.id)
        if lease.step is not Step.ERRAND:  # a job may have ended
            self._ready(Step.ERRAND, lease.id)

    def _do(self, do: Do, lease: Lease) -> None:
        try:
            with self._traced(lease):
                do(lease)
        except LeaseLost:
            LOG.warning("its lease is lost: another worker goes on")
            raise
        except TransientError:
            raise
        except Exception as e:
            LOG.exception("an error that nobody thought of: %s", e)
            if self._debug:
                raise
            self._fail(lease, f"{type(e).__name__}: {e}")

    @contextmanager
    def _traced(self, lease: Lease) -> Iterator[None]:
        if not tracing.on():
            yield
            return
        with self._db.reading() as tx:
            parent = jobs.trace_of(tx, lease)
        name, c = lease.step.name.lower(), self._claims
        with tracing.span(name, parent, worker=c.worker, row=lease.id, fence=lease.fence) as made:
            try:
                yield
            except Exception as e:
                made.fail(type(e).__name__)
                raise

    def _fail(self, lease: Lease, why: str) -> None:
        with suppress(LeaseLost), self._db.transaction() as tx:
            if lease.step is Step.DELIVER:
                outputs.failed(tx, lease, why)
            elif lease.step is Step.ERRAND:
                errands.dead(tx, lease, why)
            else:
                jobs.end_job(tx, lease, "failed", Verdict(Code.INTERNAL, why))
                self._tally.count("ended", "failed", Code.INTERNAL.value)

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except BaseException as e:  # who waits for the steps raises it
                self.broken = self.broken or e

        return threading.Thread(target=guarded, name=name, daemon=True)
