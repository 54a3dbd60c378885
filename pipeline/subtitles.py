"""Turns a transcript into cues that a viewer can read in time, and cues into SRT and WebVTT files.

A transcript becomes atoms (pieces that no line break may split, each with its time), atoms become drafts (the text of
one cue, chosen over a whole run of speech by dynamic programming), drafts get their place on the screen.
pysubs2 writes the files: it knows both formats' timestamps and block rules, and needs nothing but Python.
Limits as in Netflix's timed text guide and the BBC's subtitle guidelines: two lines of 42 cells, 1 to 7 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import accumulate, pairwise

import pysubs2

from chunking.timeline import Segment, Span, Transcript
from pipeline.typography import Break, break_after, cells, clean, letters, pieces, tokens

LINE = 42
"""Display cells in a line; a wide character takes two."""
SHORTEST, LONGEST = 1.0, 7.0
"""Seconds that a cue stays, where the recording has room for it."""
SPEED = 20.0
"""Cells a second that a viewer reads. A wish: a cue lingers for it, but never takes the next one's time."""
RUN_GAP = 1.0
"""Seconds of silence that always end a cue, so that no answer shows before it is spoken."""
LATEST = 2.0
"""Seconds that a cue may be held back so that one speaker's words stay readable while another interrupts."""
FLICKER = 0.5
"""Seconds of empty screen between two cues that look like a flash; the first cue stays instead."""

_CUE_BREAK = {Break.SENTENCE: 0.0, Break.CLAUSE: 6.0, Break.SPACE: 20.0, Break.AFTER_SHORT_WORD: 24.0}
_LINE_BREAK = {Break.SENTENCE: 0.0, Break.CLAUSE: 3.0, Break.SPACE: 8.0, Break.AFTER_SHORT_WORD: 11.0}
"""What a break costs, in the unit of `_Page.cost`, where one cue more costs 10."""


@dataclass(frozen=True, slots=True)
class Cue:
    """What is on the screen from `start` to `end`, in seconds of the recording, whole milliseconds."""

    start: float
    end: float
    lines: tuple[str, ...]
    """One or two lines of text, not yet escaped for any format."""
    channel: int | None = None
    """Who speaks; None when the channels were mixed."""


@dataclass(frozen=True, slots=True)
class _Atom:
    """A piece of text that stays on one line. `rank` says how good a break after it is."""

    text: str
    span: Span
    spaced: bool
    rank: Break
    width: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """A cue before it has its place among the others; `span` is when it is spoken."""

    span: Span
    lines: tuple[str, ...]
    channel: int | None

    @property
    def reading(self) -> float:
        return max(SHORTEST, sum(cells(line) for line in self.lines) / SPEED)


def cues(transcript: Transcript) -> tuple[Cue, ...]:
    """All cues in the order of time; none overlaps another, and every word is in exactly one."""
    split = transcript.channels > 1
    channels = sorted({s.channel for s in transcript.segments}) if split else [None]
    drafts = (_drafts(transcript, channel) for channel in channels)
    return _schedule(list(merge(*drafts, key=lambda draft: draft.span.start)), transcript.duration)


def to_srt(transcript: Transcript) -> str:
    """The transcript as SubRip text; split channels are told apart by "[channel 1] "."""
    return _write(transcript, "srt")


def to_vtt(transcript: Transcript) -> str:
    """The transcript as WebVTT text; split channels are voices: `<v Channel 1>`."""
    return _write(transcript, "vtt")


# Text to atoms


def _spread(span: Span, count: int) -> list[Span]:
    step = span.duration / max(1, count)
    times = [span.start + i * step for i in range(count)]
    return [Span(a, b) for a, b in pairwise([*times, span.end])]


def _clock(segment: Segment, spelled: str) -> list[Span]:
    """When each letter is spoken: from the words where they spell the segment's text, else spread evenly over it."""
    words = [letters(clean(word.text)) for word in segment.words]
    if "".join(words) != spelled:
        return _spread(segment.span, len(spelled))
    spans = [_spread(Span(w.start, w.end), len(text)) for w, text in zip(segment.words, words, strict=True)]
    return [letter for word in spans for letter in word]


