"""`make bench-telemetry`: what traces cost: `spotscribe run` with a paced model, with a collector and without, in turn."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from tests.collector import collecting
from tests.conftest import package_file, read_16k, write_wav
from workers.usage import measured


def recordings(folder: Path, count: int) -> float:
    """A voice after silences of unlike lengths. Seconds of sound in all."""
    sound = read_16k(package_file("moonshine_onnx", "assets", "beckett.wav"))
    total = 0.0
    for i in range(count):
        samples = np.concatenate([np.zeros(400 * (i + 1), sound.dtype), sound])
        write_wav(folder / f"{i}.wav", samples)
        total += len(samples) / 16_000
    return total


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-telemetry", description=__doc__)
    ask.add_argument("--recordings", type=int, default=150)
    ask.add_argument("--rounds", type=int, default=5)
    asked = ask.parse_args(arguments)
    took: dict[str, list[float]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as name, collecting() as collector:
        folder = Path(name)
        (folder / "in").mkdir()
        seconds = recordings(folder / "in", asked.recordings)
        mine = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
        for i in range(asked.rounds):
            for kind, values in took.items():
                traced = {"SPOTSCRIBE_OTLP_ENDPOINT": collector.endpoint} if kind == "on" else {}
                home = {"SPOTSCRIBE_HOME": str(folder / f"home-{kind}-{i}"), "SPOTSCRIBE_ENGINE": "paced"}
                command = [sys.executable, "-m", "workers", "run", str(folder / "in"), "--out", str(folder / "out")]
                values.append(measured([*command, "--model", "tiny.en"], folder, mine | home | traced).cpu_s)
        ratios = sorted(on / off for on, off in zip(took["on"], took["off"], strict=True))
        spans = len(collector.spans) / asked.rounds
    print(f"{asked.recordings} recordings, {seconds / 3600:.2f} h, a paced model (no arithmetic of its own)")
    print(f"CPU seconds, median of {asked.rounds}: off {median(took['off']):.1f}, on {median(took['on']):.1f}")
    print(f"ratio, median of pairs: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    print(f"{spans:.0f} spans, {spans / asked.recordings:.1f} a recording")


if __name__ == "__main__":
    main()
