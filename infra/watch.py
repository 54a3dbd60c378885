"""`make watch`: a Prometheus scrapes two workers under load; one of them is frozen, and an alert says so.

Servers come from wheels, as in `make fleet`; Prometheus must be installed (Debian: apt install prometheus). Alerts wait
a sixtieth of their time, so that nobody has to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from infra import stage
from infra.server import free_port
from pipeline.settings import Settings
from workers.wiring import Wiring

RULES = Path(__file__).parent / "prometheus" / "alerts.yml"
FASTER = 60
RECORDINGS = 40
PATIENCE_S = 120.0
ALERT = "SpotscribeWorkerFrozen"
QUERIES = {
    "seconds of sound in a second, by worker": "rate(spotscribe_audio_seconds_total[15s])",
    "share of the time in which the device works": "rate(spotscribe_device_busy_seconds_total[15s])",
    "shards that wait": "spotscribe_backlog_shards",
    "workers": "spotscribe_workers",
    "workers wanted": "spotscribe_workers_wanted",
    "jobs that ended": "sum(spotscribe_ended_total)",
}


def watch(folder: Path, environment: dict[str, str]) -> int:
    """0: the alert fired when the worker froze, and went when it thawed."""
    if shutil.which("prometheus") is None:
        print("Prometheus is not installed (Debian, Ubuntu: apt install prometheus)")
        return 1
    environment |= {"SPOTSCRIBE_ENGINE": "paced", "SPOTSCRIBE_LEASE_S": str(stage.LEASE_S)}
    ports, told_at = [free_port(), free_port()], free_port()
    stage.spotscribe(["db", "upgrade"], environment)
    _submit(folder, environment)
    workers = [stage.worker(environment | {"SPOTSCRIBE_METRICS_LISTEN": f"127.0.0.1:{p}"}) for p in ports]
    exporter = stage.background(["exporter", "--listen", f"127.0.0.1:{told_at}", "--every", "1s"], environment)
    try:
        with _prometheus(folder, ports, told_at) as ask:
            return _froze(workers[0], ports[0], ask)
    finally:
        stage.end([*workers, exporter])


def _froze(worker: subprocess.Popen[bytes], port: int, ask: Callable[[str], Any]) -> int:
    stage.until(lambda: len(ask("query?query=" + urllib.parse.quote("spotscribe_ready == 1"))["result"]) == 2)
    time.sleep(15)
    _show(ask)
    print(f"\n>>> SIGSTOP to the worker on port {port}\n", flush=True)
    began = time.monotonic()
    worker.send_signal(signal.SIGSTOP)
    fired = stage.until(lambda: _firing(ask))
    print(f"{ALERT} {'fires' if fired else 'does not fire'} after {time.monotonic() - began:.0f} s "
          f"(of {FASTER} times as fast a clock for alerts):")  # fmt: skip
    for alert in ask("alerts")["alerts"]:
        print(f"  {alert['state']:8} {alert['labels']['alertname']}: {alert['annotations']['summary']}")
    print("\n>>> SIGCONT", flush=True)
    worker.send_signal(signal.SIGCONT)
    over = stage.until(lambda: not _firing(ask))
    print(f"{ALERT} {'is over' if over else 'goes on'}\n")
    _show(ask)
    return 0 if fired and over else 1


def _firing(ask: Callable[[str], Any]) -> bool:
    return any(a["labels"]["alertname"] == ALERT and a["state"] == "firing" for a in ask("alerts")["alerts"])


def _show(ask: Callable[[str], Any]) -> None:
    for title, query in QUERIES.items():
        found = ask("query?query=" + urllib.parse.quote(query))["result"]
        values = ", ".join(f"{_name(r['metric'])}{float(r['value'][1]):.4g}" for r in found)
        print(f"{title}: {values or 'nothing yet'}", flush=True)


def _name(labels: dict[str, str]) -> str:
    name = labels.get("queue") or labels.get("instance", "")
    return f"{name} " if name else ""


@contextmanager
def _prometheus(folder: Path, ports: list[int], told_at: int) -> Iterator[Callable[[str], Any]]:
    """Scrapes every second. Gives what asks its API."""
    home = folder / "prometheus"
    home.mkdir()
    faster = re.sub(
        r"for: (\d+)([mh])", lambda m: f"for: {int(m[1]) * {'m': 60, 'h': 3600}[m[2]] // FASTER}s", RULES.read_text()
    )
    (home / "alerts.yml").write_text(faster)
    jobs = {"spotscribe-worker": ports, "spotscribe-exporter": [told_at]}
    (home / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{p}" for p in at]}]}
            for name, at in jobs.items()
        ],
    }))  # fmt: skip
    port = free_port()
    command = ["prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]  # fmt: skip
    print("$ prometheus &", flush=True)
    process = subprocess.Popen(command, env=os.environ, start_new_session=True)

    def ask(what: str) -> Any:
        for _ in range(100):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=10) as answer:
                    return json.load(answer)["data"]
            except OSError:
                time.sleep(0.2)
        raise SystemExit("Prometheus does not answer")

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(20)


def _submit(folder: Path, environment: dict[str, str]) -> None:
    """Recordings for some minutes: a voice, each time after another silence."""
    wiring = Wiring(Settings())
    *_, long = stage.recordings(folder)
    sound, rate = soundfile.read(long, dtype="int16")
    for i in range(RECORDINGS):
        file = folder / f"long{i}.wav"
        soundfile.write(file, np.concatenate([np.zeros(rate * (i + 1) // 10, np.int16), sound]), rate)
        wiring.s3.upload_file(str(file), stage.INBOX, f"watch/{file.name}")
    wiring.database.close()
    stage.spotscribe(["submit", f"s3://{stage.INBOX}/watch/", "--model", "tiny.en"], environment)
