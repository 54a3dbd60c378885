"""The model behind a fence: what it is asked, what it answers, and nothing of how it is run.

`whisper.py` is the real one; `paced.py` and the tests have others that hold to the same protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chunking.timeline import Word

Floats = npt.NDArray[np.float32]
Samples = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """What the encoder made of one window, in the host's memory. It stands for the window's features."""

    output: Floats
    """(1, 50 × window, width)"""


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """One window, listened to: how probable each language is, and the encoder's output, to be decoded from."""

    languages: Mapping[str, float]
    encoded: Encoded


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One window to decode."""

    features: Floats | Encoded
    """(n_mels, 100 × window) log-mel, or what the encoder made of it."""
    window: float
    duration: float
    """Seconds of sound in the window; the rest is padding."""
    language: str
    task: str = "transcribe"
    temperature: float = 0.0
    words: bool = False
    """Word times as well."""
    prompt: tuple[int, ...] = ()
    """Tokens that stand before the window's, as if they had just been said; `Engine.prompt` makes them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text between two timestamps, in seconds of the window."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model made of one window."""

    pieces: tuple[Piece, ...]
    tokens: int
    avg_logprob: float
    no_speech_prob: float
    temperature: float = 0.0
    hit_limit: bool = False
    closed: bool = True
    """The model ended with a timestamp; else the end of the last piece is only the end of the sound."""

    @property
    def text(self) -> str:
        return " ".join(p.text for p in self.pieces)


class Engine(Protocol):
    """A model behind a fence: the real one below, a fake for tests of everything around it."""

    parallel: int
    """Calls of `decode` that run side by side."""
    multilingual: bool
    device: str
    """What it runs on, in words: batch limits are remembered for it."""
    compute_type: str
    """What it really computes in, whatever was asked for."""

    def features(self, samples: Samples, window: float) -> Floats:
        """int16 at 16 kHz → (n_mels, 100 × window), padded with silence."""
        ...

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        """One answer for each. All have the same window, temperature and length of prompt."""
        ...

    def prompt(self, text: str) -> tuple[int, ...]:
        """A cleaned text (prompts.py) as tokens for `Ask.prompt`. Raises PermanentError where they are too many."""
        ...

    def listen(self, features: Sequence[Floats]) -> list[Heard]:
        """Which language each window may be in, without decoding it. All are of the same length."""
        ...
