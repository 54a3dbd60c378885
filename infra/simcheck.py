"""`make simulate-check`: the same small load on a real fleet, and in simulation, side by side.

The fleet has two workers with a paced model (a quarter of a second a chunk, no arithmetic, so that two cores are enough
for all the rest) on servers from wheels; one is killed in the middle, and another comes after a minute. The simulation
is told that speed, how long recordings are, how long a worker's start takes, and when one was killed: nothing of how
long the fleet took.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from sqlalchemy import text

from infra import stage
from pipeline.scaling import Policy
from pipeline.scenario import Arrival, Machines, Outcome
from pipeline.settings import Settings
from pipeline.simulation import LOOK_S, simulate
from workers.wiring import Wiring

RECORDINGS, KILL_AFTER_S, PACED_S, BATCH = 20, 20.0, 0.25, 16
START_S = 3.2
"""Until a worker's first claim (`make bench-start`)."""


def check(folder: Path, environment: dict[str, str]) -> int:
    """0: as many shards and recordings in both."""
    environment |= {
        "SPOTSCRIBE_ENGINE": "paced",
        "SPOTSCRIBE_PACED_S": str(PACED_S),
        "SPOTSCRIBE_LEASE_S": str(stage.LEASE_S),
    }
    wiring = Wiring(Settings())
    stage.spotscribe(["db", "upgrade"], environment)
    *_, long = stage.recordings(folder)
    sound, rate = soundfile.read(long, dtype="int16")
    for i in range(RECORDINGS):
        file = folder / f"{i}.wav"
        soundfile.write(file, np.concatenate([np.zeros(rate * (i + 1) // 10, np.int16), sound, sound]), rate)
        wiring.s3.upload_file(str(file), stage.INBOX, f"check/{file.name}")
    environment["SPOTSCRIBE_CANARY_EVERY_S"] = "0"
    command = ["worker", "--model", "tiny.en", "--batch-size", str(BATCH)]
    stage.spotscribe(["submit", f"s3://{stage.INBOX}/check/", "--model", "tiny.en"], environment)
    began = time.monotonic()
    workers = [stage.background(command, environment) for _ in range(2)]
    try:
        time.sleep(KILL_AFTER_S)
        workers[0].kill()
        print(f">>> one worker killed after {KILL_AFTER_S:.0f} s", flush=True)
        time.sleep(began + LOOK_S - time.monotonic())
        workers.append(stage.background(command, environment))
        stage.until(lambda: _one(wiring, "SELECT count(*) FROM jobs WHERE state <> 'done'") == 0)
    finally:
        stage.end(workers)
    real = _real(wiring)
    wiring.database.close()
    return _compare(real, _simulated(real))


@dataclass(frozen=True, slots=True)
class _Real:
    """What the fleet did."""

    took_s: tuple[float, ...]
    """Of each recording, the shortest first."""
    lengths: tuple[float, ...]
    shards: int
    chunks: int
    shards_s: float
    """Seconds of sound in shards."""

    def took(self, share: float) -> float:
        return self.took_s[math.ceil(share * len(self.took_s)) - 1]


def _real(wiring: Wiring) -> _Real:
    with wiring.database.reading() as tx:
        rows = tx.execute(
            text("SELECT extract(epoch FROM finished_at - created_at) AS took, duration_s FROM jobs ORDER BY id")
        ).all()
        found = text("SELECT count(*), sum(chunks), sum(end_s - start_s) FROM shards")
        shards, chunks, seconds = tx.execute(found).one()
    took = sorted(float(r.took) for r in rows)
    return _Real(tuple(took), tuple(r.duration_s for r in rows), shards, chunks, seconds)


def _simulated(real: _Real) -> Outcome:
    """Two workers; after the kill one, until the next look brings another."""
    rtfx = real.shards_s / (real.chunks * PACED_S)
    machines = Machines(
        rtfx=rtfx, batch=BATCH, cores=os.cpu_count() or 1, start_s=START_S, interruptions=0.0, lease_s=stage.LEASE_S,
        kills=(KILL_AFTER_S,),
    )  # fmt: skip
    arrivals = [Arrival(0.0, seconds) for seconds in real.lengths]
    return simulate(arrivals, machines, Policy(least=2, most=2, expected_rtfx=rtfx))


def _compare(real: _Real, found: Outcome) -> int:
    rows = {
        "half are done within": (real.took(0.5), found.took(0.5)),
        "95 of 100 within": (real.took(0.95), found.took(0.95)),
        "all": (real.took(1.0), found.took(1.0)),
    }
    print(f"\n{'':24}{'real':>10}{'simulated':>12}{'ratio':>8}")
    for title, (a, b) in rows.items():
        print(f"{title:24}{a:8.1f} s{b:10.1f} s{b / a:8.2f}")
    print(f"{'recordings':24}{len(real.took_s):10d}{len(found.took_s):12d}")
    print(f"{'shards':24}{real.shards:10d}{found.shards:12d}")
    print(f"{'chunks':24}{real.chunks:10d}{found.chunks:12d}")
    return 0 if (len(real.took_s), real.shards) == (len(found.took_s), found.shards) else 1


def _one(wiring: Wiring, sql: str) -> int:
    with wiring.database.reading() as tx:
        return int(tx.execute(text(sql)).scalar_one())
