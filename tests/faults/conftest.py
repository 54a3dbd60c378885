"""A fleet's corner on the test run's own servers: real Postgres, real Redis protocol, real S3, a paced engine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.laptop import RedisHandle
from pipeline.settings import Settings
from workers.arena import Arena, arena
from workers.wiring import Wiring

Places = Callable[..., AbstractContextManager[Arena]]


@pytest.fixture(scope="session")
def bucket(s3_endpoint: str) -> Iterator[str]:
    """A bucket of the test run's own; the credentials stay in the environment for worker processes."""
    before = {k: os.environ.get(k) for k in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="secret")
    name = f"faults-{uuid.uuid4().hex[:8]}"
    Wiring(Settings(s3_endpoint=s3_endpoint)).s3.create_bucket(Bucket=name)
    yield name
    for key, value in before.items():
        os.environ.pop(key) if value is None else os.environ.update({key: value})


@pytest.fixture
def places(home: Path, postgres_server: str, redis_server: RedisHandle, s3_endpoint: str, bucket: str) -> Places:
    """Makes arenas; settings may be changed for each: `with places(lease_s=1.5, broker_url=…) as place`."""

    @contextmanager
    def make(*, lease_s: float = 1.5, seed: int = 0, **changes: Any) -> Iterator[Arena]:
        settings = Settings(
            home=home, database_url=postgres_server, broker_url=redis_server.url, s3_endpoint=s3_endpoint,
            work_url=f"s3://{bucket}", engine="paced", cloud="none",
        ).model_copy(update=changes)  # fmt: skip
        with arena(settings, lease_s=lease_s, seed=seed) as place:
            yield place

    return make


@pytest.fixture
def place(places: Places) -> Iterator[Arena]:
    with places() as made:
        yield made
