"""`spotscribe doctor` as a user calls it: each part ok, warned about or failed, what to do, and no secret shown."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from infra.laptop import S3Handle
from storage.database import Database
from storage.s3 import S3Options, s3_client
from tests.acceptance.command import Ran, spotscribe

PARTS = ["settings", "home", "database", "broker", "work", "output", "sources", "model", "device", "decoder", "cloud"]
SECRET = "hunter2"
NOBODY = "127.0.0.1:1"
"""No server listens there."""


@dataclass(frozen=True)
class Told:
    """What doctor said of each part."""

    ran: Ran
    parts: dict[str, dict[str, str]]

    def state(self, *states: str) -> set[str]:
        return {name for name, p in self.parts.items() if p["state"] in states}

    def __getitem__(self, part: str) -> str:
        """Of this part, found and to do."""
        return f"{self.parts[part]['found']} | {self.parts[part]['todo']}"


@pytest.fixture(autouse=True)
def _alone(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine that runs the tests: no configuration of its user, no cloud around it, no hub, no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("SPOTSCRIBE_METADATA_URL", f"http://{NOBODY}")
    monkeypatch.setenv("HF_ENDPOINT", f"http://{NOBODY}")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls `doctor --json` with these settings besides."""

    def call(**settings: object) -> Told:
        with monkeypatch.context() as m:
            for name, value in settings.items():
                m.setenv(name if name.isupper() else f"SPOTSCRIBE_{name.upper()}", str(value))
            ran = spotscribe("doctor", "--json", cwd=tmp_path)
        assert SECRET not in ran.stdout + ran.stderr
        found = Told(ran, {p.pop("part"): p for p in ran.summary["parts"]})
        fails = found.state("FAIL")
        assert ran.code == (2 if fails else 0)
        assert ran.summary["ok"] == (not fails)
        assert all(bool(p["todo"]) == (p["state"] != "ok") for p in found.parts.values())
        return found

    return call


@pytest.fixture
def empty_postgres(postgres_server: str) -> Iterator[str]:
    """A database without tables; its URL, with a password that the server does not ask for."""
    name = f"t{uuid.uuid4().hex[:12]}"
    admin = create_engine(postgres_server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        url = admin.url.set(drivername="postgresql", password=SECRET, database=name)
        yield url.render_as_string(hide_password=False)
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server where three accounts may do different things; its endpoint."""
    server = S3Handle(tmp_path_factory.mktemp("s3"))
    may = {"owner": ["Admin"], "reader": ["Read:bucket", "List:bucket"], "writer": ["Write:bucket"]}
    identities = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "actions": actions}
        for name, actions in may.items()
    ]
    (server.folder / "s3.json").write_text(json.dumps({"identities": identities}))
    with server:
        yield server.endpoint


@pytest.fixture
def s3(accounts: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client, and what else makes this process and its children reach the server as its owner."""
    monkeypatch.setenv("SPOTSCRIBE_S3_ENDPOINT", accounts)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "owner")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return s3_client(S3Options(accounts))


@pytest.fixture
def bucket(s3: Any) -> str:
    name = f"b{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=name)
    return name


def test_a_fresh_machine_is_fine_and_stays_untouched(home: Path, tmp_path: Path) -> None:
    ran = spotscribe("doctor", cwd=tmp_path)
    assert ran.code == 0, ran.stdout
    lines = [line.split(maxsplit=2) for line in ran.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["ok", part] for part in PARTS]
    said = {line[1]: line[2] for line in lines}
    assert said["settings"].startswith("no TOML file; variables SPOTSCRIBE_…: HOME, METADATA_URL")
    assert said["broker"] == "none is set; one machine: not needed"
    assert said["database"].startswith("SQLite 3.")
    assert "made on first use" in said["database"]
    assert "tiny.en" in said["model"]
    assert "English only" in said["model"]
    assert "no ffmpeg binary is used" in said["decoder"]
    assert "FFmpeg 8" in said["decoder"]
    assert not home.exists()


def test_what_there_is_on_one_machine_is_looked_at(told: Any, home: Path, tmp_path: Path) -> None:
    Database(f"sqlite:///{home / 'spotscribe.db'}").upgrade()
    (tmp_path / "spotscribe.toml").write_text('cpu_threads = 1\nengine = "paced"\n')
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    found = told(work_url=(tmp_path / "work").as_uri(), out_url=tmp_path / "out", cloud="none")
    assert found.state("ok") == set(PARTS)
    assert "spotscribe.toml; variables" in found["settings"]
    assert "at migration 0" in found["database"]
    assert "put, get, list and delete work" in found["work"]
    assert "writing works" in found["output"]
    assert "paced" in found["model"]
    assert "not asked for" in found["cloud"]
    assert not list((tmp_path / "work").iterdir())
    assert not list((tmp_path / "out").iterdir())


