"""Notices: who wants to know is told how a job ended, by a webhook or a message in SQS or SNS.

At least once: each notice carries a key that is the same however often it is sent, and another one for the job's next
end. Webhooks are signed by the scheme of https://www.standardwebhooks.com, so any of its libraries can verify them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from importlib.metadata import version
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from sqlalchemy import Connection, select
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, make_headers, parse_url

from chunking.errors import LeaseLost, PermanentError, TransientError, UsageError
from pipeline import tracing
from pipeline.receivers import Unanswered
from storage import errands, jobs
from storage.errands import TOLD, Due
from storage.tables import Arrival, Label, Output, SourceRow, TranscriptRow

CONNECT_S, READ_S, LONGEST_S = 5.0, 10.0, 15.0
"""For a receiver to take the connection, to say the next byte, and to have answered."""
GONE = 410
"""By the scheme: the receiver is no more, do not come again."""
LONGEST_TARGET = 1000
"""Bytes of an address: the tables' indexes take no more than 2 700 in all."""
SECRET_PREFIX = "whsec_"  # noqa: S105 (no secret: what one begins with)


class Address(NamedTuple):
    """Who is told: `webhook`, `sqs` or `sns`, and at which URL, queue or topic."""

    kind: str
    target: str


class Outbox(Protocol):
    """Sends messages to queues (storage/queues.py). Safe to share by threads."""

    def send(self, target: str, body: str, attributes: Mapping[str, str], *, key: str) -> None:
        """To `sqs:QUEUE_URL` or `sns:TOPIC_ARN`. Raises PermanentError, TransientError."""
        ...


@dataclass(frozen=True, slots=True)
class NoticeRecording:
    """Which recording."""

    url: str
    version: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class NoticeOutput:
    """A file of the transcript."""

    format: str
    url: str
    state: str
    """`written`, `failed`; of a job that has no transcript `wanted`."""
    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """What a receiver is told. Fields are only ever added."""

    id: str
    event: str
    """`done`, `partial`, `rejected`, `failed`: the end that is told of."""
    job: int
    recording: NoticeRecording
    source: str | None
    labels: tuple[str, ...]
    metadata: dict[str, str]
    state: str
    """How the job stands."""
    code: str | None
    error: str | None
    model: str
    language: str | None
    duration_s: float | None
    words: int | None
    outputs: tuple[NoticeOutput, ...]
    submitted_at: str
    finished_at: str | None

    @property
    def body(self) -> str:
        """As JSON, in ASCII."""
        return json.dumps(asdict(self), separators=(",", ":"))


def address_of(text: str) -> Address:
    """What `--notify` asks for. Raises UsageError."""
    asked = text.strip()
    if len(asked.encode(errors="replace")) > LONGEST_TARGET:
        raise UsageError(f"--notify: an address may have {LONGEST_TARGET} characters, this one is longer")
    kind, _, target = asked.partition(":")
    if asked.lower().startswith(("https://", "http://")):
        _checked(asked)
        return Address("webhook", asked)
    if kind == "sqs" and target.startswith(("https://", "http://")):
        _checked(target)
        return Address("sqs", target)
    topic = target if kind == "sns" else asked
    if re.fullmatch(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]+:\S+", topic):
        return Address("sns", topic)
    raise UsageError(f"--notify: {redacted(asked)!r}; possible: https://…, sqs:https://QUEUE-URL, sns:TOPIC-ARN")


def redacted(target: str) -> str:
    """A URL without what may be secret in it: name and password, the query, and of a webhook's path all but the
    beginning, since whoever knows https://hooks.slack.com/services/T/B/X may write there."""
    head, slashes, rest = target.partition("://")
    if not slashes:
        return target
    end = min((i for i in (rest.find(c) for c in "/?#") if i >= 0), default=len(rest))
    path, *more = re.split(r"[?#]", rest[end:], maxsplit=1)
    first, slash, below = path[1:].partition("/")
    if slash and below and head.lower() in {"http", "https"}:
        path, more = f"/{first}/…", []
    return f"{head}://{rest[:end].rpartition('@')[2]}{path}{'?…' if more else ''}"


def notice_of(tx: Connection, due: Due) -> Notice:
    """What there is to say of the errand's job. Raises LeaseLost where the job has been started again meanwhile."""
    job = jobs.view(tx, due.job)
    notice = _notice(tx, due, job)
    if job.state not in TOLD or not errands.still(tx, due):  # looked at last, so that all of it is of this round
        raise LeaseLost()
    return notice


def key_bytes(secret: str) -> bytes:
    """The secret as the scheme reads it: `whsec_` and base64; any other text is its bytes. Raises UsageError."""
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raise UsageError("SPOTSCRIBE_WEBHOOK_SECRET: what follows whsec_ is no base64") from None


