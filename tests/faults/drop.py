"""A drop folder in an arena's corner of the bucket, its watchers, what tells them, and whom they tell."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.error import URLError
from urllib.parse import quote_plus
from urllib.request import Request, urlopen

from sqlalchemy import text

from storage.s3 import S3Bucket
from storage.urls import bucket_and_key
from workers.arena import Arena

PATIENCE_S = 60.0


class Drop:
    """A drop folder in an arena's corner of the bucket, and its watchers."""

    def __init__(self, place: Arena) -> None:
        self.place, self.s3 = place, place.wiring.s3
        self.url = place.settings.work_url.removesuffix("work") + "drop/"
        self.bucket, self.prefix = bucket_and_key(self.url)
        self.watchers: list[subprocess.Popen[bytes]] = []
        self._environment = place.environment | {"SPOTSCRIBE_OUT_URL": ""}  # beside the recordings

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=body)

    def delete(self, key: str) -> None:
        self.s3.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    def listed(self, below: str = "") -> set[str]:
        found = S3Bucket(self.s3).listing(self.url + below)
        return {bucket_and_key(o.media.url)[1].removeprefix(self.prefix) for o in found}

    def body(self, key: str) -> bytes:
        content: bytes = self.s3.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read()
        return content

    def watch(self, *arguments: str, url: str | None = None, **settings: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workers", "ingest", url or self.url, "--watch", "--every", "1s", *arguments]
        told = {f"SPOTSCRIBE_{k.upper()}": str(v) for k, v in settings.items()}
        with (self.place.folder / "logs" / "ingest.log").open("ab") as log:
            self.watchers.append(subprocess.Popen(command, env=self._environment | told, stdout=log, stderr=log))
        return self.watchers[-1]

    def once(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "workers", "ingest", self.url, *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        return done.stdout

    def rows(self, sql: str) -> list[Any]:
        with self.place.wiring.database.reading() as tx:
            return list(tx.execute(text(sql)))

    def ends(self) -> dict[str, tuple[str, str]]:
        """State and code of the jobs by key and, where it has several, by version."""
        sql = "SELECT r.url, j.state, j.code FROM jobs j JOIN recordings r ON r.id = j.recording_id ORDER BY j.id"
        found: dict[str, tuple[str, str]] = {}
        for url, state, code in self.rows(sql):
            key = bucket_and_key(url)[1].removeprefix(self.prefix)
            found[key + "'" * sum(k.rstrip("'") == key for k in found)] = (state, code)
        return found

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.kill()
            watcher.wait()
        for key in self.listed():
            with suppress(Exception):  # an odd one that cannot be deleted goes with the server
                self.delete(key)


def until(holds: Callable[[], object], missing: Callable[[], object] = lambda: "", seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, missing()
        time.sleep(0.1)


@contextmanager
def dropping(place: Arena) -> Iterator[Drop]:
    drop = Drop(place)
    try:
        yield drop
    finally:
        drop.close()


def event(bucket: str, key: str, name: str = "ObjectCreated:Put", **about: object) -> bytes:
    """As AWS sends it: the key URL-encoded, + for space."""
    said = {"s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key), **about}}}
    return json.dumps({"Records": [{"eventSource": "aws:s3", "eventName": name, **said}]}).encode()


def tell(port: int, *bodies: bytes) -> None:
    """To a watcher's receiver, if it lives: events may be lost."""
    for body in bodies:
        with suppress(URLError, OSError):
            urlopen(Request(f"http://127.0.0.1:{port}/", data=body, method="POST"), timeout=5).close()
