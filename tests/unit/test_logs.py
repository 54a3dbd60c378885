"""What processes say: one object a line, no secrets, and never at the cost of the work."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.contextvars import bound_contextvars

from pipeline.settings import Settings
from workers.logs import HIDDEN, MOST_LINES, Logs, Redactor, secrets_of

LOG = logging.getLogger("spotscribe.test")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("spotscribe")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO, *, lines: int = 1) -> list[str]:
    for _ in range(600):
        if stream.getvalue().count("\n") >= lines:
            break
        time.sleep(0.01)
    return stream.getvalue().splitlines()


def started(stream: io.StringIO, **settings: Any) -> Logs:
    made = Logs(Settings(**settings), stream)
    made.start("host-1-ab")
    return made


def test_elsewhere_than_on_a_terminal_a_line_is_an_object_with_what_it_is_about() -> None:
    stream = io.StringIO()
    started(stream)
    with bound_contextvars(step="finish", job=7):
        LOG.info("ended", extra={"state": "done", "audio_s": 12.5})
    (line,) = said(stream)
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "info", "worker": "host-1-ab", "event": "ended", "step": "finish", "job": 7,
                     "state": "done", "audio_s": 12.5}  # fmt: skip


def test_on_a_terminal_it_is_a_short_line() -> None:
    stream = Terminal()
    started(stream)
    LOG.info("ended", extra={"job": 7, "state": "done", "error": None})
    assert said(stream) == ["host-1-ab: ended (job 7, state done)"]


def test_a_setting_says_otherwise() -> None:
    stream = io.StringIO()
    started(stream, log_format="text")
    LOG.info("leaving")
    assert said(stream) == ["host-1-ab: leaving"]


def test_a_traceback_is_a_field() -> None:
    stream = io.StringIO()
    started(stream)
    try:
        raise ValueError("broken")
    except ValueError:
        LOG.exception("a step failed")
    (line,) = said(stream)
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_libraries_and_warnings_are_heard_from_warning_on() -> None:
    stream = io.StringIO()
    started(stream)
    logging.getLogger("botocore").info("chatter")
    logging.getLogger("botocore").warning("a bucket is slow")
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    lines = said(stream, lines=2)
    assert [json.loads(x)["level"] for x in lines] == ["warning", "warning"]
    assert "a bucket is slow" in lines[0]


def test_the_same_warning_is_held_back() -> None:
    stream = io.StringIO()
    started(stream)
    for _ in range(50):
        LOG.warning("put off: %s", "the bucket refuses")
    LOG.info("done")
    lines = said(stream, lines=2)
    assert len(lines) == 2


def test_errors_are_said_each_time_and_warnings_about_another_thing_too() -> None:
    stream = io.StringIO()
    started(stream)
    for job in (1, 2):
        LOG.warning("put off: %s", f"bucket {job}")
        LOG.error("an error")
    assert len(said(stream, lines=4)) == 4


def test_secrets_inside_of_other_things_than_text_are_hidden() -> None:
    stream = io.StringIO()
    started(stream, events_token="hunter22")
    LOG.info("sent", extra={"error": ValueError("bad hunter22")})
    (line,) = said(stream)
    assert "hunter22" not in line


def test_what_nobody_reads_holds_up_nobody() -> None:
    read, write = os.pipe()
    stream = os.fdopen(write, "w")
    Logs(Settings(), stream).start("w")
    worker = threading.Thread(target=lambda: [LOG.info("x" * 100) for _ in range(2 * MOST_LINES)], daemon=True)
    worker.start()
    worker.join(120.0)
    assert not worker.is_alive()
    os.close(read)
    with suppress(BrokenPipeError):
        stream.close()


def test_a_stream_that_is_closed_is_no_error() -> None:
    stream = io.StringIO()
    logs = started(stream)
    stream.close()
    LOG.info("still here")
    logs.flush()


PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4, max_size=40)


@given(PASSWORDS)
def test_a_password_never_comes_out(password: str) -> None:
    url = f"postgresql://user:{quote(password, safe='')}@host/db"
    redact = Redactor(secrets_of(Settings(database_url=url)))
    for text in (f"cannot connect to {url}", f"authentication failed for {password}.", f"{{'password': '{password}'}}"):
        found = redact.of(text).replace(HIDDEN, "\0")
        assert password not in found
        assert quote(password, safe="") not in found


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=abcdef&x=1", "abcdef"),
        ("redis://:hunter22@host:6379/0 is away", "hunter22"),
        ("POST https://hook.example.org/?token=t0k3n99", "t0k3n99"),
        ("signed with whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        ("password=geheim99 refused", "geheim99"),
        ("Authorization: Bearer abcd.efgh", "abcd.efgh"),
        ('{"password": "geheim99"}', "geheim99"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_though_nobody_set_it(text: str, hidden: str) -> None:
    found = Redactor([]).of({"event": text, "more": [text]})
    assert hidden not in str(found)
    assert HIDDEN in found["event"]
