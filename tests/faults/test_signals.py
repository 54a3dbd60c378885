"""Workers as processes, and what may be done to them: SIGKILL, SIGTERM, a notice, SIGSTOP. The oracle: verdict.py."""

from __future__ import annotations

import signal
import subprocess
import time

from sqlalchemy import select, text

from storage.tables import Checkpoint, WorkerRow
from tests.faults.conftest import Places
from workers.arena import BATCH, Arena
from workers.chaos import StormOptions, storm

PATIENCE_S = 60.0


def wait_for(place: Arena, sql: str, at_least: int = 1) -> None:
    """Until a count in the arena's database is that high."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with place.wiring.database.reading() as tx:
            if tx.execute(text(sql)).scalar_one() >= at_least:
                return
        time.sleep(0.05)
    raise AssertionError(f"never came to {at_least}: {sql}")


def checkpointed(place: Arena, at_least: int) -> None:
    wait_for(place, "SELECT count(*) FROM checkpoints", at_least)


def leave(process: subprocess.Popen[bytes], within: float = 10.0) -> float:
    """SIGTERM; the seconds until it has left by itself, well."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(within) == 0
    return time.monotonic() - began


def test_a_kill_in_the_middle_costs_at_most_a_batch(place: Arena) -> None:
    files = place.record(300.0, 20.0)
    expected = place.undisturbed(files)
    place.submit(files)
    victim = place.start()
    checkpointed(place, 4)
    victim.kill()
    place.start()
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []
    assert place.repeated() <= BATCH


def test_sigterm_gives_everything_back_at_once(places: Places) -> None:
    with places(lease_s=600.0) as place:  # nothing comes back by itself here
        files = place.record(300.0, 20.0)
        expected = place.undisturbed(files)
        place.submit(files)
        first = place.start()
        checkpointed(place, 4)
        assert leave(first) < 10.0
        with place.wiring.database.reading() as tx:
            assert tx.execute(select(WorkerRow.left_at)).scalar() is not None
        place.start()
        assert place.settle(PATIENCE_S)
        assert place.faults(expected) == []
        assert place.repeated() <= BATCH


def test_a_frozen_worker_wakes_up_and_does_no_harm(place: Arena) -> None:
    files = place.record(300.0, 20.0)
    expected = place.undisturbed(files)
    place.submit(files)
    sleeper = place.start()
    checkpointed(place, 4)
    sleeper.send_signal(signal.SIGSTOP)
    place.start()
    wait_for(place, "SELECT count(*) FROM workers WHERE lost_at IS NOT NULL")
    time.sleep(1.0)  # the other one is at it now
    sleeper.send_signal(signal.SIGCONT)
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []
    assert place.repeated() <= BATCH
    leave(sleeper)  # it lives, and works on


def test_shards_of_one_recording_are_decoded_by_several_workers_at_once(place: Arena) -> None:
    (long,) = files = place.record(2400.0)
    expected = place.undisturbed(files)
    for _ in range(2):
        place.start()
    wait_for(place, "SELECT count(*) FROM workers", 2)
    place.submit(files)
    assert place.settle(2 * PATIENCE_S)
    assert place.faults(expected) == []
    with place.wiring.database.reading() as tx:
        rows = tx.execute(
            select(Checkpoint.worker, Checkpoint.created_at).where(Checkpoint.job_id == place.ids[long])
        ).all()
    spans = {w: [r.created_at for r in rows if r.worker == w] for w in {r.worker for r in rows}}
    assert len(spans) == 2
    (a, b) = spans.values()
    assert max(min(a), min(b)) < min(max(a), max(b)), "one after the other"


def test_a_short_storm(places: Places) -> None:
    with places() as place:
        settings = place.settings
    said: list[str] = []
    options = StormOptions(recordings=40, workers=3, seconds=12.0, pause=(0.5, 2.5), lease_s=2.0, seed=5)
    assert storm(settings, options, said.append) == [], said
