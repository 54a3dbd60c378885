"""`make fleet`, `make drop`, `make chaos` and others: a whole fleet on one machine, gone afterwards.

`python -m infra.tryout fleet` shows it: recordings in a bucket, two workers, one killed in the middle of its work, and
the transcripts in Postgres and in the bucket all the same. `… drop` shows a drop folder: recordings appear in a bucket,
subtitles beside them, and a webhook is told of each. `… chaos …` is `spotscribe chaos …` against such servers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sqlalchemy import text

from infra.simcheck import check
from infra.stage import INBOX, LEASE_S, OUT, PATIENCE_S, background, end, recordings, servers, spotscribe, until, worker
from infra.watch import watch
from pipeline.settings import Settings
from storage.database import Database
from workers.bootstrap import end_tidily
from workers.wiring import Wiring

LONG = 90
"""Half an hour, shards of several batches: a worker can be killed between two of them on a fast machine as well."""
PRICE_PER_HOUR = 0.53
"""Of a GPU on AWS, g4dn.xlarge on demand: so that there are costs to be seen."""


def main() -> None:
    """What this module does."""
    end_tidily()
    what, *arguments = sys.argv[1:] or ["fleet"]
    with servers() as (folder, environment):
        if what == "chaos":
            sys.exit(spotscribe(["chaos", *arguments], environment, show=False))
        shows = {"fleet": _fleet, "drop": _drop, "watch": watch, "simulate-check": check}
        sys.exit(shows[what](folder, environment))


def _fleet(folder: Path, environment: dict[str, str]) -> int:
    environment["SPOTSCRIBE_LEASE_S"] = str(LEASE_S)
    environment["SPOTSCRIBE_PRICE_PER_HOUR"] = str(PRICE_PER_HOUR)
    wiring = Wiring(Settings())
    print("Postgres, Redis and S3 are up, from wheels, in a scratch folder", flush=True)
    spotscribe(["db", "upgrade"], environment)
    for file in recordings(folder, LONG):
        wiring.s3.upload_file(str(file), INBOX, f"calls/{file.name}")
    submit = ["submit", f"s3://{INBOX}/calls/", "--label", "demo", "--model", "tiny.en"]
    spotscribe(submit, environment)
    workers = [worker(environment) for _ in range(2)]
    try:
        killed = _kill_one(wiring.database, workers)
        print(
            f"\n>>> SIGKILL to {killed}; the other one goes on, and takes what it held over in {LEASE_S:.0f} s\n",
            flush=True,
        )
        code = spotscribe(
            ["submit", f"s3://{INBOX}/calls/", "--label", "demo", "--model", "tiny.en", "--wait"], environment
        )
        spotscribe(["status", "--label", "demo"], environment)
        code = code or _show(wiring, environment)
        print()
        spotscribe(["costs", "--by", "model"], environment)
    finally:
        end(workers)
        wiring.database.close()
    print("\nall of it is shut down and gone; your own: README.md, A fleet", flush=True)
    return code


def _drop(folder: Path, environment: dict[str, str]) -> int:
    """A source with a watcher and a worker; recordings appear, one of them is overwritten."""
    wiring = Wiring(Settings())
    spotscribe(["db", "upgrade"], environment)
    *clips, _ = recordings(folder)
    with _hook() as (url, told):
        add = ["sources", "add", "calls", f"s3://{INBOX}/calls/", "--formats", "srt", "--model", "tiny.en"]
        spotscribe([*add, "--out", f"s3://{INBOX}/calls/", "--notify", url], environment)
        processes = [worker(environment), background(["ingest", "--watch", "--every", "1s"], environment)]
        try:
            for clip in clips:
                _appears(wiring, clip, clip.name)
            time.sleep(3.0)
            _appears(wiring, clips[1], clips[0].name)
            well = until(lambda: len(told) >= len(clips) + 1)
            spotscribe(["sources", "list"], environment)
        finally:
            end(processes)
            wiring.database.close()
    keys = sorted(o["Key"] for o in wiring.s3.list_objects_v2(Bucket=INBOX)["Contents"])
    print(f"\nin s3://{INBOX}:\n  " + "\n  ".join(keys))
    print(wiring.s3.get_object(Bucket=INBOX, Key=f"calls/{clips[-1].stem}.srt")["Body"].read().decode())
    print("all of it is shut down and gone; your own: docs/drop-folder.md", flush=True)
    return 0 if well else 1


def _appears(wiring: Wiring, clip: Path, name: str) -> None:
    print(f">>> {clip.name} is written to s3://{INBOX}/calls/{name}", flush=True)
    wiring.s3.upload_file(str(clip), INBOX, f"calls/{name}")


@contextmanager
def _hook() -> Iterator[tuple[str, set[str]]]:
    """A receiver of webhooks: its URL, and the keys that it was told, each once."""
    told: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.add(self.headers["Idempotency-Key"])
            print(f"<<< webhook: {notice['event']}, {notice['recording']['url']}", flush=True)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", told
        server.shutdown()


def _kill_one(database: Database, workers: Sequence[subprocess.Popen[bytes]]) -> str:
    """Wait until a worker is in the middle of the long recording, and kill it without a word. Its name."""
    held = text(
        "SELECT s.worker FROM shards s WHERE s.state = 'running'"
        " AND s.chunks - (SELECT count(*) FROM checkpoints c WHERE c.shard_id = s.id) > 5"
        " AND EXISTS (SELECT FROM checkpoints c JOIN shards o ON o.id = c.shard_id WHERE o.job_id = s.job_id)"
    )
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with database.reading() as tx:
            names = list(tx.execute(held).scalars())
        for process in workers:
            for name in names:
                if f"-{process.pid}-" in name:
                    process.kill()
                    return str(name)
        time.sleep(0.02)
    raise SystemExit("no worker came to the middle of the long recording")


def _show(wiring: Wiring, environment: dict[str, str]) -> int:
    """What is in Postgres and in the bucket."""
    with wiring.database.reading() as tx:
        counts = tx.execute(
            text(
                "SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM transcripts) AS transcripts,"
                " (SELECT count(*) FROM segments) AS segments, (SELECT count(*) FROM checkpoints) AS accepted,"
                " (SELECT sum(chunks) FROM shards) AS chunks, (SELECT min(id) FROM jobs) AS first"
            )
        ).one()
    files = [o["Key"] for o in wiring.s3.list_objects_v2(Bucket=OUT)["Contents"]]
    print(
        f"\nin Postgres: {counts[0]} jobs, {counts[1]} transcripts, {counts[2]} segments; chunks accepted: {counts[3]}"
    )
    print(f"in s3://{OUT}: {len(files)} files, {files[0]} among them", flush=True)
    spotscribe(["show", str(counts[5])], environment)
    return 0 if counts[0] == counts[1] and 2 * counts[0] == len(files) and counts[3] == counts[4] else 1


if __name__ == "__main__":
    main()
