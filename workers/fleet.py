"""A fleet's worker: the same steps as on one machine, woken by Celery's messages, ready to vanish at any moment.

SIGTERM, a cloud's notice and Ctrl-C lead to one path, `leave`: nothing more is claimed, the model's calls get some
seconds to end and be checkpointed, leases go back to the queue, and the process is gone within ten seconds, whatever
hangs. What does not come that far is made good by the reconcilers of the others.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import worker_shutting_down

from chunking.audio import DecoderPool
from chunking.errors import TransientError
from pipeline import tracing
from pipeline.company import Company
from pipeline.engine import Engine
from pipeline.inhand import ClaimOptions
from pipeline.metrics import WORKER
from pipeline.settings import Settings
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from storage import fleet, jobs, leases
from storage.fleet import Done, Worker
from storage.jobs import JobOptions
from storage.leases import Step
from workers.bootstrap import tame_collector
from workers.canary_keeper import CanaryKeeper
from workers.celery_app import CPU, HOLD_S, gpu, queue
from workers.cpu_steps import cpu_steps, errand_steps
from workers.logs import leave_now
from workers.nudges import Nudges
from workers.presence import Presence
from workers.reconciler import Reconciler
from workers.served import Served, Source
from workers.spot import Notice, Watch
from workers.steps import EMPTY_S, Steps
from workers.tasks import add_tasks
from workers.wiring import Wiring
from workers.worker_metrics import WorkerMetrics

LOG = logging.getLogger("spotscribe.worker")
GRACE_S, LEAVE_S, GONE_S = 4.0, 7.0, 9.0
"""From the notice: what the model's calls get, when leases still held are taken back, when the process is gone."""
CELERY_S = 1.0
FLUSH_S = 0.5
"""For traces that are not sent yet."""
POLL_S = 10.0
"""The longest time between two looks for work that no message told of."""
HUNG = 70
"""Exit code of a worker whose model or device hangs: start it again (sysexits.h, EX_SOFTWARE)."""
TICK_S = 0.05
ERRAND_THREADS = 2
"""Threads of their own: a receiver that hangs must hold up no recording."""
ERRANDS_S = 2.0
"""What those get when the process leaves, beyond the other threads: what is sent then may be sent again by others."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What a worker was started for."""

    roles: tuple[str, ...]
    """`cpu` (prepare, finish, deliver, errands), `gpu` (transcribe), or both."""
    job: JobOptions
    """Its model, precision and beam: jobs that ask for others are left to other workers."""
    batch_size: int
    cpu_threads: int
    debug: bool = False


