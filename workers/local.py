"""`spotscribe run`: the three steps on one machine, driven by threads over SQLite and local folders.

The same functions as a fleet's, with events in place of Celery's messages: two threads prepare and finish, one
transcribes, and the main thread waits for the jobs of this run to end, whoever ends them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from chunking.audio import DecoderPool
from chunking.errors import Code, LeaseLost
from chunking.timeline import Coverage
from pipeline.engine import Engine
from pipeline.finish import Finisher
from pipeline.ingestion import Found, target_paths
from pipeline.prepare import PrepareOptions, Preparer
from pipeline.settings import Settings
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from storage import checkpoints, jobs, leases, outputs, plans
from storage.database import Database
from storage.jobs import JobOptions, JobView, Verdict
from storage.leases import Lease, Step
from storage.objects import LocalStore, path_of
from storage.outputs import WantedOutput
from workers.presence import Presence

CPU_THREADS = 2
"""One waits for the decoder child while the other runs the VAD."""
PREPARED_AHEAD_S = 1800.0
"""Prepared audio that may wait for the model: plenty for full batches, 60 MB of work folder."""
TICK_S = 0.1
POLL_S = 1.0
"""How often a thread looks for work that no nudge told of."""
TAKE_OVER_S = 5.0
"""How often a run looks for workers that died."""
LEAVE_S = 1.8
"""Ctrl-C has to end within two seconds."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a user asked `run` for."""

    job: JobOptions
    out: Path
    formats: tuple[str, ...] = ("txt", "json")
    force: bool = False
    batch_size: int = 8
    debug: bool = False
    """Let a step's unforeseen error end the run, with its traceback."""


