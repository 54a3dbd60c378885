"""The one Settings object, read once where things are wired (workers/): SPOTSCRIBE_* variables, then a TOML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

PREFIX = "SPOTSCRIBE_"
CONFIG = "SPOTSCRIBE_CONFIG"
"""Names the TOML file; without it `spotscribe.toml` in the current folder, else in the user's configuration folder."""


class Settings(BaseSettings):
    """Where things lie and how much of the machine may be used. Each is a variable: SPOTSCRIBE_HOME, …"""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, env_ignore_empty=True, extra="forbid")

    home: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("spotscribe")),
        description="Everything that Spotscribe keeps on this machine: database, audio in work, models.",
    )
    database_url: str = Field(
        default="", repr=False, description="SQLAlchemy URL; empty: a SQLite file in the home folder."
    )
    broker_url: str = Field(default="", repr=False, description="A fleet's Redis: redis://host:6379/0.")
    queue: str = Field(default="spotscribe", description="How the names of the broker's queues begin.")
    work_url: str = Field(
        default="", description="Audio in work: s3://bucket/prefix, of one database; empty: in the home folder."
    )
    out_url: str = Field(default="", description="Where transcripts go: s3://bucket/prefix; empty: database only.")
    s3_endpoint: str = Field(default="", description="An S3 server that is not AWS: http://host:8333.")
    s3_region: str = Field(default="us-east-1", description="The region of the buckets.")
    model: str = Field(
        default="tiny.en",
        description="The model when none is asked for: a name, a directory, or s3://bucket/…/NAME/ with SHA256SUMS.",
    )
    models_folder: Path | None = Field(
        default=None, description="Models that came with the machine, each a folder by its name; looked into first."
    )
    compute_type: str = Field(default="int8", description="The precision when none is asked for.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="What the model runs on.")
    engine: Literal["whisper", "paced"] = Field(
        default="whisper", description="paced: no model, a text made up, for trying out a fleet."
    )
    paced_s: float = Field(
        default=0.02, ge=0, description="Seconds a chunk, if paced: so fast is large-v3-turbo on a good GPU."
    )
    cpu_threads: int = Field(default=0, ge=0, description="Threads to use on this machine; 0: all its cores.")
    max_hours: float = Field(default=24.0, gt=0, description="Longer recordings are rejected as too_long.")
    max_gigabytes: float = Field(default=16.0, gt=0, description="Larger files are rejected as too_large.")
    lease_s: float = Field(default=20.0, gt=0.5, description="A worker that is silent for so long has lost its work.")
    price_per_hour: float = Field(default=0.0, ge=0, description="What an hour of this machine's device costs.")
    market: str = Field(default="", description="How this machine was bought: spot, on_demand.")
    stall_s: float = Field(default=600.0, gt=0, description="A call of the model that takes longer hangs.")
    events_token: str = Field(default="", repr=False, description="What senders of events must show (ingest --listen).")
    webhook_secret: str = Field(default="", repr=False, description="Signs webhooks: whsec_ and base64, or any text.")
    metrics_listen: str = Field(
        default="", description="Where a worker serves metrics and its health: HOST:PORT or :PORT; empty: not at all."
    )
    otlp_endpoint: str = Field(
        default="", description="Where traces go (OTLP over HTTP): http://collector:4318; empty: nowhere."
    )
    trace_share: float = Field(default=1.0, ge=0, le=1, description="The share of recordings that are traced.")
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto", description="What a worker says of itself: text on a terminal, JSON elsewhere."
    )
    canary: str = Field(
        default="", description="The canary: a file with its text in NAME.txt beside it; empty: our own, English."
    )
    canary_every_s: float = Field(
        default=21_600.0, ge=0, description="How often each worker decodes the canary; 0: never."
    )
    finish_within_s: float = Field(
        default=3600.0, gt=0, description="In what time a backlog is to be done: how many workers are wanted."
    )
    min_workers: int = Field(default=0, ge=0, description="Of each engine, however little there is to do.")
    max_workers: int = Field(default=10, ge=0, description="Of each engine, however much there is to do.")
    scale_in_after_s: float = Field(
        default=600.0, ge=0, description="Fewer workers are wanted only after so long a time of less work."
    )
    expected_rtfx: float = Field(
        default=50.0, gt=0, description="Seconds of sound in a second of a worker, until it has been measured."
    )
    cloud: str = Field(default="auto", description="Whose notices of preemption to heed: aws, gcp, azure, none.")
    metadata_url: str = Field(default="http://169.254.169.254", description="Where the cloud's metadata service is.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = config_file()
        if file is not None and not file.is_file():
            raise FileNotFoundError("no such file")
        toml = (TomlConfigSettingsSource(settings_cls, file),) if file is not None else ()
        return (init_settings, env_settings, *toml)

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        try:
            return home.expanduser().absolute()
        except RuntimeError:
            raise ValueError("there is no such user") from None

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite:///{self.home / 'spotscribe.db'}")
        return self

    @property
    def work(self) -> Path:
        """Shards of recordings in work, when no object store is set."""
        return self.home / "work"

    @property
    def scratch(self) -> Path:
        """Files of this moment; worthless when no process runs."""
        return self.home / "scratch"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def cores(self) -> int:
        """Threads to use."""
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return self.cpu_threads or usable or 1


def config_file() -> Path | None:
    """The TOML file that is read, if there is one."""
    if named := os.environ.get(CONFIG):
        return Path(named).expanduser()
    places = (Path("spotscribe.toml"), Path(platformdirs.user_config_dir("spotscribe")) / "spotscribe.toml")
    return next((p for p in places if p.is_file()), None)
