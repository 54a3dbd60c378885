"""A fleet in simulated time: its clock, its promises, and the same sums as anybody would make by hand."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chunking.errors import UsageError
from pipeline.scaling import CPU_RTFX, Policy
from pipeline.scenario import Arrival, Machines, cut_of
from pipeline.simulation import simulate
from storage.simulated import EPOCH, Clock, _strftime, simulated
from workers.commands.simulate import chart, read_arrivals, shares
from workers.commands.simulate import simulate as command

ALL_AT_ONCE = [Arrival(0.0, 600.0)] * 6
ONE = Policy(finish_within_s=3600, least=1, most=1, expected_rtfx=10.0)
STEADY = Machines(rtfx=10.0, batch=8, start_s=0.0, interruptions=0.0, price_spot=1.0, price_on_demand=3.0)


@given(st.floats(0, 1e7), st.floats(-1e6, 1e6))
def test_the_clocks_answers_have_the_form_of_sqlites_own(now: float, seconds: float) -> None:
    clock = Clock()
    clock.now = now
    said = _strftime(clock, "%Y-%m-%d %H:%M:%f", "now", f"{seconds} seconds")
    moment = (EPOCH + timedelta(seconds=now)).strftime("%Y-%m-%d %H:%M:%S.%f")
    own = sqlite3.connect(":memory:").execute(
        "SELECT strftime('%Y-%m-%d %H:%M:%f', ?, ?)", (moment, f"{seconds} seconds")
    )
    (real,) = own.fetchone()
    assert said is not None
    assert len(said) == len(real) == 23
    assert abs(datetime.fromisoformat(said) - datetime.fromisoformat(real)) <= timedelta(milliseconds=2)


def test_times_in_the_database_are_the_simulations(tmp_path: Path) -> None:
    from sqlalchemy import select

    from storage.moments import now_plus

    clock = Clock()
    database = simulated(tmp_path, clock)
    clock.now = 86_400.0
    with database.reading() as tx:
        assert tx.execute(select(now_plus(1.5))).scalar_one().isoformat() == "2026-01-02T00:00:01.500000"
    database.close()


def test_few_cores_prepare_one_recording_after_the_other() -> None:
    fast = replace(STEADY, rtfx=1e6)
    each_s = ALL_AT_ONCE[0].seconds / CPU_RTFX
    assert simulate(ALL_AT_ONCE, fast, ONE).done_s == pytest.approx(each_s, abs=0.1)
    assert simulate(ALL_AT_ONCE, replace(fast, cores=1), ONE).done_s == pytest.approx(6 * each_s, abs=0.1)
    assert simulate(ALL_AT_ONCE, replace(fast, cores=4), ONE).done_s == pytest.approx(2 * each_s, abs=0.1)


def test_one_worker_does_what_it_can_in_the_time_that_takes() -> None:
    found = simulate(ALL_AT_ONCE, STEADY, ONE)
    shards = [s for a in ALL_AT_ONCE for s in cut_of(a.seconds).shards]
    sound = sum(s.span.duration for s in shards)
    assert len(found.took_s) == 6
    assert (found.shards, found.chunks) == (len(shards), sum(len(s.chunks) for s in shards))
    assert found.working_s == pytest.approx(sound / 10, rel=0.01)
    assert found.machine_s >= found.working_s
    assert found.cost == pytest.approx(found.machine_s / 3600)
    assert (found.interrupted, found.repeated_s, found.starting_s) == (0, 0.0, 0.0)
    assert found.took(1.0) == pytest.approx(sound / 10, rel=0.1)


def test_the_same_seed_gives_the_same() -> None:
    machines = replace(STEADY, interruptions=20.0)
    policy = replace(ONE, most=4, finish_within_s=120)
    assert simulate(ALL_AT_ONCE, machines, policy, seed=3) == simulate(ALL_AT_ONCE, machines, policy, seed=3)


def test_a_kill_costs_its_lease_and_no_more_than_a_batch() -> None:
    killed = simulate(ALL_AT_ONCE, replace(STEADY, kills=(107.0,)), ONE)
    calm = simulate(ALL_AT_ONCE, STEADY, ONE)
    chunk_s = 600.0 / min(len(s.chunks) for s in cut_of(600.0).shards)
    assert killed.interrupted == 1
    assert 0 < killed.repeated_s <= 8 * chunk_s
    assert (len(killed.took_s), killed.shards) == (6, calm.shards)
    assert killed.working_s > calm.working_s
    assert killed.done_s >= calm.done_s + killed.repeated_s / 10


def test_with_a_notice_nothing_is_decoded_twice() -> None:
    found = simulate(ALL_AT_ONCE, replace(STEADY, interruptions=30.0, noticed=1.0), ONE, seed=1)
    assert found.interrupted > 0
    assert found.repeated_s == 0.0
    assert len(found.took_s) == 6


def test_nobody_takes_away_what_is_on_demand_and_it_costs_more() -> None:
    machines = replace(STEADY, interruptions=30.0, on_demand=1.0)
    found = simulate(ALL_AT_ONCE, machines, ONE)
    assert found.interrupted == 0
    assert found.cost == pytest.approx(3 * found.machine_s / 3600)


def test_more_work_brings_more_workers_and_none_brings_none() -> None:
    policy = Policy(finish_within_s=120, most=10, expected_rtfx=10.0, fewer_after_s=0.0)
    found = simulate([*ALL_AT_ONCE, Arrival(4 * 3600.0, 60.0)], STEADY, policy)
    counts = [n for _, n in found.workers]
    assert max(counts) == 3  # 6 x 600 s / (10 x 120 s)
    assert 0 in counts


def test_the_command_shows_mixes_side_by_side() -> None:
    arguments = ["--recordings", "8", "--over", "0s", "--length", "2m", "--mixes", "spot,on-demand,0.5"]
    ran = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    assert "spot" in ran.output
    assert ran.output.count("workers, ") == 3
    assert "half are done within" in ran.output


def test_arrivals_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("at,seconds\n60,30\n0,90\n")
    assert read_arrivals(file) == [Arrival(0.0, 90.0), Arrival(60.0, 30.0)]
    file.write_text("0,90\nnoon,30\n")
    with pytest.raises(UsageError, match="line 2"):
        read_arrivals(file)


@pytest.mark.parametrize("wrong", ["cheap", "1.5", "-1", ""])
def test_a_mix_that_is_none(wrong: str) -> None:
    with pytest.raises(UsageError, match="--mixes"):
        shares(wrong)


def test_a_chart() -> None:
    assert chart([(0.0, 0), (60.0, 2), (120.0, 4)]) == "| ▄█| 0 to 4, over 3 min"
