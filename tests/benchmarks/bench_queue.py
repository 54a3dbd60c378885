"""`make bench-queue`: what the queue and a fleet on one machine do, in figures. It prints a table and judges nothing.

Servers come from wheels, into a scratch folder. The machine is part of every figure: it is named at the head, and its
load is told before each part, since others may work on it as well. What the tables alone stand is in queue_parts.py;
here are the parts that need whole workers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

from infra.laptop import PostgresHandle, Stack, stack
from pipeline.settings import Settings
from storage.database import Database
from storage.leases import LEASE_S
from tests.benchmarks import queue_parts
from tests.benchmarks.queue_parts import ClaimSizes, Figure, fresh_database, url_of
from tests.conftest import joined, package_file, read_16k, write_wav
from workers.arena import Arena, arena
from workers.wiring import Wiring

PARTS = ("submit", "claims", "checkpoints", "fleet", "takeover")
INBOX, WORK = "inbox", "work-in-progress"
SERVERS = {"postgres": "Postgres", "weed": "S3", "valkey-server": "Redis"}
THREADS = 2
MODEL = ("--model", "tiny.en")
MADE, MADE_S = 60, 12.0
"""Without --audio: so many recordings of about so many seconds, joined from the clips that packages carry."""
LONG_S = 595.0
"""A recording of one shard and several batches."""
PATIENCE_S = 300.0
SETTLE_S = 3.0
"""What a worker that says that it is at work gets to find its broker and to become idle."""
CALLS, CALL_BYTES = 50, 200_000
"""How often a round trip is measured; an S3 object of them."""


def main() -> None:
    """One line for each figure, as soon as it is known."""
    o = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end
    with _servers(durable=o.fsync) as (folder, servers):
        print("\n".join(_head(servers)), flush=True)
        for part in o.only:
            print(f"\n{part}, load average {os.getloadavg()[0]:.1f}", flush=True)
            for figure in _figures(part, servers, folder, o):
                aim = f"   (aim: {figure.aim})" if figure.aim else ""
                print(f"  {figure.what:74}  {figure.value}{aim}".rstrip(), flush=True)


def _figures(part: str, servers: Stack, folder: Path, o: argparse.Namespace) -> Iterator[Figure]:
    if part == "fleet":
        yield from fleet(servers, folder, o.audio, o.rounds)
    elif part == "takeover":
        yield from takeover(o.trials, o.lease)
    else:
        with fresh_database(servers.database_url) as database:
            if part == "submit":
                yield from queue_parts.submit(database, o.recordings)
            elif part == "claims":
                sizes = ClaimSizes(o.shards, o.claimers, o.limits, o.seconds, o.think_ms / 1000, o.explain)
                yield from queue_parts.claims(database, sizes)
            else:
                yield from queue_parts.write_checkpoints(database, o.seconds / 2)


def _options() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="bench_queue", description=__doc__.split("\n", 1)[0])
    p.add_argument("--only", type=_some_parts, default=PARTS, metavar="PART,…", help=", ".join(PARTS))
    p.add_argument("--recordings", type=int, default=100_000, help="submit: how many")
    p.add_argument("--shards", type=int, default=1_000_000, help="claims: how many are queued")
    p.add_argument("--claimers", type=_numbers, default=(2, 16), metavar="N,…", help="claims: processes")
    p.add_argument("--limits", type=_numbers, default=(1, 16), metavar="N,…", help="claims: shards of one claim")
    p.add_argument("--think-ms", type=float, default=20.0, help="claims: from one to the next")
    p.add_argument("--explain", action="store_true", help="claims: print the query's plan")
    p.add_argument("--seconds", type=float, default=20.0, help="claims: of each run; checkpoints: half of it")
    p.add_argument("--audio", type=Path, metavar="DIR", help="fleet: a folder of recordings, else made ones")
    p.add_argument("--rounds", type=int, default=3, help="fleet")
    p.add_argument("--trials", type=int, default=3, help="takeover")
    p.add_argument("--lease", type=float, default=20.0, metavar="SECONDS", help="takeover")
    p.add_argument("--fsync", action="store_true", help="a Postgres that waits for the disk; else it does not")
    return p.parse_args()


def _numbers(given: str) -> tuple[int, ...]:
    return tuple(int(n) for n in given.split(","))


def _some_parts(given: str) -> tuple[str, ...]:
    if unknown := set(given.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(PARTS)}")
    return tuple(given.split(","))


class DurablePostgres(PostgresHandle):
    """One that outlives a power cut."""

    def command(self) -> list[str]:
        return [*super().command(), "--fsync=on"]


@contextmanager
def _servers(*, durable: bool) -> Iterator[tuple[Path, Stack]]:
    """A scratch folder and servers, which this process and its children find in the environment, and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="spotscribe-bench-"))
    try:
        with ExitStack() as ends:
            servers = ends.enter_context(stack(folder / "servers"))
            if durable:
                servers = replace(servers, database_url=ends.enter_context(DurablePostgres(folder / "durable")).url)
            for name in [n for n in os.environ if n.startswith(("SPOTSCRIBE_", "AWS_"))]:
                del os.environ[name]
            os.environ |= servers.environment()
            os.environ |= {"SPOTSCRIBE_HOME": str(folder / "home"), "SPOTSCRIBE_WORK_URL": f"s3://{WORK}"}
            os.environ |= {"SPOTSCRIBE_CPU_THREADS": str(THREADS), "SPOTSCRIBE_CLOUD": "none"}
            for bucket in (INBOX, WORK):
                Wiring(Settings()).s3.create_bucket(Bucket=bucket)
            yield folder, servers
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _head(servers: Stack) -> list[str]:
    database = Database(servers.database_url)
    with database.reading() as tx:
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        version, fsync, commit, buffers = (tx.execute(text(f"SHOW {n}")).scalar_one() for n in names)
    database.close()
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    waits = "a COMMIT waits for the disk" if fsync == "on" else "no COMMIT waits for a disk, which --fsync changes"
    return [
        f"{processor[1] if processor else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB,"
        f" {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"Postgres {version} on the same cores: shared_buffers {buffers}, synchronous_commit {commit},"
        f" fsync {fsync}: {waits}",
    ]