def signature(key: bytes, notice: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = b".".join((notice.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class Webhooks:
    """Posts notices. Safe to share by threads."""

    def __init__(self, secret: str) -> None:
        """Without a secret they are not signed. Raises UsageError."""
        self._key = key_bytes(secret)
        self._tls = ssl.create_default_context()
        logging.getLogger("urllib3.connection").setLevel(logging.ERROR)  # its warnings have the whole URL

    def send(self, url: str, notice: str, body: str) -> None:
        """Raises PermanentError where there is no point in coming again, Unanswered, TransientError."""
        where = _checked(url)
        with _translated(url):
            status = self._post(where, self._headers(where, notice, body.encode()), body.encode())
        if status == GONE:
            raise PermanentError(f"{redacted(url)} answers 410: it wants no more notices")
        if not 200 <= status < 300:
            raise TransientError(f"{redacted(url)} answers {status}")

    def _headers(self, where: Url, notice: str, body: bytes) -> dict[str, str]:
        now = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"spotscribe/{version('spotscribe')}",
            "Idempotency-Key": notice,
            "webhook-id": notice,
            "webhook-timestamp": str(now),
        }
        if self._key:
            headers["webhook-signature"] = signature(self._key, notice, now, body)
        if (trace := tracing.current()) is not None:
            headers["traceparent"] = trace
        return headers | (make_headers(basic_auth=unquote(where.auth)) if where.auth else {})

    def _post(self, where: Url, headers: Mapping[str, str], body: bytes) -> int:
        """One request on a connection of its own: no redirect is followed, nothing is repeated. The answer's body is
        left unread: what it says is nobody's business here."""
        connection = self._connection(where)
        watch = threading.Timer(LONGEST_S, _cut, (connection,))  # a receiver that says a byte now and then
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            connection.timeout = READ_S
            connection.request("POST", where.request_uri, body=body, headers=headers, preload_content=False)
            return int(connection.getresponse().status)
        finally:
            watch.cancel()
            connection.close()

    def _connection(self, where: Url) -> HTTPConnection:
        if where.scheme == "https":
            return HTTPSConnection(where.host or "", where.port, timeout=CONNECT_S, ssl_context=self._tls)
        return HTTPConnection(where.host or "", where.port, timeout=CONNECT_S)


def _checked(url: str) -> Url:
    """Raises UsageError."""
    try:
        where = parse_url(url)
    except LocationParseError:
        where = Url()
    if where.scheme not in {"http", "https"} or not where.host or re.search(r"\s", url):
        raise UsageError(f"{redacted(url)!r} is no address that notices can be sent to")
    return where


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """urllib3's errors as ours. What they say is not passed on: there is the whole URL in it."""
    try:
        yield
    except (HTTPError, HTTPException, OSError, ValueError) as e:
        inner = e.__cause__ or e
        why = getattr(inner, "verify_message", "") or getattr(inner, "strerror", None) or type(e).__name__
        raise Unanswered(f"{redacted(url)} does not answer: {why}") from None


def _cut(connection: HTTPConnection) -> None:
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _notice(tx: Connection, due: Due, job: jobs.JobView) -> Notice:
    o, s = Output, SourceRow
    files = select(o.format, o.url, o.state, o.size_bytes, o.sha256).where(o.job_id == due.job).order_by(o.id)
    labels = select(Label.label).where(Label.job_id == due.job).order_by(Label.label)
    source = select(s.name).join(Arrival, Arrival.source_id == s.id).where(Arrival.job_id == due.job)
    words = select(TranscriptRow.words).where(TranscriptRow.id == job.transcript_id)
    return Notice(
        id=_key(due, job),
        event=job.state,
        job=job.id,
        recording=NoticeRecording(job.url, job.version, job.size_bytes, job.sha256),
        source=tx.execute(source.order_by(Arrival.id.desc()).limit(1)).scalar(),
        labels=tuple(tx.execute(labels).scalars()),
        metadata=job.meta or {},
        state=job.state,
        code=job.code,
        error=job.error,
        model=job.options.model,
        language=job.language,
        duration_s=job.duration_s,
        words=tx.execute(words).scalar() if job.transcript_id is not None else None,
        outputs=tuple(NoticeOutput(**r._mapping) for r in tx.execute(files)),
        submitted_at=_utc(job.created_at),
        finished_at=_utc(job.finished_at) if job.finished_at is not None else None,
    )


def _key(due: Due, job: jobs.JobView) -> str:
    """Of this errand and this end of its job, and of no other database's."""
    made = hashlib.sha256(f"{job.url}#{job.version} {_utc(job.created_at)}".encode(errors="replace")).hexdigest()
    return f"msg_{due.id}_{due.round}_{made[:12]}"


def _utc(moment: datetime) -> str:
    """ISO 8601; SQLite gives the database's UTC without a zone, Postgres in its own."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
