"""Where decoded audio belongs on the recording's time line, how much of it is missing, and whether to believe a header.

Pure: it sees seconds and bytes, no media. A container's clock decides about gaps; where a format has none, the bytes
that were skipped do. Audio is never dropped because of a time stamp: losing speech is worse than a shifted second.
"""

from __future__ import annotations

from chunking.containers import CONTINUOUS, UNTIMED, Promise

GAP_S = 0.1
"""Time stamps may disagree with the count of samples by this much: encoder delay and rounding are below it."""
_BACK_S = 2.0
"""A clock that falls this far behind the samples has been set back: it is read anew from there."""
_UNKNOWN_GAP_S = 600.0
"""The longest gap to believe in a container that does not say how long it is."""
_SHORT_S, _SHORT = 0.3, 0.02
"""Seconds, and part of the whole, that may be missing at the end of a complete file."""
_MOST_LOSSES = 500
"""Losses that are told one by one; the report has to stay small, whatever the file."""
_BELIEVED = 8.0
"""A header that claims more than this many times what is there is wrong, unless the file breaks off inside a packet."""


class Clock:
    """Counts what one recording's decoding yields. `position` is the end of the time line so far, in seconds."""

    def __init__(self) -> None:
        self.position = 0.0
        self.decoded = 0.0
        self.silence = 0.0
        self.start = 0.0
        self.lost: list[tuple[float, float]] = []
        """Where the silence on the time line stands for audio that could not be decoded. Seconds, in order, apart."""
        self.packets = 0
        self.errors = 0
        self.first: int | None = None
        """Bytes: where the first good packet lies."""
        self.end = 0
        """Bytes: where the last good packet ends."""
        self.other_tracks_end = 0.0
        self._good_bytes = 0
        self._bad_bytes = 0
        self._skipped = 0  # bytes between the last two good packets
        self._owed = 0.0  # seconds of skipped bytes that are no silence yet
        self._cut = False  # the last packet failed
        self._unpaid = False  # packets failed, and no gap has stood for them yet

    def begin(self, container: str, start: float, length: float | None) -> None:
        """A container begins here (or a link of a chained one): its own clock starts at `start`."""
        self._untimed = container in UNTIMED
        self._continuous = container in CONTINUOUS
        self._by_bytes = container == "matroska,webm"
        self._shift = self.position - start
        self._latest = None if length is None else self.position + length + 1.0

    def other_track(self, begins: float, ends: float, last_byte: int) -> None:
        """Note a packet of another track. It may show that the container's clock starts earlier than was said."""
        if not self.decoded:
            self._shift = max(self._shift, self.position - begins)
        self.other_tracks_end = max(self.other_tracks_end, ends + self._shift)
        self.end = max(self.end, last_byte)

    def packet_failed(self, size: int) -> None:
        self.errors += 1
        self._bad_bytes += size
        self._cut = self._unpaid = True

    def packet_decoded(self, at: int | None, size: int, *, after_tag: bool) -> float:
        """Count a good packet; returns the seconds of silence to insert before it for audio bytes that were skipped."""
        self.packets += 1
        self._cut = False
        if at is not None:
            skipped = at - self.end if self.first is not None else 0
            if self._untimed and skipped > 0 and self.decoded and not after_tag:
                self._owed += skipped * self.decoded / self._good_bytes
            self._skipped = skipped
            self.first = at if self.first is None else self.first
            self.end = at + size
        self._good_bytes += size
        if self._owed < GAP_S:
            return 0.0
        owed, self._owed = self._owed, 0.0
        return self._insert(owed, damage=True)

    def frame_begins(self, time: float | None) -> float:
        """Heed a frame's time stamp; returns the seconds of silence to insert before the frame."""
        if time is None or self._untimed:
            return 0.0
        ahead = self.position - (time + self._shift)
        if -GAP_S <= ahead <= _BACK_S:
            return 0.0
        latest = self.position + _UNKNOWN_GAP_S if self._latest is None else self._latest
        if ahead < 0 and self.position - ahead <= latest:
            return self._insert(-ahead, damage=self.decoded > 0 and (self._unpaid or self._had_audio(-ahead)))
        self._shift += ahead
        return 0.0

    def _had_audio(self, gap: float) -> bool:
        """Whether a gap in the time stamps held audio once. Matroska can pause, but then it skips no bytes."""
        skipped = self._by_bytes and 2 * self._skipped > gap * self._good_bytes / self.decoded
        return self._continuous or skipped

    def frame_ends(self, seconds: float) -> None:
        self.position += seconds
        self.decoded += seconds

    def _insert(self, seconds: float, *, damage: bool) -> float:
        if not self.decoded:
            self.start = seconds
        if damage:
            self._lose(self.position, self.position + seconds)
            self._unpaid = False
        self.position += seconds
        self.silence += seconds
        return seconds

    def _lose(self, start: float, end: float) -> None:
        """Note a loss; one that follows close, or after very many, joins the one before it."""
        if self.lost and (start - self.lost[-1][1] < GAP_S or len(self.lost) >= _MOST_LOSSES):
            self.lost[-1] = (self.lost[-1][0], end)
        else:
            self.lost.append((start, end))

    @property
    def is_noise(self) -> bool:
        """Whether chance, not a recording, made a few packets of this file decode."""
        return self.errors > 20 and self._bad_bytes > 20 * self._good_bytes

    @property
    def damaged(self) -> bool:
        return sum(end - start for start, end in self.lost) >= GAP_S

    def is_short(self, promise: Promise, size: int) -> bool:
        """Whether the audio ends before the promised second because the file was cut, not for a wrong promise."""
        if promise.seconds is None or self._short_of(promise.seconds, self.position):
            return False
        if promise.bytes is not None:
            return size < (1 - _SHORT) * promise.bytes <= _BELIEVED * size
        if self.other_tracks_end and self._short_of(promise.seconds, self.other_tracks_end):
            return False
        return self._cut or promise.seconds <= _BELIEVED * self.position

    def believes(self, promise: Promise) -> bool:
        """Whether what was decoded does not make nonsense of the promise."""
        end = self.position
        return (
            promise.seconds is not None and self._short_of(end, promise.seconds) and promise.seconds <= _BELIEVED * end
        )

    @staticmethod
    def _short_of(promised: float, end: float) -> bool:
        """Whether so little is missing that the file is complete."""
        return promised - end < max(_SHORT_S, _SHORT * promised)