@dataclass(frozen=True, slots=True)
class Round:
    """How long the same recordings took once."""

    wall_s: float
    cpu_s: float
    """Of run from its start to its end; of the worker from the first claim on."""
    delivered_s: float = 0.0
    """Like `wall_s`, to the last file."""
    transactions: int = 0
    servers: tuple[tuple[str, float], ...] = ()
    """CPU seconds of each server."""
    audio_s: float = 0.0


def fleet(servers: Stack, folder: Path, audio: Path | None, rounds: int) -> Iterator[Figure]:
    """The same recordings by `spotscribe run` and, from S3 to Postgres, by one worker, in turn."""
    files = _recordings(folder, audio)
    s3 = Wiring(Settings()).s3
    for file in files:
        s3.upload_file(str(file), INBOX, f"calls/{file.name}")
    local, remote = [], []
    for i in range(rounds):
        local.append(_run(folder / f"run{i}", files))
        remote.append(_work(servers, folder / f"worker{i}", len(files)))
    seconds = remote[0].audio_s

    def told(walls: Sequence[float]) -> str:
        wall = statistics.median(walls)
        return f"{wall:.1f} s, {seconds / wall:.1f}x   ({', '.join(f'{w:.1f}' for w in walls)})"

    yield Figure(
        f"run: {len(files)} recordings, {seconds:.0f} s, {MODEL[1]}, {THREADS} threads, median of {rounds}",
        told([r.wall_s for r in local]),
    )
    yield Figure("worker, S3 → Postgres: from the first claim to the last job's end", told([r.wall_s for r in remote]))
    yield Figure("worker: from the first claim to the last file in S3", told([r.delivered_s for r in remote]))
    pairs = [a.wall_s / b.wall_s for a, b in zip(local, remote, strict=True)]
    ratio = statistics.median(r.wall_s for r in local) / statistics.median(r.wall_s for r in remote)
    each = ", ".join(f"{p:.2f}" for p in pairs)
    yield Figure(
        "speed of the worker ÷ speed of run, of the medians (of each round)", f"{ratio:.2f}   ({each})", "≥ 0.9"
    )
    start = _run(folder / "start", [min(files, key=lambda f: f.stat().st_size)])
    yield from _cpu_spent(local, remote, start)
    yield from _round_trips(servers, s3, statistics.median(r.transactions for r in remote) / len(files))


def _cpu_spent(local: Sequence[Round], remote: Sequence[Round], start: Round) -> Iterator[Figure]:
    """`start`: a run over next to nothing."""
    median = statistics.median
    spent = {name: median(dict(r.servers)[name] for r in remote) for name in SERVERS.values()}
    yield Figure("CPU of a round but for start and model: run", f"{median(r.cpu_s for r in local) - start.cpu_s:.1f} s")
    yield Figure(
        "CPU of a round but for start and model: worker; the servers meanwhile",
        f"{median(r.cpu_s for r in remote):.1f} s; {', '.join(f'{k} {v:.1f} s' for k, v in spent.items())}",
    )


