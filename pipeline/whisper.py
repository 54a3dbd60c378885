"""Whisper on CTranslate2: log-mel features, batched decoding, languages, word times.

With `devices.py` the only importer of ctranslate2, with `tokens.py` the only one of faster_whisper (`models.py` has
its names of models). CTranslate2 because it decodes INT8 on CPU and GPU, takes batches and input shorter than 30 s; of
faster-whisper only the tokenizer and the features, since its batched pipeline loses segments and holds all features
at once. Their errors become ours here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import tokenizers
from faster_whisper.feature_extractor import FeatureExtractor
from faster_whisper.tokenizer import _LANGUAGE_CODES, Tokenizer
from faster_whisper.transcribe import get_suppressed_tokens

from chunking.errors import DeviceLost, OutOfMemory, PermanentError, UsageError
from chunking.timeline import SAMPLE_RATE
from pipeline.devices import EngineOptions, gpu_name
from pipeline.engine import Answer, Ask, Encoded, Floats, Heard, Samples
from pipeline.prompts import prompt_tokens
from pipeline.tokens import pieces_of, with_words

FRAMES_PER_SECOND = 100
"""Log-mel frames: one per 10 ms (openai/whisper, audio.py HOP_LENGTH)."""
TOKENS_PER_SECOND = 12
"""Nobody speaks more: with SPARE_TOKENS the limit of a decoding. A run into it is a loop."""
SPARE_TOKENS = 40
TEXT_CONTEXT = 448
"""Tokens that the decoder sees at most, prompt and all (openai/whisper, model.py n_text_ctx)."""
LONGEST_TEXT = TEXT_CONTEXT // 2
"""Whisper's own limit of tokens (decoding.py, sample_len)."""
MARKS = 4
"""Tokens around a prompt: that it begins, that the transcript begins, its language, its task."""
LANGUAGES: tuple[str, ...] = tuple(_LANGUAGE_CODES)


