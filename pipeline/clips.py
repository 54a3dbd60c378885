"""Clips for review: stretches of a recording's sound, faded at their ends, alone or one after the other.

The only importer of pydub: cutting, fading and joining are each a word there. A clip lies in memory three times, so
it has a limit; whole recordings never pass through here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunking.audio import Pcm, write_sound
from chunking.errors import UsageError
from chunking.timeline import SAMPLE_RATE, Span
from pipeline.sound import Sound

LONGEST_S = 600.0
"""Of a clip."""
FADE_MS = 10
"""So short that no sound is lost, and long enough that a cut does not click."""
PAUSE_MS = 500
"""Silence between clips that are joined."""
BLOCK = 10 * SAMPLE_RATE
_TIMES = "83.5, 1:23, 1:02:03"


def seconds_of(text: str) -> float:
    """`83`, `83.5`, `1:23`, `1:02:03.5` → seconds. Raises UsageError."""
    found = re.fullmatch(r"(?:(?:([0-9]{1,3}):)?([0-9]{1,3}):)?([0-9]{1,7}(?:\.[0-9]{1,6})?)", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no time in a recording: {_TIMES}")
    hours, minutes, seconds = int(found[1] or 0), int(found[2] or 0), float(found[3])
    if (found[2] and seconds >= 60) or (found[1] and minutes >= 60):
        raise UsageError(f"{text!r} is no time in a recording, whose minutes have 60 seconds: {_TIMES}")
    return hours * 3600 + minutes * 60 + seconds


def stretch(start: float, end: float, around_s: float, duration_s: float) -> Span:
    """The span with a little sound around it, inside the recording and no longer than a clip may be."""
    begin = min(max(0.0, start - around_s), duration_s)
    return Span(begin, max(begin, min(end + around_s, duration_s, begin + LONGEST_S)))


def cut(sound: Sound, span: Span, channel: int | None = None) -> Pcm:
    """That stretch, faded in and out. Without `channel` the mean of all. Raises UsageError where it is too long."""
    if span.duration > LONGEST_S:
        raise UsageError(f"a clip is at most {LONGEST_S / 60:.0f} minutes long")
    piece = _segment(sound.samples(span, channel))
    fade = min(FADE_MS, len(piece) // 2)  # pydub's lengths are milliseconds
    return _samples(piece.fade_in(fade).fade_out(fade) if fade else piece)


def join(clips: Sequence[Pcm]) -> tuple[Pcm, list[float]]:
    """The clips one after the other with a pause between them, and where each begins, in seconds.

    Raises UsageError where they are too long together.
    """
    total = sum(len(c) for c in clips) / SAMPLE_RATE + PAUSE_MS / 1000 * max(0, len(clips) - 1)
    if total > LONGEST_S:
        raise UsageError(f"{total:.0f} s in one file are too long; take fewer, or a folder")
    starts: list[float] = []
    whole = _segment(np.zeros(0, np.int16))
    for clip in clips:
        if starts:
            whole += _pydub().AudioSegment.silent(PAUSE_MS, SAMPLE_RATE)
        starts.append(whole.frame_count() / SAMPLE_RATE)
        whole += _segment(clip)
    return _samples(whole), starts


def encoded(pcm: Pcm, name: str, folder: Path) -> bytes:
    """The clip as a file of the name's suffix. `folder`: for a file of this moment."""
    path = folder / f"clip{Path(name).suffix}"
    write_sound(path, _blocks(pcm))
    content = path.read_bytes()
    path.unlink()
    return content


def _blocks(pcm: Pcm) -> Iterator[Pcm]:
    for first in range(0, len(pcm), BLOCK):
        yield pcm[first : first + BLOCK]


def _segment(pcm: Pcm) -> Any:
    return _pydub().AudioSegment(pcm.tobytes(), sample_width=2, frame_rate=SAMPLE_RATE, channels=1)


def _samples(segment: Any) -> Pcm:
    return np.frombuffer(segment.raw_data, np.int16)


def _pydub() -> Any:
    with warnings.catch_warnings():  # it looks for an ffmpeg, which raw samples do not need
        warnings.simplefilter("ignore")
        import pydub
    return pydub
