"""How a model is run on this machine: device, precision, workers, threads, batch size."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import ctranslate2

from chunking.errors import UsageError
from pipeline.memory import PRECISIONS, cpu_batch, demand, gpu_batch
from pipeline.modelfile import read_model_file
from pipeline.settings import PREFIX, Settings

ON_GPU, ON_CPU = 64, 16
"""Windows of one call at most. On CPU with 8 the decoder takes a tenth longer than with 16, with 24 hardly less, and a
kill costs at most a batch."""

_SMALL = ("int8_float16", "int8_float32", "float16", "float32")
PREFERENCES = {
    "int8": _SMALL,
    "auto": _SMALL,
    "int8_float16": _SMALL,
    "int8_bfloat16": ("int8_bfloat16", *_SMALL),
    "int8_float32": ("int8_float32", "float32"),
    "int16": ("int16", "float16", "int8_float32", "float32"),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float16", "float32"),
    "float32": ("float32",),
}
"""What is computed in for what was asked: the first of these that the device has. `int8` means INT8 weights with the
quickest arithmetic beside them; CTranslate2 would take that of the numbers in the file, float32 for some models."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the model is run. Nothing here changes words but the compute type and the beam."""

    device: str = "auto"
    compute_type: str = "int8"
    parallel: int = 1
    """CTranslate2 workers: one on each GPU. On CPU two of one thread beat one of two by a third: short matrices do not
    share well."""
    threads: int = 0
    """Threads of each worker; 0: as many as fit."""
    beam_size: int = 1
    notice: str = ""
    """What the user should know: that it is not as it was set."""


def engine_options(
    settings: Settings, device: str, compute_type: str, beam_size: int, *, named: bool = False
) -> EngineOptions:
    """How to run the model on this machine. Raises UsageError where that cannot be done.

    `named`: the compute type was asked for by name, and a device that lacks it is an error; a setting is for many
    machines, and gives way to what comes nearest.

    On CPU as many workers of one thread as there are cores, up to four: on two cores that is a third faster than one
    worker of two threads (ARCHITECTURE.md). On GPUs one each.
    """
    if settings.engine == "paced":
        return EngineOptions("cpu", compute_type, beam_size=beam_size)
    gpus = cuda_devices()
    if device == "cuda" and not gpus:
        raise UsageError(f"CTranslate2 sees no CUDA device: see what nvidia-smi says, or set {PREFIX}DEVICE=cpu")
    device = "cuda" if gpus and device != "cpu" else "cpu"
    chosen, notice = _compute_type(compute_type, device, named=named)
    if device == "cuda":
        return EngineOptions("cuda", chosen, gpus, 0, beam_size, notice)
    workers = min(settings.cores, 4)
    return EngineOptions("cpu", chosen, workers, max(1, settings.cores // workers), beam_size, notice)


def _compute_type(asked: str, device: str, *, named: bool) -> tuple[str, str]:
    """What to compute in, and what the user should know."""
    name, possible = _NAMES[device], compute_types(device)
    if asked not in PREFERENCES:
        raise UsageError(f"there is no compute type {asked!r}; this {name} can compute in {', '.join(possible)}")
    found = nearest(asked, possible)
    if asked in {*possible, "auto"}:
        return found, ""
    if named:
        raise UsageError(f"this {name} cannot compute in {asked}; it can in {', '.join(possible)}")
    return found, f"this {name} cannot compute in {asked}; going on in {found}"


def nearest(asked: str, possible: Collection[str]) -> str:
    """What a device that can compute in `possible` computes in, when this compute type is asked for. Pure."""
    return next((t for t in PREFERENCES[asked] if t in possible), "float32")


_NAMES = {"cpu": "CPU", "cuda": "GPU"}


def default_batch_size(options: EngineOptions, model: Path | None = None) -> int:
    """Chunks that are decoded together when nobody says how many: what memory is free for, up to ON_GPU for each GPU
    and ON_CPU for each worker on CPU. Where a size is not known it is taken to be enough: a batch that runs out of
    memory is halved.
    """
    most = ON_GPU if options.device == "cuda" else ON_CPU
    file = read_model_file(model / "model.bin") if model is not None else None
    sizes, free = file.dimensions if file else None, free_memory(options)
    if sizes is None or free is None:
        return most * options.parallel
    need = demand(sizes, PRECISIONS[options.compute_type], options.beam_size)
    if options.device == "cuda":
        return options.parallel * gpu_batch(free, need, most)
    return options.parallel * cpu_batch(free, need, options.parallel, most)


def free_memory(options: EngineOptions) -> int | None:
    """Bytes free where the model will be; of several GPUs, on the fullest. None: not known."""
    if options.device != "cuda":
        return available_memory()
    found = [free_on_gpu(gpu) for gpu in range(options.parallel)]
    return min((f for f in found if f is not None), default=None)


def compute_types(device: str) -> list[str]:
    """Precisions that this machine's `cpu`, or each of its `cuda` devices, can compute in."""
    number = cuda_devices() if device == "cuda" else 1
    each = [ctranslate2.get_supported_compute_types(device, i) for i in range(number)]
    return sorted(set.intersection(*map(set, each)))


def cuda_devices() -> int:
    """GPUs that CTranslate2 can use: those of CUDA_VISIBLE_DEVICES, if that is set."""
    return int(ctranslate2.get_cuda_device_count())


def gpu_name(gpu: int) -> str:
    """As the driver names it; empty where there is none to ask."""
    cuda, name = _driver(), ctypes.create_string_buffer(100)
    device = ctypes.c_int()
    if cuda is None or cuda.cuDeviceGet(ctypes.byref(device), gpu) or cuda.cuDeviceGetName(name, 100, device):
        return ""
    return name.value.decode(errors="replace")


def free_on_gpu(gpu: int) -> int | None:
    """Bytes free on a GPU, numbered as CTranslate2 numbers them; None where the driver does not say.

    Asked of the driver itself (CUDA driver API, cuMemGetInfo): NVML, nvidia-smi and nvidia-ml-py number the GPUs
    without regard to CUDA_VISIBLE_DEVICES, and see no slices of one. It costs a context, as loading the model does.
    """
    cuda = _driver()
    device, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if cuda is None or cuda.cuDeviceGet(ctypes.byref(device), gpu):
        return None
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    try:
        if cuda.cuCtxPushCurrent_v2(context):
            return None
        failed = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
        return None if failed else free.value
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def _driver() -> ctypes.CDLL | None:
    """NVIDIA's driver, which each machine with one of its GPUs has."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        return None if cuda.cuInit(0) else cuda
    except (OSError, AttributeError):
        return None


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: what Linux calls available, or what its control groups leave of a limit.

    None where /proc does not say (proc(5), MemAvailable; cgroup-v2.rst, memory.max). Pages of files count as free.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return min([found, *_left_by_groups(root)])


def _left_by_groups(root: Path) -> list[int]:
    """What the process's group and those above it leave, where they have a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    except (OSError, StopIteration):
        return []
    top = root / "sys/fs/cgroup"
    found = []
    for group in (g for g in (top / own, *(top / own).parents) if g.is_relative_to(top)):
        try:
            most = int((group / "memory.max").read_text())  # "max": no limit
            used = int((group / "memory.current").read_text())
            parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            found.append(max(0, most - used + int(parts.get("inactive_file", 0))))
        except (OSError, ValueError):
            continue
    return found
