"""Where somebody speaks: 16 kHz PCM → Silero's speech probability per frame → spans of speech.

The only importer of onnxruntime. Silero VAD because it finds more speech and less noise than energy or WebRTC's
detector at 3.6 core-seconds per hour of audio; its ONNX file is read by path, since importing the package needs torch.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from chunking.timeline import SAMPLE_RATE, Span

FRAME = 512
"""Samples per probability: 32 ms at 16 kHz (silero_vad/sequence_vad.py, RATE_CONFIG)."""
CONTEXT = 64
"""Samples of the frame before that the model sees as well (same place)."""
FRAME_S = FRAME / SAMPLE_RATE
FRAMES_PER_CALL = 512

Samples = npt.NDArray[np.int16]
Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """How probabilities become spans. Defaults are Silero's own but for the pauses, which are kept short.

    A pause of 100 ms is a place where a chunk may end without cutting a word; Silero's default joins it to speech.
    """

    threshold: float = 0.5
    """Speech begins at this probability …"""
    hysteresis: float = 0.15
    """… and goes on while it stays above `threshold - hysteresis`."""
    min_speech_s: float = 0.1
    """Shorter bursts are clicks."""
    min_alone_s: float = 0.25
    """Silero's own least duration, for a burst with no other speech within `near_s`: of less a model makes up words."""
    near_s: float = 1.0
    min_pause_s: float = 0.1
    pad_s: float = 0.03
    """Added to both ends: the model reacts a frame late."""


class SpeechDetector:
    """Silero's sequence model: one call for many frames, which leaves Python's lock alone. Safe to share by threads."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(model_path()), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._lock = threading.Lock()

    def probabilities(self, blocks: Iterable[Samples]) -> Probabilities:
        """Speech probability per 32 ms frame of a whole recording, read block by block.

        `blocks` are consecutive int16 samples at 16 kHz of any lengths. The last frame is filled up with silence.
        """
        found: list[Probabilities] = []
        state: tuple[Any, Any] = (np.zeros((1, 1, 128), np.float32), np.zeros((1, 1, 128), np.float32))
        context = np.zeros(CONTEXT, np.float32)
        for frames in _frames(blocks):
            contexts = np.empty((len(frames), CONTEXT), np.float32)
            contexts[0] = context
            contexts[1:] = frames[:-1, -CONTEXT:]
            context = frames[-1, -CONTEXT:]
            inputs = np.concatenate((contexts, frames), axis=1)
            probabilities, *state_out = self._session.run(None, {"input": inputs, "h": state[0], "c": state[1]})
            state = (state_out[0], state_out[1])
            found.append(probabilities)
        return np.concatenate(found) if found else np.zeros(0, np.float32)


def model_path() -> Path:
    """Silero's ONNX file inside its installed package, found without importing the package."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package silero-vad is not installed")
    return Path(spec.submodule_search_locations[0]) / "data" / "silero_vad_16k_sequence.onnx"


def spans(probabilities: Probabilities, duration: float, options: SpeechOptions | None = None) -> tuple[Span, ...]:
    """Spans of speech, in order and apart, inside [0, duration]. Seconds."""
    o = options or SpeechOptions()
    found: list[Span] = []
    for first, last in _runs(probabilities, o.threshold, o.threshold - o.hysteresis):
        start, end = first * FRAME_S, last * FRAME_S
        if found and start - found[-1].end < o.min_pause_s:
            found[-1] = Span(found[-1].start, end)
        else:
            found.append(Span(start, end))
    kept = _without_islands([s for s in found if s.duration >= o.min_speech_s], o)
    return tuple(_padded(kept, o.pad_s, duration))


def _frames(blocks: Iterable[Samples]) -> Iterable[npt.NDArray[np.float32]]:
    """Blocks of any length → arrays of shape (up to FRAMES_PER_CALL, FRAME), float32 in [-1, 1)."""
    size = FRAME * FRAMES_PER_CALL
    rest = np.zeros(0, np.int16)
    for block in blocks:
        rest = np.concatenate((rest, block)) if rest.size else block
        while rest.size >= size:
            yield rest[:size].astype(np.float32).reshape(-1, FRAME) / 32768.0
            rest = rest[size:]
    if rest.size:
        padded = np.zeros(-(-rest.size // FRAME) * FRAME, np.float32)
        padded[: rest.size] = rest
        yield padded.reshape(-1, FRAME) / 32768.0


def _runs(probabilities: Probabilities, enter: float, leave: float) -> Iterable[tuple[int, int]]:
    """Frames [first, last) of each run that rises above `enter` and stays at or above `leave`."""
    above = np.flatnonzero(np.diff(np.concatenate(([0], probabilities >= leave, [0])).astype(np.int8)))
    for first, last in above.reshape(-1, 2):
        risen = np.flatnonzero(probabilities[first:last] >= enter)
        if risen.size:
            yield int(first + risen[0]), int(last)


def _without_islands(found: list[Span], o: SpeechOptions) -> list[Span]:
    """Without short bursts far from any other speech."""
    kept = []
    for i, s in enumerate(found):
        before = s.start - found[i - 1].end if i else o.near_s
        after = found[i + 1].start - s.end if i + 1 < len(found) else o.near_s
        if s.duration >= o.min_alone_s or min(before, after) < o.near_s:
            kept.append(s)
    return kept


def _padded(spans_in: list[Span], pad: float, duration: float) -> Iterable[Span]:
    for i, s in enumerate(spans_in):
        before = spans_in[i - 1].end if i else -2 * pad
        after = spans_in[i + 1].start if i + 1 < len(spans_in) else duration + 2 * pad
        start = max(0.0, s.start - min(pad, (s.start - before) / 2))
        end = min(duration, s.end + min(pad, (after - s.end) / 2))
        if end > start:
            yield Span(start, end)
