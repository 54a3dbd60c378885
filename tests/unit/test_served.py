"""What a process serves of itself: metrics as Prometheus reads them, health, readiness; and the GPUs' figures."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chunking.errors import UsageError
from pipeline import gpus
from pipeline.gpus import Gpus
from pipeline.metrics import EXPORTER, WORKER
from pipeline.telemetry import Tally
from storage.fleet import Worker
from workers.pack import next_port
from workers.served import Served, Source, printed
from workers.worker_metrics import WorkerMetrics

ME = Worker("w", "h", "1", ("cpu", "gpu"), "tiny.en int8 beam 1", 0.5, "spot", "cpu")


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served("127.0.0.1:0")
    made.start()
    yield made
    made.close()


def get(served: Served, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_until_there_is_something_to_watch_it_is_alive_and_not_ready(served: Served) -> None:
    assert get(served, "/healthz") == (200, "ok\n")
    assert get(served, "/readyz")[0] == 503
    assert "process_resident_memory_bytes" in get(served, "/metrics")[1]
    assert get(served, "/")[0] == 404


def test_what_is_stuck_says_why(served: Served) -> None:
    why: list[str | None] = [None]
    served.watch(Source(WORKER, dict), lambda: why[0], lambda: True)
    assert (get(served, "/healthz")[0], get(served, "/readyz")[0]) == (200, 200)
    why[0] = "a call of the model takes longer than 600 s"
    assert get(served, "/healthz") == (503, "a call of the model takes longer than 600 s\n")


def test_what_was_counted_is_served_by_its_name(served: Served) -> None:
    tally = Tally()
    metrics = WorkerMetrics(ME, tally, "transcribe", lambda: True)
    served.watch(Source(WORKER, metrics.values), lambda: None, lambda: True)
    tally.add(chunks_decoded=3, audio_s=40.5, device_s=2.0)
    tally.count("redecodes", "loop")
    tally.count("redecodes", "loop")
    for fill in (0.05, 0.5, 1.0):
        tally.observe("batch_fill_ratio", fill)
    with tally.stage("decode"):
        pass
    found = {s.name: s.value for f in text_string_to_metric_families(get(served, "/metrics")[1]) for s in f.samples
             if "le" not in s.labels}  # fmt: skip
    assert found["spotscribe_chunks_total"] == 3
    assert found["spotscribe_audio_seconds_total"] == 40.5
    assert found["spotscribe_redecodes_total"] == 2
    assert found["spotscribe_batch_fill_ratio_count"] == 3
    assert found["spotscribe_batch_fill_ratio_sum"] == pytest.approx(1.55)
    text = get(served, "/metrics")[1]
    assert 'spotscribe_batch_fill_ratio_bucket{le="0.1"} 1.0' in text
    assert 'spotscribe_batch_fill_ratio_bucket{le="0.5"} 2.0' in text
    assert 'spotscribe_batch_fill_ratio_bucket{le="+Inf"} 3.0' in text


def test_each_metric_of_the_table_is_served_from_the_start_but_for_those_that_need_an_event() -> None:
    text = printed(Source(WORKER, WorkerMetrics(ME, Tally(), "cpu", lambda: False).values))
    families = {f.name for f in text_string_to_metric_families(text) if f.samples}
    missing = {m.name for m in WORKER if m.name.removesuffix("_total") not in families and m.name not in families}
    assert missing == {
        "spotscribe_stage_seconds_total", "spotscribe_redecodes_total", "spotscribe_gpu_utilization_ratio",
        "spotscribe_gpu_memory_used_bytes", "spotscribe_gpu_memory_bytes", "spotscribe_gpu_power_watts",
    }  # fmt: skip


def test_a_metric_that_is_not_in_the_table_cannot_be_counted() -> None:
    with pytest.raises(KeyError):
        Tally().count("redecoded")
    with pytest.raises(AssertionError):
        Tally().count("redecodes", "loop", "job 7")


@pytest.mark.parametrize("wrong", ["9108", "nowhere", "host:port", "http://127.0.0.1:80", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_one_line_that_names_the_setting(wrong: str) -> None:
    with pytest.raises(UsageError, match="SPOTSCRIBE_METRICS_LISTEN"):
        Served(wrong)


def test_a_port_that_another_process_has_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(UsageError, match="cannot be listened on"):
        Served(f"127.0.0.1:{other.getsockname()[1]}")


def test_processes_of_one_machine_serve_on_ports_of_their_own() -> None:
    assert [next_port(":9108", i) for i in range(3)] == [":9108", ":9109", ":9110"]
    assert next_port("[::1]:9108", 1) == "[::1]:9109"
    assert next_port("127.0.0.1:0", 3) == "127.0.0.1:0"


class Nvml:
    """NVML with two GPUs, of which the second says next to nothing."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        raise self.NVMLError

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle == 1:
            raise self.NVMLError
        return SimpleNamespace(used=4 << 30, total=16 << 30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError
        return 70_500


@pytest.mark.parametrize(("visible", "names"), [(None, ["0", "1"]), ("1", ["1"]), ("1,0", ["1", "0"]), ("GPU-x", [])])
def test_gpus_are_those_that_the_process_may_use(
    visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [g.name for g in Gpus().read()] == names


def test_what_a_driver_does_not_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    me = Worker("w", "h", "1", ("gpu",), "tiny.en int8 beam 1", 0.5, "spot", "cuda Tesla T4")
    text = printed(Source(WORKER, WorkerMetrics(me, Tally(), "transcribe", lambda: True).values))
    assert 'spotscribe_gpu_memory_used_bytes{gpu="0"} 4.294967296e+09' in text
    assert 'spotscribe_gpu_power_watts{gpu="0"} 70.5' in text
    assert 'spotscribe_gpu_utilization_ratio{gpu="1"} 0.75' in text
    assert 'power_watts{gpu="1"}' not in text


def test_without_a_driver_there_are_no_gpus() -> None:
    assert Gpus("").read() == []


def test_names_follow_the_conventions() -> None:
    metrics = (*WORKER, *EXPORTER)
    assert len({m.name for m in metrics}) == len(metrics)
    for m in metrics:
        assert m.name.startswith("spotscribe_")
        assert m.name.endswith("_total") == (m.kind == "counter"), m.name
        assert bool(m.buckets) == (m.kind == "histogram"), m.name
        assert not {"job", "recording", "label", "url", "host"} & set(m.labels), m.name
