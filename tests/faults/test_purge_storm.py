"""Submitting, claiming, ending and purging the same few recordings at once, on both databases."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path

from sqlalchemy import text

from chunking.errors import Code, LeaseLost, TransientError, UsageError
from pipeline.retention import Purger
from storage import jobs, leases, submission
from storage.database import Database
from storage.destinations import Destinations
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.objects import LocalStore
from storage.submission import Request

RECORDINGS, ROUNDS, THREADS = 3, 25, 4


def media(i: int) -> MediaObject:
    return MediaObject(f"s3://b/{i}.wav", "1", 10)


def submitted(database: Database, i: int) -> None:
    request = Request(label="storm")
    (done,) = database.again(lambda tx: submission.submit_all(tx, [media(i)], JobOptions(), request))
    assert done.job > 0


def worked(database: Database) -> None:
    with suppress(LeaseLost), database.transaction() as tx:
        for lease in leases.claim(tx, Step.PREPARE, "w"):
            jobs.end_job(tx, lease, "rejected", Verdict(Code.NOT_MEDIA))


def storm(database: Database, store: Path, seed: int, errors: list[BaseException]) -> None:
    chance, purger = random.Random(seed), Purger(database, LocalStore(store), Destinations({}))
    for _ in range(ROUNDS):
        i = chance.randrange(RECORDINGS)
        try:
            match chance.choice(("submit", "submit", "work", "purge")):
                case "submit":
                    submitted(database, i)
                case "work":
                    worked(database)
                case _:
                    with suppress(UsageError):  # submitted again as fast as it is purged, which it says
                        purger.recording(media(i).url, None, equal=True)
        except TransientError:
            continue  # three times in a row somebody else was quicker: the user is told to do it again
        except BaseException as e:
            errors.append(e)
            return


def test_who_submits_beside_a_purge_gets_a_job_and_nothing_names_what_is_gone(
    database: Database, tmp_path: Path
) -> None:
    errors: list[BaseException] = []
    threads = [threading.Thread(target=storm, args=(database, tmp_path, seed, errors)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for i in range(RECORDINGS):
        submitted(database, i)
    with database.reading() as tx:
        assert tx.execute(text("SELECT count(*) FROM recordings")).scalar_one() == RECORDINGS
        assert tx.execute(text("SELECT count(*) FROM jobs")).scalar_one() == RECORDINGS
        for table, column, of in (("jobs", "recording_id", "recordings"), ("labels", "job_id", "jobs")):
            dangling = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM {of})"
            assert tx.execute(text(dangling)).scalar_one() == 0
