"""The decoder, but for recordings that end in CRASH, HANGS or EATS!: `python -m tests.faults.bad_decoder FD`."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

from chunking import decoder, sandbox


def work(source: int, output: int, options: dict[str, Any]) -> dict[str, Any]:
    last = os.pread(source, 5, os.fstat(source).st_size - 5)
    if last == b"CRASH":
        os.kill(os.getpid(), signal.SIGSEGV)
    if last == b"HANGS":
        time.sleep(3600.0)
    if last == b"EATS!":
        held = []
        while True:
            held.append(np.empty(64 << 20, np.uint8))  # taken and not touched: that would take seconds
    return decoder._work(source, output, options)


if __name__ == "__main__":
    decoder._warm_up()
    sandbox.serve(int(sys.argv[1]), work)
