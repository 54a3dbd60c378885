"""A few hundred broken files; `make fuzz` takes thousands."""

from __future__ import annotations

from tests.faults.fuzz import WALL_S, fuzz


def test_whatever_is_broken_ends_in_a_state_and_in_time() -> None:
    found = fuzz(300)
    assert found.surprises == []
    assert sum(found.ends.values()) == 300
    assert len(found.ends) > 3, "the files are not broken in many ways"
    assert found.slowest_s < WALL_S + 2
