"""Queues of messages: an SQS queue that is heard (Inbox), and SQS queues and SNS topics that are told (Outbox).

Nothing is lost where a message is: what it says can be found out anew, so a message that comes twice does no harm.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from botocore.exceptions import ClientError

from chunking.errors import TransientError, UsageError
from storage import aws
from storage.aws import AwsOptions, aws_client, status_of

AT_ONCE = 10
"""Messages of one call: SQS's limit."""
LONGEST_POLL_S = 20
"""SQS's limit."""
ANSWER_S, ATTEMPTS = 10.0, 2
"""How long a queue or a topic may take to accept a message, and how often boto3 asks: a thread waits for it."""
LONGEST_ID = 128
"""Characters of what a FIFO queue knows a message by: SQS's limit."""
_REGION = r"[a-z]{2,4}(?:-[a-z]+)?-(?:north|south|central|(?:north|south)?(?:east|west))-[0-9]+"
_IN_HOST = re.compile(rf"(?:^|\.)({_REGION})(?:\.|$)")
_OWN_ENDPOINT = re.compile(rf"((sqs|queue)\.)?({_REGION}\.)?(queue\.)?amazonaws\.com(\.cn)?")
"""Hosts of queue URLs for which boto3 knows the endpoint. Others are the endpoint: stand-ins, VPC endpoints, FIPS."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message and what it is crossed off by."""

    body: str
    receipt: str


class Inbox:
    """A queue that is heard. What is received and not crossed off comes again, after the queue's own time."""

    def __init__(self, client: Any, queue_url: str) -> None:
        self._client = client
        self._url = queue_url

    def receive(self, wait_s: float) -> list[Message]:
        """Up to ten messages; none within `wait_s` (20 at most): an empty list. Raises UsageError, TransientError."""
        wait = max(0, min(LONGEST_POLL_S, round(wait_s)))
        with _translated("SQS", self._url):
            found = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=AT_ONCE, WaitTimeSeconds=wait)
        return [Message(m["Body"], m["ReceiptHandle"]) for m in found.get("Messages", ())]

    def done(self, messages: Sequence[Message]) -> None:
        """Cross them off. One that cannot be is left to come again. Raises UsageError, TransientError."""
        for first in range(0, len(messages), AT_ONCE):
            part = messages[first : first + AT_ONCE]
            entries = [{"Id": str(i), "ReceiptHandle": m.receipt} for i, m in enumerate(part)]
            with _translated("SQS", self._url):
                self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)


class Outbox:
    """Queues and topics that are told. Their clients are made when first needed; safe to share by threads."""

    def __init__(self, region: str) -> None:
        """`region`: of addresses that do not say theirs."""
        self._region = region
        self._clients: dict[tuple[str, AwsOptions], Any] = {}
        self._lock = threading.Lock()

    def send(self, target: str, body: str, attributes: Mapping[str, str], *, key: str) -> None:
        """To `sqs:QUEUE-URL` or `sns:TOPIC-ARN`. Empty attributes are left out, as neither takes them.

        What is FIFO drops a message with the `key` of one that it took in the last five minutes; the key is the
        message's group as well, since no message has to wait for another. Raises UsageError, TransientError.
        """
        kind, _, address = target.partition(":")
        said = {k: {"DataType": "String", "StringValue": v} for k, v in attributes.items() if v}
        more: dict[str, Any] = {"MessageAttributes": said} if said else {}
        if address.endswith(".fifo"):
            name = key if re.fullmatch(rf"[!-~]{{1,{LONGEST_ID}}}", key) else hashlib.sha256(key.encode()).hexdigest()
            more |= {"MessageDeduplicationId": name, "MessageGroupId": name}
        if kind == "sqs":
            client = self._client("sqs", _queue_options(address, self._region))
            with _translated("SQS", address):
                client.send_message(QueueUrl=address, MessageBody=body, **more)
        elif kind == "sns":
            client = self._client("sns", _topic_options(address))
            with _translated("SNS", address):
                client.publish(TopicArn=address, Message=body, **more)
        else:
            raise UsageError(f"{target} is neither sqs:QUEUE-URL nor sns:TOPIC-ARN")

    def _client(self, service: str, options: AwsOptions) -> Any:
        with self._lock:
            if (service, options) not in self._clients:
                patience = replace(options, read_s=ANSWER_S, attempts=ATTEMPTS)
                with _translated(service.upper(), ""):
                    self._clients[service, options] = aws_client(service, patience)
            return self._clients[service, options]


def open_inbox(address: str, region: str) -> Inbox:
    """The queue at `https://…` or `sqs:https://…`. `region`: where the address does not say one. Raises UsageError."""
    url = address.removeprefix("sqs:")
    options = _queue_options(url, region)
    with _translated("SQS", url):
        return Inbox(aws_client("sqs", options), url)


def _queue_options(url: str, region: str) -> AwsOptions:
    parts = _split(url)
    host = parts.hostname or ""
    said = _IN_HOST.search(host)
    endpoint = None if _OWN_ENDPOINT.fullmatch(host) else f"{parts.scheme}://{parts.netloc}"
    return AwsOptions(endpoint, said[1] if said else region)


def _split(url: str) -> SplitResult:
    """Raises UsageError for what is no queue's URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    whole = parts.scheme in {"http", "https"} and parts.hostname and parts.path.strip("/") and port != 0
    if not whole or not url.isascii() or not url.isprintable() or parts.username is not None:
        raise UsageError(f"{url} is no queue's URL; it looks like https://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
    return parts


def _topic_options(arn: str) -> AwsOptions:
    parts = arn.split(":")
    if len(parts) != 6 or parts[2] != "sns" or not re.fullmatch("[a-z0-9-]+", parts[3]) or not parts[5]:
        raise UsageError(f"{arn} is no topic's ARN; it looks like arn:aws:sns:REGION:ACCOUNT:NAME")
    return AwsOptions(region=parts[3])


@contextmanager
def _translated(service: str, address: str) -> Iterator[None]:
    """boto3's errors as ours."""
    with aws.translated(service, lambda error, code: _of_answer(error, code, service, address)):
        yield


def _of_answer(error: ClientError, code: str, service: str, address: str) -> Exception:
    """A queue that is not there, rights that lack, and what SQS cannot take are wrong requests; the rest may pass."""
    status = status_of(error)
    if "NonExistentQueue" in code or "DoesNotExist" in code or code in {"NotFound", "NotFoundException"}:
        return UsageError(f"there is no {'topic' if service == 'SNS' else 'queue'} {address}")
    if "throttl" in code.lower() or code in {"OverLimit", "TooManyRequestsException"} or status in {408, 429}:
        return TransientError(f"{service} answers {code or status}")
    if 400 <= status < 500:
        said = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())[:300]
        return UsageError(f"{service} refuses {address}: {code or status} {said}".rstrip())
    return TransientError(f"{service} answers {code or status}")
