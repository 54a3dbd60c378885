"""Whisper on CTranslate2: log-mel features, batched decoding, languages, word times.

The only importer of ctranslate2 and faster_whisper. CTranslate2 because it decodes INT8 on CPU and GPU, takes batches
and input shorter than 30 s; of faster-whisper only the tokenizer and the features, since its batched pipeline loses
segments and holds all features at once. Their errors become ours here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import ctranslate2
import numpy as np
import numpy.typing as npt
import tokenizers
from faster_whisper.feature_extractor import FeatureExtractor
from faster_whisper.tokenizer import _LANGUAGE_CODES, Tokenizer
from faster_whisper.transcribe import get_suppressed_tokens

from chunking.errors import DeviceLost, OutOfMemory, PermanentError, UsageError
from chunking.timeline import SAMPLE_RATE, Word
from pipeline.settings import Settings

FRAMES_PER_SECOND = 100
"""Log-mel frames: one per 10 ms (openai/whisper, audio.py HOP_LENGTH)."""
TIMESTAMP_S = 0.02
"""What one timestamp token counts (openai/whisper, tokenizer.py); also one step of the encoder's output."""
TOKENS_PER_SECOND = 12
"""Nobody speaks more: with SPARE_TOKENS the limit of a decoding. A run into it is a loop."""
SPARE_TOKENS = 40
LONGEST_TEXT = 224
"""Whisper's own limit of tokens (half its text context of 448)."""
LANGUAGES: tuple[str, ...] = tuple(_LANGUAGE_CODES)

Floats = npt.NDArray[np.float32]
Samples = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One window to decode."""

    features: Floats
    """(n_mels, 100 × window) log-mel."""
    window: float
    duration: float
    """Seconds of sound in the window; the rest is padding."""
    language: str
    task: str = "transcribe"
    temperature: float = 0.0
    words: bool = False
    """Word times as well."""


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

    def features(self, samples: Samples, window: float) -> Floats:
        """int16 at 16 kHz → (n_mels, 100 × window), padded with silence."""
        ...

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        """One answer for each. All have the same window and temperature."""
        ...

    def languages(self, features: Sequence[Floats]) -> list[dict[str, float]]:
        """Probability of each language for each window."""
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the model is run. Nothing here changes words but the compute type and the beam."""

    device: str = "auto"
    compute_type: str = "int8"
    parallel: int = 1
    """CTranslate2 workers. On CPU two of one thread beat one of two by a third: short matrices do not share well."""
    threads: int = 0
    """Threads of each worker; 0: as many as fit."""
    beam_size: int = 1


