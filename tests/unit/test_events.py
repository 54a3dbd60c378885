"""Events of object stores: messages as servers send them, and whatever else may come, are read or refused."""

from __future__ import annotations

import copy
import json
import unicodedata
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.events import LONGEST_KEY, MOST_BYTES, Event, Unreadable, parse

# AWS, S3 user guide, "Event message structure", and its examples; the key of `red+flower.jpg` is theirs.
AWS_RECORD: dict[str, Any] = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "us-west-2",
    "eventTime": "1970-01-01T00:00:00.000Z",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "AIDAJDPLRKLG7UEXAMPLE"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "FMyUVURIY8/IgAtTv8xRjskZQpcIZ9KG4V5Wp6S7S/JRWeUWerMUE5JgHvANOjpD"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "testConfigRule",
        "bucket": {"name": "amzn-s3-demo-bucket", "ownerIdentity": {"principalId": "A3NL1KOZZKExample"}, "arn": "arn:aws:s3:::amzn-s3-demo-bucket"},
        "object": {"key": "red+flower.jpg", "size": 1024, "eTag": "d41d8cd98f00b204e9800998ecf8427e", "versionId": "096fKKXTRTtl3on89fVO.nfljtsv6qko", "sequencer": "0055AED6DCD90281E5"},
    },
}  # fmt: skip
AWS = {"Records": [AWS_RECORD]}
AWS_TEST = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2014-10-13T15:57:02.089Z", "Bucket": "amzn-s3-demo-bucket", "RequestId": "5582815E1AEA5ADF", "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR+YstdA6Knx4Ip8EXAMPLE"}  # fmt: skip
# AWS, SNS developer guide, "HTTP/HTTPS notification JSON format": SQS gets the same where delivery is not raw.
SNS = {
    "Type": "Notification",
    "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
    "TopicArn": "arn:aws:sns:us-west-2:123456789012:MyTopic",
    "Subject": "Amazon S3 Notification",
    "Message": json.dumps(AWS),
    "Timestamp": "2012-05-02T00:54:06.655Z",
    "SignatureVersion": "1",
    "Signature": "EXAMPLEw6JRN...",
    "SigningCertURL": "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem",
    "UnsubscribeURL": "https://sns.us-west-2.amazonaws.com/?Action=Unsubscribe",
}
SNS_ASKS = {"Type": "SubscriptionConfirmation", "Token": "2336412f37...", "TopicArn": "arn:aws:sns:us-west-2:123456789012:MyTopic", "Message": "You have chosen to subscribe to the topic.", "SubscribeURL": "https://sns.us-west-2.amazonaws.com/?Action=ConfirmSubscription"}  # fmt: skip
# AWS, S3 user guide, "EventBridge event message structure".
BRIDGE: dict[str, Any] = {
    "version": "0",
    "id": "17793124-05d4-b198-2fde-7ededc63b103",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "111122223333",
    "time": "2021-11-12T00:00:00Z",
    "region": "ca-central-1",
    "resources": ["arn:aws:s3:::amzn-s3-demo-bucket1"],
    "detail": {
        "version": "0",
        "bucket": {"name": "amzn-s3-demo-bucket1"},
        "object": {"key": "example key", "size": 5, "etag": "b1946ac92492d2347c6235b4d2611184", "version-id": "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e", "sequencer": "617f08299329d189"},
        "request-id": "N4N7GDK58NMKJ12R",
        "requester": "123456789012",
        "source-ip-address": "1.2.3.4",
        "reason": "PutObject",
    },
}  # fmt: skip
# MinIO's webhook, as a user's documentation has it (the key in the record is encoded, the other one is not).
MINIO: dict[str, Any] = {
    "EventName": "s3:ObjectCreated:Put",
    "Key": "calls/team a/hello.wav",
    "Records": [
        {
            "eventVersion": "2.0",
            "eventSource": "minio:s3",
            "awsRegion": "",
            "eventTime": "2019-10-22T09:27:27Z",
            "eventName": "s3:ObjectCreated:Put",
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": "Config",
                "bucket": {"name": "calls", "ownerIdentity": {"principalId": "AKIAIOSFODNN7EXAMPLE"}, "arn": "arn:aws:s3:::calls"},
                "object": {"key": "team+a%2Fhello.wav", "size": 224662, "eTag": "5fc7298143efe1276d39a3466d4e255f-1", "contentType": "audio/wav", "sequencer": "15CFEDF8D5304D1A"},
            },
            "source": {"host": "172.16.118.255", "port": "", "userAgent": "Mozilla/5.0"},
        }
    ],
}  # fmt: skip
# SeaweedFS 4.48's webhook, recorded; less some of the attributes.
FILE: dict[str, Any] = {"name": "a b+c.wav", "chunks": [{"size": 10, "modified_ts_ns": 1796052586273972961, "e_tag": "M2MRoBYYQybdvdYe3U7rUg==", "fid": {"volume_id": 3, "file_key": 3, "cookie": 182978739}}], "attributes": {"file_size": 10, "mtime": 1796052586, "file_mode": 432, "crtime": 1796052586, "mime": "text/plain; charset=utf-8", "md5": "M2MRoBYYQybdvdYe3U7rUg=="}, "extended": {"Seaweed-X-Amz-ETag": "MzM2MzExYTAxNjE4NDMyNmRkYmRkNjFlZGQ0ZWViNTI=", "Seaweed-X-Amz-Owner": "c3BvdHNjcmliZQ=="}}  # fmt: skip
FOLDER: dict[str, Any] = {"name": "calls", "is_directory": True, "attributes": {"mtime": 1796052582, "file_mode": 2147484153}}  # fmt: skip
FILER: dict[str, Any] = {
    "event_type": "create",
    "key": "/buckets/drop/calls/a b+c.wav",
    "message": {"new_entry": FILE, "delete_chunks": True, "new_parent_path": "/buckets/drop/calls", "signatures": [1829942044]},
}  # fmt: skip


