"""Drop folders under fire: whatever a bucket, its events and its watchers do, each identity is one job.

Real Postgres, Redis protocol and S3, whole processes. SPOTSCRIBE_TEST_OBJECTS asks for more objects than the default.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.server import free_port
from storage.s3 import S3Bucket
from storage.urls import s3_url
from tests.contracts.test_odd_keys import PLAIN
from tests.faults.drop import Drop, dropping, event, tell, until
from workers.arena import Arena

OBJECTS = int(os.environ.get("SPOTSCRIBE_TEST_OBJECTS", "1500"))
PATIENCE_S = 30.0 + OBJECTS / 50


@pytest.fixture
def drop(place: Arena) -> Iterator[Drop]:
    with dropping(place) as made:
        yield made


def test_each_identity_is_one_job_whatever_is_told_and_whoever_dies(drop: Drop) -> None:
    """Odd keys, some overwritten, duplicate and shuffled events of it all, two watchers, one killed every second."""
    chance = random.Random(7)
    odd = [k for k in PLAIN if k.endswith(".wav") and k != "d/.wav"]  # that name has no suffix
    keys = [f"{i % 20:02d}/call {i} +%2F é.wav" for i in range(OBJECTS - len(odd))] + odd
    ports = [free_port(), free_port()]
    options = ("--at-once", "100000", "--out", "none", "--no-sidecars")
    said: list[bytes] = []
    written: list[str] = []
    stop = threading.Event()

    def write(key: str) -> None:
        try:
            for _ in range(2 if chance.random() < 0.1 else 1):
                body = f"{key}{chance.random()}".encode("utf-8", "surrogatepass")
                drop.put(key, body)
                head = drop.s3.head_object(Bucket=drop.bucket, Key=drop.prefix + key)
                said.append(event(drop.bucket, drop.prefix + key, eTag=head["ETag"].strip('"'), size=len(body)))
            written.append(key)
        except Exception:
            pass

    def talk() -> None:
        while not stop.is_set():
            some = [chance.choice(said) for _ in range(min(len(said), 30))]
            tell(chance.choice(ports), *some, *some[:5])
            time.sleep(0.2)

    def watch(port: int) -> subprocess.Popen[bytes]:
        return drop.watch(*options, "--listen", f"127.0.0.1:{port}")

    watching = {port: watch(port) for port in ports}

    def murder() -> None:
        while not stop.wait(1.0 + 2 * chance.random()):
            port = chance.choice(ports)
            watching[port].kill()
            watching[port].wait()
            watching[port] = watch(port)

    others = [threading.Thread(target=talk), threading.Thread(target=murder)]
    for t in others:
        t.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, keys))
    time.sleep(5.0)
    stop.set()
    for t in others:
        t.join()
    there = {s3_url(drop.bucket, drop.prefix + k) for k in drop.listed()}
    assert len(written) > len(keys) - len(odd)
    taken = "SELECT url FROM arrivals WHERE state <> 'held'"
    until(
        lambda: there <= {r.url for r in drop.rows(taken)},
        lambda: there - {r.url for r in drop.rows(taken)},
        PATIENCE_S,
    )
    [found] = drop.rows(
        "SELECT (SELECT count(*) FROM arrivals) AS a, (SELECT count(DISTINCT job_id) FROM arrivals) AS j,"
        " (SELECT count(*) FROM jobs) AS all_jobs, (SELECT count(DISTINCT identity) FROM arrivals) AS i"
    )
    assert found.a == found.j == found.all_jobs == found.i
    now = {o.media.url: o.media.version for o in S3Bucket(drop.s3).listing(drop.url)}
    current = drop.rows("SELECT url, version FROM recordings WHERE superseded_by IS NULL")
    assert {r.url: r.version for r in current} == now
