"""Queues and topics against moto's server: a stand-in for AWS, which is not AWS, but checks what it is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from chunking.errors import TransientError, UsageError
from pipeline.events import Event, parse
from pipeline.settings import Settings
from storage.aws import AwsOptions, aws_client
from storage.queues import Inbox, Outbox, _queue_options, open_inbox
from workers.wiring import Wiring

REGION = "eu-west-1"
ACCOUNT = "123456789012"
DROPPED = Event("created", "calls", ("a b.wav", "a+b.wav"), "abc", 5)
TOLD = {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "calls"}, "object": {"key": "a+b.wav", "size": 5, "eTag": "abc"}}}]}  # fmt: skip


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """A stand-in for AWS: its endpoint."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, aws: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", aws)  # a topic's ARN has no host


@pytest.fixture
def sqs(aws: str) -> Any:
    return aws_client("sqs", AwsOptions(aws, REGION))


@pytest.fixture
def sns(aws: str) -> Any:
    return aws_client("sns", AwsOptions(aws, REGION))


@pytest.fixture
def queue(sqs: Any, request: pytest.FixtureRequest) -> str:
    """A queue's URL. What is received and not crossed off comes again after a second."""
    made = sqs.create_queue(QueueName=f"q{abs(hash(request.node.name))}", Attributes={"VisibilityTimeout": "1"})
    return str(made["QueueUrl"])


@pytest.fixture
def fifo(sqs: Any, request: pytest.FixtureRequest) -> str:
    made = sqs.create_queue(QueueName=f"q{abs(hash(request.node.name))}.fifo", Attributes={"FifoQueue": "true"})
    return str(made["QueueUrl"])


def subscribed(sns: Any, topic: str, queue: str, *, raw: bool) -> str:
    """A topic whose messages go to the queue."""
    arn: str = sns.create_topic(Name=topic)["TopicArn"]
    to = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue.rpartition('/')[2]}"
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=to, Attributes={"RawMessageDelivery": str(raw).lower()})
    return arn


def test_messages_come_until_they_are_crossed_off(sqs: Any, queue: str) -> None:
    inbox = open_inbox(f"sqs:{queue}", REGION)
    assert inbox.receive(0) == []
    inbox.done([])
    bodies = {json.dumps({"n": i, "text": "é <&> \u2028"}) for i in range(12)}
    for body in bodies:
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    first = inbox.receive(1)
    assert 0 < len(first) <= 10
    found = list(first)
    while len(found) < 12:
        found += inbox.receive(1)
    assert {m.body for m in found} == bodies
    inbox.done(found[:11])  # more than one call may take
    time.sleep(1.1)
    again = inbox.receive(1)
    assert [m.body for m in again] == [found[11].body]  # a duplicate, as SQS delivers
    inbox.done(again)
    inbox.done(again)  # harmless
    time.sleep(1.1)
    assert inbox.receive(0) == []


def test_one_that_cannot_be_crossed_off_comes_again_and_the_others_do_not(sqs: Any, queue: str) -> None:
    inbox = open_inbox(queue, REGION)
    for body in ("a", "b"):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    found = inbox.receive(1)
    broken = [m if m.body == "a" else type(m)(m.body, "no receipt") for m in found]
    inbox.done(broken)
    time.sleep(1.1)
    assert [m.body for m in inbox.receive(1)] == ["b"]


def test_a_poll_waits_and_ends(queue: str) -> None:
    began = time.monotonic()
    assert open_inbox(queue, REGION).receive(1.0) == []
    assert 0.5 < time.monotonic() - began < 5


@pytest.mark.parametrize("raw", [False, True])
def test_what_s3_tells_a_topic_is_read_from_a_queue(sqs: Any, sns: Any, queue: str, raw: bool) -> None:
    topic = subscribed(sns, f"events-{raw}", queue, raw=raw)
    sns.publish(TopicArn=topic, Message=json.dumps(TOLD), Subject="Amazon S3 Notification")
    inbox = open_inbox(queue, REGION)
    [message] = inbox.receive(2)
    assert ("Type" in json.loads(message.body)) is not raw
    assert parse(message.body) == (DROPPED,)


