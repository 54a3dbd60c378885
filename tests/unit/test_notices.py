"""Webhooks against real receivers on this machine: what is taken, what is not, what is said of it, and the signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chunking.errors import PermanentError, TransientError, UsageError
from pipeline import notices
from pipeline.errands import errands_of, wait_s
from pipeline.notices import Address, Unanswered, Webhooks, address_of, key_bytes, redacted, signature
from storage.jobs import JobOptions
from storage.sources import SourceSettings

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes or so").decode()
BODY = '{"a":1}'
Got = tuple[str, dict[str, str], bytes]


@contextmanager
def receiver(
    answer: Callable[[BaseHTTPRequestHandler], None], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[Got]]]:
    got: list[Got] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            answer(self)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


def says(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def verified(secret: bytes, headers: dict[str, str], body: bytes) -> bool:
    """As the scheme's specification has it, written from that and not from our code."""
    content = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    made = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
    return any(hmac.compare_digest(made, s.partition(",")[2]) for s in headers["webhook-signature"].split(" "))


@pytest.mark.parametrize(
    ("secret", "notice", "timestamp", "body", "expected"),
    [  # published examples of Svix, from which the scheme comes
        (
            "whsec_plJ3nmyCDGBKInavdOK15jsl", "msg_loFOjxBNrRLzqYUf", 1731705121,
            '{"event_type":"ping","data":{"success":true}}', "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
        ),
        (
            "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1649367553,
            '{"email":"test@example.com","username":"test_user"}', "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
        ),
    ],
)  # fmt: skip
def test_signatures_are_those_of_the_scheme(secret: str, notice: str, timestamp: int, body: str, expected: str) -> None:
    assert signature(key_bytes(secret), notice, timestamp, body.encode()) == expected


def test_a_notice_is_posted_signed_and_taken() -> None:
    with receiver(says(204)) as (url, got):
        Webhooks(SECRET).send(f"{url}/a%20b?token=x", "msg_1", BODY)
    ((path, headers, body),) = got
    assert (path, body) == ("/a%20b?token=x", BODY.encode())
    assert (headers["webhook-id"], headers["idempotency-key"]) == ("msg_1", "msg_1")
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("spotscribe/")
    assert verified(b"a secret of 24 bytes or so", headers, body)
    assert not verified(b"another", headers, body)


def test_any_text_may_be_the_secret_and_none_is_no_signature() -> None:
    with receiver(says(200)) as (url, got):
        Webhooks("grün").send(url, "m", BODY)
        Webhooks("").send(url.replace("//", "//me:p%40ss@"), "m", BODY)
    assert verified("grün".encode(), got[0][1], got[0][2])
    assert "webhook-signature" not in got[1][1]
    assert got[1][1]["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()


def test_a_secret_that_is_none_is_not_repeated_in_the_error() -> None:
    with pytest.raises(UsageError) as found:
        Webhooks("whsec_nö")
    assert "nö" not in str(found.value)


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 429, 500, 503])
def test_what_is_no_yes_is_tried_again_and_no_redirect_is_followed(status: int) -> None:
    with receiver(says(200)) as (other, followed), receiver(says(status, Location=f"{other}/x")) as (url, got):
        with pytest.raises(TransientError, match=rf"127\.0\.0\.1:\d+/h\?… answers {status}$") as found:
            Webhooks(SECRET).send(f"{url.replace('//', '//u:pw@')}/h?key=hidden", "m", BODY)
        assert (len(got), followed) == (1, [])
    assert "hidden" not in str(found.value)
    assert "pw" not in str(found.value)
    assert not isinstance(found.value, Unanswered)


def test_410_means_never_again() -> None:
    with receiver(says(410)) as (url, _), pytest.raises(PermanentError, match="410") as found:
        Webhooks(SECRET).send(url, "m", BODY)
    assert not isinstance(found.value, UsageError)


