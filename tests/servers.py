"""Servers for tests, from wheels: started on free ports of the loopback in a scratch folder, and ended by their id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 60.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def free_ports(count: int, *, apart: int) -> list[int]:
    """Ports whose neighbours `apart` above are free too: SeaweedFS adds 10 000 to each for its own calls."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if port + apart > 65_000 or port in found:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port + apart))
            except OSError:
                continue
        found.append(port)
    return found


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout: float = START_S) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server did not come up")


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """A real S3 server (SeaweedFS): its endpoint. Keys `test` and `secret`."""
    master, volume, filer, s3 = free_ports(4, apart=10_000)
    config = folder / "s3.json"
    config.write_text(
        '{"identities": [{"name": "t", "credentials": [{"accessKey": "test", "secretKey": "secret"}], "actions": ["Admin"]}]}'
    )
    command = [
        str(Path(sys.executable).parent / "weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}",
        f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
        f"-s3.config={config}", "-master.volumeSizeLimitMB=64", "-volume.max=8",
    ]  # fmt: skip
    env = {**os.environ, "WEED_TELEMETRY": "false"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=folder)
    try:
        wait_for_port(s3, process)
        yield f"http://127.0.0.1:{s3}"
    finally:
        process.kill()  # it takes ten seconds to leave by itself, and its folder goes anyway
        process.wait()
