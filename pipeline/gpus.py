"""What the GPUs of this process are doing, as their driver says (NVML). The only importer of pynvml.

No GPU is no error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at this moment; None: its driver does not say."""

    name: str
    """Its number, as nvidia-smi has it, or its UUID, as CUDA_VISIBLE_DEVICES says."""
    utilization: float | None
    """Share of the last moments in which something ran on it, 0 to 1."""
    memory_used: float | None
    """Bytes, of all processes."""
    memory: float | None
    power: float | None
    """Watts."""


class Gpus:
    """Those that CUDA_VISIBLE_DEVICES leaves to this process; without it all of the machine."""

    def __init__(self, visible: str | None = None) -> None:
        wanted = os.environ.get(VISIBLE) if visible is None else visible
        self._handles: dict[str, Any] = {}
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError:  # no driver
            return
        names = [str(i) for i in range(count)] if wanted is None else wanted.split(",")
        for name in filter(None, (n.strip() for n in names)):
            if (handle := _told(partial(_handle, name))) is not None:
                self._handles[name] = handle

    def read(self) -> list[Gpu]:
        """Asks the driver, which takes some milliseconds."""
        return [_read(name, handle) for name, handle in self._handles.items()]


def _handle(name: str) -> Any:
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _read(name: str, handle: Any) -> Gpu:
    use = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    memory = _told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    power = _told(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return Gpu(name, use, memory and float(memory.used), memory and float(memory.total), power)


def _told(ask: Callable[[], Any]) -> Any:
    """The answer; None where this driver or device has none (virtual GPUs say little)."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None