def changed(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a path of names and indexes."""
    made = copy.deepcopy(message)
    *parents, last = path.split("/")
    at: Any = made
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at[name]
    at[last] = value
    return made


def told(message: Any) -> tuple[Event, ...]:
    return parse(json.dumps(message))


def aws_name(name: str) -> dict[str, Any]:
    return changed(AWS, "Records/0/eventName", name)


def filer(
    path: str, *, old: dict[str, Any] | None = None, new: dict[str, Any] | None = None, to: str | None = None
) -> Any:
    """A message of SeaweedFS: of the entry at a path, which was `old` and is `new`, now at `to`."""
    parent, _, name = (to or path).rpartition("/")
    entries: dict[str, Any] = {"old_entry": {**old, "name": path.rpartition("/")[2]}} if old else {}
    if new:
        entries |= {"new_entry": {**new, "name": name}, "new_parent_path": parent}
    return {"event_type": "whatever", "key": path, "message": entries}


def test_s3_and_whatever_wraps_it_tell_the_same() -> None:
    flower = Event(
        "created", "amzn-s3-demo-bucket", ("red flower.jpg", "red+flower.jpg"), "d41d8cd98f00b204e9800998ecf8427e", 1024
    )
    assert told(AWS) == (flower,)
    assert told(SNS) == (flower,)
    assert told(changed(SNS, "Message", json.dumps(SNS))) == (flower,)
    assert parse(json.dumps(AWS).encode()) == (flower,)
    assert parse(b"\xef\xbb\xbf" + json.dumps(AWS).encode()) == (flower,)


def test_eventbridge_tells_keys_as_they_are() -> None:
    tag = "b1946ac92492d2347c6235b4d2611184"
    assert told(BRIDGE) == (Event("created", "amzn-s3-demo-bucket1", ("example key",), tag, 5),)
    assert told(changed(BRIDGE, "detail/object/key", "a+b%2F.wav"))[0].keys == ("a+b%2F.wav", "a b/.wav")
    assert told(changed(SNS, "Message", json.dumps(BRIDGE)))[0].keys == ("example key",)
    assert told(changed(BRIDGE, "detail-type", "Object Deleted"))[0].kind == "removed"
    assert told(changed(BRIDGE, "detail-type", "Object Restore Completed"))[0].kind == "created"


def test_minio_tells_as_aws_does() -> None:
    tag = "5fc7298143efe1276d39a3466d4e255f-1"
    assert told(MINIO) == (Event("created", "calls", ("team a/hello.wav", "team+a%2Fhello.wav"), tag, 224662),)


@pytest.mark.parametrize(
    "key",
    [
        "a b.wav",
        "a+b.wav",
        "a%2Fb.wav",
        "100% of it.wav",
        unicodedata.normalize("NFC", "é.wav"),
        unicodedata.normalize("NFD", "é.wav"),
        "日本/☎.wav",
        "new\nline.wav",
        '"quoted\\".wav',
    ],
)
def test_a_key_is_found_whether_it_is_encoded_or_not(key: str) -> None:
    assert told(changed(AWS, "Records/0/s3/object/key", quote_plus(key)))[0].keys[0] == key
    assert key in told(changed(AWS, "Records/0/s3/object/key", key))[0].keys
    assert told(changed(BRIDGE, "detail/object/key", key))[0].keys[0] == key
    assert told(filer(f"/buckets/drop/{key}", new=FILE))[0].keys == (key,)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ObjectCreated:CompleteMultipartUpload", "created"),
        ("s3:ObjectCreated:Copy", "created"),
        ("ObjectRestore:Completed", "created"),
        ("ObjectRemoved:Delete", "removed"),
        ("s3:ObjectRemoved:DeleteMarkerCreated", "removed"),
    ],
)
def test_what_changes_an_objects_bytes_is_an_event(name: str, kind: str) -> None:
    assert [e.kind for e in told(aws_name(name))] == [kind]


@pytest.mark.parametrize(
    "message",
    [
        AWS_TEST,
        changed(SNS, "Message", json.dumps(AWS_TEST)),
        {},
        {"Type": "UnsubscribeConfirmation"},
        {"Records": []},
        *[aws_name(f"ObjectRestore:{what}") for what in ("Post", "Delete")],
        *[aws_name(f"Replication:{what}") for what in ("OperationFailedReplication", "OperationNotTracked")],
        *[aws_name(f"ObjectTagging:{what}") for what in ("Put", "Delete")],
        *[aws_name(f"LifecycleExpiration:{what}") for what in ("Delete", "DeleteMarkerCreated")],
        *[aws_name(what) for what in ("LifecycleTransition", "IntelligentTiering", "ReducedRedundancyLostObject", "ObjectAcl:Put", "NotThoughtOf:Yet")],
        *[aws_name(f"s3:ObjectCreated:{what}") for what in ("PutTagging", "DeleteTagging", "PutRetention", "PutLegalHold")],
        *[aws_name(what) for what in ("s3:ObjectRemoved:NoOP", "s3:ObjectAccessed:Get")],
        *[changed(BRIDGE, "detail-type", f"Object {what}") for what in ("Tags Added", "Storage Class Changed", "ACL Updated", "Restore Initiated")],
        changed(changed(AWS, "Records/0/s3/object/key", "calls/"), "Records/0/s3/object/size", 0),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_no_event(message: dict[str, Any]) -> None:
    assert told(message) == ()


@pytest.mark.parametrize("body", ["", " \n", b"", b"\n"])
def test_senders_may_ask_whether_somebody_is_there(body: str | bytes) -> None:
    assert parse(body) == ()


def test_many_records_come_in_their_order_and_once() -> None:
    records = [changed(AWS_RECORD, "s3/object/key", f"{i}.wav") for i in (2, 0, 1, 2)]
    assert [e.keys for e in told({"Records": records})] == [("2.wav",), ("0.wav",), ("1.wav",)]


def test_what_is_said_of_an_object_is_taken_only_where_it_makes_sense() -> None:
    def said(**about: Any) -> tuple[str | None, int | None]:
        [event] = told(changed(AWS, "Records/0/s3/object", {"key": "x.wav", **about}))
        return event.etag, event.size

    assert said() == (None, None)
    assert said(eTag='"abc"', size=0) == ("abc", 0)
    assert said(eTag="", size=-1) == (None, None)
    assert said(eTag=["x"], size=True) == (None, None)
    assert said(eTag="x" * 200, size=1e300) == (None, None)
    assert said(eTag="\n", size=1 << 70) == (None, None)


def test_seaweedfs_tells_of_files_below_buckets() -> None:
    assert told(FILER) == (Event("created", "drop", ("calls/a b+c.wav",)),)
    assert told(filer("/buckets/drop/calls", new=FOLDER)) == ()
    assert told(filer("/buckets/drop", new=FOLDER)) == ()
    assert told(filer("/elsewhere/x.wav", new=FILE)) == ()
    assert told(filer("/buckets/.system/owners/spotscribe/drop", new=FILE)) == ()
    assert told(filer("/buckets/drop/.uploads/f77c_e0f8/0001_5e61.part", new=FILE)) == ()
    assert told(filer("/buckets/drop/.uploads/f77c_e0f8", old=FOLDER)) == ()
    assert told(filer("/buckets/drop/x.wav", old=FILE)) == (Event("removed", "drop", ("x.wav",)),)


def test_seaweedfs_tells_of_other_bytes_and_not_of_other_tags() -> None:
    later = changed(FILE, "attributes/mtime", 1796052999)
    assert told(filer("/buckets/drop/x.wav", old=FILE, new=later)) == (Event("created", "drop", ("x.wav",)),)
    parts = changed(FILE, "extended/Seaweed-X-Amz-ETag", "MzRhYTgxY2Y2OGRhNjE5LTI=")  # an upload in parts has no md5
    assert [e.kind for e in told(filer("/buckets/drop/x.wav", old=FILE, new=parts))] == ["created"]
    tagged = changed(FILE, "extended/X-Amz-Tagging-a", "Yg==")
    assert told(filer("/buckets/drop/x.wav", old=FILE, new=tagged)) == ()


def test_seaweedfs_renames() -> None:
    moved = filer("/buckets/drop/in/x.wav", old=FILE, new=FILE, to="/buckets/other/y.wav")
    assert told(moved) == (Event("removed", "drop", ("in/x.wav",)), Event("created", "other", ("y.wav",)))
    assert told(filer("/buckets/drop/in", old=FOLDER, new=FOLDER, to="/buckets/drop/out")) == ()
    came = filer("/elsewhere/x.wav", old=FILE, new=FILE, to="/buckets/drop/x.wav")
    assert told(came) == (Event("created", "drop", ("x.wav",)),)


def test_seaweedfs_tells_of_versions_when_they_can_be_read() -> None:
    def pointing(version: str, **more: str) -> dict[str, Any]:
        return {**FOLDER, "extended": {"Seaweed-X-Amz-Latest-Version-Id": version, **more}}

    one, two = pointing("NjcxMw=="), pointing("NjcxNA==")
    marker = pointing("NjcxNQ==", **{"Seaweed-X-Amz-Latest-Version-Is-Delete-Marker": "dHJ1ZQ=="})
    folder = "/buckets/drop/p/v.wav.versions"
    version = changed(FILE, "extended/Seaweed-X-Amz-Version-Id", "NjcxMw==")
    created, removed = Event("created", "drop", ("p/v.wav",)), Event("removed", "drop", ("p/v.wav",))
    assert told(filer(folder, new=FOLDER)) == ()
    assert told(filer(f"{folder}/v_6713237a50f8ddb65761211fb0358169", new=version)) == ()
    assert told(filer(folder, old=FOLDER, new=one)) == (created,)
    assert told(filer(folder, old=one, new=two)) == (created,)
    assert told(filer(folder, old=two, new=two)) == ()
    assert told(filer(folder, old=two, new=marker)) == (removed,)
    assert told(filer(folder, old=two)) == (removed,)
    assert told(filer("/buckets/drop/p/x.versions/v_1.wav", new=FILE))[0].keys == ("p/x.versions/v_1.wav",)  # a name


@pytest.mark.parametrize(
    "message",
    [
        None, [], "x", 1, [AWS_RECORD], {"Records": None}, {"Records": [None]}, {"Records": [{"eventName": "INSERT", "dynamodb": {}}]},
        {"event": "ping"}, {"event_type": "create", "key": 1, "message": {}},
        changed(AWS, "Records/0/s3/object/key", ""),
        changed(AWS, "Records/0/s3/object/key", "a\0b"),
        changed(AWS, "Records/0/s3/object/key", "a\ud800b"),
        changed(AWS, "Records/0/s3/object/key", "x" * (LONGEST_KEY + 1)),
        changed(AWS, "Records/0/s3/object/key", 7),
        changed(AWS, "Records/0/s3/bucket/name", "../etc"),
        changed(AWS, "Records/0/s3/bucket/name", ""),
        changed(AWS, "Records/0/s3/bucket", []),
        changed(BRIDGE, "detail-type", "AWS API Call via CloudTrail"),
        changed(BRIDGE, "source", "aws.ec2"),
        changed(BRIDGE, "detail/object", None),
        changed(SNS, "Message", "hello"),
        changed(SNS, "Message", json.dumps(changed(SNS, "Message", json.dumps(SNS)))),
        filer("/buckets/drop/a\ud800b", new=FILE),
        filer("/buckets/drop/a\0b", new=FILE),
    ],
)  # fmt: skip
def test_other_messages_are_unreadable(message: Any) -> None:
    with pytest.raises(Unreadable):
        parse(json.dumps(message) if message is not None else "null and void")


def test_a_subscription_that_waits_for_an_answer_says_what_to_do() -> None:
    with pytest.raises(Unreadable, match="subscribe an SQS queue"):
        told(SNS_ASKS)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe{", b"{", b"[" * 500_000, b'{"a":' * 100_000, b"9" * 900_000, b"-" * 10, b'"\\ud800"', b"\0",
        b" " * (MOST_BYTES + 1), "\ud800", "x" * (MOST_BYTES + 1), b'{"Records":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)  # fmt: skip
def test_hostile_messages_are_unreadable(body: str | bytes) -> None:
    with pytest.raises(Unreadable):
        parse(body)


EXAMPLES = [AWS, AWS_TEST, SNS, SNS_ASKS, BRIDGE, MINIO, FILER, filer("/buckets/b/x", old=FILE, new=FILE), filer("/buckets/b/x.versions", old=FOLDER, new=FOLDER)]  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, path: str = "") -> list[str]:
    """Every path in a message."""
    found = [path[1:]] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        found += places(inner, f"{path}/{name}")
    return found


@st.composite
def nearly(draw: st.DrawFn) -> str:
    """A message of a server in which something else stands somewhere."""
    message = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(message)))
        try:
            message = changed(
                message, path, draw(ANYTHING | st.text(st.characters(categories=["Cs", "Cc", "Lu", "Po"])))
            )
        except (TypeError, KeyError, ValueError):  # in what was drawn before
            continue
    return json.dumps(message)


def read(body: str | bytes) -> None:
    """Events that can be used, or Unreadable."""
    try:
        events = parse(body)
    except Unreadable:
        return
    for event in events:
        assert event.kind in {"created", "removed"}
        assert event.keys
        assert all(0 < len(k.encode()) <= LONGEST_KEY and "\0" not in k for k in event.keys)
        assert event.bucket.isascii()
        assert event.size is None or 0 <= event.size < 1 << 63


@given(st.binary() | st.text(st.characters()))
def test_whatever_comes_is_read_or_unreadable(body: str | bytes) -> None:
    read(body)


@given(ANYTHING)
def test_whatever_json_comes_is_read_or_unreadable(message: Any) -> None:
    read(json.dumps(message))


@given(nearly())
@example(
    json.dumps(changed(changed(FILER, "message/old_entry", FILE), "message/old_entry/attributes", {"md5": [[[]]]}))
)
def test_whatever_nearly_is_a_message_is_read_or_unreadable(body: str) -> None:
    read(body)


@pytest.mark.parametrize("depth", range(850, 1000, 7))
def test_nesting_as_deep_as_can_be_read_is_no_harm(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    entry = f'{{"name": "x", "attributes": {{"md5": {deep}}}, "extended": {{"Seaweed-X-Amz-ETag": {deep}}}}}'
    read(
        f'{{"event_type": "", "key": "/buckets/b/x", "message": {{"old_entry": {entry}, "new_entry": {entry}, "new_parent_path": "/buckets/b"}}}}'
    )
