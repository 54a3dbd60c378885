"""A corner of a fleet's servers for trying what a fleet stands: recordings, workers, and what ought to come of them.

Everything has a name of its own, so nothing of the user's is touched: a schema in Postgres, queues in the broker, a
prefix in the bucket, a scratch folder here. What each transcript ought to be comes from the same recordings run on this
machine, undisturbed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import make_url

from chunking.errors import DatabaseAway, UsageError
from chunking.timeline import Transcript
from pipeline.devices import engine_options
from pipeline.engine import Engine
from pipeline.finish import sweep
from pipeline.ingestion import Found
from pipeline.settings import PREFIX, Settings
from storage import checkpoints, fleet, jobs, outputs, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.objects import path_of
from storage.outputs import WantedOutput
from storage.s3 import S3Bucket, S3Store
from storage.submission import Request
from storage.urls import file_version, job_model
from workers.local import LocalRun, RunOptions
from workers.presence import Presence
from workers.synthetic import Voice
from workers.verdict import broken
from workers.wiring import Wiring, load_engine, model_directory

BATCH = 16


@contextmanager
def arena(settings: Settings, *, lease_s: float = 3.0, seed: int = 0, keep: bool = False) -> Iterator[Arena]:
    """An arena on the servers of these settings; all of it goes at the end, unless it is to be kept for a look."""
    name = f"chaos_{uuid.uuid4().hex[:8]}"
    wiring = Wiring(settings)
    wiring.check_fleet(migrated=False)
    folder = Path(tempfile.mkdtemp(prefix=f"spotscribe-{name}-"))
    with wiring.database.transaction() as tx:
        tx.execute(text(f"CREATE SCHEMA {name}"))
    made = Arena(settings, name, folder, lease_s, seed)
    try:
        yield made
    finally:
        made.close(keep=keep)
        if not keep:
            with wiring.database.transaction() as tx:
                tx.execute(text(f"DROP SCHEMA {name} CASCADE"))
            shutil.rmtree(folder, ignore_errors=True)
        wiring.database.close()


class Arena:
    """`record`, `submit`, `start` workers, do to them what is to be done, `settle`, and ask for `faults`."""

    def __init__(self, settings: Settings, name: str, folder: Path, lease_s: float, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)  # noqa: S311 (it must be the same again)
        self.started = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        self._logs: dict[subprocess.Popen[bytes], Path] = {}
        self.ids: dict[Path, int] = {}
        """The jobs by their recording."""
        self._voice = Voice(seed)
        self._place = f"{settings.work_url.rstrip('/')}/{name}" if settings.work_url else (folder / "bucket").as_uri()
        changes: dict[str, Any] = {
            "home": folder / "home",
            "database_url": _with_schema(settings.database_url, name),
            "queue": name,
            "work_url": f"{self._place}/work",
            "out_url": f"{self._place}/out",
            "lease_s": lease_s,
            "cloud": "none",
            "canary_every_s": 0.0,  # what is decoded is counted here, and a canary is not of the work
        }
        self.settings = settings.model_copy(update=changes)
        told = {k: v for k, v in self.settings.model_dump().items() if v not in {"", None}}
        self.environment = {**os.environ, **{PREFIX + k.upper(): str(v) for k, v in told.items()}}
        self.environment[f"{PREFIX}METRICS_LISTEN"] = ""  # several workers cannot have one port
        self.job = JobOptions(model=job_model(settings.model), compute_type=settings.compute_type, language="en")
        self.wiring = Wiring(self.settings)
        self.wiring.database.upgrade()
        for part in ("logs", "recordings"):
            (folder / part).mkdir()

    def record(self, *seconds: float) -> list[Path]:
        """Recordings of about these lengths, in a folder here; no two are alike."""
        folder = self.folder / "recordings"
        first = len(list(folder.iterdir()))
        files = [folder / f"{first + i:05d}.flac" for i in range(len(seconds))]
        for file, length in zip(files, seconds, strict=True):
            self._voice.write(file, length)
        return files

    def undisturbed(self, files: Sequence[Path]) -> dict[Path, Transcript]:
        """Transcripts by file, made on this machine with nobody disturbing."""
        home = Path(tempfile.mkdtemp(dir=self.folder))
        url = f"sqlite:///{home / 'spotscribe.db'}"
        settings = self.settings.model_copy(update={"home": home, "database_url": url, "work_url": ""})
        options = RunOptions(self.job, home / "none", formats=(), batch_size=BATCH)
        with Presence(home) as presence:
            run = LocalRun(settings, presence, options)
            run.submit([Found(f, Path(f.stem)) for f in files])
            run.work(self._engine(settings), lambda progress: None)
            run.close()
        database = Database(url)
        with database.reading() as tx:
            found = {path_of(v.url): v.transcript_id for v in jobs.views(tx, list(range(1, len(files) + 1)))}
            read = {f: checkpoints.read_transcript(tx, t) for f, t in found.items() if t is not None}
        database.close()
        if len(read) != len(files):
            raise UsageError(f"only {len(read)} of {len(files)} recordings were transcribed even undisturbed")
        return read

    def submit(self, files: Sequence[Path]) -> list[int]:
        """Into the bucket, if there is one, and then as jobs with a wanted file each."""
        sources = [self.media(f) for f in files]
        with self.wiring.database.transaction() as tx:
            done = submission.submit_all(tx, sources, self.job, Request(label="chaos"))
            out = self.settings.out_url
            wanted = [WantedOutput(d.job, "json", f"{out}/{f.stem}.json") for f, d in zip(files, done, strict=True)]
            outputs.want_all(tx, wanted)
        self.ids.update({f: d.job for f, d in zip(files, done, strict=True)})
        return [d.job for d in done]

    def start(self, *arguments: str, program: Sequence[str] = ("-m", "workers"), **settings: object) -> (
        subprocess.Popen[bytes]
    ):  # fmt: skip
        """A worker; what it says goes to a file in `logs`. `settings` are for it alone."""
        self.started += 1
        command = [sys.executable, *program, "worker", "--batch-size", str(BATCH), "--cpu-threads", "2", *arguments]
        environment = self.environment | {PREFIX + k.upper(): str(v) for k, v in settings.items()}
        file = self.folder / "logs" / f"{self.started:04d}.log"
        with file.open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.workers.append(process)
        self._logs[process] = file
        return process

    def said(self, worker: subprocess.Popen[bytes]) -> str:
        """What a worker has written so far."""
        return self._logs[worker].read_text(errors="replace").strip()

    def settled(self) -> bool:
        """Whether all jobs have ended and all files are written."""
        try:
            with self.wiring.database.reading() as tx:
                seen = fleet.overview(tx)
        except DatabaseAway:
            return False
        return not seen.left and not seen.undelivered

    def settle(self, seconds: float) -> bool:
        """Wait for that, no longer than so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.settled():
                return True
            time.sleep(0.2)
        return False

    def faults(self, expected: Mapping[Path, Transcript]) -> list[str]:
        """In which ways the promise was broken, in words."""
        ids = list(self.ids.values())
        with self.wiring.database.reading() as tx:
            found = broken(tx, {self.ids[f]: t for f, t in expected.items()}, exact=self.settings.engine == "paced")
            undelivered = [o.url for o in outputs.of_jobs(tx, ids) if not o.written]
        if undelivered:
            found.append(f"{len(undelivered)} files were not delivered, {undelivered[0]} among them")
        sweep(self.wiring.database, self.wiring.store)
        if left := list(self.wiring.store.keys("shards/")):
            found.append(f"{len(left)} objects were left in the work store, {left[0]} among them")
        return found

    def repeated(self) -> int:
        """Chunks that went into the model more than once, as far as it is the paced one."""
        log = self.settings.home / "decoded"
        lines = log.read_text().splitlines() if log.exists() else []
        return len(lines) - len(set(lines))

    def close(self, *, keep: bool = False) -> None:
        """End all workers, and delete the objects."""
        for process in self.workers:
            process.kill()
            process.wait()
        self.wiring.database.close()
        if self._place.startswith("s3://") and not keep:
            store = S3Store(self._place, self.wiring.s3)
            for key in list(store.keys()):
                store.delete(key)

    def media(self, file: Path) -> MediaObject:
        """The recording as it is submitted: uploaded, if there is a bucket."""
        if not self._place.startswith("s3://"):
            return MediaObject(file.as_uri(), file_version(file), file.stat().st_size)
        copy = shutil.copy(file, self.folder / "upload")
        S3Store(f"{self._place}/in", self.wiring.s3).put_file(file.name, Path(copy))
        return S3Bucket(self.wiring.s3).head(f"{self._place}/in/{file.name}").media

    def _engine(self, settings: Settings) -> Engine:
        how = engine_options(settings, settings.device, self.job.compute_type, 1)
        return load_engine(settings, model_directory(settings, settings.model), how)


def _with_schema(url: str, schema: str) -> str:
    made = make_url(url)
    options = f"{made.query.get('options', '')} -csearch_path={schema}".strip()
    return made.update_query_dict({"options": options}).render_as_string(hide_password=False)
