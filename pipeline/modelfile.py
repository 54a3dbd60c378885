"""What a model.bin says of itself, read without loading it: its kind, its sizes, and whether it is whole.

The format is CTranslate2's own (python/ctranslate2/specs/model_spec.py, `_serialize`): a version, the kind, then each
variable with its name, shape, type and content, then names that stand for others. Contents are skipped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from chunking.errors import UsageError

KNOWN_VERSIONS = range(4, 7)
"""Of the format. Others are left to CTranslate2's own judgement."""
WHISPER = "WhisperSpec"
SMALL = 8
"""Bytes of the largest content that is kept: a number."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of a Whisper model on which its memory depends."""

    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    parameters: int


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The variables of a model.bin."""

    kind: str
    """WhisperSpec, TransformerSpec, …"""
    shapes: dict[str, tuple[int, ...]]
    numbers: dict[str, int]
    """Values of those variables that are a single whole number."""

    @property
    def dimensions(self) -> Dimensions | None:
        """None where it is not laid out as Whisper models are."""
        width = self.shapes.get("encoder/layer_norm/gamma", ())
        vocabulary = self.shapes.get("decoder/embeddings/weight", ())
        if self.kind != WHISPER or not width or not vocabulary:
            return None
        return Dimensions(
            width=width[0],
            heads=self.numbers.get("encoder/num_heads", width[0] // 64),  # 64 wide in every Whisper
            encoder_layers=self._layers("encoder"),
            decoder_layers=self._layers("decoder"),
            vocabulary=vocabulary[0],
            parameters=sum(prod(s) for n, s in self.shapes.items() if not n.endswith("_scale")),
        )

    def _layers(self, part: str) -> int:
        return len({n.split("/")[1] for n in self.shapes if n.startswith(f"{part}/layer_") and n.count("/") > 2})


def read_model_file(path: Path) -> ModelFile | None:
    """None where the format is not known. Raises UsageError where the file is not whole."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            return _read(file, size)
    except (EOFError, struct.error, UnicodeDecodeError):
        raise UsageError(f"{path} is damaged or cut off at {size:,} bytes; fetch the model again") from None


def _read(file: BinaryIO, size: int) -> ModelFile | None:
    (version,) = _take(file, "<I")
    if version not in KNOWN_VERSIONS:
        return None
    kind = _string(file)
    _, count = _take(file, "<II")
    shapes: dict[str, tuple[int, ...]] = {}
    numbers: dict[str, int] = {}
    for _ in range(count):
        name = _string(file)
        (rank,) = _take(file, "<B")
        shapes[name] = _take(file, f"<{rank}I")
        _, length = _take(file, "<BI")
        if length <= SMALL and not rank:
            numbers[name] = int.from_bytes(_bytes(file, length), "little", signed=True)
        elif file.seek(length, 1) > size:
            raise EOFError
    (aliases,) = _take(file, "<I")
    for _ in range(2 * aliases):
        _string(file)
    return ModelFile(kind, shapes, numbers)


def _take(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, _bytes(file, struct.calcsize(layout)))


def _string(file: BinaryIO) -> str:
    (length,) = _take(file, "<H")
    return _bytes(file, length).rstrip(b"\0").decode()


def _bytes(file: BinaryIO, length: int) -> bytes:
    found = file.read(length)
    if len(found) < length:
        raise EOFError
    return found
