"""Workers in which something goes wrong on purpose: `python -m tests.faults.odd KIND worker …`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chunking import audio
from chunking.errors import DeviceLost, OutOfMemory
from chunking.media import MediaReport
from chunking.planner import Track
from pipeline import prepare, transcribe
from pipeline.engine import Answer, Ask, Floats
from pipeline.paced import PacedEngine
from workers.__main__ import main

POISON_S = 33.0
"""A recording longer than this is the one that things go wrong with."""
ROOM = 4
"""Chunks that fit the memory of a small device."""

decode = PacedEngine.decode


def dies_preparing() -> None:
    """The poison kills the process that looks for speech in it."""
    tracks = prepare.Preparer._tracks

    def patched(self: prepare.Preparer, pcm: Path, report: MediaReport) -> list[Track]:
        if report.duration_s > POISON_S:
            os.kill(os.getpid(), signal.SIGKILL)
        return tracks(self, pcm, report)

    prepare.Preparer._tracks = patched  # type: ignore[method-assign]


def dies_decoding() -> None:
    """A chunk of the job that SPOTSCRIBE_POISONED names kills the process that computes its features."""
    computed = transcribe.Transcriber._features

    def patched(self: transcribe.Transcriber, work: Any) -> Floats:
        if str(work.shard.job) == os.environ["SPOTSCRIBE_POISONED"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return computed(self, work)

    transcribe.Transcriber._features = patched  # type: ignore[method-assign]


def hangs() -> None:
    """The first call of the model never returns."""

    def patched(self: PacedEngine, asks: Sequence[Ask]) -> list[Answer]:
        time.sleep(3600.0)
        return decode(self, asks)

    PacedEngine.decode = patched  # type: ignore[method-assign]


def has_little_memory() -> None:
    """More than a few chunks at once do not fit."""

    def patched(self: PacedEngine, asks: Sequence[Ask]) -> list[Answer]:
        if len(asks) > ROOM:
            raise OutOfMemory("CUDA failed with error out of memory")
        return decode(self, asks)

    PacedEngine.decode = patched  # type: ignore[method-assign]


def loses_its_device() -> None:
    """The second call of the model finds no device."""
    calls = 0

    def patched(self: PacedEngine, asks: Sequence[Ask]) -> list[Answer]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise DeviceLost("CUDA error: an illegal memory access was encountered")
        return decode(self, asks)

    PacedEngine.decode = patched  # type: ignore[method-assign]


def loses_a_device_once() -> None:
    """The first process of the home that comes to its second call finds no device; no other, and no later one."""
    calls, taken = 0, Path(os.environ["SPOTSCRIBE_HOME"]) / "lost"

    def patched(self: PacedEngine, asks: Sequence[Ask]) -> list[Answer]:
        nonlocal calls
        calls += 1
        if calls == 2:
            with suppress(FileExistsError):
                taken.touch(exist_ok=False)
                raise DeviceLost("CUDA error: an illegal memory access was encountered")
        return decode(self, asks)

    PacedEngine.decode = patched  # type: ignore[method-assign]


def is_slow() -> None:
    """A chunk takes a third of a second."""
    PacedEngine.__init__.__defaults__ = (0.3, None)


def has_a_bad_decoder() -> None:
    """The decoder's child crashes, hangs or eats memory, by the last bytes of the recording."""
    audio._WALL_S = 4.0
    audio.DecoderPool.__init__.__kwdefaults__ = {"module": "tests.faults.bad_decoder"}


if __name__ == "__main__":
    {f.__name__: f for f in (
        dies_preparing, dies_decoding, hangs, has_little_memory, loses_its_device, loses_a_device_once, is_slow,
        has_a_bad_decoder,
    )}[sys.argv.pop(1)]()  # fmt: skip
    main()
