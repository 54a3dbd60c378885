"""How loud a recording is, and what must be done so that its speech is found. Pure.

Silero hears little of speech under -45 dB and nothing under rumble or a constant offset, though Whisper reads it all.
So each channel is measured while it is decoded, and where that is needed it is decoded again, repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chunking.timeline import SAMPLE_RATE

OFFSET_HZ, RUMBLE_HZ = 80.0, 200.0
"""What lies below is taken away: an offset alone under the lowest voices; engines and wind reach up to where telephones
begin, and Silero heard nothing of speech in an aeroplane with less than that taken away."""
_LOW_HZ = 150.0
_FRAME = SAMPLE_RATE // 40
_SPEAKING = 70
"""Percentile of a second's frames: speech fills a third of a second in which somebody speaks, a click does not."""
_FULL = 0.999
FLOOR_DB = -120.0

_QUIET_DB, _NOTHING_DB, _AIM_DB, _MOST_DB = -42.0, -92.0, -26.0, 60.0
"""The loudest second of 16-bit speech at a usual level has -30 to -15 dB; the noise of 16 bits alone has -98."""
_OFFSET_DB, _RUMBLE_DB = 10.0, 10.0
"""By how much an offset, or rumble, is louder than the speech when it is taken away: less does no harm, while what is
taken away with it does some, above all of clipped speech, whose halves are rarely equal (make bench-levels)."""


@dataclass(frozen=True, slots=True)
class Level:
    """One channel of a recording, as it was decoded."""

    loudest_db: float = FLOOR_DB
    """The loudest second without rumble, in dB below full scale."""
    rumble_db: float = 0.0
    """By how much what lies below 150 Hz is louder than what lies above 200 Hz."""
    offset: float = 0.0
    """The mean of all samples, -1 to 1."""
    clipped: float = 0.0
    """Share of samples at full scale."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a second decoding does to the sound."""

    highpass_hz: float | None = None
    """Take away what lies below."""
    gains_db: tuple[float, ...] = ()
    """For each channel of the PCM file; channels beyond them are left as they are."""


class Meter:
    """Measures one channel, block by block."""

    def __init__(self) -> None:
        self._samples, self._sum, self._full = 0, 0.0, 0
        self._loudest = self._low = self._high = 0.0

    def add(self, block: npt.NDArray[np.float32]) -> None:
        """About a second of samples; what is beyond -1 to 1, as float files may have it, counts as clipped."""
        block = np.clip(block, -1.0, 1.0)
        self._samples += len(block)
        self._sum += float(block.sum(dtype=np.float64))
        self._full += int(np.count_nonzero(np.abs(block) >= _FULL))
        if len(block) >= 4 * _FRAME:
            sound: npt.NDArray[np.floating[Any]] = block
            spectrum = np.fft.rfft(block)
            power = np.square(np.abs(spectrum))
            upto, begin = (round(hz * len(block) / SAMPLE_RATE) for hz in (_LOW_HZ, RUMBLE_HZ))
            low, high = float(power[1:upto].sum()), float(power[begin:].sum())
            self._low, self._high = self._low + low, self._high + high
            if low > high:
                spectrum[:begin] = 0
                sound = np.fft.irfft(spectrum, len(block))
            self._loudest = max(self._loudest, _loudness(sound))

    @property
    def level(self) -> Level:
        if not self._samples:
            return Level()
        return Level(
            loudest_db=round(_db(self._loudest), 1),
            rumble_db=round(10 * float(np.log10((self._low + 1e-9) / (self._high + 1e-9))), 1),
            offset=round(self._sum / self._samples, 4),
            clipped=round(self._full / self._samples, 6),
        )


def _loudness(samples: npt.NDArray[np.floating[Any]]) -> float:
    """Mean square, without its mean, of a frame in which somebody speaks, if somebody does."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    energies = np.sort(frames.var(axis=1))
    return float(energies[len(energies) * _SPEAKING // 100])


def _db(mean_square: float) -> float:
    return max(FLOOR_DB, 10 * float(np.log10(mean_square + 1e-12)))


def repair(levels: Sequence[Level]) -> Repair | None:
    """What the channels need, or nothing. Silence, and what is as quiet as the noise of 16 bits, stays as it is."""
    heard = [x for x in levels if x.loudest_db > _NOTHING_DB]
    rumbles, shifted = any(x.rumble_db > _RUMBLE_DB for x in heard), any(map(_shifted, heard))
    highpass = RUMBLE_HZ if rumbles else OFFSET_HZ if shifted else None
    gains = tuple(_gain_db(x) for x in levels)
    return Repair(highpass, gains) if highpass or any(gains) else None


def _shifted(level: Level) -> bool:
    return _db(level.offset**2) > level.loudest_db + _OFFSET_DB


def _gain_db(level: Level) -> float:
    if not _NOTHING_DB < level.loudest_db < _QUIET_DB:
        return 0.0
    return round(min(_MOST_DB, _AIM_DB - level.loudest_db), 1)
