"""What tests stand on: real servers from wheels, real recordings from packages, and a made engine for speed."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import soundfile
from hypothesis import settings
from redis import Redis
from sqlalchemy import Connection, create_engine, text

from infra import laptop
from infra.laptop import RedisHandle
from storage.database import Database

settings.register_profile("default", deadline=None, max_examples=60)
settings.load_profile("default")


def package_file(package: str, *parts: str) -> Path:
    """A file inside an installed package, without importing it."""
    return laptop.package_folder(package).joinpath(*parts)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A Postgres of this test run's own: its URL."""
    with TemporaryDirectory(prefix="spotscribe-pg-") as folder, laptop.postgres_server(Path(folder)) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """The name of a migrated database there, to be copied: migrating takes four times as long."""
    with _admin(postgres_server) as connection:
        connection.execute(text("CREATE DATABASE template_migrated"))
        url = connection.engine.url.set(database="template_migrated")
    database = Database(url.render_as_string(hide_password=False))
    database.upgrade()
    database.close()
    return "template_migrated"


@pytest.fixture
def postgres(postgres_server: str, postgres_template: str) -> Iterator[Database]:
    """An empty, migrated database on that server."""
    with copied(postgres_server, postgres_template) as database:
        yield database


@contextmanager
def copied(postgres_server: str, postgres_template: str) -> Iterator[Database]:
    """A copy of the migrated database, as long as it is needed."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with _admin(postgres_server) as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {postgres_template} STRATEGY FILE_COPY"))
        url = connection.engine.url.set(database=name)
    database = Database(url.render_as_string(hide_password=False))
    yield database
    database.close()
    with _admin(postgres_server) as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def _admin(server: str) -> Iterator[Connection]:
    engine = create_engine(_psycopg(server), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real S3 server of this test run's own."""
    with laptop.s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisHandle]:
    """A real server of Redis's protocol, of this test run's own. Who takes it away brings it back."""
    with laptop.redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def broker_url(redis_server: RedisHandle) -> str:
    """That server's URL, for tests that keep to a key prefix of their own."""
    return redis_server.url


@pytest.fixture
def broker(broker_url: str) -> str:
    """That server's URL, with nothing in it."""
    with Redis.from_url(broker_url) as client:
        client.flushall()
    return broker_url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file, to be copied."""
    file = tmp_path_factory.mktemp("template") / "migrated.db"
    database = Database(f"sqlite:///{file}")
    database.upgrade()
    database.close()
    return file


@pytest.fixture
def sqlite(tmp_path: Path, sqlite_template: Path) -> Iterator[Database]:
    shutil.copy(sqlite_template, tmp_path / "test.db")
    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """Each database that Spotscribe runs on: the contract suite."""
    found: Database = request.getfixturevalue(request.param)
    return found


def _psycopg(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture(scope="session")
def spotscribe() -> list[str]:
    """The command as a user calls it."""
    return [str(Path(sys.executable).parent / "spotscribe")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty SPOTSCRIBE_HOME, for this process and its children."""
    folder = tmp_path / "home"
    for name in [n for n in os.environ if n.startswith("SPOTSCRIBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPOTSCRIBE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def voice() -> Path:
    """Ten seconds of a real voice (Moonshine's beckett.wav, MIT)."""
    return package_file("moonshine_onnx", "assets", "beckett.wav")


@pytest.fixture(scope="session")
def fox() -> Path:
    """A synthetic voice that says the sentence with all letters (pytest-audioeval, MIT)."""
    return package_file("pytest_audioeval", "samples", "audio", "en", "quick_brown_fox.wav")


@pytest.fixture(scope="session")
def english_clips(voice: Path) -> list[Path]:
    """All English recordings that the packages carry."""
    folder = package_file("pytest_audioeval", "samples", "audio", "en")
    return [voice, *sorted(folder.glob("*.wav"))]


def read_16k(path: Path) -> np.ndarray:
    """A recording's samples, int16 at 16 kHz, by linear interpolation: good enough to be understood."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    at = np.arange(0, len(mono), rate / 16000)
    return (np.interp(at, np.arange(len(mono)), mono) * 32767).astype(np.int16)


def write_wav(path: Path, samples: np.ndarray) -> Path:
    soundfile.write(path, samples, 16000, subtype="PCM_16")
    return path


def joined(clips: list[np.ndarray], *, pause_s: float, seconds: float, seed: int = 0) -> np.ndarray:
    """Clips in a random order with pauses between them, until they come to that many seconds."""
    chance = np.random.default_rng(seed)
    parts, length = [], 0
    while length < seconds * 16000:
        clip = clips[chance.integers(len(clips))]
        parts += [clip, np.zeros(int(chance.uniform(0.5, 1.5) * pause_s * 16000), np.int16)]
        length += len(parts[-1]) + len(parts[-2])
    return np.concatenate(parts)