def _atoms(segment: Segment, room: int) -> Iterator[_Atom]:
    text = clean(segment.text)
    clock = _clock(segment, letters(text))
    parts = [(piece, i == 0) for token in tokens(text, room) for i, piece in enumerate(pieces(token, room))]
    done = 0
    for index, (part, spaced) in enumerate(parts):
        begun, done = done, done + len(letters(part))
        rank = min(break_after(part), Break.CLAUSE if index == len(parts) - 1 else Break.AFTER_SHORT_WORD)
        yield _Atom(part, Span(clock[begun].start, clock[done - 1].end), spaced, rank, max(1, cells(part)))


def _in_order(atoms: Iterator[_Atom], duration: float) -> Iterator[_Atom]:
    """The atoms with times that never run backwards nor leave the recording, whatever the model said."""
    now = 0.0
    for atom in atoms:
        now = min(max(now, atom.span.start), max(0.0, duration))  # in this order, NaN counts as `now`
        end = min(max(now, atom.span.end), max(0.0, duration))
        yield replace(atom, span=Span(now, end))


# Atoms to drafts


@dataclass(frozen=True, slots=True)
class _Page:
    """A run of speech without a long silence, measured: `left` and `right` are where each atom begins and ends."""

    atoms: tuple[_Atom, ...]
    label: int
    """Cells of the first line that the channel's label takes."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    ends: tuple[int, ...]
    """How many sentences end before each atom."""

    @classmethod
    def of(cls, atoms: Sequence[_Atom], label: int) -> _Page:
        left, right, at = [], [], 0
        for atom in atoms:
            left.append(at + atom.spaced)
            at = left[-1] + atom.width
            right.append(at)
        ends = accumulate((atom.rank is Break.SENTENCE for atom in atoms), initial=0)
        return cls(tuple(atoms), label, tuple(left), tuple(right), tuple(ends))

    def width(self, a: int, b: int) -> int:
        return self.right[b - 1] - self.left[a]

    def text(self, a: int, b: int) -> str:
        return "".join(" " * atom.spaced + atom.text for atom in self.atoms[a:b]).removeprefix(" ")

    def reach(self, room: int) -> list[int]:
        """For each atom, the end of the longest line that begins with it."""
        ends, b = [], 0
        for a in range(len(self.atoms)):
            b = max(b, a + 1)
            while b < len(self.atoms) and self.width(a, b + 1) <= room:
                b += 1
            ends.append(b)
        return [*ends, len(self.atoms)]

    def cost(self, a: int, b: int) -> float:
        """How much a viewer minds a cue of atoms `a` to `b`. Best: few, full, unhurried, ended where the sense is."""
        first, last = self.atoms[a], self.atoms[b - 1]
        total = 10.0 + 10.0 * (1.0 - self.width(a, b) / (2 * LINE)) ** 2
        total += 22.0 * (self.ends[b - 1] - self.ends[a])
        if b == len(self.atoms):
            return total
        following = self.atoms[b].span.start
        slot = following - first.span.start
        total += 20.0 + 20.0 * (SHORTEST - slot) if slot < SHORTEST else 0.0
        return total + _CUE_BREAK[last.rank] - 6.0 * (following - last.span.end)

    def cuts(self) -> list[int]:
        """Where cues begin, and the end: the cheapest division into cues that fit in two lines and 7 s."""
        one, two = self.reach(LINE - self.label), self.reach(LINE)
        best, begin = [0.0], [0]
        for b in range(1, len(self.atoms) + 1):
            best.append(float("inf"))
            begin.append(b - 1)
            for a in range(b - 1, -1, -1):
                long = self.atoms[b - 1].span.end - self.atoms[a].span.start > LONGEST
                if b - a > 1 and (long or two[one[a]] < b):
                    break
                if (cost := best[a] + self.cost(a, b)) < best[b]:
                    best[b], begin[b] = cost, a
        cuts = [len(self.atoms)]
        while cuts[-1]:
            cuts.append(begin[cuts[-1]])
        return cuts[::-1]

    def lines(self, a: int, b: int) -> tuple[str, ...]:
        """One line where the text fits, else the two that break best and are most alike in length."""
        if self.width(a, b) + self.label <= LINE:
            return (self.text(a, b),)
        fits = [k for k in range(a + 1, b) if max(self.width(a, k) + self.label, self.width(k, b)) <= LINE]
        k = min(fits, key=lambda k: self._unbalance(a, k, b))
        return self.text(a, k), self.text(k, b)

    def _unbalance(self, a: int, k: int, b: int) -> float:
        upper, lower = self.width(a, k) + self.label, self.width(k, b)
        orphan = any(self.width(i, j) <= 10 and " " not in self.text(i, j) for i, j in ((a, k), (k, b)))
        return _LINE_BREAK[self.atoms[k - 1].rank] + 10.0 * abs(upper - lower) / LINE + (upper > lower) + 50.0 * orphan


def _drafts(transcript: Transcript, channel: int | None) -> list[_Draft]:
    label = 0 if channel is None else cells(_label(channel))
    spoken = (a for s in transcript.segments if channel in (None, s.channel) for a in _atoms(s, LINE - label))
    runs: list[list[_Atom]] = []
    for atom in _in_order(spoken, transcript.duration):
        if not runs or atom.span.start - runs[-1][-1].span.end > RUN_GAP:
            runs.append([])
        runs[-1].append(atom)
    drafts = []
    for page in (_Page.of(run, label) for run in runs):
        for a, b in pairwise(page.cuts()):
            span = Span(page.atoms[a].span.start, page.atoms[b - 1].span.end)
            drafts.append(_Draft(span, page.lines(a, b), channel))
    return drafts


# Drafts to cues


def _schedule(drafts: Sequence[_Draft], duration: float) -> tuple[Cue, ...]:
    """A place on the screen for each draft, in whole milliseconds, so that nothing written to a file can overlap.

    A cue begins when it is spoken, or a little later where the one before it needs the time. A recording too short for
    a second per cue is shared out evenly, down to a millisecond each."""
    limit = max(int(duration * 1000 + 0.001), len(drafts))
    least = min(int(SHORTEST * 1000), limit // max(1, len(drafts)))
    starts: list[int] = []
    for index, draft in enumerate(drafts):
        start = round(draft.span.start * 1000)
        if starts:
            before = drafts[index - 1]
            wanted = starts[-1] + int(1000 * min(before.reading, before.span.duration))
            start = max(start, starts[-1] + least, min(wanted, start + int(LATEST * 1000)))
        starts.append(start)
    starts = [min(start, limit - least * (len(drafts) - i)) for i, start in enumerate(starts)]
    placed = []
    for draft, start, following in zip(drafts, starts, [*starts, limit][1:], strict=True):
        end = max(round(draft.span.end * 1000), start + int(1000 * draft.reading))
        end = following if following - end < FLICKER * 1000 else end  # also where there is no time to linger
        end = min(end, start + int(LONGEST * 1000))
        placed.append(Cue(start / 1000, end / 1000, draft.lines, draft.channel))
    return tuple(placed)


# Cues to files


def _label(channel: int) -> str:
    return f"[channel {channel + 1}] "


_WORD_JOINER = "\u2060"  # invisible, without width: keeps what is not markup from being read as such
_STAND_INS = str.maketrans("{}\\", "\x01\x02\x03")
_MEANT = str.maketrans("\x01\x02\x03", "{}\\")


def _unmistakable(text: str) -> str:
    """Text that no reader takes for a timing line or a cue number."""
    text = re.sub(r"(:\d{1,2})(?=[.,]\d)", rf"\1{_WORD_JOINER}", text)
    return re.sub(r"(?m)^(\d+)$", rf"\1{_WORD_JOINER}", text)


def _srt(text: str) -> str:
    """SRT has no escapes. Word joiners keep players from seeing tags; braces, which FFmpeg and libass read as styling
    even so, become their wide look-alikes (libavcodec/htmlsubtitles.c passes them on as they are)."""
    text = re.sub(r"[<\\]|--(?=>)", rf"\g<0>{_WORD_JOINER}", _unmistakable(text))
    return text.replace("{", "｛").replace("}", "｝")


def _vtt(text: str) -> str:
    return _unmistakable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _write(transcript: Transcript, kind: str) -> str:
    """pysubs2 takes braces and backslashes for ASS styling, so control characters, which no cue has, stand in."""
    file = pysubs2.SSAFile()
    for cue in cues(transcript):
        text = "\n".join(cue.lines)
        who = "" if cue.channel is None else _label(cue.channel) if kind == "srt" else f"<v Channel {cue.channel + 1}>"
        text = who + (_srt(text) if kind == "srt" else _vtt(text))
        times = (pysubs2.make_time(s=cue.start), pysubs2.make_time(s=cue.end))
        file.append(pysubs2.SSAEvent(*times, text=text.translate(_STAND_INS)))
    return file.to_string(kind).translate(_MEANT)
