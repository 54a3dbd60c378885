"""The kill storm: recordings, workers, and SIGKILL, SIGTERM and SIGSTOP at random, on the user's own servers.

Everything has a name of its own, so nothing of the user's is touched: a schema in Postgres, queues in the broker, a
prefix in the bucket, a scratch folder here. What each transcript ought to be comes from the same recordings run on this
machine, undisturbed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import make_url

from chunking.errors import UsageError
from chunking.timeline import Transcript
from pipeline.engine import Engine
from pipeline.finish import sweep
from pipeline.ingestion import Found
from pipeline.settings import PREFIX, Settings, engine_options
from storage import checkpoints, fleet, jobs, outputs, submission
from storage.database import Database
from storage.jobs import JobOptions, Source
from storage.objects import path_of
from storage.outputs import WantedOutput
from storage.s3 import S3Bucket, S3Store
from storage.sources import file_version
from storage.submission import Request
from workers.local import LocalRun, RunOptions
from workers.presence import Presence
from workers.synthetic import Voice
from workers.verdict import broken
from workers.wiring import Wiring, load_engine, model_directory

BATCH = 16
LEAVE_S = 10.0
"""What a worker may take to leave after SIGTERM."""
PORTIONS = 8
"""The recordings are submitted in so many portions over the first part of the storm."""
LONG_SHARE, LONG_S, SHORT_S = 0.04, 700.0, (8.0, 40.0)
SETTLE_S = 240.0
"""How long the fleet may take for what is left when the storm is over."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StormOptions:
    """How much, how long, how rough."""

    recordings: int = 300
    workers: int = 3
    seconds: float = 120.0
    pause: tuple[float, float] = (1.0, 5.0)
    """Seconds between two blows."""
    lease_s: float = 3.0
    seed: int = 0
    keep: bool = False
    """Leave schema, objects and folder for a look."""


@dataclass
class Storm:
    """What was done to the workers, and what came of it."""

    blows: Counter[str] = field(default_factory=Counter)
    started: int = 0
    slowest_leave_s: float = 0.0
    odd_exits: list[str] = field(default_factory=list)
    decoded: int = 0
    chunks: int = 0

    @property
    def repeated(self) -> int:
        return self.decoded - self.chunks


def storm(settings: Settings, options: StormOptions, say: Say) -> list[str]:
    """Run it. The answer is what was broken, in words; nothing: all promises were kept."""
    with _arena(settings, options) as arena:
        say(f"{options.recordings} recordings, {options.workers} workers, {options.seconds:.0f} s, seed {options.seed}")
        files = arena.record()
        say("what ought to come of them: transcribing undisturbed on this machine")
        expected = arena.undisturbed(files)
        say(f"the storm: {sum(len(t.segments) for t in expected.values())} segments to get right")
        found = Storm()
        ids = arena.blow(files, found, say)
        return arena.judge(ids, expected, found, say)


@contextmanager
def _arena(settings: Settings, options: StormOptions) -> Iterator[Arena]:
    name = f"chaos_{uuid.uuid4().hex[:8]}"
    wiring = Wiring(settings)
    wiring.check_fleet()
    folder = Path(tempfile.mkdtemp(prefix=f"spotscribe-{name}-"))
    with wiring.database.transaction() as tx:
        tx.execute(text(f"CREATE SCHEMA {name}"))
    arena = Arena(settings, options, name, folder)
    try:
        yield arena
    finally:
        arena.close()
        if not options.keep:
            with wiring.database.transaction() as tx:
                tx.execute(text(f"DROP SCHEMA {name} CASCADE"))
            shutil.rmtree(folder, ignore_errors=True)
        wiring.database.close()


