"""The machine under `gpu.py`: its name, its driver and libraries, and how much memory is in use.

NVML, the library that nvidia-smi is made of, is asked through ctypes: it comes with the driver and answers fast enough
for the peak of a call to be seen. Afterwards is too late, since CTranslate2 gives large blocks back when it is done.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

EVERY_S = 0.002


class Memory:
    """How many MB are in use, and whose memory that is."""

    def __init__(self, device: str) -> None:
        self.of, self.read = _reader(device)

    @contextmanager
    def watched(self) -> Iterator[Callable[[], int | None]]:
        """What it gives tells, once the block has ended, the most that was in use in it."""
        seen, ended = [self.read()], threading.Event()

        def watch() -> None:
            while not ended.wait(EVERY_S):
                seen.append(self.read())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield lambda: max((s for s in seen if s is not None), default=None)
        finally:
            ended.set()
            watcher.join()


def _reader(device: str) -> tuple[str, Callable[[], int | None]]:
    if device != "cuda":
        return "this process", _resident_mb
    whole = "the whole device, other processes included"
    with suppress(OSError, AttributeError, ValueError):
        return f"{whole}, at its peak", Nvml().used_mb
    if _smi_mb() is not None:
        return f"{whole}, as often as nvidia-smi answers", _smi_mb
    return "unknown: there is neither NVML nor nvidia-smi", lambda: None


def _resident_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def _smi_mb() -> int | None:
    answer = smi("memory.used")
    return round(int(answer) * 1.048576) if answer and answer.isdigit() else None  # it counts in MiB


class _MemoryInfo(ctypes.Structure):
    """nvmlMemory_t (nvml.h): bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    """The first GPU that this process sees. Raises OSError without the library, ValueError without an answer."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._ask("nvmlInit_v2")
        seen = _seen()
        if seen.isdigit():
            self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(seen)), ctypes.byref(self._device))
        else:
            self._ask("nvmlDeviceGetHandleByUUID", seen.encode(), ctypes.byref(self._device))
        self.used_mb()

    def used_mb(self) -> int:
        info = _MemoryInfo()
        self._ask("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(info))
        return int(info.used) // 1_000_000

    def _ask(self, function: str, *arguments: object) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise ValueError(f"{function} returned {code}")


def _seen() -> str:
    """Number or UUID of the first GPU that CUDA shows to this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def smi(questions: str) -> str | None:
    """What nvidia-smi says of that GPU, if it is there."""
    command = ["nvidia-smi", f"--query-gpu={questions}", "--format=csv,noheader,nounits", f"--id={_seen()}"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    return None


def head(device: str) -> dict[str, str]:
    """The machine and the versions, as they are found."""
    found = {"cpu": f"{_processor()}, {os.cpu_count()} cores"}
    if device == "cuda":
        names = ("name", "driver_version", "memory.total", "memory.used", "power.limit", "clocks.max.sm")
        answer = smi(",".join(names))
        values = [v.strip() for v in answer.split(",")] if answer else []
        found |= dict(zip(names, values, strict=False)) or {"gpu": "nvidia-smi does not answer"}
        found["cublas"] = _cublas()
    found |= {name: version(name) for name in ("ctranslate2", "numpy")}
    return found | {"python": platform.python_version()}


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _cublas() -> str:
    """The version of the library that CTranslate2 will load, by cublasGetProperty (cublas_api.h)."""
    try:
        library = ctypes.CDLL("libcublas.so.12")
        number, parts = ctypes.c_int(), []
        for what in range(3):  # major, minor, patch
            library.cublasGetProperty(what, ctypes.byref(number))
            parts.append(str(number.value))
        return ".".join(parts)
    except (OSError, AttributeError) as e:
        return f"not found: {e}"
