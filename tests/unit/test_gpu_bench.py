"""The GPU benchmark on a CPU, in miniature: its models are Whisper's, its texts have the length that was forced."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ctranslate2 import StorageView
from ctranslate2.models import Whisper

from pipeline.devices import EngineOptions
from pipeline.engine import Ask
from pipeline.models import is_english_only, verified
from pipeline.whisper import LANGUAGES as KNOWN
from pipeline.whisper import WhisperEngine
from tests.benchmarks import gpu, gpu_parts, shaped
from tests.benchmarks.gpu_machine import Memory
from tests.benchmarks.gpu_parts import Cell, Loaded, Setup, Terms, Wanted, forced_tokens, measure

SHAPE = shaped.SHAPES["miniature"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shaped.build(SHAPE, tmp_path_factory.mktemp("shaped"))


def test_the_tokens_lie_where_large_v3_has_them() -> None:
    tokens = shaped.vocabulary()
    assert len(tokens) == len(set(tokens)) == 51866
    places = {"<|endoftext|>": 50257, "<|en|>": 50259, "<|yue|>": 50358, "<|notimestamps|>": 50364, "<|30.00|>": 51865}
    assert {t: tokens.index(t) for t in places} == places
    assert set(shaped.LANGUAGES) == set(KNOWN)


@pytest.mark.parametrize("compute_type", ["int8", "float32"])
def test_a_shaped_model_is_whisper_to_ctranslate2(model: Path, compute_type: str) -> None:
    whisper = Whisper(str(model), device="cpu", compute_type=compute_type, intra_threads=1)
    assert (whisper.n_mels, whisper.is_multilingual, whisper.num_languages) == (128, True, 100)
    for window in (10, 30):
        encoded = whisper.encode(StorageView.from_array(np.zeros((2, 128, 100 * window), np.float32)))
        assert encoded.shape == [2, 50 * window, SHAPE.width]
        assert np.isfinite(np.array(encoded)).all()
    [languages] = whisper.detect_language(StorageView.from_array(np.zeros((1, 128, 1000), np.float32)))
    assert len(languages) == 100


def test_the_same_seed_makes_the_same_model_and_it_is_made_once(model: Path, tmp_path: Path) -> None:
    again, other = shaped.build(SHAPE, tmp_path / "a"), shaped.build(SHAPE, tmp_path / "b", seed=1)
    assert (again / "model.bin").read_bytes() == (model / "model.bin").read_bytes()
    assert (other / "model.bin").read_bytes() != (model / "model.bin").read_bytes()
    (again / "mark").touch()
    assert (shaped.build(SHAPE, tmp_path / "a") / "mark").exists()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["miniature"]


@pytest.mark.parametrize("beam", [1, 5])
def test_every_text_has_the_length_that_was_forced(model: Path, beam: int) -> None:
    loaded = Loaded(model, "cpu", Setup("miniature", "int8", 1, beam, 10), 3)
    for forced in (3, 44, 224):
        cell = Cell(loaded.setup, 3, forced)
        encode_ms, generate_ms, windows_per_s = loaded.round(cell, calls=1)
        assert cell.problem == ""
        assert min(*encode_ms, *generate_ms, windows_per_s) > 0


def test_a_text_of_another_length_is_told(model: Path) -> None:
    loaded = Loaded(model, "cpu", Setup("miniature", "int8", 2, 1, 10), 1)
    # The first token is a time; then nothing but the end is possible.
    loaded._never = [t for t in range(len(shaped.vocabulary())) if t != shaped.TEXT_TOKENS]
    cell = Cell(loaded.setup, 1, 44)
    assert len(loaded.round(cell, calls=2)[0]) == 4
    assert cell.problem == "made texts of 1 to 1 tokens"


def test_what_is_forced_grows_with_the_batch() -> None:
    assert forced_tokens(9.0, 1) == 44
    assert forced_tokens(19.0, 1) == 90
    lengths = [forced_tokens(29.0, b) for b in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 134
    assert lengths[-1] <= gpu_parts.LONGEST_TEXT


def test_what_tells_most_comes_first_and_nothing_is_forgotten() -> None:
    wanted = Wanted(["turbo", "large"], ["int8_float16", "float16"], [1, 2], [1, 5], [10, 15, 20, 30])
    first, *others = wanted.stages()
    assert first[0] == Setup("turbo", "int8_float16", 1, 1, 20)
    assert {(s.workers, s.beam, s.window) for s in first} == {(1, 1, 20), (1, 1, 30)}
    every = [*first, *(s for stage in others for s in stage)]
    assert len(every) == len(set(every)) == 64


def test_out_of_memory_costs_the_larger_batches_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Loaded.round

    def small(self: Loaded, cell: Cell, *, calls: int) -> tuple[list[float], list[float], float]:
        if cell.batch > 1:
            raise RuntimeError("CUDA failed with error out of memory")
        return whole(self, cell, calls=calls)

    monkeypatch.setattr(Loaded, "round", small)
    terms = Terms("cpu", [1, 2, 4], 2, lambda: 1.0, Memory("cpu"))
    one, two, four = measure(model, Setup("miniature", "int8", 1, 1, 10), terms, print)
    assert len(one.windows_per_s) == 2
    assert one.problem == ""
    assert "out of memory: CUDA failed" in two.line()
    assert four.line().endswith("not tried, since 2 failed")
    assert one.memory_mb


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    terms = Terms("cpu", [1], 1, lambda: 1.0, Memory("cpu"))
    assert list(measure(tmp_path, Setup("miniature", "int8", 1, 1, 10), terms, told.append)) == []
    assert told[0].startswith("  not loaded: ")


def test_the_engine_runs_a_shaped_model(model: Path) -> None:
    assert verified(model) == model
    assert not is_english_only(model)
    engine = WhisperEngine(model, EngineOptions("cpu", "int8"))
    features = engine.features(np.zeros(160_000, np.int16), 10.0)
    assert features.shape == (128, 1000)
    [answer] = engine.decode([Ask(features, 10.0, 3.0, "de", words=True)])
    assert 0 < answer.tokens <= 76
    assert "w" in answer.text
    assert set(engine.listen([features])[0].languages) == set(KNOWN)


def test_it_prints_every_kind_of_line_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--device cpu --miniature --quick --types int8,float16 --windows 10 --beams 1 --files 1 --seconds 5"
    gpu.main([*options.split(), "--json", str(tmp_path / "figures.json")])
    lines = capsys.readouterr().out.splitlines()
    for kind in (
        "ctranslate2 ", "python ", "memory          of this process", "tokens ",
        "float16 skipped: this cpu can compute in ", "miniature made with random weights in ",
        "miniature int8, 1 worker, beam 1, windows of 10 s with 9 s of speech", "  loaded in ",
        "  batch   1  encode ", "  batch   2  encode ", "spotscribe run, 1 recordings", "  base skipped: ",
        "miniature int8, 2 workers, beam 1, windows of 10 s with 9 s of speech", "4 cells in ",
    ):  # fmt: skip
        assert any(line.startswith(kind) for line in lines), kind
    assert any(line.startswith("  tiny.en int8  ") and "× real time" in line for line in lines)
    figures = json.loads((tmp_path / "figures.json").read_text())
    measured = [(c["workers"], c["batch"], c["forced_tokens"]) for c in figures["cells"]]
    assert measured == [(1, 1, 44), (1, 2, 49), (2, 1, 44), (2, 2, 49)]
    assert all(c["rtfx"] > 0 and c["problem"] == "" and c["memory_mb"] > 0 for c in figures["cells"])
    [run] = figures["runs"]
    assert (run["model"], run["compute_type"]) == ("tiny.en", "int8")
    assert run["rtfx"] > 0
    assert figures["head"]["ctranslate2"]


def test_without_time_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--device", "cpu", "--miniature", "--minutes", "0", "--keep", str(tmp_path)])
    assert capsys.readouterr().out.endswith("0 cells in 0.0 minutes; 32 groups left out for lack of time\n")
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 0)
    with pytest.raises(SystemExit, match="finds no GPU"):
        gpu.main(["--device", "cuda"])
    with pytest.raises(SystemExit):
        gpu.main(["--models", "huge"])
