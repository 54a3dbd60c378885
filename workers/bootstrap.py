"""What every process of ours does before anything else."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -8, -3, -1
"""glibc's malloc.h."""
PDEATHSIG = 1
"""prctl.h."""
TRIM_S = 1.0
COLLECT_AFTER = 10_000
"""New objects that may come together before the collector looks for rings among them; Python's default is 700."""


def tame_allocator() -> None:
    """Two arenas for all threads, trimmed once a second, and activations kept between batches, where this is glibc.

    By default each thread gets an arena of its own, and each keeps what the model's activations left in it, a little
    more with every hour: ten minutes of audio took 0.76 GB, six hours 1.08 GB; and the largest go back to the system
    after each batch, only to be zeroed page by page for the next: that is 7 % of the time.
    """
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if library is None or not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        return  # musl has neither
    library.mallopt(M_ARENA_MAX, 2)
    library.mallopt(M_MMAP_THRESHOLD, 256 << 20)
    library.mallopt(M_TRIM_THRESHOLD, 512 << 20)

    def trim() -> None:
        while True:
            time.sleep(TRIM_S)
            library.malloc_trim(0)

    threading.Thread(target=trim, name="trim", daemon=True).start()


def tame_libraries() -> None:
    """Before numpy is imported: its BLAS must start no threads of its own.

    Log-mel's matrices are small, and OpenBLAS's threads then spin for longer than they work: 4 % of a run's time.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextmanager
def all_to_stay() -> Iterator[None]:
    """What is imported in here is never looked at by Python's garbage collector, not even at the process's end.

    Else it goes through hundreds of modules again and again, which takes a quarter of a command's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def tame_collector() -> None:
    """Once all is imported and loaded: what is there stays, so Python's garbage collector need not look at it."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def end_at_once() -> None:
    """SIGTERM ends the process there and then: right as long as nothing has been begun.

    A handler that raises is no use so early: Python drops what is raised in the middle of an import's callback.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))


def end_tidily() -> None:
    """SIGTERM raises SystemExit(143) in the main thread, so that what has been begun is given back."""
    signal.signal(signal.SIGTERM, _raise)


def die_with(parent: int) -> None:
    """From now on the end of the process that started this one is a SIGTERM to it. Linux only."""
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has gone already
        os._exit(143)


def _raise(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)