def _round_trips(servers: Stack, s3: Any, transactions: float) -> Iterator[Figure]:
    """To the servers, when nothing else goes on."""
    database, body, key = Database(servers.database_url), os.urandom(CALL_BYTES), {"Bucket": WORK, "Key": "trip"}

    def transact() -> None:
        with database.transaction() as tx:
            tx.execute(text("SELECT 1"))

    def get() -> None:
        s3.get_object(**key)["Body"].read()

    calls: dict[str, Callable[[], object]] = {
        "put": lambda: s3.put_object(**key, Body=body),
        "get": get,
        "delete": lambda: s3.delete_object(**key),
    }
    took = f"{_call_ms(transact):.1f} ms"
    yield Figure(f"Postgres: SELECT 1 in a transaction; a recording takes {transactions:.0f}, pings included", took)
    took = " / ".join(f"{_call_ms(call):.1f}" for call in calls.values())
    what = f"S3: {' / '.join(calls)} of {CALL_BYTES // 1000} kB; a recording takes 4, 2 and 1"
    yield Figure(what, f"{took} ms")
    database.close()


def _call_ms(call: Callable[[], object]) -> float:
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def _recordings(folder: Path, audio: Path | None) -> list[Path]:
    if audio is not None:
        return sorted(p for p in audio.iterdir() if p.suffix in {".wav", ".flac", ".mp3", ".ogg", ".m4a"})
    (folder / "audio").mkdir()
    clips = sorted(package_file("pytest_audioeval", "samples", "audio", "en").glob("*.wav"))
    sounds = [read_16k(c) for c in (*clips, package_file("moonshine_onnx", "assets", "beckett.wav"))]
    made = (joined(sounds, pause_s=0.5, seconds=MADE_S, seed=i) for i in range(MADE))
    return [write_wav(folder / "audio" / f"{i:03d}.wav", sound) for i, sound in enumerate(made)]


def _run(home: Path, files: Sequence[Path]) -> Round:
    command = [*_spotscribe("run"), *map(str, files), *MODEL, "--language", "en", "--out", str(home / "out"), "--json"]
    alone = {k: v for k, v in os.environ.items() if not k.startswith("SPOTSCRIBE_")}
    alone |= {"SPOTSCRIBE_HOME": str(home), "SPOTSCRIBE_CPU_THREADS": str(THREADS)}
    before = _cpu_of_ended()
    done = subprocess.run(command, env=alone, stdout=subprocess.PIPE, check=True)
    return Round(json.loads(done.stdout)["wall_s"], _cpu_of_ended() - before)


def _work(servers: Stack, home: Path, files: int) -> Round:
    """One worker, at work before the recordings are submitted, on tables and queues of its own."""
    home.mkdir()
    with fresh_database(servers.database_url) as database, (home / "log").open("wb") as log:
        environment = os.environ | {
            "SPOTSCRIBE_HOME": str(home),
            "SPOTSCRIBE_QUEUE": home.name,
            "SPOTSCRIBE_OUT_URL": f"s3://{WORK}/{home.name}",
            "SPOTSCRIBE_DATABASE_URL": url_of(database),
        }
        command = [*_spotscribe("worker"), *MODEL, "--cpu-threads", str(THREADS)]
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            _until(lambda: b"at work" in (home / "log").read_bytes())
            time.sleep(SETTLE_S)
            before = _cpu_below(worker.pid)
            found = _timed(database, environment, files)
            return replace(found, cpu_s=_cpu_below(worker.pid) - before)
        finally:
            worker.terminate()
            worker.wait()


