"""How loud a recording is, and what is repaired: measured from samples, decided without them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.levels import FLOOR_DB, OFFSET_HZ, RUMBLE_HZ, Level, Meter, Repair, repair
from chunking.timeline import SAMPLE_RATE


def level_of(samples: np.ndarray) -> Level:
    meter = Meter()
    for second in range(0, len(samples), SAMPLE_RATE):
        meter.add(samples[second : second + SAMPLE_RATE].astype(np.float32))
    return meter.level


def tone(hertz: float, amplitude: float, seconds: float = 3.0) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE)


@pytest.mark.parametrize("amplitude", [1.0, 0.1, 0.01, 0.001])
def test_the_loudest_second_is_in_decibels_below_full_scale(amplitude: float) -> None:
    quiet_before = np.concatenate((np.zeros(5 * SAMPLE_RATE), tone(440, amplitude)))
    assert level_of(quiet_before).loudest_db == pytest.approx(20 * np.log10(amplitude) - 3, abs=1)


def test_a_click_makes_nothing_loud() -> None:
    clicked = tone(440, 0.001)
    clicked[SAMPLE_RATE : SAMPLE_RATE + 20] = 1.0
    assert level_of(clicked).loudest_db == pytest.approx(level_of(tone(440, 0.001)).loudest_db, abs=0.5)


def test_an_offset_and_rumble_are_told_from_speech() -> None:
    speech = tone(440, 0.05)
    assert level_of(speech + 0.3).offset == pytest.approx(0.3, abs=0.001)
    assert level_of(speech + tone(20, 0.5)).rumble_db > 15
    assert level_of(speech + tone(20, 0.5)).loudest_db == pytest.approx(level_of(speech).loudest_db, abs=3)
    assert level_of(speech).rumble_db < 1
    assert repair([level_of(speech + 0.3)]) == Repair(OFFSET_HZ, (0.0,))
    assert repair([level_of(speech + tone(20, 0.5))]) == Repair(RUMBLE_HZ, (0.0,))


def test_clipping_is_counted() -> None:
    assert level_of(np.clip(tone(440, 4.0), -1, 1)).clipped > 0.5
    assert level_of(tone(440, 0.9)).clipped == 0


def test_floats_beyond_all_bounds_are_clipped_and_have_a_level() -> None:
    level = level_of(np.tile([3e38, -3e38], SAMPLE_RATE))
    assert level.clipped == 1
    assert level.loudest_db == pytest.approx(0, abs=0.1)
    assert np.isfinite([level.rumble_db, level.offset]).all()


def test_nothing_at_all_is_no_error() -> None:
    assert Meter().level == Level()
    assert level_of(np.zeros(100)).loudest_db == FLOOR_DB


@given(st.lists(st.builds(
    Level, st.floats(-120, 0), st.floats(0, 60), st.floats(-1, 1), st.floats(0, 1),
), min_size=1, max_size=8))  # fmt: skip
def test_what_is_repaired_never_becomes_loud(levels: list[Level]) -> None:
    needed = repair(levels)
    if needed is not None:
        assert len(needed.gains_db) == len(levels)
        for level, gain in zip(levels, needed.gains_db, strict=True):
            assert 0 <= gain <= 60
            assert gain == 0 or level.loudest_db + gain <= -26 + 0.1


@pytest.mark.parametrize("level", [Level(), Level(-95.0, 40.0, 0.5), Level(-20.0), Level(-35.0, 3.0, 0.001)])
def test_silence_and_what_is_well_stay_as_they_are(level: Level) -> None:
    assert repair([level]) is None


def test_only_the_quiet_channel_of_a_call_is_made_louder() -> None:
    needed = repair([Level(-20.0), Level(-55.0)])
    assert needed is not None
    assert needed.gains_db == (0.0, 29.0)
    assert needed.highpass_hz is None
