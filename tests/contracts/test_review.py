"""Which segments to listen to: the least certain first, each once, by flags where they are asked for."""

from __future__ import annotations

from chunking.timeline import Segment, Transcript
from storage import checkpoints, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.review import least_certain
from storage.submission import Request
from storage.tables import Job


def labelled(database: Database, label: str, *names: str) -> list[int]:
    with database.transaction() as tx:
        media = [MediaObject(f"s3://b/{n}", "1", 1) for n in names]
        return [s.job for s in submission.submit_all(tx, media, JobOptions(), Request(label=label))]


def test_the_least_certain_come_first_and_what_jobs_share_comes_once(database: Database) -> None:
    scores = {0: (-0.2, ()), 1: (-1.5, ("loop",)), 2: (-0.9, ("looped", "tail")), 3: (-1.5, ("a_b",))}
    segments = tuple(Segment(i, i + 1, str(i), "en", avg_logprob=s, flags=f) for i, (s, f) in scores.items())
    a, b = labelled(database, "l", "a", "b")
    (other,) = labelled(database, "m", "c")
    labelled(database, "l", "not ended")
    with database.transaction() as tx:
        transcripts = [
            checkpoints.write_transcript(tx, Transcript(4.0, 1, "en", 1.0, segments, ()), Made("s", "d", "m", "c", "t"))
            for _ in range(2)
        ]
        for job, transcript in ((a, transcripts[0]), (b, transcripts[0]), (other, transcripts[1])):
            tx.execute(Job.__table__.update().where(Job.id == job).values(transcript_id=transcript))  # type: ignore[attr-defined]
    with database.reading() as tx:
        assert [(d.job, d.position) for d in least_certain(tx, "l", 3)] == [(a, 1), (a, 3), (a, 2)]
        assert [d.position for d in least_certain(tx, "l", 9, ("loop",))] == [1]
        assert [d.position for d in least_certain(tx, "l", 9, ("loop", "tail"))] == [1, 2]
        assert [d.position for d in least_certain(tx, "l", 9, ("a%b", "axb"))] == []
        assert least_certain(tx, "nobody", 9) == []
