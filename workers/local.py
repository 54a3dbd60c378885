"""`spotscribe run`: the three steps on one machine, driven by threads over SQLite and local folders.

The same functions as a fleet's, with events in place of Celery's messages: two threads prepare and finish, one
transcribes, and the main thread waits for the jobs of this run to end, whoever ends them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from chunking.audio import DecoderPool
from chunking.errors import UsageError
from chunking.planner import PlanOptions
from chunking.timeline import Coverage
from pipeline import tracing
from pipeline.company import Company
from pipeline.engine import Engine
from pipeline.finish import Finisher, sweep
from pipeline.ingestion import Found, target_paths
from pipeline.inhand import ClaimOptions
from pipeline.prepare import PrepareOptions, Preparer
from pipeline.settings import Settings
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from storage import checkpoints, jobs, leases, outputs, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, JobView
from storage.leases import Step
from storage.objects import LocalStore, path_of
from storage.outputs import WantedOutput
from storage.quarantine import quarantine
from workers.bootstrap import tame_collector
from workers.presence import Presence
from workers.steps import Steps

CPU_THREADS = 2
"""One waits for the decoder child while the other runs the VAD."""
PREPARED_AHEAD_S = 1800.0
"""Prepared audio that may wait for the model: plenty for full batches, 60 MB of work folder."""
TICK_S = 0.05
LOOK_S, PATIENT_LOOK_S = 0.5, 1.0
"""How often a run looks for jobs that have ended, when its own steps say so, and for those that others end."""
TAKE_OVER_S = 5.0
"""How often a run looks for workers that died."""
GRACE_S, LEAVE_S = 1.5, 1.8
"""For the model, and for all: Ctrl-C has to end within two seconds."""


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
    plan: PlanOptions = field(default_factory=PlanOptions)
    """How recordings are cut that have not been cut yet."""


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
    model_busy: float
    """Share of the run in which the model's calls were under way, of all that it takes side by side."""
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
        self._jobs: dict[int, Found] = {}
        self._wanted: set[str] = set()
        """URLs of the files that this run is to write; those of earlier runs are none of its business."""
        self._undelivered: dict[int, str] = {}
        self._ends: dict[int, FileEnd] = {}
        self._left: list[int] = []
        self._worked: frozenset[int] = frozenset()
        self._unprepared: set[int] = set()
        self._bytes, self._parallel = 0, 1
        self._said = 0
        """Steps that have ended since the last look, roughly: threads count without a lock."""
        self._began = self._last_end = 0.0

    def submit(self, found: Sequence[Found]) -> tuple[FileEnd, ...]:
        """Jobs and wanted files for these recordings. The answer: those that have ended before."""
        for first in range(0, len(found), 200):
            with self._db.transaction() as tx:
                for recording in found[first : first + 200]:
                    job = submission.submit(
                        tx, recording.media(), self._options.job, force=self._options.force, trace=tracing.submitted
                    )
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
                if view.state in {"queued", "preparing"}:
                    self._unprepared.add(view.id)
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
        self._parallel = engine.parallel
        options = PrepareOptions(s.max_hours * 3600, round(s.max_gigabytes * 1e9), self._options.plan)
        preparer = Preparer(
            self._db, self._store, self._decoder, self._presence.scratch, tally=self._tally, options=options
        )
        company, claims = Company(), ClaimOptions(name, self._options.job.engine, price_per_hour=s.price_per_hour)
        transcriber = Transcriber(
            self._db, self._store, engine, claims, batch_size=self._options.batch_size, tally=self._tally,
            company=company, coming=lambda: bool(self._unprepared),
        )  # fmt: skip
        steps = Steps(
            self._db, claims, company, tally=self._tally,
            cpu=((Step.FINISH, self._finisher.finish), (Step.PREPARE, preparer.prepare)), cpu_threads=CPU_THREADS,
            transcriber=transcriber, room_ahead=self._room_ahead, ready=self._say, debug=self._options.debug,
        )  # fmt: skip
        tame_collector()
        self._began = time.perf_counter()
        try:
            steps.start()
            self._wait(steps, progress)
        finally:
            steps.halt(GRACE_S)
            self._decoder.close()
            steps.join(LEAVE_S)

    def summary(self) -> Summary:
        with self._db.reading() as tx:
            views = jobs.views(tx, list(self._jobs))
            ends = self._file_ends(tx, [v for v in views if v.id not in self._ends]) | self._ends
        files = tuple(ends[v.id] for v in views)
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
            model_busy=min(1.0, round(self._model_s() / wall, 3)) if wall > 0 else 0.0,
            stage_s={k: round(v, 3) for k, v in sorted(t.stage_s.items())},
        )

    def _model_s(self) -> float:
        """Seconds of the model's calls, by the calls that it takes side by side."""
        stages = self._tally.stage_s
        return (stages.get("decode", 0.0) + stages.get("listen", 0.0)) / self._parallel

    def close(self) -> None:
        """End what was started. Audio in work of jobs that have ended, left behind by a kill, goes."""
        self._decoder.close()
        sweep(self._db, self._store)
        self._db.close()

    def _want(self, tx: Connection, job: int, recording: Found) -> None:
        """Note the files that the user wants, each at the first path that is not another recording's."""
        for fmt in self._options.formats:
            for path in target_paths(recording.path, recording.target, f".{fmt}"):
                url = (self._options.out / path).absolute().as_uri()
                wanted = WantedOutput(job, fmt, url, assigned=self._presence.name)
                if outputs.want(tx, wanted, missing=not path_of(url).exists()):
                    self._wanted.add(url)
                    break

    def _take_over(self) -> None:
        """What workers of this machine held that are gone goes back to the queue now, and what is ours comes to us."""
        with self._db.transaction() as tx:
            assigned = jobs.assigned(tx, self._left)
            dead = self._presence.dead({*leases.holders(tx), *(w for w in assigned.values() if w)})
            for name in dead:
                leases.release_worker(tx, name)
            leases.reclaim(tx)
            quarantine(tx)
            jobs.assign(tx, [j for j, w in assigned.items() if w is None or w in dead], self._presence.name)

    def _room_ahead(self) -> bool:
        with self._db.reading() as tx:
            return plans.queued_audio_s(tx, self._presence.name) < PREPARED_AHEAD_S

    def _wait(self, steps: Steps, progress: Callable[[Progress], None]) -> None:
        took_over = looked = time.monotonic()
        while self._left:
            if steps.broken is not None:
                raise steps.broken
            now = time.monotonic()
            if now - took_over > TAKE_OVER_S:
                took_over = now
                self._take_over()
            newly: tuple[FileEnd, ...] = ()
            patience = LOOK_S if self._said else PATIENT_LOOK_S
            if self._said >= len(self._left) or now - looked > patience:
                looked, self._said = now, 0
                newly = self._look_for_ends()
            progress(self._progress(newly))
            if self._left:
                time.sleep(TICK_S)

    def _say(self, step: Step, row: int) -> None:
        """A step has ended; called from its thread."""
        if step is Step.TRANSCRIBE:
            self._unprepared.discard(row)
        if step is Step.ERRAND:  # a job may have ended
            self._said += 1

    def _look_for_ends(self) -> tuple[FileEnd, ...]:
        """Jobs of this run that have ended since the last look; their files are written now."""
        with self._db.reading() as tx:
            if len(submission.existing(tx, self._left)) < len(set(self._left)):
                raise UsageError("a recording of this run was purged meanwhile: run it without that one")
            ended = jobs.ended(tx, self._left)
            due = outputs.due(tx, sorted(ended))
        if not ended:
            return ()
        self._deliver([o for o in due if o.url in self._wanted])
        self._left = [j for j in self._left if j not in ended]
        self._last_end = time.perf_counter()
        with self._db.reading() as tx:
            ends = self._file_ends(tx, jobs.views(tx, sorted(ended)))
        self._ends |= ends
        return tuple(ends.values())

    def _deliver(self, wanted: Sequence[WantedOutput]) -> None:
        """A file that cannot be written is told with its recording; the transcript stands, the next run tries again."""
        for output, e in self._finisher.deliver(wanted).items():
            self._undelivered[output.job] = f"{path_of(output.url)} could not be written: {e.strerror}"

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

    def _file_ends(self, tx: Connection, views: Sequence[JobView]) -> dict[int, FileEnd]:
        rows = jobs.transcript_rows(tx, sorted({v.transcript_id for v in views if v.transcript_id is not None}))
        written: dict[int, dict[str, str]] = {}
        for o in outputs.of_jobs(tx, [v.id for v in views]):
            if o.written and o.url in self._wanted:
                written.setdefault(o.job, {})[o.format] = str(path_of(o.url))
        return {v.id: self._file_end(v, rows.get(v.transcript_id or 0), written.get(v.id, {})) for v in views}

    def _file_end(self, job: JobView, row: Any, written: dict[str, str]) -> FileEnd:
        return FileEnd(
            source=str(self._jobs[job.id].path),
            state=job.state,
            code=job.code or "",
            seconds=round(job.duration_s or 0.0, 3),
            language=job.language or "",
            words=row.words if row else 0,
            coverage={f"{k}_s": round(getattr(row, f"{k}_s"), 3) if row else 0.0 for k in Coverage},
            outputs=written,
            error=self._undelivered.get(job.id, job.error),
        )
