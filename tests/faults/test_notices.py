"""Whole workers that tell and put away: receivers that fail, hang and come back, and kills while something is sent.

A receiver that counts keys hears of each end once. SQS and SNS are moto's here: a stand-in for AWS.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import select, update

from pipeline.notices import address_of
from storage import errands, jobs, sources
from storage.aws import AwsOptions, aws_client
from storage.errands import Wanted
from storage.jobs import JobOptions
from storage.moments import now_plus
from storage.sources import SourceSettings
from storage.tables import Arrival, Errand, Job, Output
from storage.urls import bucket_and_key
from tests.faults.conftest import Places
from tests.faults.receiver import SECRET, Receiver, receiver
from tests.faults.test_kill_points import WORKER, zygote
from tests.faults.test_signals import PATIENCE_S, leave
from workers.arena import Arena


def want(place: Arena, ids: Sequence[int], *kinds: tuple[str, str]) -> None:
    with place.wiring.database.transaction() as tx:
        errands.want_all(tx, [Wanted(job, kind, target) for job in ids for kind, target in kinds])


def states(place: Arena) -> dict[str, int]:
    with place.wiring.database.reading() as tx:
        rows = tx.execute(select(Errand.state)).scalars().all()
    return {state: rows.count(state) for state in set(rows)}


def until_over(place: Arena, *, seconds: float = PATIENCE_S) -> dict[str, int]:
    """Until no errand is to be done any more. Nobody here waits ten seconds for a second try."""
    deadline = time.monotonic() + seconds
    while place_left(place):
        assert time.monotonic() < deadline, states(place)
        with place.wiring.database.transaction() as tx:
            tx.execute(update(Errand).where(Errand.next_run_at.is_not(None)).values(next_run_at=now_plus()))
        time.sleep(0.2)
    return states(place)


def place_left(place: Arena) -> bool:
    return not place.settled() or bool(set(states(place)) & {"wanted", "due", "running", "later"})


def objects(place: Arena, url: str) -> dict[str, bytes]:
    """What lies below a prefix, by the last part of its key."""
    bucket, prefix = bucket_and_key(url)
    listed = place.wiring.s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", ())
    found = {o["Key"]: place.wiring.s3.get_object(Bucket=bucket, Key=o["Key"])["Body"].read() for o in listed}
    return {key.rpartition("/")[2]: content for key, content in found.items()}


def test_each_end_is_told_signed_and_once_by_its_key(places: Places) -> None:
    """Twice 500, then it is taken: of good recordings, of one that is none, of one that is nothing else but a copy."""
    with receiver(lambda r, key: 500 if r.posts.count(key) <= 2 else 204) as r, places(webhook_secret=SECRET) as place:
        files = place.record(*[9.0] * 5)
        bad, copy = files[0].with_name("bad.wav"), files[0].with_name("copy.flac")
        bad.write_bytes(b"no sound at all, but some text")
        copy.write_bytes(files[0].read_bytes())
        ids = place.submit([*files, bad, copy])
        want(place, ids, address_of(r.url))
        worker = place.start()
        assert until_over(place) == {"done": 7}
        assert r.forged == 0
        assert len(r.taken) == 7
        assert len(r.posts) == 21
        told = {n["job"]: n for (n,) in r.taken.values()}
        with place.wiring.database.reading() as tx:
            for view in jobs.views(tx, ids):
                n = told[view.id]
                assert (n["event"], n["code"], n["error"]) == (view.state, view.code, view.error)
                assert n["recording"] == {"url": view.url, "version": view.version, "size_bytes": view.size_bytes, "sha256": view.sha256}  # fmt: skip
                assert (n["labels"], n["model"], n["duration_s"]) == (["chaos"], place.job.model, view.duration_s)
                assert n["submitted_at"] <= n["finished_at"]
                assert n["finished_at"].endswith("+00:00")
                rows = tx.execute(
                    select(Output.state, Output.size_bytes, Output.sha256).where(Output.job_id == view.id)
                )
                assert [(o["state"], o["size_bytes"], o["sha256"]) for o in n["outputs"]] == [tuple(x) for x in rows]
        assert told[ids[5]]["event"] == "rejected"
        assert told[ids[5]]["outputs"][0]["state"] == "wanted"
        written = objects(place, place.settings.out_url)
        for job, file in zip(ids[:5], files, strict=True):
            assert told[job]["words"] > 0
            assert hashlib.sha256(written[f"{file.stem}.json"]).hexdigest() == told[job]["outputs"][0]["sha256"]
        assert leave(worker) < 5.0
        assert "hunter2" not in place.said(worker)
        assert SECRET not in place.said(worker)


def test_a_receiver_that_hangs_holds_up_nothing_else(places: Places) -> None:
    with receiver(lambda r, key: None) as slow, receiver() as quick, places(webhook_secret=SECRET) as place:
        files = place.record(*[9.0] * 12)
        ids = place.submit(files)
        want(place, ids, address_of(slow.url))
        want(place, ids[-3:], address_of(quick.url))
        worker = place.start()
        began = time.monotonic()
        assert place.settle(PATIENCE_S)
        deadline = time.monotonic() + 30.0  # two of them hang for ten seconds, and then that receiver is left alone
        while len(quick.taken) < 3:
            assert time.monotonic() < deadline, states(place)
            time.sleep(0.1)
        assert len(slow.posts) <= 4, "it was asked again and again"
        with place.wiring.database.reading() as tx:
            ended = [v.finished_at for v in jobs.views(tx, ids)]
        assert (max(t for t in ended if t) - min(t for t in ended if t)).total_seconds() < 10.0, began
        assert leave(worker) < 10.0  # while it may be hanging again
        slow.answer = lambda r, key: 200
        slow.release.set()
        place.start()
        assert until_over(place) == {"done": 15}
        assert len(slow.taken) == 12
        assert all(len(n) == 1 for n in slow.taken.values())


def test_one_good_receiver_behind_thousands_of_a_dead_one_and_a_slow_one(places: Places) -> None:
    def slowly(r: Receiver, key: str) -> int:
        time.sleep(2.5)
        return 500 if len(r.posts) == 1 else 200

    with (
        receiver(lambda r, key: None) as dead,
        receiver(slowly) as slow,
        receiver() as good,
        places(webhook_secret=SECRET) as place,
    ):
        (job,) = place.submit(place.record(9.0))
        for r, count in ((dead, 3000), (slow, 6), (good, 3)):
            want(place, [job], *(address_of(f"{r.url}&n={n}") for n in range(count)))
        place.start()
        assert place.settle(PATIENCE_S)
        began = time.monotonic()
        _wait(lambda: len(good.taken) == 3)
        assert time.monotonic() - began < 45.0  # the dead one costs ten seconds, and then as long to nobody else
        _wait(lambda: len(slow.taken) == 6)
        assert len(dead.posts) < 8
        assert states(place).get("dead", 0) == 0


def test_a_suspect_need_not_wait_until_an_errand_is_done(places: Places) -> None:
    with receiver(lambda r, key: None) as hangs, places() as place:
        first, suspect = place.submit(place.record(9.0, 9.0))
        with place.wiring.database.transaction() as tx:
            tx.execute(update(Job).where(Job.id == suspect).values(crashes=2, next_run_at=now_plus(3600.0)))
        want(place, [first], address_of(f"sqs:{hangs.url.replace('user:hunter2@', '').partition('?')[0]}"))
        place.start()
        _wait(lambda: len(hangs.posts) == 1)
        began = time.monotonic()
        with place.wiring.database.transaction() as tx:
            tx.execute(update(Job).where(Job.id == suspect).values(next_run_at=None))
        assert place.settle(PATIENCE_S)
        assert time.monotonic() - began < 15.0  # a queue that hangs has twenty
        assert states(place) == {"running": 1}


def test_a_worker_that_is_killed_while_it_sends_has_sent_what_is_sent_again(places: Places) -> None:
    with receiver(lambda r, key: None) as r, places(webhook_secret=SECRET, lease_s=1.0) as place:
        ids = place.submit(place.record(*[9.0] * 4))
        want(place, ids, address_of(r.url))
        for n in range(2):
            victim = place.start()
            _wait(lambda n=n: len(r.posts) > n)  # type: ignore[misc]
            victim.kill()
        r.answer = lambda r, key: 200
        r.release.set()
        place.start()
        assert until_over(place) == {"done": 4}
        assert len(r.taken) == len(set(r.posts)) == 4
        assert len(r.posts) > 4
        assert r.forged == 0


def test_a_kill_at_any_point_of_an_errand_loses_and_doubles_nothing(places: Places) -> None:
    """Each recording is told of with one key, and lies, whole, where it is to be moved to, and nowhere else."""
    with (
        receiver() as r,
        places(webhook_secret=SECRET, lease_s=1.0) as place,
        zygote(place) as z,
    ):
        done = place.settings.out_url.removesuffix("out") + "done"
        seen = place.folder / "seen"
        kinds = (address_of(r.url), ("move", done))
        first = place.record(9.0)
        want(place, place.submit(first), *kinds)
        worker = z.start(WORKER, seen=seen)
        until_over(place)
        z.end(worker)
        marks = ("Errander", "notice sent", "recording copied", "recording deleted")
        points = sorted({p for p in seen.read_text().splitlines() if any(m in p for m in marks)})
        assert len(points) == 12, points
        files = place.record(*[9.0] * len(points))
        died = 0
        for point, file in zip(points, files, strict=True):
            want(place, place.submit([file]), *kinds)
            victim = z.start(WORKER, point)
            deadline = time.monotonic() + PATIENCE_S
            while z.alive(victim) and place_left(place):
                assert time.monotonic() < deadline, point
                time.sleep(0.05)
            died += not z.alive(victim)
            if z.alive(victim):
                z.end(victim)
            rescuer = z.start(WORKER)
            until_over(place)
            z.end(rescuer)
        assert died >= 0.9 * len(points)
        assert states(place) == {"done": 2 * (len(points) + 1)}
        everything = [*first, *files]
        assert objects(place, done) == {f.name: f.read_bytes() for f in everything}
        assert objects(place, done.removesuffix("done") + "in") == {}
        assert len(r.taken) == len(everything)
        assert {n[0]["job"] for n in r.taken.values()} == set(place.ids.values())
        assert r.forged == 0


def test_only_what_went_well_is_put_away_and_below_its_source(place: Arena) -> None:
    top = place.settings.out_url.removesuffix("out")
    files = place.record(*[9.0] * 3)
    bad = files[0].with_name("bad.wav")
    bad.write_bytes(b"no sound at all, but some text")
    ids = place.submit([*files, bad])
    with place.wiring.database.transaction() as tx:
        source = sources.put(tx, "calls", top, SourceSettings(JobOptions()))
        for view in jobs.views(tx, ids[:2]):
            tx.execute(
                Arrival.__table__.insert().values(  # type: ignore[attr-defined]
                    source_id=source.id, identity=view.url, url=view.url, version=view.version, size_bytes=1, modified_s=0,
                    job_id=view.id, state="submitted",
                )
            )  # fmt: skip
    want(place, [ids[0], ids[3]], ("move", f"{top}done"))
    want(place, [ids[1]], ("delete", ""))
    want(place, [ids[2]], ("tag", ""))
    place.start()
    assert until_over(place) == {"done": 3, "void": 1}
    assert objects(place, f"{top}done/in") == {files[0].name: files[0].read_bytes()}
    assert set(objects(place, f"{top}in")) == {files[2].name, "bad.wav"}
    bucket, key = bucket_and_key(f"{top}in/{files[2].name}")
    tags = place.wiring.s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]
    assert tags == [{"Key": "spotscribe", "Value": "done"}]
    with place.wiring.database.reading() as tx:
        moved = next(e for e in errands.listing(tx) if e.kind == "move" and e.state == "done")
    assert moved.place == f"{top}done/in/{files[0].name}"


def test_queues_and_topics_are_told_as_well(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", endpoint)
    try:
        with places() as place:
            sqs = aws_client("sqs", AwsOptions(endpoint, "us-east-1"))
            sns = aws_client("sns", AwsOptions(endpoint, "us-east-1"))
            plain = sqs.create_queue(QueueName="plain")["QueueUrl"]
            heard = sqs.create_queue(QueueName="heard")["QueueUrl"]
            arn = sqs.get_queue_attributes(QueueUrl=heard, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            topic = sns.create_topic(Name="ends")["TopicArn"]
            sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
            (job,) = place.submit(place.record(9.0))
            want(place, [job], address_of(f"sqs:{plain}"), address_of(topic), address_of(f"sqs:{plain}-not-there"))
            place.start()
            _wait(lambda: states(place) == {"done": 2, "later": 1})
            for queue in (plain, heard):
                (message,) = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
                notice = json.loads(message["Body"])
                assert (notice["job"], notice["event"]) == (job, "done")
                assert message["MessageAttributes"]["event"]["StringValue"] == "done"
                assert message["MessageAttributes"]["id"]["StringValue"] == notice["id"]
            with place.wiring.database.reading() as tx:
                (late,) = [e for e in errands.listing(tx) if e.state != "done"]
            assert "there is no queue" in (late.error or "")  # somebody may make it
    finally:
        server.stop()


def test_the_commands_show_what_is_wrong_and_try_it_again(places: Places, spotscribe: list[str]) -> None:
    with receiver(lambda r, key: 410) as r, places(webhook_secret=SECRET) as place:
        (file,) = place.record(9.0)
        (job,) = place.submit([file])
        want(place, [job], address_of(r.url))

        def told(*arguments: str) -> str:
            done = subprocess.run(
                [*spotscribe, *arguments], env=place.environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert "hunter2" not in done.stdout
            assert "hidden" not in done.stdout
            return done.stdout

        assert told("notices") == "none\n"
        place.start()
        _wait(lambda: states(place) == {"dead": 1})
        assert "wants no more notices" in told("notices")
        (shown,) = json.loads(told("notices", "--json", "--label", "chaos"))
        assert (shown["job"], shown["state"], shown["attempts"]) == (job, "dead", 1)
        assert told("notices", "--retry", "--state", "due") == "0 tried again\n"
        r.answer = lambda r, key: 200
        assert told("notices", "--retry", str(shown["id"])) == "1 tried again\n"
        assert until_over(place) == {"done": 1}
        assert told("notices") == "none\n"
        assert ": done" in told("notices", "--all")
        (key,) = r.taken
        assert r.posts == [key, key]

        bucket, out = bucket_and_key(f"{place.settings.out_url}/{file.stem}.json")
        place.wiring.s3.delete_object(Bucket=bucket, Key=out)
        assert told("deliver", str(job)) == "1 file of 1 jobs are written again\n"
        _wait(lambda: bool(objects(place, place.settings.out_url)) and place.settled())
        assert until_over(place) == {"done": 1}
        assert list(r.taken) == [key]
        told("deliver", "--label", "chaos", "--notify")
        assert until_over(place) == {"done": 1}
        assert len(r.taken) == 2
        assert [len(n) for n in r.taken.values()] == [1, 1]
        refused = subprocess.run(
            [*spotscribe, "deliver"], env=place.environment, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
