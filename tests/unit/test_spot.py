"""Each cloud's notice leads to one call, whatever else its metadata service does; off-cloud there is silence."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from chunking.errors import UsageError
from workers.spot import METADATA, Aws, Azure, Gcp, Notice, Watch, by_name, detect

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"
TOKEN = "/latest/api/token"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"
RESET = -1


class Metadata:
    """A stand-in for one cloud's service: what it answers at each path, what it refuses, and what it was asked.

    `faults` are statuses that the next requests get instead (RESET: the connection is reset).
    """

    def __init__(self, cloud: str) -> None:
        self.cloud = cloud
        self.answers: dict[str, str] = {
            "gcp": {"/computeMetadata/v1/": "instance/\n", PREEMPTED: "FALSE"},
            "azure": {"/metadata/instance": '{"compute": {}}', EVENTS: '{"Events": []}', NAME: "gpu_3"},
        }.get(cloud, {})
        self.faults: list[int] = []
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.gives_tokens = True
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.answer(self)

            do_PUT = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = to.path.partition("?")[0]
        self.asked.append(f"{to.command} {path}")
        fault = self.faults.pop(0) if self.faults else 0
        if fault == RESET:
            to.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            to.connection.close()
            return
        status, text = (fault, "") if fault else getattr(self, f"of_{self.cloud}")(to, path)
        to.send_response(status)
        if self.cloud == "gcp":
            to.send_header("Metadata-Flavor", "Google")
        to.send_header("Content-Length", str(len(text)))
        to.end_headers()
        to.wfile.write(text.encode())

    def of_aws(self, to: BaseHTTPRequestHandler, path: str) -> tuple[int, str]:
        if path == TOKEN:
            if to.command != "PUT" or not self.gives_tokens:
                return 405, ""
            assert to.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            self.tokens.append(f"token-{len(self.tokens)}")
            return 200, self.tokens[-1]
        if to.headers["X-aws-ec2-metadata-token"] not in self.tokens[-1:]:
            return 401, ""
        return self.found(path)

    def of_gcp(self, to: BaseHTTPRequestHandler, path: str) -> tuple[int, str]:
        return self.found(path) if to.headers["Metadata-Flavor"] == "Google" else (403, "")

    def of_azure(self, to: BaseHTTPRequestHandler, path: str) -> tuple[int, str]:
        if to.headers["Metadata"] != "true" or "api-version=" not in to.path:
            return 400, ""
        return self.found(path)

    def of_nobody(self, _to: BaseHTTPRequestHandler, _path: str) -> tuple[int, str]:
        return 200, "<html>Please log in to this network</html>"

    def found(self, path: str) -> tuple[int, str]:
        return (200, self.answers[path]) if path in self.answers else (404, "")


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Metadata]:
    stand_in = Metadata(request.param)
    yield stand_in
    stand_in.close()


on = pytest.mark.parametrize
only_aws = on("service", ["aws"], indirect=True)
only_gcp = on("service", ["gcp"], indirect=True)
only_azure = on("service", ["azure"], indirect=True)
all_clouds = on("service", ["aws", "gcp", "azure"], indirect=True)


def closed_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}"


def leaving(service: Metadata) -> None:
    """Makes the service announce the end."""
    service.answers |= {
        "aws": {ACTION: '{"action": "terminate", "time": "2026-01-01T00:00:00Z"}'},
        "gcp": {PREEMPTED: "TRUE"},
        "azure": {EVENTS: events("Preempt")},
    }[service.cloud]


def events(kind: Any, resources: Any = ("gpu_3",)) -> str:
    event = {"EventId": "1", "EventType": kind, "EventStatus": "Scheduled", "Resources": resources}
    return json.dumps({"DocumentIncarnation": 1, "Events": [event]})


@all_clouds
def test_each_cloud_is_detected(service: Metadata) -> None:
    cloud = detect(service.base)
    assert cloud is not None
    assert cloud.name == service.cloud
    again = by_name("auto", service.base + "/")
    assert again is not None
    assert again.look() is None
    leaving(service)
    assert again.look() is Notice.LEAVE


def test_where_nobody_listens_there_is_no_cloud() -> None:
    began = time.monotonic()
    assert detect(closed_port()) is None
    assert time.monotonic() - began < 5


@on("service", ["nobody"], indirect=True)
def test_another_server_at_that_address_is_no_cloud(service: Metadata) -> None:
    for fault in (0, 302, 404, 500, RESET):
        service.faults = [fault] * 3
        assert detect(service.base) is None


def test_a_server_that_says_nothing_costs_the_timeout_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        assert detect(f"http://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.05) is None
        assert time.monotonic() - began < 5


def test_clouds_by_name() -> None:
    kinds = {"aws": Aws, "gcp": Gcp, "azure": Azure}
    assert {name: type(by_name(name, METADATA)) for name in kinds} == kinds
    assert by_name("none", METADATA) is None
    for misspelt in (by_name, lambda c, b: Watch(c, b, None, print)):
        with pytest.raises(UsageError, match="no such cloud: amazon; there are auto, none, aws, azure, gcp"):
            misspelt("amazon", METADATA)


@all_clouds
def test_a_proxy_in_the_environment_is_passed_by(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, closed_port())
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    cloud = detect(service.base)
    assert cloud is not None
    assert cloud.look() is None


@on("base", ["file:///etc", "ftp://127.0.0.1", "nonsense", "http://127.0.0.1:port", "http://a b"])
def test_an_address_that_is_none_is_an_answer_that_fails(base: str) -> None:
    assert detect(base) is None
    with pytest.raises(OSError, match=r"."):
        Gcp(base).look()


@only_aws
@on("action", ["terminate", "stop", "hibernate"])
def test_aws_actions(service: Metadata, action: str) -> None:
    aws = Aws(service.base)
    assert aws.look() is None
    service.answers[REBALANCE] = '{"noticeTime": "2026-01-01T00:00:00Z"}'
    assert aws.look() is Notice.REBALANCE
    service.answers[ACTION] = json.dumps({"action": action, "time": "2026-01-01T00:02:00Z"})
    assert aws.look() is Notice.LEAVE
    assert service.asked.count(f"PUT {TOKEN}") == 1


@only_aws
@on("text", ["", "{", "[]", "{}", '{"action": "none"}', '{"action": ["stop"]}', "[" * 100_000])
def test_aws_what_is_no_action_is_no_notice(service: Metadata, text: str) -> None:
    service.answers[ACTION] = text
    assert Aws(service.base).look() is None


@only_aws
def test_aws_tokens_are_renewed(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = Aws(service.base)
    assert aws.look() is None
    service.tokens.append("another, so that the first is refused")
    leaving(service)
    assert aws.look() is Notice.LEAVE
    now = time.monotonic()
    monkeypatch.setattr("workers.spot.time.monotonic", lambda: now + Aws.TTL_S - 30)
    before = len(service.asked)
    assert aws.look() is Notice.LEAVE
    assert service.asked[before:] == [f"PUT {TOKEN}", f"GET {ACTION}"]


@only_aws
def test_aws_a_new_token_that_is_refused_too_is_an_error(service: Metadata) -> None:
    aws = Aws(service.base)
    service.faults = [0, 401]
    with pytest.raises(OSError, match="401"):
        aws.look()
    service.faults = [401, 0, 401]
    with pytest.raises(OSError, match="401"):
        aws.look()
    assert aws.look() is None


@only_aws
@on("fault", [0, 403, 404, 500, RESET])
def test_aws_is_never_asked_without_a_token(service: Metadata, fault: int) -> None:
    service.gives_tokens = False
    service.faults = [fault]
    with pytest.raises(OSError, match=r"."):
        Aws(service.base).look()
    assert service.asked == [f"PUT {TOKEN}"]


@only_gcp
def test_gcp(service: Metadata) -> None:
    gcp = Gcp(service.base)
    assert gcp.look() is None
    service.answers[PREEMPTED] = "TRUE\n"
    assert gcp.look() is Notice.LEAVE
    del service.answers[PREEMPTED]
    with pytest.raises(OSError, match="404"):
        gcp.look()


@only_gcp
def test_gcp_needs_its_header_both_ways(service: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    service.cloud = "nobody"  # answers all, but not as Google
    assert not Gcp(service.base).here(1)
    service.cloud = "gcp"
    assert Gcp(service.base).here(1)
    monkeypatch.setattr(Gcp, "HEADER", ("Metadata", "true"))
    with pytest.raises(OSError, match="403"):
        Gcp(service.base).look()


@only_azure
@on("kind", ["Preempt", "Terminate"])
def test_azure_leaves(service: Metadata, kind: str) -> None:
    azure = Azure(service.base)
    service.answers[EVENTS] = events(kind)
    assert azure.look() is Notice.LEAVE
    service.answers[EVENTS] = events(kind, ["gpu_1", "GPU_3"])
    assert azure.look() is Notice.LEAVE
    service.answers[EVENTS] = events(kind, ["gpu_1", "gpu_33"])
    assert azure.look() is None, "another machine of the scale set"


@only_azure
@on("resources", [[], None, "gpu_1", 3])
def test_azure_an_event_that_names_nobody_is_ours(service: Metadata, resources: Any) -> None:
    service.answers[EVENTS] = events("Preempt", resources)
    assert Azure(service.base).look() is Notice.LEAVE


@only_azure
@on("fault", [404, 500, RESET])
def test_azure_who_does_not_know_its_name_leaves(service: Metadata, fault: int) -> None:
    service.answers[EVENTS] = events("Preempt", ["gpu_1"])
    service.faults = [0, fault]
    assert Azure(service.base).look() is Notice.LEAVE
    service.answers[NAME] = "\n"
    assert Azure(service.base).look() is Notice.LEAVE


@only_azure
@on("kind", ["Freeze", "Reboot", "Redeploy", "", None, ["Preempt"], {"Preempt": 1}])
def test_azure_other_events_are_no_notice(service: Metadata, kind: Any) -> None:
    service.answers[EVENTS] = events(kind)
    assert Azure(service.base).look() is None


@only_azure
@on(
    "text",
    ["", "<html>", "{", "[]", "null", "{}", '{"Events": null}', '{"Events": [1, "Preempt", null]}', "[" * 100_000],
)
def test_azure_garbage_is_no_notice(service: Metadata, text: str) -> None:
    service.answers[EVENTS] = text
    assert Azure(service.base).look() is None


class Told(queue.Queue[Notice]):
    """What a watch has said."""

    def next(self) -> Notice:
        return self.get(timeout=5)


@only_aws
def test_a_watch_tells_each_kind_once(service: Metadata) -> None:
    told = Told()
    watch = Watch("auto", service.base, 0.005, told.put)
    watch.start()
    service.answers[REBALANCE] = "{}"
    assert told.next() is Notice.REBALANCE
    seen = len(service.asked)
    while len(service.asked) < seen + 6:
        time.sleep(0.005)
    assert told.empty()
    leaving(service)
    assert told.next() is Notice.LEAVE
    watch.join(5)
    assert not watch.is_alive()
    assert told.empty()
    assert watch.errors == 0


@all_clouds
def test_a_watch_survives_what_the_service_does(service: Metadata) -> None:
    told = Told()
    watch = Watch(service.cloud, service.base, 0.002, told.put)
    service.faults = [500, RESET, 503, 429, RESET, 418]
    watch.start()
    while service.faults:
        time.sleep(0.005)
    assert told.empty()
    leaving(service)
    assert told.next() is Notice.LEAVE
    watch.join(5)
    assert not watch.is_alive()
    assert watch.errors == 6


@all_clouds
def test_a_watch_stops_quickly(service: Metadata) -> None:
    told = Told()
    watch = Watch("auto", service.base, None, told.put)
    watch.start()
    while not any(part in asked for asked in service.asked for part in (ACTION, PREEMPTED, EVENTS)):
        time.sleep(0.005)
    leaving(service)
    watch.stop()
    watch.join(1)  # the usual pause is two seconds or more
    assert not watch.is_alive()


def test_a_watch_may_be_stopped_at_any_time() -> None:
    Watch("auto", METADATA, None, print).stop()
    watch = Watch("gcp", closed_port(), 60, print)
    watch.start()
    watch.stop()
    watch.stop()
    watch.join(1)
    assert not watch.is_alive()


@only_gcp
def test_a_watch_may_be_stopped_by_whom_it_tells(service: Metadata) -> None:
    leaving(service)
    told = Told()

    def stop(notice: Notice) -> None:
        watch.stop()
        told.put(notice)

    watch = Watch("gcp", service.base, 0.005, stop)
    watch.start()
    assert told.next() is Notice.LEAVE
    watch.join(1)
    assert not watch.is_alive()


@on("cloud", ["auto", "none"])
def test_off_cloud_a_watch_ends_at_once(cloud: str) -> None:
    watch = Watch(cloud, closed_port(), None, print)
    watch.start()
    watch.join(1)
    assert not watch.is_alive()
    assert watch.errors == 0


def test_pauses_after_errors_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch("aws", closed_port(), None, print)
    pauses: list[float] = []

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        return len(pauses) == 6

    monkeypatch.setattr(watch._ending, "wait", wait)
    watch.run()
    assert pauses == [0, 10, 20, 25, 25, 25]


@only_aws
@on(("state", "notice"), [("InService", None), ("Terminated", Notice.LEAVE), ("Warmed:Stopped", None)])
def test_a_group_that_wants_fewer_machines_is_obeyed(service: Metadata, state: str, notice: Notice | None) -> None:
    service.answers[LIFECYCLE] = state
    cloud = Aws(service.base)
    assert cloud.here()
    assert cloud.look() is notice