@dataclass(frozen=True, slots=True)
class FileEnd:
    """How one recording of the run ended."""

    source: str
    state: str
    code: str
    seconds: float
    language: str
    words: int
    coverage: dict[str, float]
    outputs: dict[str, str]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    files: int
    ended: int
    done_s: float
    total_s: float
    """Seconds of all recordings, as far as they are known, and by their bytes where they are not."""
    elapsed_s: float
    newly: tuple[FileEnd, ...] = ()

    @property
    def rtfx(self) -> float:
        return self.done_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the end, once there is something to judge by."""
        return (self.total_s - self.done_s) / self.rtfx if self.done_s > 0 else None


@dataclass(frozen=True, slots=True)
class Summary:
    """What `run --json` prints."""

    files: tuple[FileEnd, ...]
    audio_s: float
    wall_s: float
    rtfx: float
    chunks_decoded: int
    chunks_reused: int
    batches: int
    mean_batch_fill: float
    stage_s: dict[str, float] = field(default_factory=dict)


class LocalRun:
    """One call of `spotscribe run`: `submit`, then `work`, then `summary`."""

    def __init__(self, settings: Settings, presence: Presence, options: RunOptions) -> None:
        self._settings, self._presence, self._options = settings, presence, options
        self._db = Database(settings.database_url, pool_size=CPU_THREADS + 4)
        self._db.upgrade()
        self._store = LocalStore(settings.work)
        self._tally = Tally()
        self._finisher = Finisher(self._db, self._store, self._tally)
        self._decoder = DecoderPool()
        self._stop, self._done, self._cpu_nudge = threading.Event(), threading.Event(), threading.Event()
        self._jobs: dict[int, Found] = {}
        self._wanted: set[str] = set()
        """URLs of the files that this run is to write; those of earlier runs are none of its business."""
        self._undelivered: dict[int, str] = {}
        self._left: list[int] = []
        self._worked: frozenset[int] = frozenset()
        self._bytes = 0
        self._broken: BaseException | None = None
        self._began = self._last_end = 0.0

    def submit(self, found: Sequence[Found]) -> tuple[FileEnd, ...]:
        """Jobs and wanted files for these recordings. The answer: those that have ended before."""
        for first in range(0, len(found), 200):
            with self._db.transaction() as tx:
                for recording in found[first : first + 200]:
                    job = jobs.submit(tx, recording.source(), self._options.job, force=self._options.force)
                    self._jobs[job] = recording
                    self._want(tx, job, recording)
        self._left = list(self._jobs)
        before = self._look_for_ends()
        self._worked = frozenset(self._left)
        self._take_over()
        if self._left:
            self._decoder.start()  # while the model loads
        with self._db.reading() as tx:
            self._tally.add(chunks_reused=checkpoints.count(tx, self._left))
            for view in jobs.views(tx, self._left):
                self._bytes += view.size_bytes
                if (known := view.duration_s) is not None:
                    self._tally.add(prepared_s=known, planned_s=known, prepared_bytes=view.size_bytes)
        return before

    @property
    def left(self) -> int:
        """Jobs that have not ended."""
        return len(self._left)

    def work(self, engine: Engine, progress: Callable[[Progress], None]) -> None:
        """Until all jobs have ended. On KeyboardInterrupt: out within two seconds, with the leases given back."""
        s, name = self._settings, self._presence.name
        options = PrepareOptions(max_duration_s=s.max_hours * 3600, max_bytes=round(s.max_gigabytes * 1e9))
        preparer = Preparer(
            self._db, self._store, self._decoder, self._presence.scratch, tally=self._tally, options=options
        )
        transcriber = Transcriber(
            self._db, self._store, engine, worker=name, batch_size=self._options.batch_size,
            tally=self._tally, transcribed=self._cpu_nudge.set,
        )  # fmt: skip
        threads = [self._thread("transcribe", lambda: transcriber.run(self._stop, self._done.is_set))]
        threads += [self._thread("cpu", lambda: self._cpu(preparer, transcriber)) for _ in range(CPU_THREADS)]
        self._began = time.perf_counter()
        try:
            for thread in threads:
                thread.start()
            self._wait(progress)
        finally:
            self._done.set()
            self._stop.set()
            transcriber.nudge.set()
            self._cpu_nudge.set()
            self._decoder.close()
            deadline = time.monotonic() + LEAVE_S
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def summary(self) -> Summary:
        with self._db.reading() as tx:
            views = jobs.views(tx, list(self._jobs))
            files = tuple(self._file_end(tx, job) for job in views)
        t, wall = self._tally, self._last_end - self._began if self._worked else 0.0
        worked = sum(v.duration_s or 0.0 for v in views if v.id in self._worked)
        return Summary(
            files=files,
            audio_s=round(sum(f.seconds for f in files), 3),
            wall_s=round(wall, 4),
            rtfx=round(worked / wall, 2) if wall > 0 else 0.0,
            chunks_decoded=t.chunks_decoded,
            chunks_reused=t.chunks_reused,
            batches=t.batches,
            mean_batch_fill=round(t.mean_batch_fill, 4),
            stage_s={k: round(v, 3) for k, v in sorted(t.stage_s.items())},
        )

    def close(self) -> None:
        """End what was started. Audio in work of jobs that have ended, left behind by a kill, goes."""
        self._decoder.close()
        left = {int(key.split("/")[1]): key for key in self._store.keys("shards/")}
        with self._db.reading() as tx:
            ended = jobs.ended(tx, list(left))
        for key in list(self._store.keys("shards/")):
            if int(key.split("/")[1]) in ended:
                self._store.delete(key)
        self._db.close()

    def _want(self, tx: Connection, job: int, recording: Found) -> None:
        """Note the files that the user wants, each at the first path that is not another recording's."""
        for fmt in self._options.formats:
            for path in target_paths(recording, f".{fmt}"):
                url = (self._options.out / path).absolute().as_uri()
                if outputs.want(tx, WantedOutput(job, fmt, url), missing=not path_of(url).exists()):
                    self._wanted.add(url)
                    break

    def _take_over(self) -> None:
        """What workers of this machine held that are gone goes back to the queue now, and what is ours comes to us."""
        with self._db.transaction() as tx:
            assigned = jobs.assigned(tx, self._left)
            dead = self._presence.dead({*leases.holders(tx), *(w for w in assigned.values() if w)})
            for name in dead:
                leases.release_worker(tx, name)
            jobs.assign(tx, [j for j, w in assigned.items() if w is None or w in dead], self._presence.name)

    def _cpu(self, preparer: Preparer, transcriber: Transcriber) -> None:
        """One CPU thread: finish what can be finished, else prepare ahead, else wait for a nudge."""
        while not self._stop.is_set():
            self._cpu_nudge.clear()
            if self._claimed(Step.FINISH, self._finisher.finish):
                continue
            if self._room_ahead() and self._claimed(Step.PREPARE, preparer.prepare):
                transcriber.nudge.set()
            else:
                self._cpu_nudge.wait(POLL_S / 2)

    def _claimed(self, step: Step, do: Callable[[Lease], None]) -> bool:
        with self._db.transaction() as tx:
            claimed = leases.claim(tx, step, self._presence.name)
        for lease in claimed:
            self._guarded(do, lease)
        return bool(claimed)

    def _guarded(self, do: Callable[[Lease], None], lease: Lease) -> None:
        """A step that goes wrong in a way nobody thought of fails its own job and no other."""
        try:
            do(lease)
        except Exception as e:
            if self._options.debug:
                raise
            with suppress(LeaseLost), self._db.transaction() as tx:
                jobs.end_job(tx, lease, "failed", Verdict(Code.INTERNAL, f"{type(e).__name__}: {e}"))

    def _room_ahead(self) -> bool:
        with self._db.reading() as tx:
            return plans.queued_audio_s(tx, self._presence.name) < PREPARED_AHEAD_S

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except BaseException as e:  # the main thread raises it and ends the run
                self._broken = self._broken or e

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _wait(self, progress: Callable[[Progress], None]) -> None:
        looked = time.monotonic()
        while self._left:
            if self._broken is not None:
                raise self._broken
            if time.monotonic() - looked > TAKE_OVER_S:
                looked = time.monotonic()
                self._take_over()
            progress(self._progress(self._look_for_ends()))
            if self._left:
                time.sleep(TICK_S if len(self._left) < 1000 else POLL_S)

    def _look_for_ends(self) -> tuple[FileEnd, ...]:
        """Jobs of this run that have ended since the last look; their files are written now."""
        with self._db.reading() as tx:
            ended = jobs.ended(tx, self._left)
            due = outputs.due(tx, sorted(ended))
        if not ended:
            return ()
        for wanted in due:
            if wanted.url in self._wanted:
                self._deliver(wanted)
        self._left = [j for j in self._left if j not in ended]
        self._last_end = time.perf_counter()
        with self._db.reading() as tx:
            return tuple(self._file_end(tx, v) for v in jobs.views(tx, sorted(ended)))

    def _deliver(self, wanted: WantedOutput) -> None:
        """A file that cannot be written is told with its recording; the transcript stands, the next run tries again."""
        try:
            self._finisher.deliver(wanted)
        except OSError as e:
            self._undelivered[wanted.job] = f"{path_of(wanted.url)} could not be written: {e.strerror}"

    def _progress(self, newly: tuple[FileEnd, ...]) -> Progress:
        t = self._tally
        share = min(1.0, (t.audio_s + t.reused_s) / t.planned_s) if t.planned_s else 0.0
        total = t.prepared_s * max(1.0, self._bytes / t.prepared_bytes) if t.prepared_bytes else 0.0
        return Progress(
            files=len(self._jobs),
            ended=len(self._jobs) - len(self._left),
            done_s=t.prepared_s * share,
            total_s=total,
            elapsed_s=time.perf_counter() - self._began,
            newly=newly,
        )

    def _file_end(self, tx: Connection, job: JobView) -> FileEnd:
        row = jobs.transcript_row(tx, job.transcript_id) if job.transcript_id is not None else None
        written = [o for o in outputs.of_jobs(tx, [job.id]) if o.written and o.url in self._wanted]
        return FileEnd(
            source=str(self._jobs[job.id].path),
            state=job.state,
            code=job.code or "",
            seconds=round(job.duration_s or 0.0, 3),
            language=job.language or "",
            words=row.words if row else 0,
            coverage={f"{k}_s": round(getattr(row, f"{k}_s"), 3) if row else 0.0 for k in Coverage},
            outputs={o.format: str(path_of(o.url)) for o in written},
            error=self._undelivered.get(job.id, job.error),
        )
