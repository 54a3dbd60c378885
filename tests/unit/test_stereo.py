"""Two channels: two speakers, or one sound twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.planner import Track
from chunking.stereo import choice
from chunking.timeline import Span


def track(*speech: tuple[float, float]) -> Track:
    return Track(0, tuple(Span(a, b) for a, b in speech), (), 0.032)


CALL = track((0, 4), (9, 14), (20, 22)), track((4.5, 9.5), (13.5, 19))


def test_people_who_take_turns_are_kept_apart() -> None:
    assert choice(*CALL) == "split"
    assert choice(CALL[1], CALL[0]) == "split"


def test_a_room_heard_twice_is_mixed() -> None:
    assert choice(track((0, 4), (9, 14)), track((0.1, 4.1), (9, 13.5))) == "mix"


@pytest.mark.parametrize(("left", "right", "way"), [
    (track((0, 9)), track(), "left"),
    (track(), track((0, 9)), "right"),
    (track((0, 9)), track((3, 3.3)), "left"),
    (track(), track(), "mix"),
])  # fmt: skip
def test_a_silent_channel_is_left_out(left: Track, right: Track, way: str) -> None:
    assert choice(left, right) == way


def test_who_says_little_on_a_channel_of_their_own_is_heard() -> None:
    assert choice(track((0, 60)), track((60.5, 62))) == "split"


tracks = st.lists(st.floats(0, 100), max_size=12, unique=True).map(
    lambda ends: track(*zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
)


@given(tracks, tracks)
def test_sides_change_with_the_sides(left: Track, right: Track) -> None:
    turned = {"left": "right", "right": "left"}
    way = choice(left, right)
    assert choice(right, left) == turned.get(way, way)


@given(tracks)
def test_a_channel_beside_itself_is_mixed(one: Track) -> None:
    assert choice(one, one) == "mix"
