"""How a model is run on this machine: device, precision, workers, threads, batch size."""

from __future__ import annotations

from dataclasses import dataclass

import ctranslate2

from pipeline.settings import Settings


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the model is run. Nothing here changes words but the compute type and the beam."""

    device: str = "auto"
    compute_type: str = "int8"
    parallel: int = 1
    """CTranslate2 workers. On CPU two of one thread beat one of two by a third: short matrices do not share well."""
    threads: int = 0
    """Threads of each worker; 0: as many as fit."""
    beam_size: int = 1


def engine_options(settings: Settings, device: str, compute_type: str, beam_size: int) -> EngineOptions:
    """How to run the model on this machine.

    On CPU as many workers of one thread as there are cores, up to four: on two cores that is a third faster than one
    worker of two threads (ARCHITECTURE.md). On a GPU one.
    """
    if device == "auto":
        device = "cuda" if cuda_devices() else "cpu"
    if device == "cuda":
        return EngineOptions("cuda", compute_type, 1, 0, beam_size)
    workers = min(settings.cores, 4)
    return EngineOptions("cpu", compute_type, workers, max(1, settings.cores // workers), beam_size)


def default_batch_size(options: EngineOptions) -> int:
    """64 on a GPU. On CPU 16 for each worker: with 8 the decoder takes a tenth longer, with 24 hardly less, and a kill
    costs at most a batch."""
    return 64 if options.device == "cuda" else 16 * options.parallel


def compute_types(device: str) -> list[str]:
    """Precisions that this machine's `cpu` or `cuda` can compute in."""
    return sorted(ctranslate2.get_supported_compute_types(device))


def cuda_devices() -> int:
    """GPUs that CTranslate2 can use."""
    return int(ctranslate2.get_cuda_device_count())
