"""Workers in which something goes wrong: what they decode kills them, hangs, does not fit; the cloud takes them away."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jiwer
import pytest
from sqlalchemy import func, select, text, update

from pipeline.exports import Format
from pipeline.finish import Finisher
from pipeline.telemetry import Tally
from storage import checkpoints, fleet, jobs, submission
from storage.jobs import JobOptions
from storage.submission import Request
from storage.tables import Job, ShardRow, WorkerRow
from tests.conftest import joined, read_16k, write_wav
from tests.faults.conftest import Places
from tests.faults.test_signals import PATIENCE_S, checkpointed, leave, wait_for
from workers.arena import BATCH, Arena

ODD = ("-m", "tests.faults.odd")


def verdicts(place: Arena) -> dict[int, tuple[str, str | None]]:
    with place.wiring.database.reading() as tx:
        return {v.id: (v.state, v.code) for v in jobs.views(tx, list(place.ids.values()))}


def keep_going(place: Arena, kind: str, **settings: object) -> int:
    """Start a worker again whenever it has ended, as a supervisor does, until all is settled. How often it ended."""
    deaths, deadline = 0, time.monotonic() + 2 * PATIENCE_S
    worker = place.start(program=(*ODD, kind), **settings)
    while not place.settled():
        assert time.monotonic() < deadline, verdicts(place)
        if worker.poll() is not None:
            deaths += 1
            worker = place.start(program=(*ODD, kind), **settings)
        time.sleep(0.05)
    return deaths


@pytest.mark.parametrize("kind", ["dies_preparing", "dies_decoding"])
def test_what_always_kills_its_worker_is_taken_out_and_the_rest_flows(places: Places, kind: str) -> None:
    with places(lease_s=1.0) as place:
        good, (poison,) = place.record(*[9.0] * 6), place.record(50.0)
        expected = place.undisturbed(good)
        place.submit([good[0], poison, *good[1:]])
        deaths = keep_going(place, kind, poisoned=place.ids[poison])
        ends = verdicts(place)
        assert ends.pop(place.ids[poison]) == ("failed", "quarantined")
        assert set(ends.values()) == {("done", "ok")}
        assert deaths == 3
        assert [f for f in place.faults(expected) if "not delivered" not in f] == []
        with place.wiring.database.reading() as tx:
            assert "3 workers died" in (jobs.view(tx, place.ids[poison]).error or "")


def test_twenty_preemptions_are_nobodys_fault(places: Places) -> None:
    from tests.faults.test_kill_points import WORKER, zygote

    with places(lease_s=30.0) as place, zygote(place) as z:
        files = place.record(250.0)
        expected = place.undisturbed(files)
        place.submit(files)
        for _ in range(20):
            worker = z.start(WORKER)
            wait_for(
                place,
                "SELECT (SELECT count(*) FROM jobs WHERE worker IS NOT NULL OR state = 'done') + "
                "(SELECT count(*) FROM shards WHERE worker IS NOT NULL)",
            )
            z.end(worker)
        last = z.start(WORKER)
        assert place.settle(PATIENCE_S)
        z.end(last)
        assert place.faults(expected) == []
        with place.wiring.database.reading() as tx:
            assert tx.execute(select(func.max(ShardRow.crashes + 0))).scalar() == 0
            assert tx.execute(select(WorkerRow.lost_at).where(WorkerRow.lost_at.is_not(None))).all() == []


def test_a_call_of_the_model_that_never_returns_ends_its_process(place: Arena) -> None:
    files = place.record(60.0, 20.0)
    expected = place.undisturbed(files)
    place.submit(files)
    hung = place.start(program=(*ODD, "hangs"), stall_s=2.0)
    assert hung.wait(PATIENCE_S) == 70
    assert "starting over" in place.said(hung)
    place.start()
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []


def test_a_lost_device_ends_the_process_and_no_job(place: Arena) -> None:
    files = place.record(300.0, 20.0)
    expected = place.undisturbed(files)
    place.submit(files)
    lost = place.start(program=(*ODD, "loses_its_device"))
    assert lost.wait(PATIENCE_S) == 70
    place.start()
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []


def test_of_two_processes_on_a_machine_one_loses_its_device_and_the_other_does_not_notice(place: Arena) -> None:
    files = place.record(300.0, 20.0)
    expected = place.undisturbed(files)
    place.submit(files)
    pack = place.start("--processes", "2", program=(*ODD, "loses_a_device_once"))
    assert place.settle(PATIENCE_S)
    wait_for(place, "SELECT count(*) FROM workers", 3)
    leave(pack)
    assert "ended with 70, and is started again in 1 s" in place.said(pack)
    assert place.said(pack).count("left after") == 2
    assert place.faults(expected) == []


def test_a_batch_too_large_for_the_memory_is_halved_and_that_is_remembered(place: Arena) -> None:
    files = place.record(300.0)
    expected = place.undisturbed(files)
    place.submit(files)
    place.start(program=(*ODD, "has_little_memory"))
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []
    with place.wiring.database.reading() as tx:
        assert fleet.batch_limit(tx, place.job.engine, "paced") in {2, 3, 4}


def test_a_decoder_that_crashes_hangs_or_eats_memory_takes_its_own_recording_only(place: Arena) -> None:
    good, bad = place.record(9.0, 9.0), place.record(9.0, 9.0, 9.0)
    for file, last in zip(bad, (b"CRASH", b"HANGS", b"EATS!"), strict=True):
        with file.open("ab") as f:
            f.write(last)
    expected = place.undisturbed(good)
    place.submit([*bad, *good])
    worker = place.start(program=(*ODD, "has_a_bad_decoder"))
    assert place.settle(PATIENCE_S)
    ends = verdicts(place)
    assert [ends[place.ids[f]] for f in bad] == [
        ("failed", "decoder_crashed"), ("failed", "decoder_timeout"), ("failed", "decoder_crashed"),
    ]  # fmt: skip
    assert [f for f in place.faults(expected) if "not delivered" not in f] == []
    leave(worker)


def test_a_full_disk_puts_work_off_and_fails_nothing(place: Arena) -> None:
    files = place.record(40.0, 20.0)
    expected = place.undisturbed(files)
    worker = place.start()
    wait_for(place, "SELECT count(*) FROM workers")
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (50_000, hard))  # files cannot grow: as on a full disk
    place.submit(files)
    wait_for(place, "SELECT count(*) FROM jobs WHERE next_run_at IS NOT NULL AND error IS NOT NULL")
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))
    with place.wiring.database.transaction() as tx:
        tx.execute(update(Job).values(next_run_at=None))  # ten seconds later
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []


def test_old_and_new_workers_go_on_during_a_migration(place: Arena) -> None:
    files = place.record(*[20.0] * 8)
    expected = place.undisturbed(files)
    old = place.start(program=(*ODD, "is_slow"))
    place.submit(files)
    checkpointed(place, 1)
    with place.wiring.database.transaction() as tx:  # what a later version's migration may do: add
        tx.execute(text("ALTER TABLE jobs ADD COLUMN colour TEXT"))
        tx.execute(text("ALTER TABLE checkpoints ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'"))
        tx.execute(text("CREATE TABLE later (id BIGINT PRIMARY KEY)"))
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    place.start()
    assert place.settle(PATIENCE_S)
    assert place.faults(expected) == []
    assert old.poll() is None


class Metadata:
    """A cloud's metadata service (AWS) that can be told to give notice."""

    def __init__(self) -> None:
        self.action: dict[str, str] | None = None
        self.rebalance = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._say(200, "token" if self.path == "/latest/api/token" else "")

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") != "token":
                    self._say(401, "")
                elif self.path.endswith("/spot/instance-action") and outer.action:
                    self._say(200, json.dumps(outer.action))
                elif self.path.endswith("/recommendations/rebalance") and outer.rebalance:
                    self._say(200, '{"noticeTime": "2026-11-30T08:22:00Z"}')
                else:
                    self._say(404, "")

            def _say(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    yield service
    service.close()


def test_a_notice_of_preemption_gives_everything_back_in_time(places: Places, metadata: Metadata) -> None:
    with places(lease_s=600.0) as place:
        files = place.record(300.0, 20.0)
        expected = place.undisturbed(files)
        place.submit(files)
        worker = place.start(cloud="aws", metadata_url=metadata.url)
        checkpointed(place, 4)
        metadata.action = {"action": "terminate", "time": "2026-11-30T08:22:00Z"}
        assert gone_within(worker, 5.0 + 10.0)  # the poll, and the ten seconds
        assert "takes this machine away" in place.said(worker)
        place.start()
        assert place.settle(PATIENCE_S)
        assert place.faults(expected) == []
        assert place.repeated() <= BATCH


def test_a_notice_of_preemption_reaches_every_process_of_a_machine(places: Places, metadata: Metadata) -> None:
    with places() as place:
        pack = place.start("--processes", "3", cloud="aws", metadata_url=metadata.url)
        wait_for(place, "SELECT count(*) FROM workers", 3)
        metadata.action = {"action": "terminate", "time": "2026-11-30T08:22:00Z"}
        assert gone_within(pack, 5.0 + 10.0)
        assert place.said(pack).count("takes this machine away") == 3


def test_a_recommendation_to_move_stops_claiming_and_aborts_nothing(places: Places, metadata: Metadata) -> None:
    with places() as place:
        worker = place.start(cloud="aws", metadata_url=metadata.url)
        wait_for(place, "SELECT count(*) FROM workers")
        metadata.rebalance = True
        deadline = time.monotonic() + 15.0
        while "taking nothing more" not in place.said(worker):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        files = place.record(9.0)
        expected = place.undisturbed(files)
        place.submit(files)
        time.sleep(2.0)
        assert set(verdicts(place).values()) == {("queued", None)}
        place.start()
        assert place.settle(PATIENCE_S)
        assert place.faults(expected) == []
        leave(worker)


@contextmanager
def grace(worker: subprocess.Popen[bytes]) -> Iterator[None]:
    """What a cloud does: SIGTERM, and SIGKILL ten seconds later."""
    worker.send_signal(signal.SIGTERM)
    try:
        worker.wait(10.0)
    except subprocess.TimeoutExpired:
        worker.kill()
    yield


def gone_within(worker: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        return worker.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False


def test_the_real_model_is_preempted_and_goes_on(places: Places, tmp_path: Path, english_clips: list[Path]) -> None:
    """SIGTERM with ten seconds of grace, then SIGKILL, twice, in the middle of five minutes of speech."""
    clips = [read_16k(c) for c in english_clips]
    file = write_wav(tmp_path / "five.wav", joined(clips, pause_s=0.8, seconds=300.0, seed=3))
    with places(lease_s=600.0, engine="whisper", model="tiny.en") as place:
        expected = place.undisturbed([file])
        place.submit([file])
        for _ in range(2):
            with place.wiring.database.reading() as tx:
                stood = checkpoints.count(tx, [place.ids[file]])
            worker = place.start()
            checkpointed(place, stood + 1)
            with grace(worker):
                assert worker.returncode == 0, place.said(worker)
        place.start()
        assert place.settle(PATIENCE_S)
        assert place.faults(expected) == []
        finisher = Finisher(place.wiring.database, place.wiring.store, Tally())
        said = finisher.render(place.ids[file], Format.TXT).decode()
        assert jiwer.wer(expected[file].text, " ".join(said.split())) < 0.02


def test_work_for_another_model_is_left_alone(place: Arena) -> None:
    (file,) = place.record(9.0)
    with place.wiring.database.transaction() as tx:
        source = place.media(file)
        (done,) = submission.submit_all(tx, [source], JobOptions(model="large-v3", language="en"), Request())
    place.ids[file] = done.job
    place.start()
    wait_for(place, "SELECT count(*) FROM shards WHERE state = 'queued'")
    time.sleep(2.0)
    assert set(verdicts(place).values()) == {("transcribing", None)}
    place.start("--model", "large-v3")
    assert place.settle(PATIENCE_S)
    assert set(verdicts(place).values()) == {("done", "ok")}
