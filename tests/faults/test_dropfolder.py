"""The drop folder's whole path: real S3, Postgres, Redis protocol, whole watchers and workers; one with the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from infra.server import free_port
from storage.urls import s3_url
from tests.conftest import read_16k, write_wav
from tests.faults.conftest import Places
from tests.faults.drop import Drop, dropping, event, tell, until
from tests.faults.proxy import Call, S3Proxy
from tests.faults.receiver import SECRET, receiver
from workers.arena import Arena


@pytest.fixture
def drop(place: Arena) -> Iterator[Drop]:
    with dropping(place) as made:
        yield made


def test_thirty_clips_become_thirty_srt_files_beside_them_and_each_is_told_once(
    places: Places, english_clips: list[Path], tmp_path: Path
) -> None:
    """With the real model. The receiver fails three times, and counts what it takes by idempotency key."""
    failing = receiver(lambda it, key: 500 if len(it.posts) <= 3 else 204)
    with places(engine="whisper", model="tiny.en", lease_s=10.0) as place, dropping(place) as drop, failing as hook:
        sounds = [read_16k(c)[: 12 * 16_000] for c in english_clips]
        clips = [sounds[i % len(sounds)][i // len(sounds) * 800 :] for i in range(30)]
        drop.watch("--formats", "srt", "--notify", hook.url, "--model", "tiny.en")
        worker = place.start("--model", "tiny.en", webhook_secret=SECRET)
        for i, clip in enumerate(clips):
            drop.put(f"calls/{i:02d} été.wav", write_wav(tmp_path / "clip.wav", clip).read_bytes())
        until(lambda: len(hook.taken) == 30, lambda: (drop.ends(), hook.taken, place.said(worker)), 90.0)
        notices = [n for told in hook.taken.values() for n in told]
        assert (len(notices), len(hook.posts), hook.forged) == (30, 33, 0)
        names = {f"calls/{i:02d} été" for i in range(30)}
        assert drop.listed() == {f"{name}.{kind}" for name in names for kind in ("wav", "srt")}
        assert all(b"-->" in drop.body(f"{name}.srt") for name in names)
        assert {n["event"] for n in notices} == {"done"}
        urls = {s3_url(drop.bucket, f"{drop.prefix}{name}.wav") for name in names}
        assert {n["recording"]["url"] for n in notices} == urls


def test_what_lies_in_the_bucket_decides_the_end(drop: Drop, voice: Path) -> None:
    """Nothing in it, no recording, gone before it was read, a folder's marker, a sidecar, and what we wrote ourselves."""
    port, good = free_port(), drop.place.record(2.0)[0].read_bytes()
    drop.put("folder/", b"")
    drop.put("empty.wav", b"")
    drop.put("text.wav", b"this is no recording at all, whatever its name says")
    drop.put("good.flac", good)
    drop.put("good.json", json.dumps({"metadata": {"team": "blue"}, "colour": "red"}).encode())
    drop.put("notes.txt", b"passed over")
    drop.watch("--listen", f"127.0.0.1:{port}", "--formats", "txt,json", "--after", "tag")
    until(lambda: len(drop.ends()) == 3, drop.ends)
    tell(port, event(drop.bucket, f"{drop.prefix}never seen.wav", eTag="d41d8cd98f00b204e9800998ecf8427f", size=5))
    until(lambda: len(drop.ends()) == 4, drop.ends)
    worker = drop.place.start()
    until(drop.place.settled, lambda: (drop.ends(), drop.place.said(worker)))
    assert drop.ends() == {
        "empty.wav": ("rejected", "empty"),
        "text.wav": ("rejected", "not_media"),
        "good.flac": ("done", "ok"),
        "never seen.wav": ("rejected", "gone"),
    }
    [row] = drop.rows(
        "SELECT a.note, j.metadata AS meta FROM arrivals a JOIN jobs j ON j.id = a.job_id WHERE note <> ''"
    )
    assert ('there is no field "colour"' in row.note or "colour" in row.note, row.meta) == (True, {"team": "blue"})
    until(lambda: {"good.txt", "good.flac.json"} <= drop.listed() or {"good.txt", "good.json"} <= drop.listed())
    until(lambda: drop.rows("SELECT 1 FROM errands WHERE state = 'done'"))
    tags = drop.s3.get_object_tagging(Bucket=drop.bucket, Key=drop.prefix + "good.flac")["TagSet"]
    assert tags == [{"Key": "spotscribe", "Value": "done"}]
    assert drop.rows("SELECT count(*) AS n FROM arrivals")[0].n == 4  # nothing that we wrote


