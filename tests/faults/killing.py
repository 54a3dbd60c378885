"""A worker that kills itself at a named point of the code: `python -m tests.faults.killing`, told what to do by lines.

Points are found, not listed: before and after every commit (named by the function whose transaction it is), every
object read, written, copied or deleted, every notice sent, every message published, acknowledged or rejected. So a new
commit is a new point, and is tried as the others are. Each line read is JSON: the variables, the arguments and the
point (null: none); the answer is the id of a process forked for it, which costs nothing to start since everything is
imported here already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import celery.apps.worker
import kombu.message
import kombu.transport.redis
from sqlalchemy import Connection

import workers.commands.submit
import workers.commands.worker
from pipeline.notices import Webhooks
from storage.database import Database
from storage.s3 import S3Reader, S3Store, S3Writer
from storage.s3_putaway import S3Shelf
from workers.bootstrap import end_at_once
from workers.cli import cli
from workers.nudges import Nudges

SEEN = "SEEN_POINTS"
"""A file that gets a line for each point that is passed."""
__all__ = ["celery", "kombu", "workers"]


def main() -> None:
    for line in sys.stdin:
        told = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(told)
        print(pid, flush=True)
        if told["wait"]:
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)


def _child(told: dict[str, Any]) -> None:
    os.environ.update(told["environment"])
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.setsid()
    _patch(told["point"])
    sys.argv = ["spotscribe", *told["arguments"]]
    end_at_once()
    try:
        cli(standalone_mode=False)
    except SystemExit as e:
        os._exit(int(e.code or 0))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(99)
    os._exit(0)


def _patch(point: str | None) -> None:
    seen = os.environ.get(SEEN)

    def reach(name: str) -> None:
        if seen:
            with open(seen, "a") as f:
                f.write(name + "\n")
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    original = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[Connection]:
        frame = sys._getframe(2)
        name = f"commit {frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name}"
        with original(self) as tx:
            yield tx
            reach(f"before {name}")
        reach(f"after {name}")

    Database.transaction = transaction  # type: ignore[method-assign,assignment]
    around: list[tuple[Any, str, str]] = [
        (S3Store, "put_file", "work object written"), (S3Store, "open", "work object read"),
        (S3Store, "delete", "work object deleted"), (S3Writer, "write", "transcript file written"),
        (S3Reader, "fetch", "recording read"), (Webhooks, "send", "notice sent"),
        (S3Shelf, "_copy", "recording copied"), (S3Shelf, "delete", "recording deleted"), (Nudges, "_publish", "message published"),
        (kombu.transport.redis.QoS, "ack", "message acknowledged"),
        (kombu.transport.redis.QoS, "reject", "message rejected"),
    ]  # fmt: skip
    for owner, attribute, name in around:
        setattr(owner, attribute, _around(getattr(owner, attribute), name, reach))


def _around(method: Callable[..., Any], name: str, reach: Callable[[str], None]) -> Callable[..., Any]:
    def patched(*args: Any, **kwargs: Any) -> Any:
        reach(f"before {name}")
        found = method(*args, **kwargs)
        reach(f"after {name}")
        return found

    return patched


if __name__ == "__main__":
    main()
