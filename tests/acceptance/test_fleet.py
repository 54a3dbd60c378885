"""The fleet's commands as a user calls them: real Postgres, Redis protocol and S3, and one worker with the real model."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text

from infra.laptop import RedisHandle
from infra.server import free_port
from pipeline.metrics import EXPORTER, WORKER, Metric
from pipeline.settings import Settings
from tests.acceptance.command import PROGRAM, Ran, spotscribe
from tests.collector import Collector, Seen, tree
from tests.conftest import package_file
from workers.wiring import Wiring

CLIPS = ("quick_brown_fox.wav", "counting.wav", "hello_world.wav")


PRICED = {"SPOTSCRIBE_PRICE_PER_HOUR": "0.36", "SPOTSCRIBE_MARKET": "spot"}


class Fleet:
    """A database and buckets of one test module's own, and its worker."""

    def __init__(self, folder: Path, postgres: str, broker: str, s3_endpoint: str) -> None:
        self.name = f"f{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self._admin = create_engine(
            postgres.replace("postgresql:", "postgresql+psycopg:", 1), isolation_level="AUTOCOMMIT"
        )
        with self._admin.connect() as c:
            c.execute(text(f"CREATE DATABASE {self.name}"))
        self.inbox, self.out = f"{self.name}-inbox", f"{self.name}-out"
        self.url = self._admin.url.set(database=self.name, drivername="postgresql").render_as_string(False)
        self.variables = {
            "SPOTSCRIBE_HOME": str(folder / "home"), "SPOTSCRIBE_DATABASE_URL": self.url,
            "SPOTSCRIBE_BROKER_URL": broker, "SPOTSCRIBE_QUEUE": self.name, "SPOTSCRIBE_S3_ENDPOINT": s3_endpoint,
            "SPOTSCRIBE_WORK_URL": f"s3://{self.name}-work/audio", "SPOTSCRIBE_CLOUD": "none",
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret",
        }  # fmt: skip
        self.collector = Collector()
        self.variables["SPOTSCRIBE_OTLP_ENDPOINT"] = self.collector.endpoint
        self.worker: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def s3(self) -> Any:
        return Wiring(Settings(s3_endpoint=self.variables["SPOTSCRIBE_S3_ENDPOINT"])).s3

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        engine = create_engine(self.url.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.connect() as c:
            found = [tuple(r) for r in c.execute(text(sql))]
        engine.dispose()
        return found

    def change(self, sql: str) -> None:
        engine = create_engine(self.url.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.begin() as c:
            c.execute(text(sql))
        engine.dispose()

    def work(self) -> None:
        """Have a worker."""
        if self.worker is None:
            with (self.folder / "worker.log").open("wb") as log:
                self.worker = subprocess.Popen(
                    [*PROGRAM, "worker", "--model", "tiny.en"],
                    env=os.environ | self.variables | PRICED | {"SPOTSCRIBE_METRICS_LISTEN": f":{self.port}"},
                    stderr=log,
                )

    def told(self, path: str) -> str:
        """What the worker serves there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def close(self) -> None:
        if self.worker is not None:
            self.worker.terminate()
            assert self.worker.wait(12.0) == 0
        self.collector.close()
        with self._admin.connect() as c:
            c.execute(text(f"DROP DATABASE {self.name} WITH (FORCE)"))
        self._admin.dispose()


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: str, redis_server: RedisHandle, s3_endpoint: str
) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"), postgres_server, redis_server.url, s3_endpoint)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.variables.items():
            patch.setenv(name, value)
        for bucket in (made.inbox, made.out, f"{made.name}-work"):
            made.s3.create_bucket(Bucket=bucket)
        for clip in CLIPS:
            file = package_file("pytest_audioeval", "samples", "audio", "en", clip)
            made.s3.upload_file(str(file), made.inbox, f"calls/2026 11/{clip}")
        made.s3.put_object(Bucket=made.inbox, Key="calls/notes.txt", Body=b"no recording")
        assert spotscribe("db", "current").code == 2
        assert "now (was: empty)" in spotscribe("db", "upgrade").stdout
        assert "already" in spotscribe("db", "upgrade").stdout
        yield made
    made.close()


@pytest.fixture(autouse=True)
def _variables(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("SPOTSCRIBE_", "AWS_"))]:
        monkeypatch.delenv(name)
    for name, value in fleet.variables.items():
        monkeypatch.setenv(name, value)


def submit(*arguments: object) -> Ran:
    return spotscribe("submit", *arguments, "--model", "tiny.en")


def transcribe_all(fleet: Fleet) -> Ran:
    """The inbox, once: asked again it is the same jobs. Any test may be the first that its process runs."""
    fleet.work()
    return submit(
        f"s3://{fleet.inbox}/calls/", "--label", "nov", "--priority", "5", "--metadata", "team=blue", "--metadata",
        "note=a=b", "--out", f"s3://{fleet.out}/texts", "--formats", "txt,srt", "--wait",
    )  # fmt: skip


def test_a_prefix_becomes_transcripts_in_the_database_and_in_the_bucket(fleet: Fleet) -> None:
    seen = submit(f"s3://{fleet.inbox}/calls/", "--dry-run")
    assert seen.code == 0
    assert "would submit 3 recordings" in seen.stdout
    assert "passed over 1" in seen.stdout
    assert fleet.query("SELECT count(*) FROM jobs") == [(0,)]

    ended = transcribe_all(fleet)
    assert ended.code == 0, ended
    assert ended.stdout.count("done ") == 3
    assert fleet.query("SELECT DISTINCT priority, metadata->>'team', metadata->>'note' FROM jobs") == [
        (5, "blue", "a=b")
    ]
    deadline = time.monotonic() + 20.0
    while fleet.query("SELECT count(*) FROM outputs WHERE state <> 'written'") != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    fox = fleet.s3.get_object(Bucket=fleet.out, Key="texts/calls/2026 11/quick_brown_fox.txt")
    assert "fox" in fox["Body"].read().decode().lower()
    assert fox["ContentType"] == "text/plain; charset=utf-8"
    assert fleet.s3.list_objects_v2(Bucket=f"{fleet.name}-work").get("KeyCount") == 0

    again = submit(f"s3://{fleet.inbox}/calls/", "--label", "again")
    assert "3 known before, 3 of them ended" in again.stdout
    assert fleet.query("SELECT count(*) FROM jobs") == [(3,)]
    for label in ("nov", "again"):
        status = json.loads(spotscribe("status", "--label", label, "--json").stdout)
        assert status["jobs"] == {"done": 3}
        assert status["left"] == 0


def test_status_and_show_of_one_job(fleet: Fleet) -> None:
    assert transcribe_all(fleet).code == 0
    [(job,)] = fleet.query(
        "SELECT jobs.id FROM jobs JOIN recordings r ON r.id = recording_id WHERE url LIKE '%fox%' ORDER BY 1 LIMIT 1"
    )
    shown = spotscribe("status", job).stdout
    for part in (f"job {job}: done (ok)", "quick_brown_fox.wav", "team=blue", "nov", "1 of 1 chunks"):
        assert part in shown
    assert "fox" in spotscribe("show", job).stdout.lower()
    assert json.loads(spotscribe("show", job, "--format", "json").stdout)["segments"]
    assert json.loads(spotscribe("status", job, "--json").stdout)["state"] == "done"
    assert "live worker" in spotscribe("status").stdout


def test_costs_are_counted_where_they_are_spent(fleet: Fleet) -> None:
    assert transcribe_all(fleet).code == 0
    said = json.loads(spotscribe("costs", "--label", "nov", "--json").stdout)["groups"][0]
    assert (said["jobs"], said["device_s"] > 0.1) == (3, True)
    assert said["cost"] == pytest.approx(said["device_s"] * 0.36 / 3600)
    deadline = time.monotonic() + 60.0
    while fleet.query("SELECT device_s > 0, price_per_hour, market FROM workers") != [(True, 0.36, "spot")]:
        assert time.monotonic() < deadline  # it says so with its next hello
        time.sleep(0.5)
    where = json.loads(spotscribe("costs", "--json").stdout)["fleet"]
    assert where["workers"] == 1
    assert where["alive_s"] > where["accepted_s"] > 0.1


def test_names_come_from_standard_input_and_files_of_this_machine_are_taken(fleet: Fleet, voice: Path) -> None:
    fleet.work()
    lines = f"s3://{fleet.inbox}/calls/2026 11/counting.wav\n\n{voice}\n{voice.as_uri()}\n"
    done = subprocess.run(
        [*PROGRAM, "submit", "-", "--model", "tiny.en", "--out", str(fleet.folder / "texts"), "--wait"],
        input=lines, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "submitted 2 recordings" in done.stdout
    deadline = time.monotonic() + 20.0
    while not (fleet.folder / "texts" / "beckett.txt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert (fleet.folder / "texts" / "calls" / "2026 11" / "counting.txt").exists()


def test_cancelled_is_cancelled_until_it_is_tried_again(fleet: Fleet) -> None:
    """The model is one that no worker has, so the job stands still."""
    fleet.work()
    assert (
        spotscribe(
            "submit", f"s3://{fleet.inbox}/calls/2026 11/hello_world.wav", "--model", "base", "--label", "odd"
        ).code
        == 0
    )
    deadline = time.monotonic() + 20.0
    while "NO LIVE WORKER HAS THIS MODEL" not in spotscribe("status").stdout:
        assert time.monotonic() < deadline
    assert "1 job cancelled" in spotscribe("cancel", "--label", "odd").stdout
    assert "0 jobs cancelled; 1 had ended before" in spotscribe("cancel", "--label", "odd").stdout
    assert json.loads(spotscribe("status", "--label", "odd", "--json").stdout)["jobs"] == {"cancelled": 1}
    assert "1 job start again" in spotscribe("retry", "--label", "odd", "--state", "cancelled").stdout
    assert "cancelled" not in json.loads(spotscribe("status", "--label", "odd", "--json").stdout)["jobs"]
    assert spotscribe("cancel", "--label", "odd").code == 0


def test_what_is_no_recording_ends_rejected_and_waiting_says_so(fleet: Fleet) -> None:
    fleet.work()
    fleet.s3.put_object(Bucket=fleet.inbox, Key="bad/text.mp3", Body=b"hello " * 100)
    fleet.s3.put_object(Bucket=fleet.inbox, Key="bad/empty.wav", Body=b"")
    ended = submit(f"s3://{fleet.inbox}/bad/", "--wait")
    assert ended.code == 3
    assert ended.stdout.count("rejected ") == 2
    assert fleet.query("SELECT code FROM jobs WHERE state = 'rejected' ORDER BY 1") == [("empty",), ("not_media",)]


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["submit", "--nope", "x"], {}, "No such option"),
        (["submit"], {}, "Missing argument"),
        (["submit", "ftp://host/x.wav"], {}, "neither an S3 address"),
        (["submit", "s3://"], {}, "no S3 address"),
        (["submit", "s3://{inbox}/nothing.wav"], {}, "there is no object nothing.wav; to take everything below it"),
        (["submit", "s3://{inbox}/none/"], {}, "no recordings below"),
        (["submit", "s3://no-such-bucket-here/x/"], {}, "no such bucket"),
        (["submit", "/nowhere/x.wav"], {}, "no such file"),
        (["submit", "s3://{inbox}/calls/", "--language", "xx"], {}, "no language code"),
        (["submit", "s3://{inbox}/calls/", "--metadata", "x"], {}, "not KEY=VALUE"),
        (["submit", "s3://{inbox}/calls/", "--formats", "doc"], {}, "possible: txt"),
        (["submit", "s3://{inbox}/calls/", "--out", "ftp://x"], {}, "neither s3:// nor a folder"),
        (["submit", "s3://{inbox}/calls/"], {"AWS_SECRET_ACCESS_KEY": "wrong"}, "credentials"),
        (["submit", "s3://{inbox}/calls/"], {"SPOTSCRIBE_S3_ENDPOINT": "http://127.0.0.1:9"}, "SPOTSCRIBE_S3_ENDPOINT"),
        (["submit", "s3://{inbox}/calls/"], {"SPOTSCRIBE_BROKER_URL": ""}, "SPOTSCRIBE_BROKER_URL is not set"),
        (["submit", "s3://{inbox}/calls/"], {"SPOTSCRIBE_BROKER_URL": "redis://127.0.0.1:9/0"}, "does not answer"),
        (["submit", "s3://{inbox}/calls/"], {"SPOTSCRIBE_DATABASE_URL": ""}, "a fleet needs Postgres"),
        (["submit", "s3://{inbox}/calls/"], {"SPOTSCRIBE_DATABASE_URL": "postgresql://127.0.0.1:9/x"}, "does not answer"),
        (["worker", "--roles", "tpu"], {}, "--roles"),
        (["worker"], {"SPOTSCRIBE_CLOUD": "moon"}, "no such cloud"),
        (["worker", "--model", "enormous"], {}, "no model is named"),
        (["worker"], {"SPOTSCRIBE_WORK_URL": "ftp://x"}, "SPOTSCRIBE_WORK_URL"),
        (["status", "99999"], {}, "there is no job 99999"),
        (["status", "--label", "none"], {}, "no jobs have the label"),
        (["show", "99999"], {}, "there is no job"),
        (["cancel"], {}, "name jobs, or a label"),
        (["retry", "99999"], {}, "there is no job"),
        (["chaos", "--every", "x"], {}, "neither a number nor two"),
        (["status"], {"SPOTSCRIBE_LEASE_S": "soon"}, "SPOTSCRIBE_LEASE_S"),
        (["status"], {"SPOTSCRIBE_CONFIG": "/nowhere.toml"}, "/nowhere.toml"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_line_and_nothing_is_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], says: str
) -> None:
    before = fleet.query("SELECT count(*) FROM jobs")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = spotscribe(*[a.format(inbox=fleet.inbox) for a in arguments])
    assert ended.code == 2, ended
    assert says in ended.stderr
    if not ended.stderr.startswith("Usage:"):
        assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""
    assert fleet.query("SELECT count(*) FROM jobs") == before


def test_a_database_that_is_newer_is_taken_as_it_is(fleet: Fleet) -> None:
    """An older version goes on beside a newer one, and after a rollback to it."""
    before = spotscribe("db", "current").stdout.split()[-1]
    try:
        fleet.change("UPDATE alembic_version SET version_num = '9999'")
        assert spotscribe("db", "current").code == 0
        assert "9999 already, which is newer" in spotscribe("db", "upgrade").stdout
        assert spotscribe("status").code == 0
    finally:
        fleet.change(f"UPDATE alembic_version SET version_num = '{before}'")


def test_an_unmigrated_database_is_told(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{fleet.name}_empty"
    with fleet._admin.connect() as c:
        c.execute(text(f"CREATE DATABASE {name}"))
    monkeypatch.setenv("SPOTSCRIBE_DATABASE_URL", fleet.url.replace(fleet.name, name))
    for command in (["submit", f"s3://{fleet.inbox}/calls/"], ["worker"], ["status"], ["cancel", "1"]):
        ended = spotscribe(*command)
        assert ended.code == 2
        assert "run `spotscribe db upgrade`" in ended.stderr


def test_settings_come_from_a_toml_file_and_the_environment_goes_first(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "spotscribe.toml"
    file.write_text(f'database_url = "{fleet.url}"\nbroker_url = "redis://127.0.0.1:9/0"\n')
    monkeypatch.delenv("SPOTSCRIBE_DATABASE_URL")
    monkeypatch.setenv("SPOTSCRIBE_CONFIG", str(file))
    assert submit(f"s3://{fleet.inbox}/calls/").code == 0  # the broker of the environment
    jobs = fleet.query("SELECT count(*) FROM jobs")[0][0]
    assert jobs > 0
    assert spotscribe("status").stdout.startswith(f"{jobs} job")
    file.write_text('colour = "blue"\n')
    ended = spotscribe("status")
    assert ended.code == 2
    assert "there is no setting colour" in ended.stderr


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Of our own metrics."""
    found = [s for f in text_string_to_metric_families(text) for s in f.samples]
    return [(s.name, s.labels, s.value) for s in found if s.name.startswith("spotscribe_")]


def only_of(table: tuple[Metric, ...], found: list[tuple[str, dict[str, str], float]]) -> None:
    """Nothing is served that the table does not name, with other labels, or with a label that users choose."""
    known = {m.name: set(m.labels) for m in table if m.kind != "histogram"}
    known |= {m.name + end: {"le"} if end == "_bucket" else set()
              for m in table if m.kind == "histogram" for end in ("_bucket", "_count", "_sum")}  # fmt: skip
    for name, labels, _ in found:
        assert set(labels) == known[name], name
        assert not any("://" in v or v in {"nov", "blue"} for v in labels.values()), labels


def test_a_worker_tells_of_its_work(fleet: Fleet) -> None:
    transcribe_all(fleet)
    assert (fleet.told("/readyz"), fleet.told("/healthz")) == ("ready\n", "ok\n")
    found = samples(fleet.told("/metrics"))
    only_of(WORKER, found)
    value = {(name, *sorted(labels.values())): v for name, labels, v in found}
    [(chunks, seconds)] = fleet.query("SELECT count(*), sum(device_s) FROM checkpoints")
    assert value["spotscribe_chunks_total",] == chunks
    assert value["spotscribe_device_busy_seconds_total",] >= seconds * 0.999
    assert 0 < value["spotscribe_audio_seconds_total",] <= value["spotscribe_window_seconds_total",]
    assert 0 < value["spotscribe_padding_seconds_total",] < value["spotscribe_window_seconds_total",]
    assert value["spotscribe_batch_fill_ratio_count",] == value["spotscribe_batches_total", "decode"]
    assert value["spotscribe_checkpoint_latency_seconds_count",] == value["spotscribe_claims_total", "transcribe"]
    [(transcribed,)] = fleet.query("SELECT sum(transcribed_s) FROM transcripts")
    assert value["spotscribe_coverage_seconds_total", "transcribed"] == pytest.approx(transcribed)
    assert value["spotscribe_ended_total", "done", "ok"] == value["spotscribe_job_seconds_count",] > 0
    assert value["spotscribe_leases_lost_total", "transcribe"] == 0


def test_a_worker_reads_the_canary_at_its_start(fleet: Fleet) -> None:
    transcribe_all(fleet)
    deadline = time.monotonic() + 60
    while not fleet.query("SELECT 1 FROM canaries") and time.monotonic() < deadline:
        time.sleep(0.1)
    [(engine, device, wer)] = fleet.query("SELECT engine, device, wer FROM canaries")
    assert (engine, device, wer) == ("tiny.en int8 beam 1", "cpu", 0.0)
    ran = spotscribe("canary")
    assert (ran.code, "WER 0.000" in ran.stdout) == (0, True)
    assert "spotscribe_canary_wer_ratio{" in spotscribe("exporter", "--once").stdout


def test_the_exporter_tells_of_the_fleet(fleet: Fleet) -> None:
    transcribe_all(fleet)
    found = samples(spotscribe("exporter", "--once").stdout)
    only_of(EXPORTER, found)
    value = {(name, *sorted(labels.values())): v for name, labels, v in found}
    [(ended,)] = fleet.query("SELECT count(*) FROM jobs WHERE state = 'done' AND code = 'ok'")
    told = [v for name, labels, v in found if name == "spotscribe_day_ended_jobs" and labels["code"] == "ok"]
    assert told == [ended]
    assert value["spotscribe_workers", "cpu"] == value["spotscribe_workers", "tiny.en int8 beam 1"] == 1
    assert value["spotscribe_backlog_shards", "tiny.en int8 beam 1"] == 0


def test_each_recording_is_one_trace_across_processes(fleet: Fleet) -> None:
    transcribe_all(fleet)
    wanted = {"submit", "prepare", "shard", "finish", "deliver"}

    def whole() -> dict[str, list[Seen]]:
        """By recording. Other tests' jobs of the same recordings have traces of their own."""
        found: dict[str, list[Seen]] = {}
        for spans in fleet.collector.all_traces():
            root = next((s for s in spans if s.name == "submit"), None)
            if root is not None and wanted <= {s.name for s in spans}:
                found[root.attributes["spotscribe.url"].rpartition("/")[2]] = spans
        return found

    deadline = time.monotonic() + 60
    while not set(CLIPS) <= set(whole()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for clip in CLIPS:
        spans = whole()[clip]
        ids = {s.id for s in spans}
        assert [s.name for s in spans if not s.parent] == ["submit"]
        assert all(s.parent in ids for s in spans if s.parent), tree(spans)
