"""What the settings come to: database, object store, where recordings are read from and files written to.

Libraries that take long to import are imported where they are asked for: `spotscribe status` needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError
from pydantic_settings.exceptions import SettingsError

from chunking.errors import DatabaseAway, UsageError
from pipeline.settings import CONFIG, PREFIX, Settings, config_file
from storage.database import Database
from storage.destinations import Destinations
from storage.objects import LocalStore, ObjectStore, path_of
from storage.readers import Readers
from storage.urls import S3

if TYPE_CHECKING:
    from celery import Celery

    from pipeline.devices import EngineOptions
    from pipeline.engine import Engine
    from pipeline.sound import Sounds
    from storage.cloudwatch import Gauges
    from storage.putaway import Shelves
    from storage.queues import Inbox, Outbox


def read_settings() -> Settings:
    """From the environment and the TOML file. Raises UsageError that names what is wrong."""
    try:
        return Settings()
    except ValidationError as e:
        first = e.errors()[0]
        name = "_".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise UsageError(f"{config_file()}: there is no setting {name}") from None
        raise UsageError(f"{PREFIX}{name.upper()}: {first['msg']}, not {first['input']!r}") from None
    except (OSError, ValueError, SettingsError) as e:
        raise UsageError(f"{config_file()} ({CONFIG}) cannot be read: {e}") from None


@dataclass(frozen=True)
class Wiring:
    """Made when first asked for, and once."""

    settings: Settings
    connections: int = 4
    """Of the database."""
    ping: bool = True
    """Whether they are asked for their health before each use."""

    @cached_property
    def database(self) -> Database:
        return Database(self.settings.database_url, pool_size=self.connections, ping=self.ping)

    @cached_property
    def s3(self) -> Any:
        from storage.s3 import S3Options, s3_client

        s = self.settings
        return s3_client(S3Options(s.s3_endpoint or None, s.s3_region))

    @cached_property
    def store(self) -> ObjectStore:
        """Audio in work."""
        url = self.settings.work_url
        if url.startswith("s3://"):
            from storage.s3 import S3Store

            return S3Store(url, self.s3)
        if url and not url.startswith("file://"):
            raise UsageError(f"{PREFIX}WORK_URL: {url} is neither s3:// nor file://")
        return LocalStore(path_of(url) if url else self.settings.work)

    @cached_property
    def readers(self) -> Readers:
        from storage.s3 import S3Reader

        return Readers({"s3": S3Reader(self.s3)})

    @cached_property
    def destinations(self) -> Destinations:
        from storage.s3 import S3Writer

        return Destinations({"s3": S3Writer(self.s3)})

    @contextmanager
    def sounds(self, scratch: Path) -> Iterator[Sounds]:
        """Recordings' sound once more. The decoder ends with the context."""
        from chunking.audio import DecodeOptions, DecoderPool
        from pipeline.sound import Sounds

        s = self.settings
        limits = DecodeOptions(max_duration_s=s.max_hours * 3600, max_bytes=round(s.max_gigabytes * 1e9))
        with DecoderPool() as decoder:
            yield Sounds(lambda: self.readers, decoder, scratch, limits)

    def inbox(self, address: str) -> Inbox:
        """A queue of a bucket's events: its URL, with `sqs:` before it or not. Raises UsageError."""
        from storage.queues import open_inbox

        return open_inbox(address, self.settings.s3_region)

    @cached_property
    def outbox(self) -> Outbox:
        """Queues and topics that are told of ends."""
        from storage.queues import Outbox

        return Outbox(self.settings.s3_region)

    @cached_property
    def gauges(self) -> Gauges:
        """CloudWatch's metrics."""
        from storage.aws import AwsOptions
        from storage.cloudwatch import Gauges

        return Gauges(AwsOptions(region=self.settings.s3_region))

    @cached_property
    def shelves(self) -> Shelves:
        """How recordings are put away."""
        from storage.putaway import Shelves
        from storage.s3_putaway import S3Shelf

        return Shelves({"s3": S3Shelf(self.s3)})

    @cached_property
    def app(self) -> Celery:
        """Celery, with a broker. Raises UsageError where none is set."""
        from workers.celery_app import make_app

        if not self.settings.broker_url:
            raise UsageError(f"{PREFIX}BROKER_URL is not set; a fleet needs a Redis: redis://host:6379/0")
        return make_app(self.settings.broker_url, self.settings.queue)

    def check_fleet(self, *, migrated: bool = True) -> None:
        """Whether what a fleet needs is set, answers and, if that matters, is migrated. Raises UsageError."""
        from workers.nudges import check_broker

        if self.database.is_sqlite:
            raise UsageError(f"{PREFIX}DATABASE_URL is not set; a fleet needs Postgres: postgresql://user@host/name")
        try:
            if migrated:
                self.database.check()
            else:
                self.database.revision()
        except DatabaseAway as e:
            raise UsageError(f"{e}: see {PREFIX}DATABASE_URL") from None
        check_broker(self.app)


def model_directory(settings: Settings, model: str) -> Path | None:
    """Where the model is, fetched if need be; None where no model is needed. Raises UsageError."""
    from pipeline.modelbucket import fetched_model
    from pipeline.models import find_model

    if settings.engine == "paced":
        return None
    if not model.startswith(S3):
        return find_model(model, settings.models, settings.models_folder)
    from storage.s3 import S3Bucket

    return fetched_model(model, S3Bucket(Wiring(settings).s3), settings.models, lambda told: click.echo(told, err=True))


def load_engine(settings: Settings, directory: Path | None, options: EngineOptions) -> Engine:
    """The model, loaded. Raises UsageError where it does not fit the device."""
    from pipeline.models import check_sums
    from pipeline.paced import PacedEngine
    from pipeline.whisper import WhisperEngine

    if directory is None:
        return PacedEngine(settings.paced_s, log=settings.home / "decoded")
    check_sums(directory)
    return WhisperEngine(directory, options)


def make_folder(folder: Path, setting: str) -> None:
    """Raises UsageError that names the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"{setting}: {folder} cannot be made: {e.strerror}") from None
