"""How many workers a backlog asks for: never too few, never out of bounds, and no flapping."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.scaling import CPU_RTFX, Decision, Policy, Standing, decide
from storage.backlog import Backlog

ENGINE = "large-v3 int8 beam 1"
HOURS = st.floats(0, 1e5).map(lambda h: h * 3600)
POLICIES = st.builds(
    Policy,
    finish_within_s=st.floats(60, 1e5),
    least=st.integers(0, 5),
    most=st.integers(0, 50),
    fewer_after_s=st.floats(0, 3600),
    expected_rtfx=st.floats(1, 500),
)


def load(seconds: float, rtfx: float | None = None, queue: str = ENGINE) -> Backlog:
    return Backlog(queue, waiting_s=seconds, rtfx=rtfx)


def test_the_formula() -> None:
    policy = Policy(finish_within_s=3600, most=100)
    assert decide(load(100 * 3600, 10.0), policy).wanted == 10
    assert decide(load(100 * 3600 + 1, 10.0), policy).wanted == 11
    assert decide(load(100 * 3600), policy).wanted == 2  # expected: 50
    assert decide(load(1.0, 10.0), policy).wanted == 1
    assert decide(load(0.0, 10.0), policy).wanted == 0
    assert decide(load(3600 * CPU_RTFX * 3, queue="cpu"), policy).wanted == 3


def test_what_is_in_hand_and_what_is_to_come_count_as_well() -> None:
    policy = Policy(finish_within_s=3600, most=100)
    assert decide(Backlog(ENGINE, 3600.0, 3600.0, 7200.0, rtfx=1.0), policy).wanted == 4


@given(HOURS, POLICIES, st.none() | st.floats(0.5, 500))
def test_the_backlog_is_done_in_time_unless_the_limit_forbids_it(
    seconds: float, policy: Policy, rtfx: float | None
) -> None:
    found = decide(load(seconds, rtfx), policy)
    most = max(policy.least, policy.most)
    assert policy.least <= found.wanted <= most
    in_time = found.wanted * found.rtfx * policy.finish_within_s >= seconds * (1 - 1e-6)
    assert in_time or found.wanted == most
    one_fewer = (found.wanted - 1) * found.rtfx * policy.finish_within_s
    assert one_fewer < seconds or found.wanted in (policy.least, 1)


@given(HOURS, HOURS, POLICIES)
def test_more_work_never_wants_fewer(some: float, more: float, policy: Policy) -> None:
    assert decide(load(some + more), policy).wanted >= decide(load(some), policy).wanted


@given(st.lists(HOURS, min_size=2, max_size=30), POLICIES, st.floats(1, 120))
def test_fewer_are_wanted_only_after_fewer_would_have_done_for_so_long(
    backlog: list[float], policy: Policy, step_s: float
) -> None:
    before, below_for = None, 0.0
    for seconds in backlog:
        found = decide(load(seconds), policy, before)
        needed = decide(load(seconds), policy).wanted
        if before is not None:
            if found.wanted < before.wanted:
                assert below_for >= policy.fewer_after_s
            below_for = below_for + step_s if needed < found.wanted else 0.0
        before = said(found, before, step_s)


def said(found: Decision, before: Standing | None, step_s: float) -> Standing:
    """As the database keeps it: since when, a step later."""
    return Standing(found.wanted, None if found.fewer_for_s is None else found.fewer_for_s + step_s)


def test_a_short_dip_changes_nothing_and_a_long_one_does() -> None:
    policy = Policy(finish_within_s=3600, most=100, fewer_after_s=600)
    full = decide(load(36_000 * 10, 10.0), policy)
    assert full.wanted == 10
    dip = decide(load(0, 10.0), policy, Standing(10, None))
    assert (dip.wanted, dip.fewer_for_s) == (10, 0.0)
    again = decide(load(36_000 * 10, 10.0), policy, Standing(10, 500.0))
    assert (again.wanted, again.fewer_for_s) == (10, None)
    assert decide(load(0, 10.0), policy, Standing(10, 599.0)).wanted == 10
    assert decide(load(0, 10.0), policy, Standing(10, 600.0)).wanted == 0


def test_a_limit_that_was_lowered_holds_at_once() -> None:
    policy = Policy(finish_within_s=3600, most=4, fewer_after_s=600)
    assert decide(load(1e9, 10.0), policy, Standing(10, None)).wanted == 4


def test_it_says_how_it_comes_to_that() -> None:
    policy = Policy(finish_within_s=3600, most=3, fewer_after_s=600)
    text = "\n".join(decide(Backlog(ENGINE, 360_000.0, 0.0, 0.0, 2, 10.0), policy).explain())
    assert "3 wanted, 2 there" in text
    assert "360000 s / (10 x 3600 s) = 10.00, so 10" in text
    assert "at most 3" in text
    assert "as its workers do" in text