class WhisperEngine:
    """A Whisper model in CTranslate2 form. Raises UsageError where the directory or the device do not fit."""

    def __init__(self, model: Path, options: EngineOptions) -> None:
        self.parallel = options.parallel
        self._beam_size = options.beam_size
        self._tokenizer = _tokenizer(model / "tokenizer.json")
        on_gpus = options.device == "cuda"
        try:
            self._model = ctranslate2.models.Whisper(
                str(model),
                device=options.device,
                device_index=list(range(options.parallel)) if on_gpus else 0,
                compute_type=options.compute_type,
                inter_threads=1 if on_gpus else options.parallel,  # for each device
                intra_threads=options.threads,
            )
        except (RuntimeError, ValueError) as e:
            raise UsageError(_plain(e, model, options)) from e
        self.device: str = f"cuda {gpu_name(0)}".strip() if self._model.device == "cuda" else self._model.device
        self.compute_type: str = self._model.compute_type
        # For draws at a temperature. Each of CTranslate2's threads takes it once (random.cc): order counts.
        ctranslate2.set_random_seed(0)
        self.multilingual: bool = self._model.is_multilingual
        self._extractor = FeatureExtractor(feature_size=self._model.n_mels)
        self._tokenizers: dict[tuple[str, str], Tokenizer] = {}
        tokenizer = self._prompted("en", "transcribe")
        self._eot: int = tokenizer.eot
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
        starts = [[*_before(a, t), *t.sot_sequence] for a, t in zip(asks, prompted, strict=True)]
        limit = max(_token_limit(a) for a in asks)
        temperature = asks[0].temperature
        try:
            encoded = self._encode([a.features for a in asks])
            results = self._model.generate(
                encoded,
                starts,
                beam_size=1 if temperature else self._beam_size,
                max_length=max(2 * limit, limit + len(starts[0]) - 1),  # CTranslate2 halves it, or takes the prompt off
                return_scores=True,
                return_no_speech_prob=True,
                suppress_tokens=self._suppressed,
                sampling_topk=0 if temperature else 1,
                sampling_temperature=temperature or 1.0,
            )
            texts = [[t for t in r.sequences_ids[0] if t < self._eot] for r in results]
            aligned = self._align(encoded, asks, texts)
        except (RuntimeError, ValueError) as e:
            raise _translated(e) from e
        return [self._answer(*one) for one in zip(asks, prompted, results, texts, aligned, strict=True)]

    def prompt(self, text: str) -> tuple[int, ...]:
        return prompt_tokens(self._tokenizer, text)

    def listen(self, features: Sequence[Floats]) -> list[Heard]:
        try:
            outputs = self._outputs(features)
            together = ctranslate2.StorageView.from_array(np.concatenate(outputs))
            found = self._model.detect_language(together) if self.multilingual else [[("<|en|>", 1.0)]] * len(outputs)
        except (RuntimeError, ValueError) as e:
            raise _translated(e) from e
        languages = [{token.strip("<|>"): probability for token, probability in one} for one in found]
        return [Heard(by_name, Encoded(output)) for by_name, output in zip(languages, outputs, strict=True)]

    def _encode(self, windows: Sequence[Floats | Encoded]) -> Any:
        """The windows' encoder output, (windows, 50 × window, width); what has been encoded before is not again."""
        features = [w for w in windows if not isinstance(w, Encoded)]
        if self._model.device != "cpu" and len(features) == len(windows):  # it stays on the device
            view = ctranslate2.StorageView.from_array(np.ascontiguousarray(np.stack(features)))
            # With several GPUs nobody knows which of them will decode it.
            return self._model.encode(view, to_cpu=len(self._model.device_index) > 1)
        made = iter(self._outputs(features))
        outputs = [w.output if isinstance(w, Encoded) else next(made) for w in windows]
        return ctranslate2.StorageView.from_array(np.concatenate(outputs))

    def _outputs(self, features: Sequence[Floats]) -> list[Floats]:
        """Each window's encoder output in the host's memory.

        On CPU one after the other: together they gain nothing, fall out of the caches (windows of 20 s take a third
        longer at a batch of 4), and their attention needs memory by the square of the window, each.
        """
        if self._model.device == "cpu":
            views = [ctranslate2.StorageView.from_array(np.ascontiguousarray(f[np.newaxis])) for f in features]
            return [np.array(self._model.encode(view), copy=False) for view in views]
        if not features:
            return []
        view = ctranslate2.StorageView.from_array(np.ascontiguousarray(np.stack(features)))
        encoded = self._model.encode(view, to_cpu=True)
        if encoded.dtype == ctranslate2.DataType.bfloat16:  # numpy has none
            encoded = encoded.to(ctranslate2.DataType.float32)
        return [*np.array(encoded)[:, np.newaxis]]

    def _prompted(self, language: str, task: str) -> Tokenizer:
        key = (language, task)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizer(self._tokenizer, self.multilingual, task=task, language=language)
        return self._tokenizers[key]

    def _answer(self, ask: Ask, tokenizer: Tokenizer, result: Any, text: list[int], alignment: Any) -> Answer:
        tokens = result.sequences_ids[0]
        pieces, closed = pieces_of(tokens, tokenizer, ask.duration)
        return Answer(
            pieces=with_words(pieces, tokenizer, text, alignment) if alignment is not None else pieces,
            tokens=len(tokens),
            # CTranslate2 gives the mean over the tokens; Whisper counts the end token too (transcribe.py).
            avg_logprob=result.scores[0] * len(tokens) / (len(tokens) + 1),
            no_speech_prob=result.no_speech_prob,
            temperature=ask.temperature,
            hit_limit=len(tokens) >= _token_limit(ask),
            closed=closed,
        )

    def _align(self, encoded: Any, asks: Sequence[Ask], texts: Sequence[list[int]]) -> list[Any]:
        """Alignments by cross-attention (openai/whisper, timing.py); None for what wants no word times or has no text.

        One call for each prompt, with the windows that it is for and no others: it costs a fifth of a decoding. What
        lies on a GPU cannot be taken apart there, so all windows go along, the others with no text.
        """
        found: list[Any] = [None] * len(asks)
        prompts = [self._prompted(a.language, a.task).sot_sequence for a in asks]
        # One step of the encoder's output at least: of nothing CTranslate2 makes no alignment.
        frames = [max(2, round(min(a.window, a.duration) * FRAMES_PER_SECOND)) for a in asks]
        wanted = [i for i, a in enumerate(asks) if a.words and texts[i]]
        for prompt in sorted({tuple(prompts[i]) for i in wanted}):
            mine = [i for i in wanted if prompts[i] == list(prompt)]
            call, part = list(range(len(asks))), encoded
            if self._model.device == "cpu" and len(mine) < len(asks):
                call, part = mine, ctranslate2.StorageView.from_array(np.array(encoded, copy=False)[mine])
            asked = [texts[i] if i in mine else [self._eot] for i in call]
            results = self._model.align(part, list(prompt), asked, [frames[i] for i in call])
            for i, result in zip(call, results, strict=True):
                found[i] = result if i in mine else found[i]
        return found


def _token_limit(ask: Ask) -> int:
    spoken = round(ask.duration * TOKENS_PER_SECOND) + SPARE_TOKENS
    return min(LONGEST_TEXT, TEXT_CONTEXT - MARKS - len(ask.prompt), spoken)


def _before(ask: Ask, tokenizer: Tokenizer) -> tuple[int, ...]:
    return (tokenizer.sot_prev, *ask.prompt) if ask.prompt else ()


def _tokenizer(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as e:  # it raises no narrower one
        raise UsageError(f"{file} is damaged ({_first_line(e)}); fetch the model again") from None


def _plain(error: Exception, model: Path, options: EngineOptions) -> str:
    text = _first_line(error)
    if isinstance(_translated(error), OutOfMemory):
        return f"there is no memory on this {options.device} for the model in {model}: take a smaller one ({text})"
    return f"the model in {model} cannot be loaded: {text}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_DEVICE = ("cuda", "cublas", "cudnn", "device")
"""What an error speaks of when the device, and not the input, is at fault."""


def _translated(error: Exception) -> Exception:
    text = str(error)
    if ("memory" in text.lower() and "illegal" not in text.lower()) or "ALLOC_FAILED" in text:
        return OutOfMemory(f"the device is out of memory: {text}")
    if any(word in text.lower() for word in _DEVICE):
        return DeviceLost(f"the device failed: {text}")
    return PermanentError(f"the engine failed: {text}")
