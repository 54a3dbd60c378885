"""Recordings made of nothing, which the VAD takes for speech: what a kill storm or a trial of a fleet decodes.

Vowels gliding between formants under a glottal pitch (Peterson and Barney 1952, averages for men), a burst of noise
before each, and pauses between phrases. Nobody would understand a word, and the paced engine need not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunking.audio import write_flac
from chunking.timeline import SAMPLE_RATE

FORMANTS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""Hz, of ɑ, i, u, ɛ, ɔ."""
WEIGHTS = (1.0, 0.6, 0.3)
HARMONICS = 25
PHRASES = 24
Floats = npt.NDArray[np.float64]


class Voice:
    """A stock of phrases; each recording is an order of them of its own, so no two are alike."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self._phrases = [self._phrase() for _ in range(PHRASES)]

    def write(self, path: Path, seconds: float) -> None:
        """A FLAC file of about so much speech with pauses."""
        parts: list[Floats] = []
        length = 0
        while length < seconds * SAMPLE_RATE:
            pause = np.zeros(int(self._chance.uniform(0.3, 0.9) * SAMPLE_RATE))
            parts += [self._phrases[self._chance.integers(PHRASES)], pause]
            length += len(parts[-1]) + len(parts[-2])
        sound = np.concatenate(parts)
        sound += self._chance.normal(0, 0.001, len(sound))
        write_flac(path, [(sound / np.abs(sound).max() * 16000).astype(np.int16)])

    def _phrase(self) -> Floats:
        pitch = self._chance.uniform(95, 220)
        return np.concatenate([self._syllable(pitch) for _ in range(self._chance.integers(4, 14))])

    def _syllable(self, pitch: float) -> Floats:
        c = self._chance
        seconds = c.uniform(0.12, 0.28)
        t = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
        f0 = pitch * (1 + 0.08 * np.sin(2 * np.pi * c.uniform(1, 4) * t)) * (1 - 0.1 * t / seconds)
        phase = 2 * np.pi * np.cumsum(f0) / SAMPLE_RATE
        begins, ends = (FORMANTS[c.integers(len(FORMANTS))] for _ in range(2))
        sound = np.zeros_like(t)
        for k in range(1, HARMONICS + 1):
            level = np.zeros_like(t)
            for i, (a, b) in enumerate(zip(begins, ends, strict=True)):
                formant = a + (b - a) * t / seconds
                level += WEIGHTS[i] / (1 + ((f0 * k - formant) / (60 + 30 * i)) ** 2)
            sound += level / k**0.4 * np.sin(k * phase)
        burst = c.normal(0, 0.05, SAMPLE_RATE // 20) * np.hanning(SAMPLE_RATE // 20)
        return np.concatenate([burst, sound * np.sin(np.pi * t / seconds) ** 0.6 * 0.25])
