"""The command on a machine whose clock is off by so many seconds: `python -m tests.faults.clock -3600 worker …`."""

from __future__ import annotations

import sys
import time


def shifted(seconds: float) -> None:
    """What Python calls the time. Requests to S3 are signed with the right one, or S3 would refuse them."""
    now = time.time
    time.time = lambda: now() + seconds
    time.time_ns = lambda: round(time.time() * 1e9)


if __name__ == "__main__":
    shifted(float(sys.argv.pop(1)))
    from workers.cli import main

    main()
