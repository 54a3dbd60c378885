"""Whether the two channels of a recording carry two speakers, or one sound twice. Pure."""

from __future__ import annotations

from typing import Literal

from chunking.planner import Track
from chunking.timeline import Span, total

Choice = Literal["split", "mix", "left", "right"]

_ALIKE = 0.6
"""Of the speech of the channel that has less of it, the part that may be at the same time as the other's. In calls
people talk at once a tenth of the time; in a stereo recording of one room both channels have the same speech."""
_LITTLE_S = 0.5


def choice(left: Track, right: Track) -> Choice:
    """How to read a stereo recording: each channel on its own, both as one, or the only one that has speech."""
    said = total(left.speech), total(right.speech)
    if min(said) < _LITTLE_S:
        if max(said) < _LITTLE_S:
            return "mix"
        return "left" if said[0] > said[1] else "right"
    return "mix" if _shared(left.speech, right.speech) > _ALIKE * min(said) else "split"


def _shared(first: tuple[Span, ...], second: tuple[Span, ...]) -> float:
    """Seconds that both have, each of them in order and apart."""
    shared, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        shared += first[i].overlap(second[j])
        if first[i].end < second[j].end:
            i += 1
        else:
            j += 1
    return shared
