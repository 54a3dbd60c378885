"""The one Settings object, read once where things are wired (workers/), from SPOTSCRIBE_* variables."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from pipeline.engine import EngineOptions, cuda_devices


class Settings(BaseSettings):
    """Where things lie and how much of the machine may be used. Each is a variable: SPOTSCRIBE_HOME, …"""

    model_config = SettingsConfigDict(env_prefix="SPOTSCRIBE_", frozen=True, env_ignore_empty=True)

    home: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("spotscribe")),
        description="Everything that Spotscribe keeps on this machine: database, audio in work, models.",
    )
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: a SQLite file in the home folder.")
    model: str = Field(default="tiny.en", description="The model when none is asked for.")
    cpu_threads: int = Field(default=0, ge=0, description="Threads to use on this machine; 0: all its cores.")
    max_hours: float = Field(default=24.0, gt=0, description="Longer recordings are rejected as too_long.")
    max_gigabytes: float = Field(default=16.0, gt=0, description="Larger files are rejected as too_large.")

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        home = self.home.expanduser().absolute()
        object.__setattr__(self, "home", home)
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite:///{home / 'spotscribe.db'}")
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


def engine_options(settings: Settings, device: str, compute_type: str, beam_size: int) -> EngineOptions:
    """How to run the model on this machine.

    On CPU as many workers of one thread as there are cores, up to four: on two cores that is a third faster than one
    worker of two threads (ARCHITECTURE.md). On a GPU one.
    """
    if device == "auto":
        device = "cuda" if cuda_devices() else "cpu"
    if device == "cuda":
        return EngineOptions("cuda", compute_type, 1, 0, beam_size)
    workers = min(settings.cores, 4)
    return EngineOptions("cpu", compute_type, workers, max(1, settings.cores // workers), beam_size)


def default_batch_size(options: EngineOptions) -> int:
    """64 on a GPU. On CPU eight for each worker: more gains nothing there, and a kill then costs less."""
    return 64 if options.device == "cuda" else 8 * options.parallel
