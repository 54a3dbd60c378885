"""Notices of preemption: AWS, GCP and Azure, all leading to one call. Best effort: checkpoints hold without them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from enum import Enum
from http.client import HTTPException
from typing import Any, Protocol
from urllib import request as http
from urllib.error import HTTPError, URLError

from chunking.errors import UsageError

METADATA = "http://169.254.169.254"
"""Where all three clouds answer a machine that asks about itself: link-local, so never beyond the host."""
REQUEST_S = 2.0


class Notice(Enum):
    """REBALANCE: stop claiming, go on with what is in hand. LEAVE: the machine goes away."""

    REBALANCE = "rebalance"
    LEAVE = "leave"


class Cloud(Protocol):
    """A metadata service. `here`: is it this one that answers? `look`: one poll. OSError from both when none does."""

    base: str
    name: str
    every_s: float = 2.0  # the usual pause between two polls, for notices of 30 s

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")

    def here(self, timeout_s: float) -> bool: ...
    def look(self) -> Notice | None: ...


class Aws(Cloud):
    """EC2 user guide, "spot-instance-termination-notices": two minutes. IMDSv2: containers need a hop limit of 2."""

    name = "aws"
    every_s = 5.0  # what the guide recommends
    TTL_S = 21_600  # six hours, the longest that a token may live
    _token, _renew_at = "", 0.0

    def here(self, timeout_s: float = REQUEST_S) -> bool:
        """Who gives a token (one word, not a login page) is AWS. It is kept."""
        header = ("X-aws-ec2-metadata-token-ttl-seconds", str(self.TTL_S))
        self._token = _ask(f"{self.base}/latest/api/token", header, method="PUT", timeout_s=timeout_s).text.strip()
        self._renew_at = time.monotonic() + self.TTL_S - 60
        return len(self._token.split()) == 1

    def look(self) -> Notice | None:
        action = self._get("spot/instance-action")
        if action and action.mapping().get("action") in ("terminate", "stop", "hibernate"):
            return Notice.LEAVE
        state = self._get("autoscaling/target-lifecycle-state")  # the group takes it away: fewer are wanted
        if state and state.text.strip() == "Terminated":
            return Notice.LEAVE
        return Notice.REBALANCE if self._get("events/recommendations/rebalance") else None

    def _get(self, path: str) -> Answer | None:
        """What is at this path, None where there is nothing. Never without a token: that would be IMDSv1."""
        if fresh := time.monotonic() >= self._renew_at:
            self.here()
        try:
            return _ask(f"{self.base}/latest/meta-data/{path}", ("X-aws-ec2-metadata-token", self._token))
        except HTTPError as e:
            if e.code == 404:
                return None
            if e.code != 401 or fresh:
                raise
        self._renew_at = 0.0
        return self._get(path)


class Gcp(Cloud):
    """Compute Engine, "Preemptible instances" and "Spot VMs": `preempted` turns TRUE up to 30 s before the end.

    A plain poll: `wait_for_change` would tell two seconds earlier, but a request that hangs cannot be stopped.
    """

    name = "gcp"
    HEADER = ("Metadata-Flavor", "Google")  # of each request and of each answer

    def here(self, timeout_s: float) -> bool:
        answer = _ask(f"{self.base}/computeMetadata/v1/", self.HEADER, timeout_s=timeout_s)
        return answer.headers.get(self.HEADER[0]) == self.HEADER[1]

    def look(self) -> Notice | None:
        preempted = _ask(f"{self.base}/computeMetadata/v1/instance/preempted", self.HEADER).text
        return Notice.LEAVE if preempted.strip().upper() == "TRUE" else None


class Azure(Cloud):
    """Azure, "Scheduled Events": `Preempt` comes 30 s ahead, `Terminate` where a scale set asks for it.

    They are never acknowledged, which would hasten them. A scale set's events are told to all its machines. The first
    request switches the service on, which may take two minutes.
    """

    name = "azure"

    def here(self, timeout_s: float) -> bool:
        return bool(self._ask("instance?api-version=2021-02-01", timeout_s).mapping())

    def look(self) -> Notice | None:
        events = self._ask("scheduledevents?api-version=2020-07-01").mapping().get("Events")
        found = [e for e in events if isinstance(e, dict)] if isinstance(events, list) else []
        leaving = [e.get("Resources") for e in found if e.get("EventType") in ("Preempt", "Terminate")]
        return Notice.LEAVE if any(map(self._is_ours, leaving)) else None

    def _is_ours(self, names: object) -> bool:
        """Whether we are among these machines. In doubt yes: to leave for nothing costs a restart, no work."""
        own = ""
        with suppress(OSError):
            own = self._ask("instance/compute/name?api-version=2021-02-01&format=text").text.strip().lower()
        return not (own and names and isinstance(names, list)) or own in [str(name).lower() for name in names]

    def _ask(self, path: str, timeout_s: float = REQUEST_S) -> Answer:
        return _ask(f"{self.base}/metadata/{path}", ("Metadata", "true"), timeout_s=timeout_s)


CLOUDS: dict[str, type[Cloud]] = {"gcp": Gcp, "azure": Azure, "aws": Aws}
"""In the order in which they are tried: any of the services answers an odd GET at once, an odd PUT perhaps not."""


def detect(base: str, timeout_s: float = 1.0) -> Cloud | None:
    """The cloud that answers at this address; None if none does, after about this many seconds in all."""
    until = time.monotonic() + timeout_s
    for make in CLOUDS.values():
        cloud = make(base)
        try:
            if cloud.here(max(until - time.monotonic(), 0.01)):
                return cloud
        except OSError as e:
            if type(e) is URLError:  # not even a connection: nobody is there, whoever it might be
                return None
    return None


def by_name(cloud: str, base: str) -> Cloud | None:
    """The cloud of this name: one of CLOUDS, "auto" (`detect`) or "none"."""
    if cloud not in {*CLOUDS, "auto", "none"}:
        raise UsageError(f"no such cloud: {cloud}; there are auto, none, {', '.join(sorted(CLOUDS))}")
    if cloud == "auto":
        return detect(base)
    return CLOUDS[cloud](base) if cloud in CLOUDS else None


class Watch(threading.Thread):
    """Polls and calls `on_notice` at most once for each kind. After LEAVE, or off-cloud, the thread ends.

    `on_notice` runs in this thread, and must neither take long nor raise. `errors` counts polls without an answer.
    """

    def __init__(self, cloud: str, base: str, every_s: float | None, on_notice: Callable[[Notice], None]) -> None:
        if cloud != "auto":
            by_name(cloud, base)  # an unknown name is told here, not in the thread
        super().__init__(name="spot-notices", daemon=True)
        self._cloud, self._base, self._every_s, self._on_notice = cloud, base, every_s, on_notice
        self._ending = threading.Event()
        self.errors = 0

    def stop(self) -> None:
        """Does not wait: the thread ends at once, or with the request under way, whose answer is told to nobody."""
        self._ending.set()

    def run(self) -> None:
        cloud = by_name(self._cloud, self._base)
        if cloud is None:
            return
        every_s = self._every_s or cloud.every_s
        told, pause_s = set[Notice](), 0.0
        while Notice.LEAVE not in told and not self._ending.wait(pause_s):
            try:
                notice, pause_s = cloud.look(), every_s
            except OSError:
                # five pauses at most (25 s on AWS, 10 s elsewhere), or a notice of 30 s would be slept away
                notice, pause_s = None, min(2 * max(pause_s, every_s), 5 * every_s)
                self.errors += 1
            if notice and notice not in told and not self._ending.is_set():
                told.add(notice)
                self._on_notice(notice)


@dataclass(frozen=True)
class Answer:
    """What a metadata service said, with status 200."""

    text: str
    headers: Message

    def mapping(self) -> dict[str, Any]:
        """The JSON object that it is, empty if it is none: a garbled answer is no notice."""
        with suppress(ValueError, RecursionError):
            found = json.loads(self.text)
            return found if isinstance(found, dict) else {}
        return {}


def _ask(url: str, header: tuple[str, str], *, method: str = "GET", timeout_s: float = REQUEST_S) -> Answer:
    """One request. HTTPError for any status but 2xx, URLError without a connection, another OSError without an answer.

    The opener knows http and nothing else: no proxy from the environment, which must not see a token, no redirects.
    """
    opener = http.OpenerDirector()
    for handler in (http.HTTPHandler, http.HTTPErrorProcessor, http.HTTPDefaultErrorHandler, http.UnknownHandler):
        opener.add_handler(handler())
    try:
        with opener.open(http.Request(url, headers=dict([header]), method=method), timeout=timeout_s) as answer:  # noqa: S310
            return Answer(answer.read(2**20).decode(errors="replace"), answer.headers)
    except (HTTPException, ValueError) as e:
        raise OSError(f"what the metadata service answers is not HTTP: {e}") from e