def test_a_buckets_own_events_are_read(aws: str, sqs: Any, queue: str) -> None:
    s3 = aws_client("s3", AwsOptions(aws, REGION), s3={"addressing_style": "path"})
    s3.create_bucket(Bucket="drop", CreateBucketConfiguration={"LocationConstraint": REGION})
    to = {"QueueArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue.rpartition('/')[2]}", "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}  # fmt: skip
    s3.put_bucket_notification_configuration(Bucket="drop", NotificationConfiguration={"QueueConfigurations": [to]})
    keys = ["a b+c.wav", "a%2Fb.wav", "é.wav", "e\u0301.wav"]
    for key in keys:
        s3.put_object(Bucket="drop", Key=key, Body=b"x")
    s3.delete_object(Bucket="drop", Key=keys[0])
    inbox, events = open_inbox(queue, REGION), []
    while messages := inbox.receive(0):
        inbox.done(messages)
        events += [event for message in messages for event in parse(message.body)]  # the first one is a test
    for key in keys:
        assert any(e.kind == "created" and key in e.keys and e.size == 1 for e in events)
    assert [e.bucket for e in events if e.kind == "removed"] == ["drop"]


def test_ends_are_told_to_queues_and_topics(sns: Any, queue: str) -> None:
    outbox = Outbox(REGION)
    outbox.send(f"sqs:{queue}", '{"state": "done"}', {"state": "done", "label": ""}, key="1")
    outbox.send(f"sns:{subscribed(sns, 'ends', queue, raw=True)}", '{"state": "failed"}', {}, key="2")
    inbox, bodies = open_inbox(queue, REGION), []
    while messages := inbox.receive(1):
        inbox.done(messages)
        bodies += [m.body for m in messages]
    assert sorted(bodies) == ['{"state": "done"}', '{"state": "failed"}']


def test_attributes_come_with_the_message(sqs: Any, queue: str) -> None:
    Outbox(REGION).send(f"sqs:{queue}", "x", {"state": "done", "source": "calls", "label": ""}, key="1")
    [got] = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
    assert {k: v["StringValue"] for k, v in got["MessageAttributes"].items()} == {"state": "done", "source": "calls"}


@pytest.mark.parametrize("keys", [("one", "two"), ("é" * 300, "with a space")])
def test_what_is_told_twice_comes_once_where_order_is_kept(sns: Any, fifo: str, keys: tuple[str, str]) -> None:
    outbox = Outbox(REGION)
    for key in (keys[0], keys[0], keys[1]):
        outbox.send(f"sqs:{fifo}", f"body of {key}", {}, key=key)
    found = open_inbox(fifo, REGION).receive(1)
    assert sorted(m.body for m in found) == sorted(f"body of {key}" for key in keys)
    topic = sns.create_topic(Name="ends.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    outbox.send(f"sns:{topic}", "x", {}, key=keys[0])


def test_a_wrong_address_is_said_so(aws: str) -> None:
    outbox = Outbox(REGION)
    with pytest.raises(UsageError, match="there is no queue http"):
        open_inbox(f"{aws}/{ACCOUNT}/nowhere", REGION).receive(0)
    with pytest.raises(UsageError, match="there is no queue http"):
        outbox.send(f"sqs:{aws}/{ACCOUNT}/nowhere", "x", {}, key="1")
    with pytest.raises(UsageError, match="there is no topic arn"):
        outbox.send(f"sns:arn:aws:sns:{REGION}:{ACCOUNT}:nowhere", "x", {}, key="1")
    for url in ("", "calls", "https://", "https://host", "ftp://host/q", "https://host:x/q", "https://a:b@host/q", "http://[::1/q", "http://host/q\n"):  # fmt: skip
        with pytest.raises(UsageError, match="is no queue's URL"):
            open_inbox(url, REGION)
        with pytest.raises(UsageError, match="is no queue's URL"):
            outbox.send(f"sqs:{url}", "x", {}, key="1")
    for arn in ("", "x", "arn:aws:sqs:eu-west-1:1:x", "arn:aws:sns::1:x", "arn:aws:sns:eu-west-1:1:"):
        with pytest.raises(UsageError, match="is no topic's ARN"):
            outbox.send(f"sns:{arn}", "x", {}, key="1")
    with pytest.raises(UsageError, match="neither sqs:QUEUE-URL nor sns:TOPIC-ARN"):
        outbox.send("arn:aws:sns:eu-west-1:1:x", "x", {}, key="1")


def test_too_large_a_message_is_the_senders_fault(queue: str) -> None:
    with pytest.raises(UsageError, match="SQS refuses http"):
        Outbox(REGION).send(f"sqs:{queue}", "x" * (2 << 20), {}, key="1")


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", UsageError),
        (400, "AccessDeniedException", UsageError),
        (403, "AuthorizationError", UsageError),
        (400, "KMS.AccessDeniedException", UsageError),
        (403, "InvalidClientTokenId", UsageError),
        (400, "AWS.SimpleQueueService.NonExistentQueue", UsageError),
        (400, "ThrottlingException", TransientError),
        (400, "KMSThrottling", TransientError),
        (403, "OverLimit", TransientError),
        (429, "Throttled", TransientError),
        (500, "InternalError", TransientError),
        (503, "ServiceUnavailable", TransientError),
    ],
)
def test_what_is_wrong_and_what_may_pass_are_told_apart(status: int, code: str, error: type[Exception]) -> None:
    class Refusing:
        def receive_message(self, **_: Any) -> None:
            said = {"Error": {"Code": code, "Message": "two\nlines"}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(said, "ReceiveMessage")  # type: ignore[arg-type]

    with pytest.raises(error) as caught:
        Inbox(Refusing(), "https://host/q").receive(0)
    assert str(caught.value).isprintable()


def test_silence_may_pass() -> None:
    inbox = Inbox(aws_client("sqs", AwsOptions("http://127.0.0.1:9", REGION, attempts=1)), "http://127.0.0.1:9/1/q")
    with pytest.raises(TransientError, match="SQS does not answer: EndpointConnectionError"):
        inbox.receive(0)


def test_without_credentials_it_says_what_to_set(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(UsageError, match="no credentials for SQS: set AWS_ACCESS_KEY_ID"):
        open_inbox(queue, REGION).receive(0)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        open_inbox(queue, REGION)


@pytest.mark.parametrize(
    ("url", "endpoint", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/1/q", None, "eu-central-1"),
        ("https://sqs.us-gov-west-1.amazonaws.com/1/q", None, "us-gov-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", None, "cn-north-1"),
        ("https://ap-southeast-2.queue.amazonaws.com/1/q", None, "ap-southeast-2"),
        ("https://queue.amazonaws.com/1/q", None, REGION),
        ("https://sqs-fips.us-east-2.amazonaws.com/1/q", "https://sqs-fips.us-east-2.amazonaws.com", "us-east-2"),
        ("https://vpce-1-a.sqs.us-east-2.vpce.amazonaws.com/1/q", "https://vpce-1-a.sqs.us-east-2.vpce.amazonaws.com", "us-east-2"),
        ("http://my-queue-host-1:9324/1/q", "http://my-queue-host-1:9324", REGION),
        ("http://[::1]:4566/1/q", "http://[::1]:4566", REGION),
    ],
)  # fmt: skip
def test_an_address_says_where_its_queue_is(url: str, endpoint: str | None, region: str) -> None:
    assert _queue_options(url, REGION) == AwsOptions(endpoint, region)


def test_the_wiring_has_them(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSCRIBE_S3_REGION", REGION)
    wiring = Wiring(Settings())
    assert wiring.outbox is wiring.outbox
    wiring.outbox.send(f"sqs:{queue}", "x", {}, key="1")
    assert [m.body for m in wiring.inbox(f"sqs:{queue}").receive(1)] == ["x"]