def drips(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever."""
    try:
        while True:
            handler.wfile.write(b"H")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        pass


def hangs(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(10.0)


def babbles(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def answers_and_hangs(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    time.sleep(10.0)


@pytest.mark.parametrize("answer", [drips, hangs, babbles, hangs_up])
def test_who_does_not_answer_is_left_after_a_while(
    answer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "READ_S", 0.5)
    monkeypatch.setattr(notices, "LONGEST_S", 1.0)
    with receiver(answer) as (url, _):
        began = time.monotonic()
        with pytest.raises(Unanswered, match="does not answer") as found:
            Webhooks(SECRET).send(f"{url}/?key=hidden", "m", BODY)
        assert time.monotonic() - began < 8.0
        assert "hidden" not in str(found.value)


def test_what_comes_after_yes_does_not_matter() -> None:
    with receiver(answers_and_hangs) as (url, _):
        began = time.monotonic()
        Webhooks(SECRET).send(url, "m", BODY)
        assert time.monotonic() - began < 8.0


def test_nobody_there() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with pytest.raises(Unanswered, match="Connection refused"):
        Webhooks("").send(f"http://127.0.0.1:{port}/", "m", BODY)
    with pytest.raises(Unanswered):
        Webhooks("").send("http://no-such-host.invalid/", "m", BODY)


def test_a_handshake_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "CONNECT_S", 0.5)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        with pytest.raises(Unanswered):
            Webhooks("").send(f"https://127.0.0.1:{s.getsockname()[1]}/", "m", BODY)


def test_a_certificate_that_is_not_trusted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=x",
        "-keyout",
        "key",
        "-out",
        "crt",
    ]
    for name, alternative in (("good", "IP:127.0.0.1"), ("bad", "DNS:elsewhere.example")):
        (tmp_path / name).mkdir()
        subprocess.run(
            [*made, "-addext", f"subjectAltName={alternative}"], cwd=tmp_path / name, check=True, capture_output=True
        )
    for name, trusted in (("good", True), ("good", False), ("bad", True)):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / name / "crt", tmp_path / name / "key")
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name / "crt"))
        else:
            monkeypatch.delenv("SSL_CERT_FILE")
        with receiver(says(200), tls) as (url, got):
            if name == "good" and trusted:
                Webhooks(SECRET).send(url, "m", BODY)
            else:
                with pytest.raises(Unanswered, match=r"certificate|IP address"):
                    Webhooks(SECRET).send(url, "m", BODY)
            assert len(got) == (name == "good" and trusted)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://u:p@h/x?y=1", Address("webhook", "https://u:p@h/x?y=1")),
        (" http://[::1]:80/ ", Address("webhook", "http://[::1]:80/")),
        ("sqs:https://sqs.eu-west-1.amazonaws.com/1/q.fifo", Address("sqs", "https://sqs.eu-west-1.amazonaws.com/1/q.fifo")),
        ("sns:arn:aws:sns:eu-west-1:123456789012:t", Address("sns", "arn:aws:sns:eu-west-1:123456789012:t")),
        ("arn:aws-cn:sns:cn-north-1:123456789012:t", Address("sns", "arn:aws-cn:sns:cn-north-1:123456789012:t")),
    ],
)  # fmt: skip
def test_who_may_be_told(text: str, found: Address) -> None:
    assert address_of(text) == found


@pytest.mark.parametrize(
    "text",
    ["", "example.com", "ftp://x/y", "https://", "https://a b/c", "sqs:queue", "sns:topic", "arn:aws:sqs:eu-west-1:1:q", "mailto:me@x",
     "https://x\r\nHost: y/", "http://x:99999/"],
)  # fmt: skip
def test_who_may_not(text: str) -> None:
    with pytest.raises(UsageError) as found:
        address_of(text)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h:1/a/b?c=d#e", "https://h:1/a/…"), ("https://h/a?c=d", "https://h/a?…"), ("https://h/", "https://h/"),
        ("https://hooks.slack.com/services/T0/B0/SECRET", "https://hooks.slack.com/services/…"), ("https://h/a/", "https://h/a/"),
        ("sqs:https://u:p@sqs.eu-west-1.amazonaws.com/12/q?x", "sqs:https://sqs.eu-west-1.amazonaws.com/12/q?…"),
        ("s3://b/done/x", "s3://b/done/x"), ("https://h", "https://h"), ("https://h?x", "https://h?…"),
        ("https://a@b:c@h/x@y", "https://h/x@y"), ("arn:aws:sns:eu-west-1:1:t", "arn:aws:sns:eu-west-1:1:t"), ("done/", "done/"),
        ("http://h#f", "http://h?…"),
    ],
)  # fmt: skip
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("settings", [
    {"notify": ("https://h/" + "x" * 3000,)}, {"notify": ("https://h/" + "ü" * 600,)}, {"notify": ("sqs:https://h/" + "x" * 3000,)},
    {"notify": ("arn:aws:sns:eu-west-1:123456789012:" + "x" * 1000,)}, {"after": "move:" + "x" * 1000}, {"after": "move:s3://b/" + "ü" * 400},
])  # fmt: skip
def test_an_address_that_no_index_takes_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="may have 1000 characters"):
        errands_of(SourceSettings(JobOptions(), **settings), "s3://b/in/")
    assert len(errands_of(SourceSettings(JobOptions(), notify=("https://h/" + "x" * 900,)), "s3://b/in/")) == 1


def test_tries_come_ever_less_often() -> None:
    assert [wait_s(n) for n in (0, 1, 2, 8, 9, 1000)] == [10.0, 20.0, 40.0, 2560.0, 3600.0, 3600.0]


def test_the_body_is_json_of_ascii_whatever_names_there_are() -> None:
    recording = notices.NoticeRecording("file:///x", "1", 1, None)
    made = notices.Notice(
        "m", "done", 1, recording, "quelle ü", ("a",), {"k": "\udcff"}, "done", "ok", None, "tiny", "en", 1.0, 2, (), "t", None
    )  # fmt: skip
    assert made.body.isascii()
    assert json.loads(made.body)["metadata"] == {"k": "\udcff"}