def test_a_fleet_is_fine_once_it_is_migrated(
    told: Any, s3: Any, bucket: str, broker_url: str, empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTSCRIBE_DATABASE_URL", empty_postgres)
    first = told()
    assert first.state("FAIL") == {"database", "broker"}
    assert "has no tables of Spotscribe" in first["database"]
    assert first.parts["database"]["todo"] == "run `spotscribe db upgrade`"
    assert first.parts["broker"]["todo"] == "set SPOTSCRIBE_BROKER_URL=redis://host:6379/0"
    assert spotscribe("db", "upgrade").code == 0

    monkeypatch.setenv("SPOTSCRIBE_BROKER_URL", broker_url.replace("//", f"//default:{SECRET}@"))
    monkeypatch.setenv("SPOTSCRIBE_WORK_URL", f"s3://{bucket}/work")
    monkeypatch.setenv("SPOTSCRIBE_OUT_URL", f"s3://{bucket}/out")
    found = told()
    assert found.state("ok") == set(PARTS), found.ran.stdout
    assert "Postgres 18" in found["database"]
    assert "ms a round trip, its clock 0." in found["database"]
    assert "answers" in found["broker"]
    assert "put, get, list and delete work" in found["work"]
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_broker_that_may_drop_messages_is_warned_about(told: Any, broker_url: str) -> None:
    with Redis.from_url(broker_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = told(broker_url=broker_url)
        client.config_set("maxmemory-policy", "noeviction")
    assert found.state("warn", "FAIL") == {"broker"}
    assert "allkeys-lru" in found["broker"]
    assert "noeviction" in found["broker"]


def test_servers_that_are_not_there_hide_nothing(told: Any, s3: Any) -> None:
    found = told(
        database_url=f"postgresql://someone:{SECRET}@{NOBODY}/spotscribe",
        broker_url=f"redis://:{SECRET}@{NOBODY}/0",
        s3_endpoint=f"http://{NOBODY}",
        work_url="s3://bucket/work",
        out_url="s3://bucket/out",
    )
    assert found.state("FAIL") == {"database", "broker", "work", "output"}
    assert found.state("ok") == set(PARTS) - found.state("FAIL")
    assert "refused" in found["database"]
    assert "see SPOTSCRIBE_DATABASE_URL" in found["database"]
    assert "refused" in found["broker"]
    assert "see SPOTSCRIBE_BROKER_URL" in found["broker"]
    assert "does not answer" in found["work"]
    assert "SPOTSCRIBE_S3_ENDPOINT" in found["output"]


def test_servers_that_are_silent_are_not_waited_for(told: Any, s3: Any) -> None:
    with ExitStack() as sockets:
        ports = []
        for _ in range(3):
            listener = sockets.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            ports.append(listener.getsockname()[1])
        began = time.monotonic()
        found = told(
            database_url=f"postgresql://someone:{SECRET}@127.0.0.1:{ports[0]}/spotscribe",
            broker_url=f"redis://:{SECRET}@127.0.0.1:{ports[1]}/0",
            s3_endpoint=f"http://127.0.0.1:{ports[2]}",
            work_url="s3://bucket/work",
        )
        assert time.monotonic() - began < 20
    assert found.state("FAIL") == {"database", "broker", "work"}


def test_passwords_that_break_a_url_are_not_quoted(told: Any) -> None:
    """Libraries take a part of these for a host or a port, and say which."""
    found = told(database_url=f"postgresql://u:p@{SECRET}@host/name", broker_url=f"redis://:{SECRET}/x@{NOBODY}/0")
    assert found.state("FAIL") == {"database", "broker"}
    assert "SPOTSCRIBE_DATABASE_URL cannot be read" in found["database"]
    assert "SPOTSCRIBE_BROKER_URL cannot be read" in found["broker"]


def test_what_s3_refuses_comes_with_what_to_do(told: Any, s3: Any, bucket: str) -> None:
    missing = f"none-{uuid.uuid4().hex[:8]}"
    found = told(work_url=f"s3://{missing}", out_url=f"s3://{missing}/out")
    assert found.state("FAIL") == {"work", "output"}
    assert "there is no such bucket" in found["work"]
    assert "make the bucket, or set SPOTSCRIBE_OUT_URL" in found["output"]
    assert missing not in {b["Name"] for b in s3.list_buckets()["Buckets"]}  # this server makes one when asked to put

    found = told(work_url=f"s3://{bucket}", out_url=f"s3://{bucket}/out", AWS_SECRET_ACCESS_KEY=f"not-{SECRET}")
    assert found.state("FAIL") == {"work", "output"}
    assert "SignatureDoesNotMatch" in found["work"]
    assert "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in found["output"]


def test_without_credentials_it_says_which_to_set(told: Any, accounts: str) -> None:
    found = told(s3_endpoint=accounts, work_url="s3://bucket/work", out_url="ftp://somewhere")
    assert found.state("FAIL") == {"work", "output"}
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in found.parts["work"]["todo"]
    assert "neither s3:// nor a folder" in found["output"]


def test_missing_rights_on_a_bucket_are_named(told: Any, s3: Any) -> None:
    s3.create_bucket(Bucket="bucket")
    place = {"work_url": "s3://bucket/work", "out_url": "s3://bucket/out"}
    reader = told(AWS_ACCESS_KEY_ID="reader", **place)
    writer = told(AWS_ACCESS_KEY_ID="writer", **place)
    assert reader.state("FAIL") == {"work", "output"}
    assert "AccessDenied for s3:PutObject, s3:DeleteObject |" in reader["work"]
    assert reader.parts["output"]["todo"] == "allow s3:PutObject on arn:aws:s3:::bucket/out/*"
    assert writer.state("FAIL") == {"work"}
    assert "AccessDenied for s3:GetObject, s3:ListBucket |" in writer["work"]
    assert "on arn:aws:s3:::bucket/work/* and arn:aws:s3:::bucket" in writer["work"]


def test_missing_rights_in_postgres_are_named(told: Any, postgres: Database, broker_url: str) -> None:
    role = f"r{uuid.uuid4().hex[:12]}"
    with postgres.transaction() as tx:
        tx.execute(text(f"CREATE ROLE {role} LOGIN"))
        tx.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    url = postgres.url.set(drivername="postgresql", username=role).render_as_string(hide_password=False)
    try:
        found = told(database_url=url, broker_url=broker_url)
        with postgres.transaction() as tx:
            tx.execute(text(f"ALTER ROLE {role} SET default_transaction_read_only = on"))
        standby = told(database_url=url, broker_url=broker_url)
    finally:
        with postgres.transaction() as tx:
            tx.execute(text(f"DROP OWNED BY {role}"))
            tx.execute(text(f"DROP ROLE {role}"))
    assert found.state("FAIL") == {"database"}
    assert "INSERT on jobs" in found["database"]
    assert "USAGE on jobs_id_seq" in found["database"]
    assert "SELECT on" not in found.parts["database"]["found"]
    assert "GRANT" in found["database"]
    assert "read-only" in standby["database"]


def test_wrong_settings_are_told_side_by_side(told: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = told(home=tmp_path / "file" / "below", compute_type="float16", model="tinny", modle="x", cloud="gcp")
    assert found.state("FAIL") == {"home", "database", "work", "model"}
    assert "is a file" in found["home"]
    assert "SPOTSCRIBE_HOME" in found["home"]
    assert "computes in float32 (can in float32" in found["device"]
    assert "cannot compute in float16; going on in float32" in found["device"]
    assert "SPOTSCRIBE_COMPUTE_TYPE" in found["device"]
    assert "no model is named 'tinny'; known: tiny" in found["model"]
    assert found.state("warn") == {"settings", "device", "cloud"}
    assert "did you mean SPOTSCRIBE_MODEL, not SPOTSCRIBE_MODLE?" in found["settings"]
    assert "gcp's metadata service does not answer" in found["cloud"]


def test_settings_that_cannot_be_read_are_the_one_thing_to_mend(told: Any, tmp_path: Path) -> None:
    found = told(max_hours="-1")
    assert list(found.parts) == ["settings"]
    assert "SPOTSCRIBE_MAX_HOURS: Input should be greater than 0" in found["settings"]
    found = told(config=tmp_path / "none.toml")
    assert found.state("FAIL") == {"settings"}
    assert "none.toml (SPOTSCRIBE_CONFIG) cannot be read: no such file" in found["settings"]


class Answers(BaseHTTPRequestHandler):
    """A model hub, and the metadata service of GCP: they answer."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815 (the name is http.server's)

    def log_message(self, *_: object) -> None:
        pass


def test_a_model_that_is_not_there_yet(told: Any, home: Path) -> None:
    away = told(model="small.en", device="cuda")
    assert away.state("FAIL") == {"model", "device"}
    assert "sees no CUDA device" in away["device"]
    assert f"put a CTranslate2 directory at {home / 'models' / 'small.en'}" in away["model"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        found = told(model="small.en", HF_ENDPOINT=url, metadata_url=url)
        server.shutdown()
    assert found.state("warn", "FAIL") == {"model"}
    assert "fetched by name on first use" in found["model"]
    assert "gcp's metadata service answers" in found["cloud"]
    assert not os.path.exists(home)
