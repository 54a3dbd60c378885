"""How many windows a device has memory for: arithmetic over a model's sizes. Pure.

With T = 1500 encoder positions (a full window of 30 s, which second attempts take) and b bytes a number, one window
takes

    encoding   b · (2 · heads · T² + 10 · T · width)                 scores of attention and their softmax, one layer
    output     b · T · width
    decoding   output + b · 2 · layers · T · width                   keys and values over the encoder's output
               + b · beam · 2 · layers · tokens · width              keys and values over the text
               + beam · vocabulary · (b + 4)                         logits, and their softmax

A GPU encodes and then decodes all windows of a batch together, so a window counts with the larger of the two. A CPU
encodes one window a worker at a time (`whisper.py`) and decodes the batch. Weights come on top.

Held against what faster-whisper measures (its README, large-v2, beam 5, batch of 8): 7.1 GB by this for 6.1 in
float16, 5.6 for 4.5 in INT8; and on a CPU in INT8, greedy, 8 windows of short text: 0.55 GB for 0.42 with base, 0.33
for 0.25 with tiny.en.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.modelfile import Dimensions

POSITIONS = 1500
"""Encoder positions of 30 s (openai/whisper, model.py n_audio_ctx)."""
TEXT_TOKENS = 224
"""The longest text that a window is decoded to (whisper.py LONGEST_TEXT)."""
SHARE = 0.8
"""Of the free memory: the rest is for fragmentation, prompts, word times, and what else runs on the machine."""
LIBRARIES = 512 << 20
"""What cuBLAS and the like take on a GPU for themselves."""
STEP = 8
"""Larger batches are multiples of this."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one weight and of one number of what is computed."""

    weight: int
    number: int


PRECISIONS = {
    "int8_float16": Precision(1, 2),
    "int8_bfloat16": Precision(1, 2),
    "int8_float32": Precision(1, 4),
    "int16": Precision(2, 4),
    "float16": Precision(2, 2),
    "bfloat16": Precision(2, 2),
    "float32": Precision(4, 4),
}
"""CTranslate2's compute types (docs/quantization.md): the type of the weights, then that of everything else."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one model takes. All in bytes."""

    weights: int
    encoding: int
    """One window's, while it is encoded."""
    decoding: int
    """One window's, from its encoding to its text."""


def demand(model: Dimensions, precision: Precision, beam: int) -> Demand:
    """The formula above."""
    b, width = precision.number, model.width
    output = b * POSITIONS * width
    heard = 2 * model.decoder_layers * POSITIONS * width * b
    said = 2 * model.decoder_layers * TEXT_TOKENS * width * b * beam
    logits = beam * model.vocabulary * (b + 4)
    return Demand(
        weights=model.parameters * precision.weight,
        encoding=output + b * (2 * model.heads * POSITIONS**2 + 10 * POSITIONS * width),
        decoding=output + heard + said + logits,
    )


def gpu_batch(free: int, need: Demand, most: int) -> int:
    """Windows of one batch on a GPU with so many bytes free before the model is loaded: 1 to `most`."""
    left = SHARE * free - need.weights - LIBRARIES
    return _stepped(left / max(need.encoding, need.decoding), most)


def cpu_batch(free: int, need: Demand, workers: int, most: int) -> int:
    """Windows of one worker's batch on a CPU, where `workers` share the memory and the weights: 1 to `most`."""
    left = SHARE * free - need.weights - workers * need.encoding
    return _stepped(left / workers / need.decoding, most)


def _stepped(fitting: float, most: int) -> int:
    batch = max(1, min(most, int(fitting)))
    return batch if batch < STEP or batch == most else batch // STEP * STEP
