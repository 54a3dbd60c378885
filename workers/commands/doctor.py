"""`spotscribe doctor`: is everything in place? All parts are looked at side by side, and none hides another."""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cached_property
from threading import Thread
from typing import Any

import click
from celery import Celery

from chunking.errors import SpotscribeError, UsageError
from storage.s3 import S3Options, s3_client
from workers.display import printable, say
from workers.doctor import CHECKS, Check, check_settings
from workers.doctor_servers import Finding
from workers.options import DEBUG
from workers.wiring import Wiring, read_settings

LIMIT_S = 10.0
"""For all of it; each check has shorter limits of its own where it can."""

EXIT_CODES = """\b
Exit codes:
  0  nothing fails
  2  something fails; what to do is in the line below it
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A part and what was found of it."""

    part: str
    finding: Finding
    trace: str = ""


class Hasty(Wiring):
    """The wiring with little patience: what is wrong is to be said, not waited out."""

    @cached_property
    def s3(self) -> Any:
        s = self.settings
        return s3_client(S3Options(s.s3_endpoint or None, s.s3_region, connect_s=3.0, read_s=5.0, attempts=1))

    @cached_property
    def app(self) -> Celery:
        app = super().app
        app.conf.broker_transport_options |= {"socket_timeout": 5}
        return app


@click.command(epilog=EXIT_CODES)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, and nothing else there.")
@DEBUG
def doctor(as_json: bool, debug: bool) -> None:
    """Check each part of the set-up, and say what to do."""
    lines = []
    for line in examine():
        lines.append(line)
        if not as_json:
            say(f"{line.finding.state:4}  {line.part:8}  {printable(line.finding.found)}")
            if line.finding.todo:
                say(f"{'':16}{printable(line.finding.todo)}")
        if debug and line.trace:
            click.echo(line.trace, err=True)
    fails = any(line.finding.state == "FAIL" for line in lines)
    if as_json:
        say(json.dumps({"ok": not fails, "parts": [{"part": n.part, **asdict(n.finding)} for n in lines]}))
    sys.exit(2 if fails else 0)


def examine() -> Iterator[Line]:
    """Each part in turn, as soon as it is known; after LIMIT_S at the latest."""
    try:
        settings = read_settings()
    except Exception as e:
        yield _raised("settings", e, "mend this first: no other part can be checked without the settings")
        return
    yield Line("settings", check_settings(settings))
    wiring, until = Hasty(settings), time.monotonic() + LIMIT_S
    for check, future in [(c, _started(c, wiring)) for c in CHECKS]:
        try:
            yield Line(check.part, future.result(max(0.0, until - time.monotonic())))
        except TimeoutError as e:
            late = UsageError(f"no answer within {LIMIT_S:.0f} s")
            yield _raised(check.part, e if future.done() else late, check.todo)
        except Exception as e:
            yield _raised(check.part, e, check.todo)


def _started(check: Check, wiring: Wiring) -> Future[Finding]:
    future: Future[Finding] = Future()

    def run() -> None:
        try:
            future.set_result(check.look(wiring))
        except Exception as e:
            future.set_exception(e)

    Thread(target=run, name=f"doctor-{check.part}", daemon=True).start()  # one that hangs does not keep us
    return future


def _raised(part: str, error: Exception, todo: str) -> Line:
    found = (str(error).strip() or "no further word").splitlines()[0]
    if isinstance(error, OSError) and error.strerror:
        found = f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    elif not isinstance(error, SpotscribeError):
        found = f"{type(error).__name__}: {found}"
    what, _, own = found.rpartition(": ")
    if own.startswith(("run ", "see ", "set ")):  # as many messages of ours end
        found, todo = what, own
    trace = "".join(traceback.format_exception(error))
    return Line(part, Finding("FAIL", _scrubbed(found), todo), _scrubbed(trace))


def _scrubbed(words: str) -> str:
    """Without what stands before the host in a URL, should a library have quoted one."""
    return re.sub(r"//\S*@", "//***@", words)
