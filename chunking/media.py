"""The two records that the decoder child and its parent exchange: what to decode and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chunking.levels import Level, Repair

Channels = Literal["mix", "split", "left", "right"]
MAX_CHANNELS = 8
"""Channels kept apart by `split`; a source's further channels are left out."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to decode, and the limits, which hold for what was decoded, never for what a header says."""

    channels: Channels = "mix"
    """One channel for the mix or for a side, or one for each source channel. A mono source has one channel anyway."""
    track: int | None = None
    """Position among the audio tracks; without it, the track flagged default, else the first."""
    repair: Repair | None = None
    max_duration_s: float = 24 * 3600.0
    max_bytes: int = 16 << 30
    """Of the recording."""
    max_expansion: float = 4000.0
    """Bytes of PCM for a byte of the recording, looked at only past the first hour."""
    wall_s: float | None = None
    """Time the decoder may take; without it, a minute and more for large files."""


@dataclass(frozen=True, slots=True)
class MediaReport:
    """What was in the recording and how much of it was decoded. The PCM file holds `duration_s` seconds."""

    container: str
    codec: str
    sample_rate: int
    channels: int
    """Of the source."""
    pcm_channels: int
    """Interleaved in the PCM file: 1 for a mix."""
    track: int
    tracks: int
    expected_s: float | None
    """What the container promises, on the time line of the PCM file; None when it says nothing that can be believed."""
    decoded_s: float
    """Audio that was decoded."""
    duration_s: float
    """Audio and inserted silence."""
    start_s: float
    """Silence inserted at the beginning, because the audio starts later than the container's clock."""
    inserted_silence_s: float
    """All silence inserted: start, gaps in the time stamps, audio lost to damage."""
    lost: tuple[tuple[float, float], ...]
    """Where inserted silence stands for damaged audio: start and end, in seconds, in order."""
    decode_errors: int
    nonfinite: int
    """Samples that were NaN or infinite and are zero now."""
    peak: float
    """Highest absolute sample, 0 to 1."""
    levels: tuple[Level, ...]
    """Of each channel of the PCM file, before any repair."""
    mixed: str
    """How the most of the audio became one channel: mono, average, left, right, downmix; or split."""
    truncated: bool
    damaged: bool
    repair: Repair | None = None
    """What a second decoding did to the sound, if there was one."""