def _timed(database: Database, environment: dict[str, str], files: int) -> Round:
    """Submit, and see how long it takes by the database's clock."""
    busy = _cpu_of_servers()
    submitted = [*_spotscribe("submit"), f"s3://{INBOX}/calls/", *MODEL, "--language", "en"]
    submitting = subprocess.Popen(submitted, env=environment, stdout=subprocess.DEVNULL)
    # The first claim's lease ends one lease after it, and is not renewed before a quarter of that is over.
    claimed = "SELECT min(lease_until) - make_interval(secs => :lease_s) FROM jobs WHERE state = 'preparing'"
    left = (
        "SELECT (SELECT count(*) FROM jobs WHERE finished_at IS NULL)"
        " + (SELECT count(*) FROM outputs WHERE written_at IS NULL)"
    )
    ends = (
        "SELECT max(finished_at), (SELECT max(written_at) FROM outputs), sum(duration_s),"
        " count(*) FILTER (WHERE state = 'done') FROM jobs"
    )
    began = _until(lambda: _one(database, claimed, lease_s=LEASE_S)[0], every_s=0.01)
    _until(lambda: not _one(database, left)[0], every_s=0.5)
    submitting.wait()
    finished, delivered, audio_s, done = _one(database, ends)
    if done != files:
        raise SystemExit(f"only {done} of {files} recordings were transcribed by the worker")
    return Round(
        wall_s=(finished - began).total_seconds(),
        cpu_s=0.0,
        delivered_s=(delivered - began).total_seconds(),
        transactions=_one(database, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0],
        servers=tuple((name, spent - busy[name]) for name, spent in _cpu_of_servers().items()),
        audio_s=audio_s,
    )


def _one(database: Database, query: str, **values: object) -> Any:
    with database.reading() as tx:
        return tx.execute(text(query), values).one()


def _until(found: Callable[[], Any], *, every_s: float = 0.05) -> Any:
    """What `found` finds, once it finds something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing happened for {PATIENCE_S:.0f} s")
        time.sleep(every_s)
    return answer


def _spotscribe(command: str) -> list[str]:
    return [sys.executable, "-m", "workers", command]


def _cpu_of_ended() -> float:
    """CPU seconds of the children of this process that have ended, with theirs: not the servers."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _cpu_of_servers() -> dict[str, float]:
    """CPU seconds so far of the servers that this process has started."""
    found = dict.fromkeys(SERVERS.values(), 0.0)
    for pid, (_, name, _) in (processes := _processes()).items():
        if name in SERVERS and processes[pid][0] == os.getpid():
            found[SERVERS[name]] += _cpu_below(pid)
    return found


def _cpu_below(pid: int) -> float:
    """CPU seconds so far of a process and all below it."""
    processes = _processes()
    return sum(spent for p, (_, _, spent) in processes.items() if pid in _ancestors(processes, p))


def _ancestors(processes: dict[int, tuple[int, str, float]], pid: int) -> set[int]:
    found = {pid}
    while pid in processes and (pid := processes[pid][0]):
        found.add(pid)
    return found


def _processes() -> dict[int, tuple[int, str, float]]:
    """Parent, name and CPU seconds, those of its children that have ended included, of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            head, _, rest = stat.read_text().rpartition(")")
            fields = rest.split()
            spent = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            found[int(stat.parent.name)] = int(fields[1]), head.partition("(")[2], spent
    return found


def takeover(trials: int, lease_s: float) -> Iterator[Figure]:
    """A worker is killed in the middle of a shard, and another one stands by: when does the shard go on?"""
    with arena(Settings(engine="paced"), lease_s=lease_s) as place:
        files = place.record(*[LONG_S] * trials)
        for _ in range(2):
            place.start()
        took = [_kill_and_wait(place, file) for file in files]
    seconds = ", ".join(f"{s:.1f}" for s in took)
    yield Figure(
        f"SIGKILL to the shard's first checkpoint elsewhere, another worker idle, {trials} trials",
        f"median {statistics.median(took):.1f} s, max {max(took):.1f} s   ({seconds})",
        f"a lease is {lease_s:.0f} s",
    )


def _kill_and_wait(place: Arena, file: Path) -> float:
    database = place.wiring.database
    alive = [w for w in place.workers if w.poll() is None]
    _until(lambda: all("at work" in place.said(w) for w in alive))
    time.sleep(SETTLE_S)
    place.submit([file])
    held = (
        "SELECT (SELECT ROW(s.id, s.fence, s.worker)::text FROM shards s WHERE s.state = 'running' AND"
        " (SELECT count(*) FROM checkpoints c WHERE c.shard_id = s.id) BETWEEN 1 AND s.chunks - 5 LIMIT 1)"
    )
    shard, fence, name = _until(lambda: _one(database, held)[0], every_s=0.005).strip("()").split(",")
    [victim] = [w for w in alive if f"-{w.pid}-" in name]
    victim.kill()
    killed = time.time()
    later = "SELECT extract(epoch FROM min(created_at)) FROM checkpoints WHERE shard_id = :shard AND fence > :fence"
    resumed = _until(lambda: _one(database, later, shard=int(shard), fence=int(fence))[0], every_s=0.1)
    place.start()
    place.settle(PATIENCE_S)
    return float(resumed) - killed


if __name__ == "__main__":
    main()
