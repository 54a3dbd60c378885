"""Silero finds the voice and nothing in silence, block by block as well as at once; spans obey their options."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.speech import FRAME_S, SpeechDetector, SpeechOptions, spans
from chunking.timeline import total
from tests.conftest import read_16k


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


def test_a_voice_between_silences_is_found_where_it_is(detector: SpeechDetector, fox: Path) -> None:
    voice = read_16k(fox)
    silence = np.zeros(3 * 16000, np.int16)
    found = spans(detector.probabilities([silence, voice, silence]), 6 + len(voice) / 16000)
    assert found
    assert 2.9 <= found[0].start <= 3.6
    assert found[-1].end <= 3.2 + len(voice) / 16000
    assert total(found) > 0.6 * len(voice) / 16000


@pytest.mark.parametrize("kind", ["silence", "dither", "hum", "nothing"])
def test_no_speech_where_there_is_none(detector: SpeechDetector, kind: str) -> None:
    at = np.arange(10 * 16000)
    samples = {
        "silence": np.zeros(10 * 16000),
        "dither": np.random.default_rng(0).integers(-2, 3, 10 * 16000),
        "hum": 3000 * np.sin(2 * np.pi * 50 * at / 16000),
        "nothing": np.zeros(0),
    }[kind].astype(np.int16)
    assert spans(detector.probabilities([samples]), len(samples) / 16000) == ()


def test_blocks_of_any_length_give_the_same_probabilities(detector: SpeechDetector, voice: Path) -> None:
    samples = np.tile(read_16k(voice), 3)
    whole = detector.probabilities([samples])
    cuts = np.sort(np.random.default_rng(1).integers(0, len(samples), 12))
    assert np.allclose(whole, detector.probabilities(np.split(samples, cuts)), atol=1e-5)
    assert len(whole) == -(-len(samples) // 512)


@given(st.lists(st.floats(0, 1, width=32), max_size=400), st.floats(0.2, 0.9), st.floats(0.0, 1.0), st.floats(0.0, 0.5))
def test_spans_are_in_order_apart_and_inside(
    probabilities: list[float], threshold: float, pause: float, pad: float
) -> None:
    duration = len(probabilities) * FRAME_S
    options = SpeechOptions(threshold=threshold, min_pause_s=pause, pad_s=pad, min_alone_s=0.1)
    found = spans(np.array(probabilities, np.float32), duration, options)
    assert all(0.0 <= s.start < s.end <= duration for s in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    sure = 0
    for i, p in enumerate([*probabilities, 0.0]):  # every burst that is sure and long enough is in a span
        if p >= threshold:
            sure += 1
            continue
        if sure * FRAME_S >= options.min_speech_s:
            middle = (i - sure / 2) * FRAME_S
            assert any(s.start <= middle <= s.end for s in found)
        sure = 0


def test_a_short_burst_counts_only_near_other_speech() -> None:
    def track(*runs: tuple[float, float]) -> np.ndarray:
        found = np.zeros(int(12 / FRAME_S), np.float32)
        for start, end in runs:
            found[int(start / FRAME_S) : int(end / FRAME_S)] = 0.9
        return found

    assert spans(track((5.0, 5.2)), 12.0) == ()
    assert len(spans(track((5.0, 5.2), (5.6, 8.0)), 12.0)) == 2
    assert len(spans(track((1.0, 1.2), (5.6, 8.0)), 12.0)) == 1
    assert len(spans(track((5.0, 5.5)), 12.0)) == 1
