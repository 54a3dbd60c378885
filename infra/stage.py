"""A stage for what is shown on one machine: servers from wheels, gone afterwards, recordings, commands as they run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from infra.laptop import package_folder, stack
from pipeline.settings import Settings
from workers.wiring import Wiring

INBOX, OUT, WORK = "inbox", "transcripts", "work-in-progress"
LEASE_S = 5.0
"""Short, so that nobody has to wait long for what a killed worker held."""
RATE = 16000
PATIENCE_S = 120.0


@contextmanager
def servers() -> Iterator[tuple[Path, dict[str, str]]]:
    """A scratch folder, and the environment in which commands find the servers and their buckets."""
    folder = Path(tempfile.mkdtemp(prefix="spotscribe-"))
    try:
        with stack(folder / "servers") as servers:
            environment = {
                **{k: v for k, v in os.environ.items() if not k.startswith(("SPOTSCRIBE_", "AWS_"))},
                **servers.environment(),
                "SPOTSCRIBE_HOME": str(folder / "home"),
                "SPOTSCRIBE_WORK_URL": f"s3://{WORK}/audio",
                "SPOTSCRIBE_OUT_URL": f"s3://{OUT}",
                "SPOTSCRIBE_CLOUD": "none",
            }
            os.environ.update({k: v for k, v in environment.items() if k.startswith(("SPOTSCRIBE_", "AWS_"))})
            s3 = Wiring(Settings()).s3
            for bucket in (INBOX, OUT, WORK):
                s3.create_bucket(Bucket=bucket)
            yield folder, environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


def recordings(folder: Path, times: int = 12) -> list[Path]:
    """Short clips that packages carry, and one long recording: all of them joined, so many times over."""
    clips = sorted((package_folder("pytest_audioeval") / "samples" / "audio" / "en").glob("*.wav"))
    clips.append(package_folder("moonshine_onnx") / "assets" / "beckett.wav")
    sounds = [s for clip in clips for s in (_sound(clip), np.zeros(RATE // 2, np.int16))]
    long = folder / "long.wav"
    soundfile.write(long, np.concatenate(sounds * times), RATE)
    return [*clips, long]


def _sound(clip: Path) -> npt.NDArray[np.int16]:
    samples, rate = soundfile.read(clip, dtype="int16", always_2d=True)
    at = np.arange(0, len(samples), rate / RATE)
    return np.asarray(np.interp(at, np.arange(len(samples)), samples[:, 0]), np.int16)


def worker(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return background(["worker", "--model", "tiny.en"], environment)


def background(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    print(f"$ spotscribe {shlex.join(command)} &", flush=True)
    return subprocess.Popen([sys.executable, "-m", "workers", *command], env=environment, start_new_session=True)


def end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in workers:
        if process.poll() is None:
            process.terminate()
    for process in workers:
        try:
            process.wait(12.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def spotscribe(arguments: Sequence[str], environment: dict[str, str], *, show: bool = True) -> int:
    if show:
        print(f"$ spotscribe {shlex.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "workers", *arguments], env=environment, check=False).returncode
