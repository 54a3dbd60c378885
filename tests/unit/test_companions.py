"""What lies beside a recording is found in one pass, whatever the keys are, and with little in mind."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pipeline.companions import companions_of, paired
from storage.jobs import Listed, MediaObject
from storage.urls import s3_url

KEYS = st.sets(
    st.text("ab./\u00e9 -j", max_size=6) | st.from_regex(r"[ab./]{0,4}(\.json|\.wav|\.done){0,3}", fullmatch=True)
)


def listed(keys: list[str]) -> list[Listed]:
    return [Listed(MediaObject(s3_url("b", k), "1", 1), 0) for k in keys]


def in_order(keys: set[str]) -> list[str]:
    return sorted(keys, key=str.encode)


@given(KEYS, st.sampled_from([None, ".done", "b", ".json"]))
def test_the_same_as_by_all_keys_at_once(keys: set[str], marker: str | None) -> None:
    objects = listed(in_order(keys))
    urls = {o.media.url for o in objects}
    found = list(paired(objects, marker))
    assert sorted(f.listed.media.url for f in found) == sorted(urls)
    for f in found:
        url = f.listed.media.url
        assert f.companions == (companions_of(url, marker) & urls) - {url}


@given(KEYS)
def test_the_same_folder_by_folder(keys: set[str]) -> None:
    files = sorted((k.rpartition("/")[0], k) for k in keys)
    urls = {s3_url("b", k) for k in keys}
    for f in paired(listed([k for _, k in files]), ".done"):
        url = f.listed.media.url
        assert f.companions == (companions_of(url, ".done") & urls) - {url}


def test_a_recording_has_its_sidecars_and_its_marker_and_no_others() -> None:
    keys = {
        "d/call.json",
        "d/call.wav",
        "d/call.wav.done",
        "d/call.wav.json",
        "d/call2.json",
        "d/call.mp3",
        "call.json",
    }
    found = {f.listed.media.url: f.companions for f in paired(listed(in_order(keys)), ".done")}
    assert found["s3://b/d/call.wav"] == {f"s3://b/d/call{end}" for end in (".json", ".wav.json", ".wav.done")}
    assert found["s3://b/d/call.mp3"] == {"s3://b/d/call.json"}
    plain = {f.listed.media.url: f.companions for f in paired(listed(in_order(keys)))}
    assert plain["s3://b/d/call.wav"] == {"s3://b/d/call.json", "s3://b/d/call.wav.json"}


def test_of_a_long_listing_few_objects_are_kept() -> None:
    taken = given_out = most = 0

    def listing() -> Iterator[Listed]:
        nonlocal taken
        for i in range(100_000):
            taken += 1
            yield from listed([f"rec.{i:06}.wav"])

    for _ in paired(listing(), ".done"):
        given_out += 1
        most = max(most, taken - given_out)
    assert given_out == 100_000
    assert most <= 2
