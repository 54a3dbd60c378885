"""Batches hold one window length and one length of prompt, never more than may begin, and nothing waits for ever."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.batching import PATIENCE, Waiting, next_batch

items = st.lists(
    st.builds(
        Waiting,
        item=st.integers(),
        window=st.sampled_from([10.0, 15.0, 20.0, 30.0]),
        temperature=st.sampled_from([0.0, 0.0, 0.4]),
        expected_tokens=st.floats(0, 200),
        again=st.booleans(),
        age=st.integers(0, PATIENCE + 2),
        prompt=st.sampled_from([0, 0, 12, 223]),
        listen=st.booleans(),
    ),
    max_size=80,
)


@given(items, st.integers(0, 64), st.integers(1, 64), st.booleans())
def test_a_batch_is_of_one_kind_and_fits(waiting: list[Waiting[int]], room: int, size: int, more: bool) -> None:
    batch = next_batch(waiting, room=room, size=size, calls=1, more_to_come=more)
    assert len(batch) <= size
    assert len({(w.window, w.temperature, w.prompt, w.listen) for w in batch}) <= 1
    assert sum(not w.again for w in batch) <= room
    assert len({id(w) for w in batch}) == len(batch)
    assert all(any(w is x for x in waiting) for w in batch)


@given(items, st.integers(1, 64), st.integers(1, 64))
def test_without_more_to_come_something_always_leaves(waiting: list[Waiting[int]], room: int, size: int) -> None:
    if waiting:
        assert next_batch(waiting, room=room, size=size, calls=1, more_to_come=False)


@given(items, st.integers(1, 64))
def test_all_leave_in_the_end_and_patience_has_an_end(waiting: list[Waiting[int]], size: int) -> None:
    left, rounds = list(waiting), 0
    while left:
        batch = next_batch(left, room=size, size=size, calls=1, more_to_come=False)
        gone = {id(w) for w in batch}
        left = [replace(w, age=w.age + 1) for w in left if id(w) not in gone]
        rounds += 1
        assert rounds <= len(waiting)


def test_a_partial_batch_waits_for_more_but_not_for_ever() -> None:
    young = [Waiting("a", 10.0, 0.0, 5.0)]
    old = [Waiting("a", 10.0, 0.0, 5.0, age=PATIENCE)]
    assert next_batch(young, room=8, size=8, calls=1, more_to_come=True) == []
    assert next_batch(old, room=8, size=8, calls=1, more_to_come=True) == old


def test_like_lengths_sit_together() -> None:
    waiting = [Waiting(i, 10.0, 0.0, float(t)) for i, t in enumerate([5, 90, 6, 92, 7, 91])]
    batch = next_batch(waiting, room=3, size=3, calls=1, more_to_come=False)
    assert sorted(w.expected_tokens for w in batch) in ([5, 6, 7], [90, 91, 92])


def test_second_attempts_go_even_without_room() -> None:
    waiting = [Waiting("again", 30.0, 0.0, 5.0, again=True), Waiting("new", 30.0, 0.0, 5.0)]
    assert [w.item for w in next_batch(waiting, room=0, size=8, calls=1, more_to_come=False)] == ["again"]


def test_the_last_chunks_are_shared_out_to_the_free_calls() -> None:
    waiting = [Waiting(i, 10.0, 0.0, float(i)) for i in range(10)]
    assert len(next_batch(waiting, room=16, size=8, calls=2, more_to_come=False)) == 5
    assert len(next_batch(waiting, room=16, size=8, calls=2, more_to_come=True)) == 8


def test_windows_of_several_lengths_are_shared_out_together() -> None:
    waiting = [Waiting(i, window, 0.0, float(i)) for i, window in enumerate([15.0, 15.0, 15.0, 10.0, 10.0])]
    first = next_batch(waiting, room=16, size=8, calls=2, more_to_come=False)
    left = [w for w in waiting if w not in first]
    assert len(next_batch(left, room=16, size=8, calls=1, more_to_come=False)) == len(left) == 2
