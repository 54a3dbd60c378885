"""The servers that everything else is tried on: they answer, come back where they were, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisGone

from infra.laptop import PostgresHandle, RedisHandle, S3Handle, ServerFailed, stack
from storage.s3 import S3Options, s3_client


@pytest.fixture
def scratch() -> Any:
    """Not tmp_path: pytest keeps that, and a cluster is 40 MB."""
    with TemporaryDirectory(prefix="spotscribe-laptop-") as folder:
        yield Path(folder)


def is_there(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def buckets(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return [b["Name"] for b in s3_client(S3Options(endpoint=endpoint)).list_buckets()["Buckets"]]


def test_postgres_keeps_its_data_and_address_however_it_is_stopped(scratch: Path) -> None:
    with PostgresHandle(scratch) as server:
        url, first = server.url, server.pid
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (x int)")
        for stop in (lambda: server.stop("fast"), lambda: server.stop("immediate")):
            with psycopg.connect(url) as connection:
                connection.execute("INSERT INTO kept VALUES (1)")
            with psycopg.connect(url) as busy:
                busy.execute("INSERT INTO kept VALUES (100)")  # never committed
                stop()
                busy.close()
            assert server.pid is None
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(url)
            server.start()
        last = server.pid
        assert server.url == url
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT sum(x) FROM kept").fetchone() == (2,)
    assert first != last
    assert not is_there(first)
    assert not is_there(last)


def test_redis_comes_back_empty_at_its_address(scratch: Path) -> None:
    with RedisHandle(scratch) as server, Redis.from_url(server.url) as client:
        first = server.pid
        assert client.ping()
        for end in (server.kill, server.stop):
            client.set("x", 1)
            end()
            with pytest.raises(RedisGone):
                client.ping()
            server.start()
            assert client.get("x") is None
        last = server.pid
    assert not is_there(first)
    assert not is_there(last)


def test_two_s3_servers_stand_side_by_side_and_one_comes_back(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Handle(scratch / "one") as one, S3Handle(scratch / "two") as two:
        assert buckets(two.endpoint, monkeypatch) == []
        client = s3_client(S3Options(endpoint=one.endpoint))
        client.create_bucket(Bucket="kept")
        client.put_object(Bucket="kept", Key="x", Body=b"x" * 100_000)
        one.kill()
        one.start()
        assert buckets(one.endpoint, monkeypatch) == ["kept"]
        assert len(client.get_object(Bucket="kept", Key="x")["Body"].read()) == 100_000
        pids, ports = [one.pid, two.pid], [one.port, two.port]
    assert not any(is_there(pid) for pid in pids)
    assert not [left for port in ports for left in Path("/tmp").glob(f"seaweedfs-*{port + 10_000}*")]


def test_the_stack_is_there_for_children_and_gone_after_an_error(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(env: dict[str, str]) -> None:
        with psycopg.connect(env["SPOTSCRIBE_DATABASE_URL"]) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with Redis.from_url(env["SPOTSCRIBE_BROKER_URL"]) as client:
            assert client.ping()
        assert buckets(env["SPOTSCRIBE_S3_ENDPOINT"], monkeypatch) == []
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stack(scratch) as found:
        work(found.environment())
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(found.database_url)
    with pytest.raises(RedisGone), Redis.from_url(found.broker_url) as client:
        client.ping()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_do_not_outlive_who_started_them(scratch: Path, how: signal.Signals) -> None:
    code = (
        "import signal, sys, time\nfrom pathlib import Path\nfrom infra.laptop import PostgresHandle, RedisHandle\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever runs the tests may ignore it
        "with RedisHandle(Path(sys.argv[1], 'r')) as r, PostgresHandle(Path(sys.argv[1], 'p')) as p:\n"
        "    print(r.pid, p.pid, flush=True)\n    time.sleep(60)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(scratch)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.send_signal(how)
    owner.communicate(timeout=30)
    until = time.monotonic() + 10
    while any(is_there(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_server_that_cannot_start_says_why(scratch: Path) -> None:
    server = RedisHandle(scratch)
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))  # taken, though nobody listens
        with pytest.raises(ServerFailed, match=r"(?s)valkey-server ended with 1.*in use"), server:
            pass
    assert server.pid is None
    assert os.listdir(scratch) == ["log"]
