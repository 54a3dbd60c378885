"""What waits, how fast workers are, and that all who ask hear the same, on both databases; and CloudWatch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import text

from chunking.errors import Code, UsageError
from pipeline.scaler import decisions
from pipeline.scaling import Policy
from storage import fleet, jobs, leases, submission
from storage.aws import AwsOptions
from storage.backlog import TYPICAL_S, Backlog, backlogs
from storage.cloudwatch import NAMESPACE, Gauges
from storage.database import Database
from storage.fleet import Done, Worker
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.submission import Request
from tests.contracts.test_leases import prepared

ENGINE = JobOptions().engine
BASE = JobOptions(model="base")


def asked(database: Database) -> dict[str, Backlog]:
    with database.reading() as tx:
        return {b.queue: b for b in backlogs(tx)}


def waiting(database: Database, count: int, options: JobOptions) -> None:
    media = [MediaObject(f"file:///{options.model}{i}", "1", 10) for i in range(count)]
    with database.transaction() as tx:
        submission.submit_all(tx, media, options, Request())


def test_shards_in_the_queue_and_in_hand(database: Database) -> None:
    prepared(database)
    with database.reading() as tx:
        total = tx.execute(text("SELECT sum(end_s - start_s) FROM shards")).scalar_one()
    found = asked(database)[ENGINE]
    assert (found.waiting_s, found.in_hand_s, found.coming_s) == (pytest.approx(total), 0.0, 0.0)
    with database.transaction() as tx:
        assert leases.claim(tx, Step.TRANSCRIBE, "w", limit=1)
    found = asked(database)[ENGINE]
    assert found.in_hand_s > 0
    assert found.waiting_s + found.in_hand_s == pytest.approx(total)


def test_recordings_that_are_not_prepared_count_by_what_is_typical_for_their_engine(database: Database) -> None:
    waiting(database, 3, JobOptions())
    waiting(database, 2, BASE)
    found = asked(database)
    assert found[ENGINE].coming_s == pytest.approx(3 * TYPICAL_S)
    assert found[BASE.engine].coming_s == pytest.approx(2 * TYPICAL_S)
    assert found["cpu"].waiting_s == pytest.approx(5 * TYPICAL_S)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        jobs.end_job(tx, lease, "done", Verdict(Code.OK), duration_s=60.0)
    assert sum(b.coming_s for q, b in asked(database).items() if q != "cpu") == pytest.approx(4 * 60.0)


def test_a_speed_is_that_of_workers_at_work_and_not_of_those_that_idle(database: Database) -> None:
    with database.transaction() as tx:
        for name, done in (("a", Done(100.0, 5000.0)), ("b", Done(100.0, 3000.0)), ("idle", Done(0.0, 0.0))):
            fleet.register(tx, Worker(name, "h", "1", ("gpu",), ENGINE))
            fleet.seen(tx, name, done)
        fleet.register(tx, Worker("young", "h", "1", ("gpu",), BASE.engine))
        fleet.seen(tx, "young", Done(1.0, 900.0))
    found = asked(database)
    assert (found[ENGINE].rtfx, found[ENGINE].workers) == (pytest.approx(40.0), 3)
    assert (found[BASE.engine].rtfx, found[BASE.engine].workers) == (None, 1)


def test_fewer_are_wanted_late_and_that_outlives_who_asked(database: Database) -> None:
    policy = Policy(finish_within_s=TYPICAL_S, most=50, fewer_after_s=3600.0, expected_rtfx=1.0)
    waiting(database, 5, JobOptions())
    wanted = {d.load.queue: d.wanted for d in decisions(database, policy)}
    assert wanted[ENGINE] == 5
    with database.transaction() as tx:
        submission.cancel(tx, [1, 2, 3, 4, 5])
        fleet.register(tx, Worker("a", "h", "1", ("gpu",), ENGINE))
    (found,) = [d for d in decisions(database, policy) if d.load.queue == ENGINE]
    assert (found.wanted, found.needed) == (5, 0)
    ago = "datetime('now', '-2 hours')" if database.is_sqlite else "now() - interval '2 hours'"
    with database.transaction() as tx:
        tx.execute(text(f"UPDATE scaling SET fewer_since = {ago}"))
    (found,) = [d for d in decisions(database, policy) if d.load.queue == ENGINE]
    assert (found.wanted, found.fewer_for_s) == (0, None)


def test_who_asks_at_the_same_time_hears_the_same(database: Database) -> None:
    policy = Policy(finish_within_s=TYPICAL_S, most=50, expected_rtfx=1.0)
    waiting(database, 7, JobOptions())
    heard: list[int] = []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait(60.0)
        heard.extend(d.wanted for d in decisions(database, policy) if d.load.queue == ENGINE)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [7] * 4


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """CloudWatch is moto's here, a stand-in for AWS."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


def test_what_is_published_is_there_by_engine(cloud: str) -> None:
    Gauges(AwsOptions(cloud)).publish({("WorkersWanted", ENGINE): 4.0, ("WorkersThere", ENGINE): 1.0})
    client = boto3.client("cloudwatch", endpoint_url=cloud, region_name="us-east-1")
    found = {m["MetricName"]: m["Dimensions"] for m in client.list_metrics(Namespace=NAMESPACE)["Metrics"]}
    assert set(found) == {"WorkersWanted", "WorkersThere"}
    assert found["WorkersWanted"] == [{"Name": "Engine", "Value": ENGINE}]


def test_without_credentials_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(UsageError, match="no credentials for CloudWatch"):
        Gauges(AwsOptions("http://127.0.0.1:1")).publish({("WorkersWanted", "e"): 1.0})
