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
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import select
from sqlalchemy.engine import make_url

from chunking.errors import Code, DatabaseAway
from chunking.timeline import Transcript
from infra.laptop import PostgresHandle, RedisHandle
from storage import jobs, leases, submission
from storage.database import Database
from storage.jobs import JobOptions, JobView, Source
from storage.leases import Step
from storage.objects import LocalStore
from storage.s3 import S3Store
from storage.tables import Job, TranscriptRow, WorkerRow
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
    print('REPEATED', place.repeated())
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
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresHandle]:
    with PostgresHandle(tmp_path_factory.mktemp("postgres")) as server:
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
def s3(s3_endpoint: str) -> Iterator[S3Proxy]:
    with S3Proxy(int(s3_endpoint.rpartition(":")[2])) as proxy:
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


def test_a_broker_that_hangs_holds_up_neither_work_nor_leases_nor_leaving(
    places: Places, to_broker: TcpProxy
) -> None:
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
        place.submit(list(expected))
        checkpointed(place, 2)
        server.stop("immediate")
        time.sleep(AWAY_S)
        assert all(lives(w) for w in workers)
        server.start()
        proved(place, expected, again=2 * BATCH)
        assert all(lives(w) for w in workers)


def test_answers_to_commits_that_never_come_have_nothing_accepted_twice(
    places: Places, to_postgres: TcpProxy
) -> None:
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


def source_of(place: Arena, file: Path) -> str:
    """The key of a recording's object."""
    return f"in/{file.name}"


def overwrite(place: Arena, file: Path, content: Path) -> None:
    """Other bytes under the key of a recording."""
    copy = place.folder / "other"
    copy.write_bytes(content.read_bytes())
    objects(place).put_file(source_of(place, file), copy)


def objects(place: Arena) -> S3Store:
    return S3Store(place.settings.work_url.removesuffix("/work"), place.wiring.s3)


def of(file: Path, fault: Callable[[Call], None]) -> Callable[[Call], bool]:
    """A fault for who reads this recording."""

    def found(call: Call) -> bool:
        if call.method != "GET" or not call.path.endswith(f"in/{file.name}"):
            return False
        fault(call)
        return True

    return found


def ended(place: Arena, file: Path) -> JobView:
    """How a recording that was not transcribed ended; the oracle is not asked for it."""
    with place.wiring.database.reading() as tx:
        return jobs.view(tx, place.ids.pop(file))


def test_s3_that_is_slow_and_busy_and_cuts_answers_is_asked_again(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        (first, *_) = expected
        begun = time.monotonic()

        def slow(call: Call) -> bool:
            time.sleep(0.1)
            return False

        def busy(call: Call) -> bool:
            if time.monotonic() < begun + 6.0:
                call.refuse(503, "SlowDown")
            return time.monotonic() < begun + 6.0

        def cut(call: Call) -> bool:
            if call.method == "GET":
                call.forward(upto=0.5)
            return call.method == "GET"

        s3.faults += [slow, busy, seldom(4, cut)]
        place.start(program=changed(HASTY), s3_endpoint=s3.endpoint)
        place.submit(list(expected))
        proved(place, expected)
        assert sum(source_of(place, first) in c for c in s3.calls) > 4  # busy, busy, busy, busy, cut, the rest


def test_objects_that_change_or_go_or_are_closed_before_they_are_read_end_alone(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        _, changes, goes, closed, _ = files = list(expected)
        place.submit(files)
        overwrite(place, changes, goes)
        objects(place).delete(source_of(place, goes))
        s3.faults.append(of(closed, lambda call: call.refuse(403, "AccessDenied")))
        place.start(s3_endpoint=s3.endpoint)
        assert place.settle(PATIENCE_S)
        for file, code, why in (
            (changes, Code.GONE, "the object was overwritten since it was submitted"),
            (goes, Code.GONE, "is gone"),
            (closed, Code.DENIED, "may not be read: AccessDenied"),
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
        middle = of(changes, lambda call: call.forward(upto=0.5, then=lambda: overwrite(place, changes, other)))
        s3.faults.append(seldom(1, middle))
        place.start(s3_endpoint=s3.endpoint)
        assert place.settle(PATIENCE_S)
        view = ended(place, changes)
        assert (view.state, view.code) == ("rejected", Code.GONE)
        assert "the object was overwritten" in (view.error or "")
        del expected[changes]
        proved(place, expected)


@pytest.mark.parametrize("refused", ["SignatureDoesNotMatch", "work store"])
def test_a_worker_that_s3_refuses_spoils_no_recording(places: Places, s3: S3Proxy, refused: str) -> None:
    with places() as place:
        expected = recorded(place, *LENGTHS)
        place.submit(list(expected))
        with_secret = dict(place.environment)
        if refused == "work store":  # whose shards this role may neither write nor read
            s3.faults.append(lambda call: "/work/shards/" in call.path and not call.refuse(403, "AccessDenied"))
        else:
            place.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
        stranger = place.start(program=changed(HASTY), s3_endpoint=s3.endpoint)
        wait_for(place, "SELECT count(*) FROM jobs WHERE error IS NOT NULL", len(expected))
        with place.wiring.database.reading() as tx:
            views = jobs.views(tx, list(place.ids.values()))
        assert not any(v.ended for v in views), views
        assert all(refused in (v.error or "") for v in views), views
        place.environment = with_secret
        place.start(program=changed(HASTY))
        wait_for(place, "SELECT count(*) FROM checkpoints")
        proved(place, expected, again=BATCH)
        leave(stranger)


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
    sources = [Source(f"file:///{i}.wav", "1", 10) for i in range(count)]
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
    with pytest.raises(DatabaseAway), frozen.transaction() as tx:
        assert reconciler(frozen, tmp_path)._alone(tx)
        assert leases.reclaim(tx) == {Step.PREPARE: 3}  # not committed, and never will be
        began = time.monotonic()
        assert awake.once() is None
        while (done := awake.once()) is None:
            time.sleep(0.05)
        assert time.monotonic() - began < 2.0
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
    running = threading.Thread(target=reconciler(database, tmp_path, lease_s).run, args=(stop,))
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


def test_a_worker_whose_clock_is_an_hour_off_works_like_any_other(place: Arena) -> None:
    expected = recorded(place, *LENGTHS)
    for seconds in ("3600", "-3600"):
        place.start(program=("-m", "tests.faults.clock", seconds))
    place.submit(list(expected))
    proved(place, expected)
    with place.wiring.database.reading() as tx:
        assert tx.execute(select(WorkerRow.name).where(WorkerRow.lost_at.is_not(None))).all() == []
        assert len(tx.execute(select(WorkerRow.name)).all()) == 2