class Arena:
    """One storm's servers' corners, folder and workers."""

    def __init__(self, settings: Settings, options: StormOptions, name: str, folder: Path) -> None:
        self.folder, self._options = folder, options
        self._chance = random.Random(options.seed)  # noqa: S311 (a storm must be the same again)
        place = f"{settings.work_url.rstrip('/')}/{name}" if settings.work_url else (folder / "bucket").as_uri()
        self._place = place
        changes = {
            "home": folder / "home",
            "database_url": _with_schema(settings.database_url, name),
            "queue": name,
            "work_url": f"{place}/work",
            "out_url": f"{place}/out",
            "lease_s": options.lease_s,
            "cloud": "none",
        }
        self._settings = settings.model_copy(update=changes)
        self._environment = {**os.environ, **{PREFIX + k.upper(): str(v) for k, v in changes.items()}}
        self._environment[f"{PREFIX}ENGINE"] = settings.engine
        self._environment[f"{PREFIX}MODEL"] = settings.model
        self._job = JobOptions(model=settings.model, compute_type=settings.compute_type, language="en")
        self._wiring = Wiring(self._settings)
        self._wiring.database.upgrade()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._frozen: dict[subprocess.Popen[bytes], float] = {}
        self._leaving: dict[subprocess.Popen[bytes], float] = {}
        self._killed: set[subprocess.Popen[bytes]] = set()

    def record(self) -> list[Path]:
        """The recordings, in a folder here."""
        voice = Voice(self._options.seed)
        folder = self.folder / "recordings"
        folder.mkdir()
        files = []
        for i in range(self._options.recordings):
            long = self._chance.random() < LONG_SHARE
            seconds = LONG_S if long else self._chance.uniform(*SHORT_S)
            files.append(folder / f"{i:05d}.flac")
            voice.write(files[-1], seconds)
        return files

    def undisturbed(self, files: Sequence[Path]) -> dict[Path, Transcript]:
        """Transcripts by file, made on this machine with nobody disturbing."""
        home = self.folder / "undisturbed"
        settings = self._settings.model_copy(
            update={"home": home, "database_url": f"sqlite:///{home / 'spotscribe.db'}", "work_url": ""}
        )
        home.mkdir()
        options = RunOptions(self._job, self.folder / "none", formats=(), batch_size=BATCH)
        with Presence(home) as presence:
            run = LocalRun(settings, presence, options)
            run.submit([Found(f, Path(f.stem)) for f in files])
            run.work(self._engine(settings), lambda progress: None)
            run.close()
        database = Database(settings.database_url)
        with database.reading() as tx:
            found = {path_of(v.url): v.transcript_id for v in jobs.views(tx, list(range(1, len(files) + 1)))}
            read = {f: checkpoints.read_transcript(tx, t) for f, t in found.items() if t is not None}
        database.close()
        if len(read) != len(files):
            raise UsageError(f"only {len(read)} of {len(files)} recordings were transcribed even undisturbed")
        return read

    def blow(self, files: Sequence[Path], found: Storm, say: Say) -> dict[Path, int]:
        """The storm itself, and then calm until all is done. The jobs by file."""
        (self.folder / "logs").mkdir()
        for _ in range(self._options.workers):
            self._start(found)
        began = time.monotonic()
        ids: dict[Path, int] = {}
        size = -(-len(files) // PORTIONS)
        next_blow = began + self._pause()
        while (now := time.monotonic()) < began + self._options.seconds:
            due = min(PORTIONS, 1 + int((now - began) / (0.7 * self._options.seconds) * PORTIONS)) * size
            if len(ids) < min(due, len(files)):
                ids |= self._submit(files[len(ids) : due])
            if now >= next_blow:
                self._strike(found)
                next_blow = now + self._pause()
            self._look_after(found)
            time.sleep(0.05)
        ids |= self._submit(files[len(ids) :])
        say(f"calm: {sum(found.blows.values())} blows fell; what is left is done in peace")
        self._settle(list(ids.values()), found, say)
        return ids

    def judge(self, ids: Mapping[Path, int], expected: Mapping[Path, Transcript], found: Storm, say: Say) -> list[str]:
        """What is broken."""
        with self._wiring.database.reading() as tx:
            faults = broken(tx, {ids[f]: t for f, t in expected.items()}, exact=self._settings.engine == "paced")
            chunks = checkpoints.count(tx, list(ids.values()))
            undelivered = [o.url for o in outputs.of_jobs(tx, list(ids.values())) if not o.written]
        lines = self._decoded()
        found.decoded, found.chunks = len(lines), chunks
        most = BATCH * (sum(found.blows.values()))
        if self._settings.engine == "paced" and found.repeated > most:
            faults.append(f"{found.repeated} chunks were decoded again, more than a batch a blow ({most})")
        if undelivered:
            faults.append(f"{len(undelivered)} files were not delivered, {undelivered[0]} among them")
        if found.slowest_leave_s > LEAVE_S + 0.5:
            faults.append(f"a worker took {found.slowest_leave_s:.1f} s to leave after SIGTERM")
        faults += found.odd_exits
        sweep(self._wiring.database, self._wiring.store)
        if left := list(self._wiring.store.keys("shards/")):
            faults.append(f"{len(left)} objects were left in the work store")
        blows = ", ".join(f"{n} {name}" for name, n in sorted(found.blows.items()))
        say(f"{blows}; {found.started} workers started; {len(ids)} jobs, {chunks} chunks")
        say(f"decoded again: {found.repeated} chunks; slowest to leave: {found.slowest_leave_s:.1f} s")
        return faults

    def close(self) -> None:
        """End all workers, and delete the objects."""
        for process in self._workers:
            process.kill()
            process.wait()
        self._wiring.database.close()
        if self._place.startswith("s3://") and not self._options.keep:
            store = S3Store(self._place, self._wiring.s3)
            for key in list(store.keys()):
                store.delete(key)

    def _engine(self, settings: Settings) -> Engine:
        how = engine_options(settings, settings.device, self._job.compute_type, 1)
        return load_engine(settings, model_directory(settings, settings.model), how)

    def _submit(self, files: Sequence[Path]) -> dict[Path, int]:
        """Into the bucket, if there is one, and then as jobs with one wanted file each."""
        wiring = self._wiring

        sources = []
        for f in files:
            if self._place.startswith("s3://"):
                S3Store(f"{self._place}/in", wiring.s3).put_file(f.name, f)
                sources.append(S3Bucket(wiring.s3).head(f"{self._place}/in/{f.name}"))
            else:
                sources.append(Source(f.as_uri(), file_version(f), f.stat().st_size))
        with wiring.database.transaction() as tx:
            done = submission.submit_all(tx, sources, self._job, Request(label="chaos"))
            wanted = [
                WantedOutput(d.job, "json", f"{self._settings.out_url}/{f.stem}.json")
                for f, d in zip(files, done, strict=True)
            ]
            outputs.want_all(tx, wanted)
        return {f: d.job for f, d in zip(files, done, strict=True)}

    def _start(self, found: Storm) -> None:
        found.started += 1
        command = [sys.executable, "-m", "workers", "worker", "--batch-size", str(BATCH), "--cpu-threads", "2"]
        with (self.folder / "logs" / f"{found.started:04d}.log").open("wb") as log:
            self._workers.append(
                subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)
            )

    def _strike(self, found: Storm) -> None:
        able = [w for w in self._workers if w not in self._frozen and w not in self._leaving and w.poll() is None]
        if not able:
            return
        victim = self._chance.choice(able)
        blow = self._chance.choices(("SIGKILL", "SIGTERM", "SIGSTOP"), (2, 1, 1))[0]
        found.blows[blow] += 1
        victim.send_signal(getattr(signal, blow))
        now = time.monotonic()
        if blow == "SIGSTOP":
            self._frozen[victim] = now + self._options.lease_s * self._chance.uniform(0.5, 2.5)
        elif blow == "SIGTERM":
            self._leaving[victim] = now
        else:
            self._killed.add(victim)

    def _look_after(self, found: Storm) -> None:
        """Thaw who has been frozen long enough, and put a new worker in the place of each that ended."""
        now = time.monotonic()
        for process in [p for p, until in self._frozen.items() if now >= until]:
            del self._frozen[process]
            process.send_signal(signal.SIGCONT)
        for process in [p for p, since in self._leaving.items() if now - since > LEAVE_S + 2 and p.poll() is None]:
            process.kill()
        for process in [p for p in self._workers if p.poll() is not None]:
            self._workers.remove(process)
            self._ended(process, found, now)
            self._start(found)

    def _ended(self, process: subprocess.Popen[bytes], found: Storm, now: float) -> None:
        asked = self._leaving.pop(process, None)
        self._frozen.pop(process, None)
        if asked is not None:
            found.slowest_leave_s = max(found.slowest_leave_s, now - asked)
        expected = -signal.SIGKILL if process in self._killed else 0
        # A signal that comes before the worker has set up its handlers ends it in Python's own way.
        early = asked is not None and process.returncode in {-signal.SIGTERM, 143}
        if process.returncode != expected and not early:
            found.odd_exits.append(f"a worker ended with {process.returncode} by itself")

    def _settle(self, ids: Sequence[int], found: Storm, say: Say) -> None:
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            for process in list(self._frozen):
                process.send_signal(signal.SIGCONT)
            self._frozen.clear()
            self._look_after(found)
            with self._wiring.database.reading() as tx:
                seen = fleet.overview(tx)
            if not seen.left and not seen.undelivered:
                break
            time.sleep(0.5)
        else:
            say(f"not done {SETTLE_S:.0f} s after the storm")
        for process in self._workers:
            process.send_signal(signal.SIGTERM)
            self._leaving[process] = time.monotonic()
        while self._workers and any(p.poll() is None for p in self._workers):
            time.sleep(0.05)
            for process in [p for p in self._workers if p.poll() is not None]:
                self._workers.remove(process)
                self._ended(process, found, time.monotonic())
            for process, since in list(self._leaving.items()):
                if time.monotonic() - since > LEAVE_S + 2:
                    process.kill()

    def _pause(self) -> float:
        return self._chance.uniform(*self._options.pause)

    def _decoded(self) -> list[str]:
        log = self._settings.home / "decoded"
        return log.read_text().splitlines() if log.exists() else []


def _with_schema(url: str, schema: str) -> str:
    made = make_url(url)
    options = f"{made.query.get('options', '')} -csearch_path={schema}".strip()
    return made.update_query_dict({"options": options}).render_as_string(hide_password=False)