def engine_options(settings: Settings, device: str, compute_type: str, beam_size: int) -> EngineOptions:
    """How to run the model on this machine.

    On CPU as many workers of one thread as there are cores, up to four: on two cores that is a third faster than one
    worker of two threads (ARCHITECTURE.md). On a GPU one.
    """
    if device == "auto":
        device = "cuda" if cuda_devices() else "cpu"
    if device == "cuda":
        return EngineOptions("cuda", compute_type, 1, 0, beam_size)
    workers = min(settings.cores, 4)
    return EngineOptions("cpu", compute_type, workers, max(1, settings.cores // workers), beam_size)


def default_batch_size(options: EngineOptions) -> int:
    """64 on a GPU. On CPU 16 for each worker: with 8 the decoder takes a tenth longer, with 24 hardly less, and a kill
    costs at most a batch."""
    return 64 if options.device == "cuda" else 16 * options.parallel


class WhisperEngine:
    """A Whisper model in CTranslate2 form. Raises UsageError where the directory or the device do not fit."""

    def __init__(self, model: Path, options: EngineOptions) -> None:
        self.parallel = options.parallel
        self._beam_size = options.beam_size
        try:
            self._model = ctranslate2.models.Whisper(
                str(model),
                device=options.device,
                compute_type=options.compute_type,
                inter_threads=options.parallel,
                intra_threads=options.threads,
            )
        except (RuntimeError, ValueError) as e:
            raise UsageError(_plain(e, model, options)) from e
        self.device: str = self._model.device
        ctranslate2.set_random_seed(0)  # decoding with temperature draws by chance: the same each time
        self.multilingual: bool = self._model.is_multilingual
        self._extractor = FeatureExtractor(feature_size=self._model.n_mels)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizers: dict[tuple[str, str], Tokenizer] = {}
        tokenizer = self._prompted("en", "transcribe")
        self._suppressed = list(get_suppressed_tokens(tokenizer, [-1]))

    def features(self, samples: Samples, window: float) -> Floats:
        frames = round(window * FRAMES_PER_SECOND)
        sound: Floats = samples[: round(window * SAMPLE_RATE)].astype(np.float32) / 32768.0
        if sound.size < self._extractor.n_fft:
            sound = np.pad(sound, (0, self._extractor.n_fft - sound.size))
        found = self._extractor(sound)[:, :frames]
        # Padding the sound with zeros would come to the same: silence is the floor that the maximum sets (audio.py).
        padded = np.full((found.shape[0], frames), max(found.max() - 2.0, -1.5), np.float32)
        padded[:, : found.shape[1]] = found
        return padded

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        prompted = [self._prompted(a.language, a.task) for a in asks]
        limit = max(_token_limit(a.duration) for a in asks)
        temperature = asks[0].temperature
        try:
            encoded = self._encode([a.features for a in asks])
            results = self._model.generate(
                encoded,
                [t.sot_sequence for t in prompted],
                beam_size=1 if temperature else self._beam_size,
                max_length=2 * limit,  # CTranslate2 halves it
                return_scores=True,
                return_no_speech_prob=True,
                suppress_tokens=self._suppressed,
                sampling_topk=0 if temperature else 1,
                sampling_temperature=temperature or 1.0,
            )
            timed = self._align(encoded, asks, [r.sequences_ids[0] for r in results])
        except (RuntimeError, ValueError) as e:
            raise _translated(e) from e
        return [self._answer(a, t, r, w) for a, t, r, w in zip(asks, prompted, results, timed, strict=True)]

    def languages(self, features: Sequence[Floats]) -> list[dict[str, float]]:
        if not self.multilingual:
            return [{"en": 1.0} for _ in features]
        found = self._model.detect_language(self._encode(features))
        return [{token.strip("<|>"): probability for token, probability in one} for one in found]

    def _encode(self, features: Sequence[Floats]) -> Any:
        """The windows' encoder output, (windows, 50 × window, width).

        On CPU one after the other: together they gain nothing, fall out of the caches (windows of 20 s take a third
        longer at a batch of 4), and their attention needs memory by the square of the window, each.
        """
        if self._model.device != "cpu":
            return self._model.encode(ctranslate2.StorageView.from_array(np.ascontiguousarray(np.stack(features))))
        views = [ctranslate2.StorageView.from_array(np.ascontiguousarray(f[np.newaxis])) for f in features]
        encoded = [np.array(self._model.encode(view), copy=False) for view in views]
        return ctranslate2.StorageView.from_array(np.concatenate(encoded))

    def _prompted(self, language: str, task: str) -> Tokenizer:
        key = (language, task)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizer(self._tokenizer, self.multilingual, task=task, language=language)
        return self._tokenizers[key]

    def _answer(self, ask: Ask, tokenizer: Tokenizer, result: Any, words: tuple[Word, ...]) -> Answer:
        tokens = result.sequences_ids[0]
        pieces, closed = _pieces(tokens, tokenizer, ask.duration)
        return Answer(
            pieces=_with_words(pieces, words) if words else pieces,
            tokens=len(tokens),
            # CTranslate2 gives the mean over the tokens; Whisper counts the end token too (transcribe.py).
            avg_logprob=result.scores[0] * len(tokens) / (len(tokens) + 1),
            no_speech_prob=result.no_speech_prob,
            temperature=ask.temperature,
            hit_limit=len(tokens) >= _token_limit(ask.duration),
            closed=closed,
        )

    def _align(self, encoded: Any, asks: Sequence[Ask], tokens: Sequence[list[int]]) -> list[tuple[Word, ...]]:
        """Word times by cross-attention, for a whole batch where any of it wants them (openai/whisper, timing.py)."""
        none: list[tuple[Word, ...]] = [() for _ in asks]
        if not any(a.words for a in asks):
            return none
        found = none
        prompts = [self._prompted(a.language, a.task).sot_sequence for a in asks]
        for prompt, _ in groupby(sorted(prompts)):
            tokenizer = next(t for t in self._tokenizers.values() if t.sot_sequence == prompt)
            texts = [[t for t in ts if t < tokenizer.eot] for ts in tokens]
            frames = [min(a.features.shape[1], round(a.duration * FRAMES_PER_SECOND)) for a in asks]
            results = self._model.align(encoded, prompt, [t or [tokenizer.eot] for t in texts], frames)
            for i, ask in enumerate(asks):
                if ask.words and texts[i] and prompts[i] == prompt:
                    found[i] = _words(tokenizer, texts[i], results[i])
        return found


def _token_limit(duration: float) -> int:
    return min(LONGEST_TEXT, round(duration * TOKENS_PER_SECOND) + SPARE_TOKENS)


def _pieces(tokens: Sequence[int], tokenizer: Tokenizer, duration: float) -> tuple[tuple[Piece, ...], bool]:
    """Tokens → text between timestamps, clipped to the sound; and whether the last piece was closed by one."""
    pieces: list[Piece] = []
    start, text = 0.0, list[int]()
    for token in tokens:
        if token < tokenizer.timestamp_begin:
            text.append(token)
            continue
        at = (token - tokenizer.timestamp_begin) * TIMESTAMP_S
        if text:
            pieces.append(_piece(start, at, tokenizer.decode(text), duration))
            text = []
        start = at
    if text:
        pieces.append(_piece(start, duration, tokenizer.decode(text), duration))
    return tuple(p for p in pieces if p.text), not text


def _piece(start: float, end: float, text: str, duration: float) -> Piece:
    start = min(start, duration)
    return Piece(start, min(max(end, start), duration), text.strip())


def _words(tokenizer: Tokenizer, tokens: list[int], result: Any) -> tuple[Word, ...]:
    """One window's alignment → words, punctuation joined to its word. Seconds of the window."""
    texts, parts = tokenizer.split_to_word_tokens([*tokens, tokenizer.eot])
    if len(parts) <= 1 or not result.alignments:
        return ()
    pairs = np.array(result.alignments)
    jumps = np.concatenate(([True], np.diff(pairs[:, 0]) > 0))
    times = pairs[jumps, 1] * TIMESTAMP_S
    edges = np.concatenate(([0], np.cumsum([len(p) for p in parts[:-1]])))
    words: list[Word] = []
    for text, first, last in zip(texts[:-1], edges[:-1], edges[1:], strict=True):
        probability = float(np.mean(result.text_token_probs[first:last]))
        word = Word(float(times[first]), float(times[last]), text, probability)
        if words and not any(ch.isalnum() for ch in text):
            words[-1] = Word(words[-1].start, words[-1].end, words[-1].text + text, words[-1].probability)
        else:
            words.append(word)
    return tuple(words)


def _with_words(pieces: tuple[Piece, ...], words: Sequence[Word]) -> tuple[Piece, ...]:
    """Share the words of a window out to its pieces: by their letters, since both are the same text."""
    out, at = [], 0
    for piece in pieces:
        letters, mine = _letters(piece.text), list[Word]()
        while at < len(words) and letters > 0:
            mine.append(words[at])
            letters -= _letters(words[at].text)
            at += 1
        out.append(Piece(piece.start, piece.end, piece.text, tuple(mine)))
    return tuple(out)


def _letters(text: str) -> int:
    return sum(not ch.isspace() for ch in text)


def compute_types(device: str) -> list[str]:
    """Precisions that this machine's `cpu` or `cuda` can compute in."""
    return sorted(ctranslate2.get_supported_compute_types(device))


def cuda_devices() -> int:
    """GPUs that CTranslate2 can use."""
    return int(ctranslate2.get_cuda_device_count())


def _plain(error: Exception, model: Path, options: EngineOptions) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "compute type" in text:
        device = "cuda" if options.device != "cpu" and cuda_devices() else "cpu"
        possible = ", ".join(compute_types(device))
        return f"this {device} cannot compute in {options.compute_type}; it can in {possible}"
    return f"the model in {model} cannot be loaded: {text}"


_DEVICE = ("cuda", "cublas", "cudnn", "device")
"""What an error speaks of when the device, and not the input, is at fault."""


def _translated(error: Exception) -> Exception:
    text = str(error)
    if ("memory" in text.lower() and "illegal" not in text.lower()) or "ALLOC_FAILED" in text:
        return OutOfMemory(f"the device is out of memory: {text}")
    if any(word in text.lower() for word in _DEVICE):
        return DeviceLost(f"the device failed: {text}")
    return PermanentError(f"the engine failed: {text}")
