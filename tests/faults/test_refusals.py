"""Buckets and objects that are refused: what is refused once is not asked for again and again, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from chunking.errors import Archived, Code, Rejected, TransientError
from storage import fleet, jobs
from storage.s3 import S3Bucket, S3Options, S3Reader, s3_client
from storage.tables import BucketRow, Job
from tests.faults.conftest import Places
from tests.faults.proxy import S3Proxy
from tests.faults.test_servers import HASTY, PATIENCE_S, changed, ended, on, proved, recorded
from tests.faults.test_signals import wait_for
from workers.arena import Arena

RESTLESS = "from storage import buckets, sources; sources.REST_S = 0.5; buckets.ATTEMPT_S = 1.0"
"""A bucket rests for half a second first, not for five."""


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[S3Proxy]:
    with S3Proxy(int(s3_endpoint.rpartition(":")[2])) as proxy:
        yield proxy


def rejected(place: Arena) -> list[Path]:
    with place.wiring.database.reading() as tx:
        return [f for f, j in place.ids.items() if jobs.view(tx, j).state == "rejected"]


def test_a_bucket_that_takes_its_rights_away_costs_a_few_recordings_and_no_more(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *[5.0] * 12)
        place.submit(list(expected))
        refuse = on("GET", "/in/", lambda call: call.refuse(403, "AccessDenied"))
        s3.faults.append(refuse)
        place.start(program=changed(HASTY, RESTLESS), s3_endpoint=s3.endpoint)
        wait_for(place, "SELECT count(*) FROM buckets WHERE refusals >= 3")
        with place.wiring.database.reading() as tx:
            [why] = {w for w in fleet.overview(tx).put_off if w.startswith("the bucket ")}
        assert "AccessDenied (credentials, rights); it is asked again at " in why
        lost = rejected(place)
        asked = [c for c in s3.calls if "/in/" in c]
        assert 3 <= len(lost) <= 5  # two at once, and then one at each attempt
        assert len(asked) == len(set(asked)) <= len(lost) + 1
        s3.faults.clear()
        assert place.settle(PATIENCE_S), place.said(place.workers[-1])
        for file in rejected(place):
            view = ended(place, file)
            assert (view.state, view.code) == ("rejected", Code.DENIED)
            del expected[file]
        assert len(expected) >= 6
        proved(place, expected)
        with place.wiring.database.reading() as tx:
            assert tx.execute(select(BucketRow.refusals, BucketRow.rest_until)).one() == (0, None)
            assert tx.execute(select(Job.error).where(Job.state == "done", Job.error.is_not(None))).all() == []


def test_what_is_archived_ends_with_its_words_and_says_nothing_of_its_bucket(places: Places, s3: S3Proxy) -> None:
    with places() as place:
        expected = recorded(place, *[5.0] * 4)
        archived, *_ = files = list(expected)
        place.submit(files)
        more = "<StorageClass>GLACIER</StorageClass>"
        s3.faults.append(
            on("GET", f"in/{archived.name}", lambda call: call.refuse(403, "InvalidObjectState", more=more))
        )
        place.start(s3_endpoint=s3.endpoint)
        assert place.settle(PATIENCE_S)
        view = ended(place, archived)
        assert (view.state, view.code) == ("rejected", Code.DENIED)
        assert (view.error or "").endswith(
            f"{archived.name} is in an archive (GLACIER): restore it, and then `spotscribe retry`"
        )
        del expected[archived]
        proved(place, expected)
        with place.wiring.database.reading() as tx:
            assert tx.execute(select(BucketRow.bucket)).all() == []


KMS = "User: arn:aws:sts::1:x is not authorized to perform: kms:Decrypt on resource arn:aws:kms:eu-west-1:1:key/2"


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "words"),
    [
        (403, "AccessDenied", "Access Denied", Rejected, "out of reach: AccessDenied (credentials, rights)"),
        (403, "AccessDenied", KMS, Rejected, "its key of KMS may not be used: AccessDenied"),
        (
            400,
            "KMS.DisabledException",
            "it is disabled",
            Rejected,
            "its key of KMS may not be used: KMS.DisabledException",
        ),
        (403, "InvalidObjectState", "", Archived, "is in an archive: restore it"),
        (400, "InvalidRequest", "The object was stored using a form of Server Side Encryption.", Rejected, "SSE-C"),
        (400, "KeyTooLongError", "", Rejected, "the server takes no such name"),
        (400, "RequestTimeout", "", TransientError, "RequestTimeout"),
    ],
)
def test_refusals_say_what_to_do(
    s3: S3Proxy, bucket: str, tmp_path: Path, status: int, code: str, message: str, kind: type[Exception], words: str
) -> None:
    s3.faults.append(lambda call: not call.refuse(status, code, message))
    client = s3_client(S3Options(endpoint=s3.endpoint, attempts=1))
    reads: list[Callable[[], object]] = [
        lambda: S3Reader(client).fetch(f"s3://{bucket}/x", "etag-1", tmp_path),
        lambda: S3Bucket(client).head(f"s3://{bucket}/x"),
    ]
    for read in reads:
        with pytest.raises(kind) as caught:
            read()
        assert words in str(caught.value)
        assert type(caught.value) is kind


def test_a_look_at_what_is_refused_takes_no_more_than_two_requests(s3: S3Proxy, bucket: str) -> None:
    s3.faults.append(lambda call: not call.refuse(403, "AccessDenied"))
    with pytest.raises(Rejected):
        S3Bucket(s3_client(S3Options(endpoint=s3.endpoint))).head(f"s3://{bucket}/x")
    assert len(s3.calls) == 2
