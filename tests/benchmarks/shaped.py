"""Whisper models with random weights, in CTranslate2 form: the shape and speed of real ones, made on the spot.

What they write is noise, so they serve for speed and memory alone. They need numpy and CTranslate2 and no network. Weights
are drawn as the int8 that CTranslate2's converter would make of them; loading one in float16 computes as a real model does.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ctranslate2.specs import WhisperSpec

SOURCE_POSITIONS, TEXT_POSITIONS = 1500, 448
"""What 30 s are to the encoder, and the decoder's longest text (openai/whisper, model.py)."""
_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = _CODES.split()
"""In the order of large-v3's tokens (openai/whisper, tokenizer.py)."""
TEXT_TOKENS = 50257
SPECIAL = [
    "endoftext", "startoftranscript", *LANGUAGES,
    "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps",
]  # fmt: skip
TIMESTAMPS = 1501
INT8_DEVIATION = 127 / 3**0.5
"""Standard deviation of the integers from -127 to 127."""
LOGIT_DEVIATION = 3.5
"""Peaked enough that a text token is likelier than all timestamps together, as in real texts between their times."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Whisper model."""

    name: str
    encoder_layers: int
    decoder_layers: int
    width: int
    heads: int
    mels: int = 128


SHAPES = {
    s.name: s
    for s in (
        Shape("large-v3", 32, 32, 1280, 20),
        Shape("large-v3-turbo", 32, 4, 1280, 20),
        Shape("miniature", 2, 2, 64, 2),
    )
}
"""openai/whisper-large-v3 and -turbo, config.json; and one that a CPU runs in milliseconds."""


def vocabulary() -> list[str]:
    """large-v3's 51866 tokens: its specials where it has them, the 256 bytes and made-up words as text.

    The last text token is empty, as in every multilingual Whisper: by it CTranslate2 4.8.5 knows one.
    """
    alphabet = _byte_letters()
    words = [f"Ġw{i}" for i in range(TEXT_TOKENS - len(alphabet) - 1)]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(TIMESTAMPS)]
    return [*alphabet, *words, "", *(f"<|{s}|>" for s in SPECIAL), *times]


def build(shape: Shape, folder: Path, *, seed: int = 0) -> Path:
    """A directory `folder`/NAME that CTranslate2 and WhisperEngine load; there whole or not at all."""
    target = folder / shape.name
    if target.is_dir():
        return target
    building = folder / f".{shape.name}-{uuid.uuid4().hex}"
    building.mkdir(parents=True)
    try:
        tokens = vocabulary()
        spec = _spec(shape, len(tokens), seed)
        spec.register_vocabulary(tokens)
        spec.validate()
        # One matrix: the converter finds that by comparing all with all.
        spec.decoder.projection.weight = "decoder/embeddings/weight"
        spec.save(str(building))
        tokenizer = json.dumps(_tokenizer(tokens), ensure_ascii=False)
        (building / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _spec(shape: Shape, tokens: int, seed: int) -> Any:
    """The fields that WhisperLoader fills (ctranslate2/converters/transformers.py)."""
    spec = WhisperSpec(shape.encoder_layers, shape.heads, shape.decoder_layers, shape.heads)
    fill = _Filling(seed, shape.width)
    fill.convolution(spec.encoder.conv1, shape.mels)
    fill.convolution(spec.encoder.conv2, shape.width)
    for part, positions in ((spec.encoder, SOURCE_POSITIONS), (spec.decoder, TEXT_POSITIONS)):
        part.position_encodings.encodings = fill.floats((positions, shape.width), 0.02)
        fill.norm(part.layer_norm)
        for layer in part.layer:
            fill.layer(layer)
    fill.matrix(spec.decoder.embeddings, shape.width, tokens, LOGIT_DEVIATION)
    fill.matrix(spec.decoder.projection, shape.width, 1, LOGIT_DEVIATION)  # gives way to the embeddings
    spec.decoder.projection.weight_scale = "__optional"  # CTranslate2 takes an alias's scale from what it stands for
    first = TEXT_TOKENS + SPECIAL.index(LANGUAGES[0])
    spec.config.lang_ids = list(range(first, first + len(LANGUAGES)))
    spec.config.suppress_ids = []
    spec.config.suppress_ids_begin = [TEXT_TOKENS]
    upper = range(shape.decoder_layers // 2, shape.decoder_layers)
    spec.config.alignment_heads = [(layer, head) for layer in upper for head in range(shape.heads)]
    return spec


class _Filling:
    """Draws weights so small that every layer's output is about as large as its input, in float16 too."""

    def __init__(self, seed: int, width: int) -> None:
        self._random = np.random.default_rng(seed)
        self._width = width

    def layer(self, layer: Any) -> None:
        """Self-attention, in a decoder attention to the encoder's output, and the feed-forward part."""
        width = self._width
        self._attention(layer.self_attention, (3 * width, width))
        if hasattr(layer, "attention"):
            self._attention(layer.attention, (width, 2 * width, width))
        self.norm(layer.ffn.layer_norm)
        self._linear(layer.ffn.linear_0, width, 4 * width)
        self._linear(layer.ffn.linear_1, 4 * width, width)

    def matrix(self, spec: Any, inputs: int, outputs: int, deviation: float = 1.0) -> None:
        """Inputs of deviation 1 come out with that one."""
        drawn = np.frombuffer(self._random.bytes(inputs * outputs), np.int8).reshape(outputs, inputs)
        spec.weight = np.maximum(drawn, np.int8(-127))
        spec.weight_scale = np.full(outputs, INT8_DEVIATION * inputs**0.5 / deviation, np.float32)

    def convolution(self, spec: Any, channels: int) -> None:
        spec.weight = self.floats((self._width, channels, 3), (3 * channels) ** -0.5)
        spec.bias = np.zeros(self._width, np.float32)

    def norm(self, spec: Any) -> None:
        spec.gamma = np.ones(self._width, np.float32)
        spec.beta = np.zeros(self._width, np.float32)

    def floats(self, shape: tuple[int, ...], deviation: float) -> npt.NDArray[np.float32]:
        return self._random.standard_normal(shape, np.float32) * np.float32(deviation)

    def _attention(self, spec: Any, outputs: Sequence[int]) -> None:
        self.norm(spec.layer_norm)
        for linear, size in zip(spec.linear, outputs, strict=True):
            self._linear(linear, self._width, size)

    def _linear(self, spec: Any, inputs: int, outputs: int) -> None:
        self.matrix(spec, inputs, outputs)
        spec.bias = np.zeros(outputs, np.float32)


def _tokenizer(tokens: Sequence[str]) -> dict[str, Any]:
    """tokenizer.json: bytes that never merge, so it reads any text, and writes the made-up words."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": i < len(tokens) - TIMESTAMPS,
             "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            for i in range(TEXT_TOKENS, len(tokens))
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens[:TEXT_TOKENS])}, "merges": []},
    }  # fmt: skip


def _byte_letters() -> list[str]:
    """A letter for each byte, printable ones for themselves, others from 256 on (openai/gpt-2, encoder.py)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    return [chr(b) for b in sorted(plain)] + [chr(256 + i) for i in range(256 - len(plain))]
