"""`make bench-telemetry`: what metrics and traces cost.

Twice: by parts (what one addition, one scrape and one span take, times how many a recording makes), and as a whole
(`spotscribe run` with a collector and without, in turn). The whole is true and unsteady: on a shared machine two equal
runs differ by more than traces cost. The model is tiny.en on this CPU, or with `--paced` one without arithmetic, as if a
GPU did it: then only the CPU's part of the work is beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from click.testing import CliRunner

from pipeline import tracing
from pipeline.metrics import WORKER
from pipeline.settings import Settings
from pipeline.telemetry import Tally
from storage.fleet import Worker
from tests.collector import collecting
from tests.conftest import package_file, read_16k, write_wav
from workers.cli import cli
from workers.served import Served, Source
from workers.usage import measured
from workers.worker_metrics import WorkerMetrics

ADDITIONS = ("add", "count", "observe", "got_on", "stage")
SCRAPE_EVERY_S = 15.0
SPANS = 4000


@dataclass(frozen=True, slots=True)
class Parts:
    """CPU seconds of one of each, on all threads, and how many a recording makes."""

    addition_s: float
    additions: float
    scrape_s: float


def recordings(folder: Path, count: int) -> float:
    """A voice after silences of unlike lengths. Seconds of sound in all."""
    sound = read_16k(package_file("moonshine_onnx", "assets", "beckett.wav"))
    total = 0.0
    for i in range(count):
        samples = np.concatenate([np.zeros(400 * (i + 1), sound.dtype), sound])
        write_wav(folder / f"{i}.wav", samples)
        total += len(samples) / 16_000
    return total


@contextmanager
def counted() -> Iterator[dict[str, Any]]:
    """How often something is added to a Tally meanwhile, and to which."""
    found: dict[str, Any] = {"additions": 0, "tally": None}

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Tally, *args: Any, **kwargs: Any) -> Any:
            found["additions"] += 1
            found["tally"] = self
            return method(self, *args, **kwargs)

        return call

    patches = [patch.object(Tally, name, wrapped(getattr(Tally, name))) for name in ADDITIONS]
    for one in patches:
        one.start()
    try:
        yield found
    finally:
        for one in patches:
            one.stop()


def cpu_each(work: Callable[[], object], times: int) -> float:
    """CPU seconds of this process for one, the median of five."""
    took = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            work()
        took.append((time.process_time() - began) / times)
    return median(took)


def one_span(endpoint: str) -> float:
    """CPU seconds of this process for a span, from its making until it is sent."""
    tracing.start(Settings(otlp_endpoint=endpoint))
    above = tracing.submitted("s3://bucket/recording.wav")

    def spans() -> None:
        for _ in range(SPANS):
            with tracing.span("decode", above, job=1, shard=2) as made:
                made.note(seconds=3.0)
        tracing.flush(30.0)

    return cpu_each(spans, 1) / SPANS


def parts(folder: Path, count: int) -> Parts:
    """Count them in a run within this process, and measure each on its own."""
    with counted() as found, patch.dict(os.environ, SPOTSCRIBE_HOME=str(folder / "home"), SPOTSCRIBE_ENGINE="paced"):
        command = ["run", str(folder / "in"), "--out", str(folder / "texts"), "--model", "tiny.en"]
        ran = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
    tally: Tally = found["tally"]
    addition_s = cpu_each(lambda: tally.count("claims", "prepare"), 20_000)
    served = Served("127.0.0.1:0")
    me = Worker("w", "h", "1", ("cpu", "gpu"), "tiny.en int8 beam 1", device="cpu")
    source = Source(WORKER, WorkerMetrics(me, tally, "gpu", lambda: True).values)
    served.watch(source, lambda: None, lambda: True)
    scrape_s = cpu_each(lambda: served.answer("/metrics", "application/openmetrics-text"), 50)
    return Parts(addition_s, found["additions"] / count, scrape_s)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-telemetry", description=__doc__)
    ask.add_argument("--recordings", type=int, default=150)
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--paced", action="store_true", help="a model without arithmetic of its own")
    asked = ask.parse_args(arguments)
    n = asked.recordings
    took: dict[str, list[float]] = {"off": [], "on": []}
    spans_s, aside = [], 0
    engine = {"SPOTSCRIBE_ENGINE": "paced"} if asked.paced else {}
    with tempfile.TemporaryDirectory() as name, collecting() as collector:
        folder = Path(name)
        (folder / "in").mkdir()
        seconds = recordings(folder / "in", n)
        mine = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
        for i in range(asked.rounds):
            for kind, values in took.items():
                traced = {"SPOTSCRIBE_OTLP_ENDPOINT": collector.endpoint} if kind == "on" else {}
                home = {"SPOTSCRIBE_HOME": str(folder / f"home-{kind}-{i}")}
                command = [sys.executable, "-m", "workers", "run", str(folder / "in"), "--out", str(folder / "out")]
                values.append(measured([*command, "--model", "tiny.en"], folder, mine | engine | home | traced).cpu_s)
            with ProcessPoolExecutor(1, get_context("spawn")) as other:  # the collector's own work is not to be counted
                before = len(collector.spans)
                spans_s.append(other.submit(one_span, collector.endpoint).result())
                aside += len(collector.spans) - before
        spans = (len(collector.spans) - aside) / asked.rounds / n
        found = parts(folder, n)
    off = median(took["off"])
    ratios = sorted(on / off for on, off in zip(took["on"], took["off"], strict=True))
    one_s = off / n
    model = "a model without arithmetic" if asked.paced else "tiny.en"
    print(f"{n} recordings of {seconds / n:.1f} s, {model}; without traces {1000 * one_s:.0f} ms of CPU each")
    print(f"{'':10}{'each':>12}{'a recording':>14}{'together':>12}{'share of its CPU':>18}")
    for what, each, times in (
        ("additions", found.addition_s, found.additions),
        ("spans", median(spans_s), spans),
    ):
        together = each * times
        share = together / one_s
        print(f"{what:10}{1e6 * each:>9.1f} us{times:>14.1f}{1000 * together:>9.2f} ms{share:>17.2%}")
    share = found.scrape_s / SCRAPE_EVERY_S
    print(f"a scrape takes {1000 * found.scrape_s:.1f} ms: every {SCRAPE_EVERY_S:.0f} s, {share:.3%} of a core")
    print(f"as a whole, CPU seconds, median of {asked.rounds}: off {off:.1f}, on {median(took['on']):.1f}")
    print(f"ratio, median of pairs: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