def test_one_that_is_overwritten_while_it_is_read_ends_and_the_new_one_is_taken(
    places: Places, s3_endpoint: str
) -> None:
    with S3Proxy(int(s3_endpoint.rpartition(":")[2])) as proxy, places() as place, dropping(place) as drop:
        old, new = (f.read_bytes() for f in place.record(30.0, 2.0))
        written: list[bool] = []

        def overwrite(call: Call) -> bool:
            """Half of the old one comes, then the connection ends, and what is there is another one."""
            if written or call.method != "GET" or "a.flac" not in call.path or "list-type" in call.path:
                return False
            written.append(True)
            call.forward(0.5, then=lambda: drop.put("a.flac", new))
            return True

        drop.put("a.flac", old)
        drop.once("--formats", "txt")
        assert [s for s, _ in drop.ends().values()] == ["queued"]
        proxy.faults.append(overwrite)
        drop.watch("--formats", "txt")
        worker = place.start(s3_endpoint=proxy.endpoint)
        until(lambda: len(drop.ends()) == 2 and place.settled(), lambda: (drop.ends(), place.said(worker)))
        assert written
        assert drop.ends() == {"a.flac": ("rejected", "gone"), "a.flac'": ("done", "ok")}
        rows = drop.rows("SELECT superseded_by IS NULL AS now FROM recordings ORDER BY id")
        assert [r.now for r in rows] == [False, True]
        assert drop.listed() == {"a.flac", "a.txt"}


def test_what_is_put_away_below_the_source_is_not_taken_again(drop: Drop) -> None:
    for i, file in enumerate(drop.place.record(2.0, 2.0)):
        drop.put(f"in/{i}.flac", file.read_bytes())
    arguments = ("--formats", "txt", "--after", f"move:{drop.prefix}away/")
    drop.watch(*arguments)
    drop.place.start()
    until(lambda: drop.listed() == {"in/0.txt", "in/1.txt", "away/in/0.flac", "away/in/1.flac"}, drop.listed)
    assert "would take 0 new" in drop.once(*arguments, "--dry-run")
    drop.once(*arguments)
    assert drop.rows("SELECT count(*) AS n FROM jobs")[0].n == 2


def test_a_folder_of_this_machine_is_a_drop_folder_too(drop: Drop, tmp_path: Path) -> None:
    folder = tmp_path / "drop folder é"
    (folder / "a").mkdir(parents=True)
    (folder / ".hidden.flac").write_bytes(b"x")
    drop.watch("--min-age", "0s", "--done-marker", ".ok", "--after", "delete", "--formats", "txt", url=str(folder))
    drop.place.start()
    for i, file in enumerate(drop.place.record(2.0, 2.0)):
        file.rename(folder / "a" / f"{i} +%2F.flac")
    (folder / "a" / "1 +%2F.flac.ok").touch()
    until(lambda: not (folder / "a" / "1 +%2F.flac").exists())
    assert (folder / "a" / "1 +%2F.txt").read_text().strip()
    assert (folder / "a" / "0 +%2F.flac").exists()  # nobody said that it is whole
    assert drop.rows("SELECT count(*) AS n FROM arrivals")[0].n == 1


def test_messages_of_a_queue_make_it_faster_and_are_let_go(drop: Drop) -> None:
    """The queue is moto's, a stand-in for AWS SQS."""
    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        sqs = get_session().create_client(
            "sqs", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
            aws_access_key_id="test", aws_secret_access_key="secret",
        )  # fmt: skip
        queue = sqs.create_queue(QueueName="events", Attributes={"VisibilityTimeout": "2"})["QueueUrl"]
        drop.watch("--every", "1h", "--events", f"sqs:{queue}", "--out", "none")
        until(lambda: drop.rows("SELECT 1 FROM sources WHERE listed_at IS NOT NULL"))
        drop.put("a b+c.wav", b"something")
        told = event(drop.bucket, drop.prefix + "a b+c.wav").decode()
        wrapped = json.dumps({"Type": "Notification", "Message": told})
        for body in (told, wrapped, told, "no event", '{"Service": "Amazon S3", "Event": "s3:TestEvent"}'):
            sqs.send_message(QueueUrl=queue, MessageBody=body)
        until(lambda: drop.ends() == {"a b+c.wav": ("queued", None)}, drop.ends)

        def left() -> int:
            names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            return sum(map(int, sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"].values()))

        until(lambda: left() == 0, left)
        assert drop.rows("SELECT count(*) AS n FROM arrivals")[0].n == 1
    finally:
        server.stop()
