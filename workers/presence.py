"""Which workers of this machine are alive: each holds a lock on a file of its own, which any death lets go of."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self


class Presence:
    """This process's name and the proof that it lives. The name marks leases; scratch files lie under it."""

    def __init__(self, home: Path, prefix: str = "local-") -> None:
        """`prefix`: how the names of all processes of this kind on this machine begin."""
        self._prefix = prefix
        self._folder = home / "run"
        self._scratch = home / "scratch"
        self.name = f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.scratch = self._scratch / self.name
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self._folder / self.name).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.scratch.mkdir(parents=True)  # now that others can see whose it is
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            (self._folder / self.name).unlink(missing_ok=True)
            self._lock.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def dead(self, names: Iterable[str]) -> set[str]:
        """Those of the workers that were on this machine and are not any more. What they left in scratch goes."""
        found = {n for n in names if n.startswith(self._prefix) and n != self.name and not self._alive(n)}
        if self._scratch.is_dir():
            for left in self._scratch.iterdir():
                if left.name != self.name and not self._alive(left.name):
                    shutil.rmtree(left, ignore_errors=True)
        return found

    def _alive(self, name: str) -> bool:
        try:
            with (self._folder / name).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        (self._folder / name).unlink(missing_ok=True)
        return False
