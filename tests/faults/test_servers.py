"""What the servers of a fleet may do to its workers: restart, vanish, hang, forget, lose answers, slow down, refuse.

Real worker processes, real servers, proxies between them where a server cannot be made to misbehave (proxy.py). After
each fault the oracle is asked (workers/verdict.py): all ended, each chunk accepted once, to the letter as undisturbed.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from redis import Redis
from sqlalchemy import select
from sqlalchemy.engine import make_url

from chunking.audio import write_flac
from chunking.errors import Code, DatabaseAway, TransientError, UsageError
from chunking.timeline import Transcript
from infra.laptop import PostgresHandle, RedisHandle
from pipeline.engine import Answer, Ask
from pipeline.inhand import ClaimOptions
from pipeline.paced import PacedEngine
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from storage import checkpoints, jobs, leases, submission
from storage.database import Database
from storage.jobs import JobOptions, JobView, MediaObject
from storage.leases import Step
from storage.objects import LocalStore
from storage.s3 import S3Options, S3Reader, S3Store, s3_client
from storage.tables import Job, TranscriptRow, WorkerRow
from tests.contracts.test_leases import prepared
from tests.faults.conftest import Places
from tests.faults.proxy import Call, S3Proxy, TcpProxy, seldom
from tests.faults.test_signals import checkpointed, leave, wait_for
from workers.arena import BATCH, Arena
from workers.celery_app import CPU, make_app
from workers.nudges import Nudges
from workers.reconciler import MOST_NUDGES, Pass, Reconciler

PATIENCE_S = 60.0
LENGTHS = (300.0, 20.0, 20.0, 20.0, 20.0)
"""One recording of several batches, which prepare and transcribe are at in the middle, and some short ones."""
AWAY_S = float(os.environ.get("SPOTSCRIBE_TEST_AWAY_S", "8"))
"""How long Postgres is away. The promise is for minutes: 60 takes the test so much longer, and changes nothing else."""

HASTY = "from storage import jobs; jobs.TRY_AGAIN_S = 1.0"
"""What may pass is tried again after a second, not ten, so that a test need not wait."""
DEAF = "from workers import steps; from pipeline import inhand; steps.FIRST_PAUSE_S = inhand.POLL_S = 3600.0"
"""Nobody looks for work by himself: what is done is done because of a message."""
BOLD = "from botocore.retries.standard import ExponentialBackoff as E; E.__init__.__defaults__ = (0.1, lambda: 1.0, None, None)"
"""boto3 asks again as often as ever, without waiting for seconds in between."""


def changed(*how: str) -> tuple[str, str]:
    """The command with something changed in it, for `Arena.start(program=…)`."""
    return "-c", "; ".join([*how, "from workers.cli import main", "main()"])


_expected: dict[tuple[int, Sequence[float]], list[Transcript]] = {}


def recorded(place: Arena, *lengths: float) -> dict[Path, Transcript]:
    """Recordings, and what ought to come of them. Arenas of one seed record the same, so that is found out once."""
    files = place.record(*lengths)
    key = (len(list((place.folder / "recordings").iterdir())), lengths)
    if key not in _expected:
        found = place.undisturbed(files)
        _expected[key] = [found[f] for f in files]
        (place.settings.home / "decoded").unlink(missing_ok=True)
    return dict(zip(files, _expected[key], strict=True))


def proved(place: Arena, expected: dict[Path, Transcript], *, again: int = 0, within: float = PATIENCE_S) -> None:
    """The oracle."""
    assert place.settle(within), place.said(place.workers[-1])
    assert place.faults(expected) == []
    assert place.repeated() <= again


def lives(worker: subprocess.Popen[bytes]) -> bool:
    return worker.poll() is None


def through(url: str, proxy: TcpProxy) -> str:
    """The same server, by way of the proxy."""
    return make_url(url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisHandle]:
    with RedisHandle(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(own_redis: RedisHandle) -> RedisHandle:
    """A broker that may be taken away, running and empty."""
    own_redis.start()
    with Redis.from_url(own_redis.url) as client:
        client.flushall()
        client.config_set("maxmemory", 0)
    return own_redis


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresHandle]:
    with TemporaryDirectory(prefix="spotscribe-pg-") as folder, PostgresHandle(Path(folder)) as server:
        yield server


@pytest.fixture
def server(own_postgres: PostgresHandle) -> PostgresHandle:
    """A Postgres that may be taken away, running."""
    own_postgres.start()
    return own_postgres


@pytest.fixture
def to_broker(redis_server: RedisHandle) -> Iterator[TcpProxy]:
    with TcpProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def to_postgres(postgres_server: str) -> Iterator[TcpProxy]:
    port = make_url(postgres_server).port
    assert port
    with TcpProxy(port) as proxy:
        yield proxy


@pytest.fixture
def to_s3(s3_endpoint: str) -> Iterator[TcpProxy]:
    with TcpProxy(int(s3_endpoint.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def s3(to_s3: TcpProxy) -> Iterator[S3Proxy]:
    with S3Proxy(to_s3.port) as proxy:
        yield proxy


def test_a_broker_that_forgets_everything_loses_no_work_and_wakes_workers_again(
    places: Places, redis: RedisHandle
) -> None:
    with places(broker_url=redis.url) as place, Redis.from_url(redis.url) as broker:
        expected = recorded(place, *LENGTHS)
        place.start(program=changed(DEAF))
        place.submit(list(expected))
        for done in (2, 10):
            checkpointed(place, done)
            broker.flushall()
        proved(place, expected)
        (late,) = more = recorded(place, 20.0)
        place.submit(list(more))
        Nudges(make_app(redis.url, place.settings.queue)).send(CPU, place.ids[late])
        proved(place, expected | more, within=8.0)


def test_a_broker_that_crashes_and_at_last_stays_away_loses_no_work(places: Places, redis: RedisHandle) -> None:
    with places(broker_url=redis.url) as place:
        expected = recorded(place, *LENGTHS)
        worker = place.start()
        place.submit(list(expected))
        checkpointed(place, 2)
        redis.kill()
        redis.start()
        checkpointed(place, 10)
        redis.kill()
        proved(place, expected)
        more = recorded(place, 20.0)
        place.submit(list(more))
        proved(place, expected | more, within=20.0)
        assert lives(worker)
        leave(worker)


def test_a_broker_without_memory_loses_no_work_and_ends_no_worker(places: Places, redis: RedisHandle) -> None:
    with places(broker_url=redis.url) as place, Redis.from_url(redis.url) as broker:
        expected = recorded(place, *LENGTHS)
        worker = place.start()
        wait_for(place, "SELECT count(*) FROM workers")
        broker.config_set("maxmemory-policy", "noeviction")
        broker.config_set("maxmemory", "1mb")
        place.submit(list(expected))
        proved(place, expected)
        assert lives(worker), place.said(worker)
        broker.config_set("maxmemory", 0)
        leave(worker)


def test_a_broker_that_hangs_holds_up_neither_work_nor_leases_nor_leaving(places: Places, to_broker: TcpProxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        broker = through(place.settings.broker_url, to_broker)
        place.start(broker_url=broker)
        heir = place.start(broker_url=broker)
        wait_for(place, "SELECT count(*) FROM workers", 2)
        place.submit(list(expected))
        checkpointed(place, 2)
        to_broker.hang()
        time.sleep(1.0)  # the reconcilers run into it
        place.workers[0].kill()
        proved(place, expected, again=BATCH, within=20.0)
        assert lives(heir)
        leave(heir)


def test_messages_that_come_three_times_have_nothing_done_twice(place: Arena) -> None:
    expected = recorded(place, *LENGTHS)
    for _ in range(2):
        place.start(program=("-m", "tests.faults.thrice"))
    place.submit(list(expected))
    nudges = Nudges(make_app(place.settings.broker_url, place.settings.queue))
    for job in [*place.ids.values()] * 3:
        nudges.send(CPU, job)
    proved(place, expected)


def test_postgres_crashes_twice_and_comes_back(places: Places, server: PostgresHandle) -> None:
    with places(database_url=server.url) as place:
        expected = recorded(place, *LENGTHS)
        worker = place.start(program=changed(HASTY))
        place.submit(list(expected))
        for done in (2, 10):
            checkpointed(place, done)
            server.stop("immediate")
            server.start()
        proved(place, expected, again=2 * BATCH)
        assert lives(worker)


def test_postgres_stays_away_for_several_leases(places: Places, server: PostgresHandle) -> None:
    with places(database_url=server.url) as place:
        expected = recorded(place, *LENGTHS)
        workers = [place.start(program=changed(HASTY)) for _ in range(2)]
        wait_for(place, "SELECT count(*) FROM workers", 2)  # one that starts later finds no database, and says so
        place.submit(list(expected))
        checkpointed(place, 2)
        server.stop("immediate")
        time.sleep(AWAY_S)
        assert all(lives(w) for w in workers)
        server.start()
        proved(place, expected, again=2 * BATCH)
        assert all(lives(w) for w in workers)


def test_answers_to_commits_that_never_come_have_nothing_accepted_twice(places: Places, to_postgres: TcpProxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        place.start(program=changed(HASTY), database_url=through(place.settings.database_url, to_postgres))
        wait_for(place, "SELECT count(*) FROM workers")
        place.submit(list(expected))
        to_postgres.cut_at(b"COMMIT\x00", 6, every=4)
        wait_for(place, "SELECT count(*) FROM checkpoints", 8)
        to_postgres.cut_at(b"COMMIT\x00", 6, every=4, where="before")
        proved(place, expected, again=6 * BATCH)
        assert to_postgres.cuts >= 6
        with place.wiring.database.reading() as tx:
            shas = tx.execute(select(TranscriptRow.sha256)).scalars().all()
        assert len(shas) == len(set(shas)) == len(expected)


def objects(place: Arena) -> S3Store:
    """What the arena has in the bucket: recordings under `in`, shards under `work`, transcripts under `out`."""
    return S3Store(place.settings.work_url.removesuffix("/work"), place.wiring.s3)


def overwrite(place: Arena, file: Path, content: Path) -> None:
    """Other bytes under the key of a recording."""
    objects(place).put_file(f"in/{file.name}", content)


def on(method: str, part: str, fault: Callable[[Call], None]) -> Callable[[Call], bool]:
    """A fault for requests of this kind."""

    def found(call: Call) -> bool:
        if call.method != method or part not in call.path:
            return False
        fault(call)
        return True

    return found


def ended(place: Arena, file: Path) -> JobView:
    """How a recording that was not transcribed ended; the oracle is not asked for it."""
    with place.wiring.database.reading() as tx:
        return jobs.view(tx, place.ids.pop(file))


def test_s3_that_is_slow_and_busy_and_cuts_answers_is_asked_again(places: Places, s3: S3Proxy, to_s3: TcpProxy) -> None:
    def busy(call: Call) -> None:
        call.refuse(503, "SlowDown")

    def cut(call: Call) -> None:
        call.forward(upto=0.5)

    with places() as place:
        expected = recorded(place, 20.0, 20.0)
        first, _ = expected
        place.submit(list(expected))
        kinds = (
            ("GET", f"in/{first.name}"), ("PUT", f"work/shards/{place.ids[first]}/"),
            ("GET", f"work/shards/{place.ids[first]}/"), ("PUT", f"out/{first.stem}.json"),
        )  # fmt: skip
        to_s3.delay(0.02)
        s3.faults += [seldom(5, on(method, part, busy)) for method, part in kinds]  # four at a time are boto3's own
        s3.faults += [seldom(1, on(method, part, cut)) for method, part in kinds if method == "GET"]
        place.start(program=changed(HASTY, BOLD), s3_endpoint=s3.endpoint)
        proved(place, expected)
        for method, part in kinds:
            assert sum(c.startswith(method) and part in c for c in s3.calls) > 5


def test_objects_that_change_or_go_or_are_closed_before_they_are_read_end_alone(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        _, changes, goes, closed, _ = files = list(expected)
        place.submit(files)
        overwrite(place, changes, goes)
        objects(place).delete(f"in/{goes.name}")
        s3.faults.append(on("GET", f"in/{closed.name}", lambda call: call.refuse(403, "AccessDenied")))
        place.start(s3_endpoint=s3.endpoint)
        assert place.settle(PATIENCE_S)
        for file, code, why in (
            (changes, Code.GONE, "was overwritten since it was submitted"),
            (goes, Code.GONE, f"no object {place.settings.queue}/in/{goes.name}"),
            (closed, Code.DENIED, "AccessDenied"),
        ):
            view = ended(place, file)
            assert (view.state, view.code) == ("rejected", code)
            assert why in (view.error or "")
            del expected[file]
        proved(place, expected)


def test_an_object_that_changes_while_it_is_read_is_not_mixed(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        changes, other, *_ = files = list(expected)
        place.submit(files)

        def in_the_middle(call: Call) -> None:
            call.forward(upto=0.5, then=lambda: overwrite(place, changes, other))

        s3.faults.append(seldom(1, on("GET", f"in/{changes.name}", in_the_middle)))
        place.start(s3_endpoint=s3.endpoint)
        assert place.settle(PATIENCE_S)
        view = ended(place, changes)
        assert (view.state, view.code) == ("rejected", Code.GONE)
        assert "was overwritten" in (view.error or "")
        del expected[changes]
        proved(place, expected)


def test_a_worker_that_s3_refuses_spoils_no_recording(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        place.submit(list(expected))
        for fault, seen in (
            (on("GET", "", lambda call: call.refuse(403, "SignatureDoesNotMatch")),
             "SELECT count(*) FROM jobs WHERE error LIKE '%SignatureDoesNotMatch%'"),
            (on("PUT", "/work/shards/", lambda call: call.refuse(403, "AccessDenied")),
             "SELECT count(*) FROM jobs WHERE error LIKE '%AccessDenied%'"),
            (on("GET", "/work/shards/", lambda call: call.refuse(403, "AccessDenied")),
             "SELECT count(*) FROM shards WHERE next_run_at IS NOT NULL"),
        ):  # fmt: skip
            s3.faults[:] = [fault]
            if not place.workers:
                place.start(program=changed(HASTY), s3_endpoint=s3.endpoint)
            wait_for(place, seen, 2)
        s3.faults.clear()
        proved(place, expected)


@pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "RequestTimeTooSkewed")])
def test_what_s3_has_against_a_machine_is_not_held_against_a_recording(
    s3: S3Proxy, bucket: str, tmp_path: Path, status: int, code: str
) -> None:
    client = s3_client(S3Options(endpoint=s3.endpoint))
    s3.faults.append(lambda call: not call.refuse(status, code))
    with pytest.raises((UsageError, TransientError), match=code):
        S3Reader(client).fetch(f"s3://{bucket}/x", "etag-1", tmp_path)


class Silence:
    """For a reconciler that need not nudge anybody."""

    def send(self, queue: str, row: int) -> None: ...

    def top_up(self, queue: str, least: int) -> None: ...

    def depth(self, queue: str) -> int:
        return MOST_NUDGES


def reconciler(database: Database, folder: Path, lease_s: float = 20.0) -> Reconciler:
    nudges: Any = Silence()
    return Reconciler(database, LocalStore(folder), nudges, "w", lease_s)


def held(database: Database, count: int, seconds: float = 0.0) -> None:
    """So many jobs more, and all there are in the hands of a worker whose leases run out."""
    sources = [MediaObject(f"file:///{i}.wav", "1", 10) for i in range(count)]
    with database.transaction() as tx:
        submission.submit_all(tx, sources, JobOptions(), submission.Request())
        assert len(leases.claim(tx, Step.PREPARE, "dead", limit=count, seconds=seconds)) == count


def test_two_reconcilers_at_once_reclaim_each_lease_once(postgres: Database, tmp_path: Path) -> None:
    rows, rounds = 40, 2
    databases = [Database(postgres.url.render_as_string(hide_password=False)) for _ in range(2)]
    for _ in range(rounds):
        held(postgres, rows)
        found: list[Pass | None] = []
        together = threading.Barrier(2)

        def work(database: Database, found: list[Pass | None] = found, together: Any = together) -> None:
            mine = reconciler(database, tmp_path)
            for _ in range(10):
                together.wait(10.0)
                found.append(mine.once())

        threads = [threading.Thread(target=work, args=(d,)) for d in databases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(p.reclaimed.get(Step.PREPARE, 0) for p in found if p) == rows
        assert len(found) == 20
    with postgres.reading() as tx:
        seen = set(tx.execute(select(Job.state, Job.worker, Job.crashes, Job.fence)).all())
    assert seen == {("queued", None, rounds, 2 * rounds)}
    for database in databases:
        database.close()


def test_a_reconciler_that_freezes_at_it_holds_up_the_others_for_moments_only(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(postgres, 3)
    monkeypatch.setattr("storage.database.IDLE_S", 0.5)
    frozen = Database(postgres.url.render_as_string(hide_password=False))
    awake = reconciler(postgres, tmp_path)
    with pytest.raises(DatabaseAway), frozen.transaction() as tx:  # noqa: PT012 (it goes at the end)
        assert reconciler(frozen, tmp_path)._alone(tx)
        assert leases.reclaim(tx) == {Step.PREPARE: 3}  # not committed, and never will be
        began = time.monotonic()
        assert awake.once() is None
        while (done := awake.once()) is None:
            time.sleep(0.05)
        assert time.monotonic() - began < 20
        assert done.reclaimed == {Step.PREPARE: 3}
    with postgres.reading() as tx:
        assert set(tx.execute(select(Job.crashes, Job.fence)).all()) == {(1, 2)}
    frozen.close()


def test_who_lives_is_given_time_to_renew_once_the_database_is_back(server: PostgresHandle, tmp_path: Path) -> None:
    lease_s = 4.0
    database = Database(server.url)
    database.upgrade()
    held(database, 1, seconds=lease_s)
    stop = threading.Event()
    running = threading.Thread(target=reconciler(database, tmp_path, lease_s).run, args=(stop,), daemon=True)
    running.start()
    server.stop("immediate")
    time.sleep(lease_s)
    server.start()
    back = time.monotonic()
    state = ""
    while state != "queued":
        time.sleep(0.1)
        with database.reading() as tx:
            state = tx.execute(select(Job.state)).scalar_one()
    taken = time.monotonic() - back
    stop.set()
    running.join()
    database.close()
    assert lease_s / 2 <= taken < 2 * lease_s


@pytest.mark.parametrize("found", [UsageError("no right to list it"), PermissionError(), "shards/notes.txt"])
def test_a_reconciler_reclaims_whatever_it_finds_in_the_work_store(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Exception | str
) -> None:
    looked = threading.Event()

    def keys(store: LocalStore, prefix: str = "") -> Iterator[str]:
        looked.set()
        if isinstance(found, Exception):
            raise found
        yield found

    monkeypatch.setattr("workers.reconciler.SWEEP_S", 0.0)
    monkeypatch.setattr(LocalStore, "keys", keys)
    stop = threading.Event()
    running = threading.Thread(target=reconciler(postgres, tmp_path, 1.0).run, args=(stop,), daemon=True)
    running.start()
    assert looked.wait(5.0)
    held(postgres, 1)
    time.sleep(1.0)
    stop.set()
    running.join()
    with postgres.reading() as tx:
        assert tx.execute(select(Job.state)).scalar_one() == "queued"


def test_leases_are_reclaimed_while_the_work_store_hangs(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, over = threading.Event(), threading.Event()

    def keys(store: LocalStore, prefix: str = "") -> Iterator[str]:
        hangs.set()
        over.wait(120.0)
        yield from ()

    monkeypatch.setattr("workers.reconciler.SWEEP_S", 0.0)
    monkeypatch.setattr(LocalStore, "keys", keys)
    stop = threading.Event()
    running = threading.Thread(target=reconciler(postgres, tmp_path, 1.0).run, args=(stop,), daemon=True)
    running.start()
    assert hangs.wait(60.0)
    held(postgres, 1)
    deadline = time.monotonic() + 60.0
    state = ""
    while state != "queued" and time.monotonic() < deadline:
        time.sleep(0.1)
        with postgres.reading() as tx:
            state = tx.execute(select(Job.state)).scalar_one()
    stop.set()
    over.set()
    running.join()
    assert state == "queued"


class Halting(PacedEngine):
    """Decodes when it is told to."""

    def __init__(self) -> None:
        super().__init__(chunk_s=0.0)
        self.called, self.told = threading.Event(), threading.Event()

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        self.called.set()
        self.told.wait(10.0)
        return super().decode(asks)


def test_what_a_batch_has_read_is_kept_though_the_database_goes_before_it_is_written(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is decoded, and in the same moment the next shard's sound cannot be read, nor that be noted."""
    job = prepared(sqlite)
    engine, store = Halting(), LocalStore(tmp_path / "work")
    opening, away = threading.Event(), threading.Event()
    write_flac(tmp_path / "sound", [np.zeros(20 * 16000, np.int16)])
    store.put_file("a", tmp_path / "sound")
    transaction, opened = sqlite.transaction, store.open

    def fails(key: str) -> Any:
        if key == "b":
            opening.set()
            engine.told.wait(10.0)
            raise TransientError()
        return opened(key)

    @contextmanager
    def failing() -> Iterator[Any]:
        if away.is_set():
            away.clear()
            raise DatabaseAway()
        with transaction() as tx:
            yield tx

    def all_at_once(futures: Sequence[Any], timeout: float, return_when: str) -> Any:
        if opening.is_set() and engine.called.is_set() and not engine.told.is_set():
            away.set()
            engine.told.set()
            done, left = wait(futures, 10.0)
            return sorted(done, key=lambda f: f in transcriber._hand.loading), left
        return wait(futures, timeout, return_when)

    claims = ClaimOptions("w", JobOptions().engine)
    transcriber = Transcriber(sqlite, store, engine, claims, batch_size=1, tally=Tally())
    monkeypatch.setattr(store, "open", fails)
    monkeypatch.setattr(sqlite, "transaction", failing)
    monkeypatch.setattr("pipeline.transcribe.wait", all_at_once)
    stop = threading.Event()
    running = threading.Thread(target=transcriber.run, args=(stop, lambda: False), daemon=True)
    running.start()
    deadline, done = time.monotonic() + 5.0, 0
    while done < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        with sqlite.reading() as tx:
            done = len(checkpoints.of_job(tx, job))
    stop.set()
    running.join()
    assert done == 2


def test_a_worker_whose_clock_is_an_hour_off_works_like_any_other(place: Arena) -> None:
    expected = recorded(place, *LENGTHS)
    for seconds in ("3600", "-3600"):
        place.start(program=("-m", "tests.faults.clock", seconds))
    place.submit(list(expected))
    proved(place, expected)
    with place.wiring.database.reading() as tx:
        assert tx.execute(select(WorkerRow.name).where(WorkerRow.lost_at.is_not(None))).all() == []
        assert len(tx.execute(select(WorkerRow.name)).all()) == 2