class FleetWorker:
    """One process. `run` returns its exit code."""

    def __init__(
        self, settings: Settings, wiring: Wiring, app: Celery, presence: Presence, options: FleetOptions,
        engine: Engine | None, served: Served | None = None,
    ) -> None:  # fmt: skip
        """`served`: where it is to tell how it does."""
        self._settings, self._app, self._presence, self._options = settings, app, presence, options
        self._db, self._tally = wiring.database, Tally()
        self._me = Worker(
            presence.name, socket.gethostname(), version("spotscribe"), options.roles,
            options.job.engine if "gpu" in options.roles else "", settings.price_per_hour, settings.market,
            engine.device if engine is not None else "",
        )  # fmt: skip
        claims = ClaimOptions(presence.name, options.job.engine, settings.lease_s, POLL_S, settings.price_per_hour)
        self._company, self._errand_company, self._decoder = Company(), Company(), DecoderPool()
        self._nudges = Nudges(app)
        self._transcriber = None if engine is None else Transcriber(
            self._db, wiring.store, engine, claims, batch_size=options.batch_size, tally=self._tally,
            company=self._company, stall_s=settings.stall_s,
        )  # fmt: skip
        on_cpu = "cpu" in options.roles
        self._steps = Steps(
            self._db, claims, self._company, tally=self._tally,
            cpu=cpu_steps(wiring, self._decoder, presence.scratch, self._tally) if on_cpu else (),
            cpu_threads=options.cpu_threads,
            transcriber=self._transcriber, ready=self._tell, debug=options.debug,
        )  # fmt: skip
        self._errands = Steps(
            self._db, claims, self._errand_company, tally=self._tally, part="errands",
            cpu=errand_steps(wiring, self._tally) if on_cpu else (), cpu_threads=ERRAND_THREADS,
            keeps_out=False, debug=options.debug,
        )  # fmt: skip
        self._canary = None if engine is None or not settings.canary_every_s else CanaryKeeper(
            settings, self._db, engine, self._me, presence.scratch, self._say
        )  # fmt: skip
        self._ended = threading.Event()
        self._reconciler = Reconciler(self._db, wiring.store, self._nudges, presence.name, settings.lease_s, self._done)
        self._stop, self._left = threading.Event(), threading.Event()
        self._leaving = threading.Lock()
        self._why, self._code = "", 0
        self._moving = self._holding = self._at_work = False
        if served is not None:
            part = "transcribe" if engine is not None else "cpu"
            self._metrics = WorkerMetrics(self._me, self._tally, part, lambda: self.ready)
            served.watch(Source(WORKER, self._metrics.values), self._stuck, lambda: self.ready)

    @property
    def ready(self) -> bool:
        """Whether it takes work."""
        return self._at_work and not self._moving and not self._stop.is_set()

    def run(self) -> int:
        """Work until somebody says to leave."""
        for early in (signal.SIGTERM, signal.SIGINT):  # until Celery sets its own handlers
            signal.signal(early, lambda number, _: self.leave(signal.Signals(number).name))
        with self._db.transaction() as tx:
            fleet.register(tx, self._me)
        self._presence.dead(())  # what dead workers left in scratch goes
        self._steps.start()
        self._errands.start()
        self._aside("ends", self._nudge_errands)
        self._aside("reconciler", lambda: self._reconciler.run(self._stop))
        self._aside("watch", self._watch)
        if (canary := self._canary) is not None:
            self._aside("canary", lambda: canary.run(self._stop))
        notices = Watch(self._settings.cloud, self._settings.metadata_url, None, self._notice)
        notices.start()
        worker_shutting_down.connect(self._shutting_down, weak=False)
        try:
            tame_collector()
            self._at_work = True
            self._say(f"at work: {', '.join(self._options.roles)}, {self._me.engine or 'no model'}")
            self._celery_worker().start()
        finally:
            notices.stop()
            if not self._why:  # nobody asked
                self._code = 1
            self.leave("Celery has ended")
            self._left.wait(GONE_S)
        return self._code

    def take_nudge(self) -> bool:
        """There is work, somebody says. Returns when this process has room for more of it; False if it is leaving."""
        self._holding = True
        self._steps.nudge()
        self._errands.nudge()
        deadline = time.monotonic() + HOLD_S
        while not self._stop.is_set() and time.monotonic() < deadline:
            time.sleep(TICK_S)
            if self._steps.has_room and not self._moving:
                break
        self._holding = self._stop.is_set()  # else it is acknowledged now
        return not self._holding

    def leave(self, why: str) -> None:
        """Begin to leave, once; does not wait. May be called from a signal's handler."""
        if self._leaving.acquire(blocking=False):
            self._why = why
            self._stop.set()
            self._aside("gone", self._gone)
            self._aside("leave", self._leave)

    def _leave(self) -> None:
        began = time.monotonic()
        self._say(f"leaving ({self._why})")
        self._errands.halt(GRACE_S)
        self._steps.halt(GRACE_S)
        self._decoder.close()
        self._steps.join(LEAVE_S)
        self._errands.join(min(ERRANDS_S, LEAVE_S - (time.monotonic() - began)))
        try:
            with self._db.transaction() as tx:
                leases.release_worker(tx, self._me.name)
                fleet.left(tx, self._me.name, self._done())
        except TransientError:
            self._say("the database does not answer; what is held goes back when its lease is over")
        self._say(f"left after {time.monotonic() - began:.1f} s, {self._tally.chunks_decoded} chunks decoded")
        tracing.flush(FLUSH_S)
        self._left.set()
        if self._holding:  # a message, which Celery gives back meanwhile
            time.sleep(CELERY_S)
        leave_now(self._code)

    def _gone(self) -> None:
        """Whatever hangs, the process ends."""
        time.sleep(GONE_S)
        leave_now(self._code)

    def _notice(self, notice: Notice) -> None:
        self._tally.count("preemption_notices", notice.value)
        if notice is Notice.REBALANCE:
            self._say("the cloud recommends to move: taking nothing more")
            self._moving = True  # and its message stays with it, instead of many more that others could use
            self._company.alone(Notice.REBALANCE)
            self._errand_company.alone(Notice.REBALANCE)
        else:
            self.leave("the cloud takes this machine away")
            os.kill(os.getpid(), signal.SIGTERM)  # Celery leaves by the same path

    def _shutting_down(self, *, sig: str, **_: Any) -> None:
        self.leave(sig if sig.startswith("SIG") else f"SIG{sig}")

    def _stuck(self) -> str | None:
        """Why nothing gets on here, for whoever would start this process again; nothing to do is no reason.

        How long a recording takes to prepare is bounded elsewhere, so CPU steps alone are not judged by the clock.
        """
        limit = self._settings.stall_s
        if self._transcriber is None:
            return None
        if self._transcriber.stalled:
            return f"a call of the model takes longer than {limit:.0f} s"
        since = time.time() - self._metrics.got_on_at
        return f"nothing was transcribed for {since:.0f} s, with work in hand" if since > limit else None

    def _done(self) -> Done:
        return Done(self._tally.device_s, self._tally.audio_s)

    def _watch(self) -> None:
        """End the process at once, with its leases, where it can do no good any more."""
        while not self._stop.wait(1.0):
            if self._transcriber is not None and self._transcriber.stalled:
                self._say(f"a call of the model takes longer than {self._settings.stall_s:.0f} s: starting over")
                leave_now(HUNG)
            if (e := self._steps.broken or self._errands.broken) is not None:
                self._say(f"{type(e).__name__}: {e}")
                leave_now(HUNG)

    def _tell(self, step: Step, row: int) -> None:
        """A step of this process has made work for another one: of this job."""
        if step is Step.ERRAND:
            self._ended.set()
            return
        if step is not Step.TRANSCRIBE:
            self._nudges.send(CPU, row)
            return
        with suppress(TransientError), self._db.reading() as tx:
            self._nudges.send(gpu(jobs.view(tx, row).options.engine), row)

    def _nudge_errands(self) -> None:
        """Errands may be due since a job has ended here: look, but not for each of many."""
        while not self._stop.is_set():
            self._ended.wait()
            self._ended.clear()
            self._errands.nudge()
            self._stop.wait(EMPTY_S)

    def _celery_worker(self) -> Any:
        # Celery warns root because of pickle; here messages are JSON and nothing else is accepted.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        add_tasks(self._app, self.take_nudge)
        names = [CPU] if "cpu" in self._options.roles else []
        if "gpu" in self._options.roles:
            names.append(gpu(self._options.job.engine))
        return self._app.Worker(
            pool="threads", concurrency=1, queues=[queue(self._app, n).name for n in names],
            hostname=f"{self._me.name}@spotscribe", without_gossip=True, without_mingle=True, quiet=True,
            loglevel="ERROR", optimization="fair",
        )  # fmt: skip

    def _aside(self, name: str, run: Callable[[], None]) -> None:
        """In a thread of its own, without which the process is worth nothing."""

        def guarded() -> None:
            try:
                run()
            except Exception:
                LOG.exception("a part of the process ended")
                leave_now(HUNG)

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def _say(self, text: str) -> None:
        LOG.info(text)
