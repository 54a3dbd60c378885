"""The command on a machine whose clock is off by so many seconds: `python -m tests.faults.clock -3600 worker …`."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta

from botocore import auth


def shifted(seconds: float) -> None:
    """Python's wall clock, and the one that requests to S3 are signed with. The monotonic one is never off."""
    now, signing = time.time, auth.get_current_datetime

    def later(*how: bool) -> datetime:
        moment: datetime = signing(*how)
        return moment + timedelta(seconds=seconds)

    time.time = lambda: now() + seconds
    time.time_ns = lambda: round(time.time() * 1e9)
    auth.get_current_datetime = later


if __name__ == "__main__":
    shifted(float(sys.argv.pop(1)))
    from workers.cli import main

    main()
