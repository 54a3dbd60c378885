"""Decoded audio of any channels becomes the PCM file: mixed or split, levels checked, limits kept.

The mix is judged by the second, because the decoder streams: it cannot know the whole before it writes the first block,
and a call may turn its phase in the middle. Hysteresis keeps it from flipping at every pause.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import numpy.typing as npt

from chunking.errors import Code, Rejected
from chunking.levels import Level, Meter
from chunking.media import MAX_CHANNELS, DecodeOptions
from chunking.timeline import SAMPLE_RATE

Block = npt.NDArray[np.float32]
"""Channels by samples at 16 kHz."""

_WEIGHTS = {"FC": 1.0, "FL": 0.7, "FR": 0.7, "LFE": 0.25, "LFE2": 0.25}
"""Speech sits in the centre; what is not named here, the surround channels, counts half (after ITU-R BS.775)."""
SIDES = ("left", "right")
_CANCELLED, _RESTORED = 0.1, 0.25
"""Energy of the average over that of the channels: 0.5 for unrelated channels, 1 for equal ones, 0 for opposite."""
_QUIET = 1e-9
"""Mean square under which a block says nothing about its phase (-90 dB)."""


class _Stereo:
    """Averages two channels, but takes the louder one while the average cancels."""

    def __init__(self) -> None:
        self.cancels = False
        self.loudness = np.zeros(2)

    def mix(self, block: Block) -> tuple[Block, str]:
        average: Block = block.mean(axis=0)
        energy = np.square(block, dtype=np.float64).mean(axis=1)
        if energy.mean() > _QUIET:
            kept = float(np.square(average, dtype=np.float64).mean() / energy.mean())
            self.cancels = kept < (_RESTORED if self.cancels else _CANCELLED)
            self.loudness += energy
        if not self.cancels:
            return average, "average"
        side = int(self.loudness[1] > self.loudness[0] * 1.01)
        return np.asarray(block[side]), SIDES[side]


def _downmix(block: Block, names: tuple[str, ...]) -> Block:
    """One channel of many; the weights add up to 1, so nothing clips."""
    weights = np.array([_WEIGHTS.get(name, 0.5) for name in names], dtype=np.float32)
    return np.asarray((weights / weights.sum()) @ block, dtype=np.float32)


class PcmWriter:
    """Writes interleaved 16-bit samples to a file descriptor and counts what a report needs."""

    def __init__(self, fd: int, options: DecodeOptions, source_bytes: int) -> None:
        self._fd = fd
        self._options = options
        self._source_bytes = source_bytes
        self._stereo = _Stereo()
        self._ways: Counter[str] = Counter()
        self.channels = 0
        self.samples = 0
        self.nonfinite = 0
        self.peak = 0.0
        self._meters: list[Meter] = []
        self._gains: Block | None = None

    @property
    def levels(self) -> tuple[Level, ...]:
        """Of each channel written, before any gain."""
        return tuple(m.level for m in self._meters)

    @property
    def mixed(self) -> str:
        return max(self._ways, key=self._ways.__getitem__, default="mono")

    def open(self, source_channels: int) -> None:
        """Fix the number of channels: a PCM file has one for all its length, whatever the source turns to."""
        if not self.channels:
            self.channels = min(source_channels, MAX_CHANNELS) if self._options.channels == "split" else 1
            self._meters = [Meter() for _ in range(self.channels)]
            if self._options.repair is not None:
                gains = [*self._options.repair.gains_db, *[0.0] * self.channels][: self.channels]
                self._gains = np.power(10.0, np.array(gains, np.float32)[:, np.newaxis] / 20)

    def write(self, block: Block, names: tuple[str, ...]) -> None:
        """Add a block of about a second, whose channels have these names."""
        finite = np.isfinite(block)
        if not finite.all():
            self.nonfinite += int(block.size - np.count_nonzero(finite))
            block = np.where(finite, block, np.float32(0))
        if not block.shape[1]:
            return
        self.peak = min(1.0, max(self.peak, float(np.abs(block).max())))
        out = self._arrange(block, names)
        for meter, channel in zip(self._meters, out, strict=True):
            meter.add(channel)
        if self._gains is not None:
            out = out * self._gains
        pcm = np.clip(np.rint(out * 32768.0), -32768, 32767).astype("<i2")
        self._put(pcm.T.tobytes(), pcm.shape[1])

    def silence(self, samples: int) -> None:
        """Add silence, a minute at a time."""
        for begin in range(0, samples, 60 * SAMPLE_RATE):
            count = min(60 * SAMPLE_RATE, samples - begin)
            self._put(bytes(2 * count * self.channels), count)

    def _arrange(self, block: Block, names: tuple[str, ...]) -> Block:
        if self._options.channels == "split":
            self._ways["split"] += block.shape[1]
            take = [min(c, block.shape[0] - 1) for c in range(self.channels)]
            return np.asarray(block[take])
        if block.shape[0] == 1:
            mono, way = block[0], "mono"
        elif self._options.channels in SIDES:
            mono, way = block[SIDES.index(self._options.channels)], self._options.channels
        elif block.shape[0] == 2:
            mono, way = self._stereo.mix(block)
        else:
            mono, way = _downmix(block, names), "downmix"
        self._ways[way] += block.shape[1]
        return np.asarray(mono[np.newaxis])

    def _put(self, data: bytes, samples: int) -> None:
        self.samples += samples
        seconds = self.samples / SAMPLE_RATE
        if seconds > self._options.max_duration_s:
            raise Rejected(f"longer than {self._options.max_duration_s / 3600:g} hours", code=Code.TOO_LONG)
        written = 2 * self.samples * self.channels
        if seconds > 3600 and written > self._options.max_expansion * self._source_bytes:
            raise Rejected("a small file that unpacks to hours of audio", code=Code.TOO_LARGE)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
