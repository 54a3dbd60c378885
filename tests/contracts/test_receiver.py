"""The receiver over real sockets, and with a real SeaweedFS that tells it of what is written, moved and deleted."""

from __future__ import annotations

import json
import socket
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from chunking.errors import TransientError, UsageError
from infra.laptop import S3_KEY, S3_SECRET, S3Handle
from pipeline.events import MOST_BYTES, Event
from storage.s3 import S3Options, s3_client
from workers.receiver import Receiver

TOLD = json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "calls"}, "object": {"key": "a+b.wav"}}}]})  # fmt: skip
DROPPED = Event("created", "calls", ("a b.wav", "a+b.wav"))


class Heard:
    """What was taken so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.problem: Exception | None = None

    def __call__(self, events: Sequence[Event]) -> None:
        if self.problem is not None:
            raise self.problem
        self.events += events


@contextmanager
def receiving(take: Callable[[Sequence[Event]], None], token: str = "") -> Iterator[Receiver]:
    receiver = Receiver("127.0.0.1:0", token, take)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


def ask(
    receiver: Receiver,
    body: str | bytes = TOLD,
    *,
    method: str = "POST",
    path: str = "/",
    authorization: str | None = None,
) -> tuple[int, str]:
    """Status and text of an answer."""
    connection = HTTPConnection("127.0.0.1", receiver.port, timeout=10)
    try:
        headers = {} if authorization is None else {"Authorization": authorization}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        assert answer.getheader("Server") == "spotscribe"
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_events_are_taken_at_any_path(heard: Heard) -> None:
    with receiving(heard) as receiver:
        assert ask(receiver) == (200, "ok\n")
        assert ask(receiver, path="/hook/of/minio?x=1") == (200, "ok\n")
        assert ask(receiver, "") == (200, "ok\n")
    assert heard.events == [DROPPED, DROPPED]


def test_it_says_that_it_is_there(heard: Heard) -> None:
    with receiving(heard, "secret") as receiver:
        assert ask(receiver, "", method="GET", path="/healthz") == (200, "ok\n")
        assert ask(receiver, "", method="HEAD") == (200, "")  # MinIO, before it sends anything
        assert ask(receiver, "", method="GET")[0] == 405
        assert ask(receiver, method="PUT")[0] == 405
    assert heard.events == []


@pytest.mark.parametrize("token", ["secret", "two words", "geheimé"])
def test_only_who_knows_the_token_is_heard(heard: Heard, token: str) -> None:
    as_sent = token.encode().decode("latin-1")
    with receiving(heard, token) as receiver:
        for right in (f"Bearer {as_sent}", f"bearer  {as_sent} ", as_sent):
            assert ask(receiver, authorization=right) == (200, "ok\n")
        for wrong in (None, "", "Bearer", "Bearer ", "Bearer other", f"Basic {as_sent}", f"Bearer {as_sent}x", "é"):
            assert ask(receiver, authorization=wrong) == (401, "the token is missing or wrong\n")
    assert len(heard.events) == 3


def test_what_cannot_be_read_is_refused_in_one_line(heard: Heard) -> None:
    with receiving(heard) as receiver:
        for body in (b"\xff\0", "{", "[" * 1000, json.dumps({"Type": "SubscriptionConfirmation"}), '{"event": "ping"}'):
            status, text = ask(receiver, body)
            assert (status, text.count("\n")) == (400, 1)
        assert ask(receiver) == (200, "ok\n")
    assert heard.events == [DROPPED]


def test_too_much_is_not_read(heard: Heard) -> None:
    with receiving(heard) as receiver:
        assert ask(receiver, b" " * MOST_BYTES) == (200, "ok\n")
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as s:
            s.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 413")
    assert heard.events == []


def test_a_body_in_pieces_is_taken(heard: Heard) -> None:
    with receiving(heard) as receiver:
        connection = HTTPConnection("127.0.0.1", receiver.port, timeout=10)
        connection.request("POST", "/", iter([TOLD[:10].encode(), TOLD[10:].encode()]), encode_chunked=True)
        assert connection.getresponse().status == 200
        connection.close()
    assert heard.events == [DROPPED]


def test_who_cannot_take_events_now_asks_for_them_again(heard: Heard) -> None:
    with receiving(heard) as receiver:
        heard.problem = TransientError("postgresql://user:secret@host does not answer")
        assert ask(receiver) == (503, "try again later\n")
        heard.problem = None
        assert ask(receiver) == (200, "ok\n")


def test_a_fault_of_ours_ends_one_request_and_says_nothing(heard: Heard) -> None:
    with receiving(heard) as receiver:
        heard.problem = ZeroDivisionError("secret")
        status, text = ask(receiver)
        assert (status, "secret" in text, "Traceback" in text) == (500, False, False)
        heard.problem = None
        assert ask(receiver) == (200, "ok\n")


def test_slow_senders_hold_up_nobody(heard: Heard) -> None:
    with receiving(heard) as receiver:
        slow = [socket.create_connection(("127.0.0.1", receiver.port)) for _ in range(20)]
        for i, s in enumerate(slow):
            s.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n" + (b"\r\n{" if i % 2 else b""))
        began = time.monotonic()
        assert ask(receiver) == (200, "ok\n")
        assert time.monotonic() - began < 5
        for s in slow:
            s.close()


def test_it_ends_with_connections_open_and_gives_its_port_back(heard: Heard) -> None:
    begun, go = threading.Event(), threading.Event()

    def take(events: Sequence[Event]) -> None:
        begun.set()
        go.wait(5)
        heard(events)

    before = threading.active_count()
    with receiving(take) as receiver:
        idle = socket.create_connection(("127.0.0.1", receiver.port))
        answers: list[tuple[int, str]] = []
        sender = threading.Thread(target=lambda: answers.append(ask(receiver)))
        sender.start()
        assert begun.wait(5)
        threading.Timer(0.3, go.set).start()
        began = time.monotonic()
    assert time.monotonic() - began < 4
    sender.join()
    receiver.close()  # harmless
    assert answers == [(200, "ok\n")]  # what was begun is ended
    idle.close()
    Receiver(f"127.0.0.1:{receiver.port}", "", heard).close()
    until = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "8900",
        ":8900",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:70000",
        "a b:1",
        "http://127.0.0.1:1",
        "127.0.0.1:1/x",
        "u@127.0.0.1:1",
        "[::1:1",
        "no-such-host.invalid:1",
        "x" * 300 + ":1",
    ],
)
def test_a_wrong_address_is_said_so(heard: Heard, listen: str) -> None:
    with pytest.raises(UsageError):
        Receiver(listen, "token", heard)


def test_a_port_in_use_is_said_so(heard: Heard) -> None:
    with receiving(heard) as receiver, pytest.raises(UsageError, match=r"cannot be listened on: .*in use"):
        Receiver(f"127.0.0.1:{receiver.port}", "", heard)


def test_the_world_needs_a_token(heard: Heard) -> None:
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(UsageError, match="SPOTSCRIBE_EVENTS_TOKEN is not set"):
            Receiver(listen, " ", heard)
    Receiver("0.0.0.0:0", "token", heard).close()
    Receiver("localhost:0", "", heard).close()
    Receiver("127.9.9.9:0", "", heard).close()


def test_seaweedfs_tells_of_what_happens_in_its_buckets(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    keys = ["in/a b.wav", "a+b.wav", "a%2Fb.wav", unicodedata.normalize("NFC", "é.wav"), unicodedata.normalize("NFD", "é.wav"), 'q".wav']  # fmt: skip
    expected = {Event("created", "drop", (key,)) for key in [*keys, "large.wav", "copy.wav", "versions/v.wav"]}
    expected |= {Event("removed", "drop", (key,)) for key in ["a+b.wav", "versions/v.wav"]}
    with receiving(heard, "secret") as receiver:
        address = f"http://127.0.0.1:{receiver.port}/seaweedfs"
        with S3Handle(tmp_path, webhook=address, token="secret") as server:
            client = s3_client(S3Options(server.endpoint))
            client.create_bucket(Bucket="drop")
            for key in keys:
                client.put_object(Bucket="drop", Key=key, Body=b"x")
            upload = client.create_multipart_upload(Bucket="drop", Key="large.wav")["UploadId"]
            part = {"Bucket": "drop", "Key": "large.wav", "UploadId": upload}
            etag = client.upload_part(**part, PartNumber=1, Body=b"x" * 1000)["ETag"]
            client.complete_multipart_upload(**part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
            client.copy_object(Bucket="drop", Key="copy.wav", CopySource={"Bucket": "drop", "Key": keys[0]})
            client.put_object_tagging(Bucket="drop", Key="copy.wav", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
            client.delete_object(Bucket="drop", Key="a+b.wav")
            client.put_bucket_versioning(Bucket="drop", VersioningConfiguration={"Status": "Enabled"})
            client.put_object(Bucket="drop", Key="versions/v.wav", Body=b"x")
            client.delete_object(Bucket="drop", Key="versions/v.wav")
            until = time.monotonic() + 20
            while set(heard.events) != expected and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.5)  # for what must not come
    assert set(heard.events) == expected
    assert len(heard.events) == len(expected)
