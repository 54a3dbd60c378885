"""The checks of `spotscribe doctor`: those of this machine, and the list of all.

What a check raises is a finding as well; that, and that none waits for another, is the command's business
(workers/commands/doctor.py).
"""

from __future__ import annotations

import ctypes
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunking import landlock
from chunking.audio import DecodeOptions, DecoderPool
from chunking.errors import UsageError
from pipeline import models
from pipeline.devices import compute_types, default_batch_size, engine_options, free_memory, gpu_name
from pipeline.modelbucket import bucket_files
from pipeline.settings import CONFIG, PREFIX, Settings, config_file
from storage.s3 import S3Bucket
from storage.urls import S3, job_model
from workers.doctor_servers import Finding, check_broker_url, check_database, check_output, check_work, writable
from workers.doctor_sources import check_sources
from workers.spot import by_name
from workers.wiring import Wiring

LOW_DISK = 2e9
"""Bytes: a model and some hours of audio in work."""
HUB_S = DECODER_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    part: str
    look: Callable[[Wiring], Finding]
    todo: str
    """What to do where it raises something that does not say so itself."""


def check_settings(settings: Settings) -> Finding:
    known = {f"{PREFIX}{name.upper()}" for name in type(settings).model_fields} | {CONFIG}
    given = sorted(n for n in os.environ if n.upper().startswith(PREFIX))
    odd = [n for n in given if n.upper() not in known]
    names, file = ", ".join(n[len(PREFIX) :] for n in given), config_file()
    found = f"{file or 'no TOML file'}; variables {PREFIX}…: {names or 'none'}"
    if not odd:
        return Finding("ok", found)
    advice = []
    for name in odd:
        near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known], 1)
        advice.append(f"did you mean {PREFIX}{near[0]}, not {name}?" if near else f"unset {name}")
    return Finding("warn", f"{found}; no setting: {', '.join(odd)}", " ".join(advice))


def _home(w: Wiring) -> Finding:
    home = w.settings.home
    place = writable(home)
    free = shutil.disk_usage(place).free
    found = f"{home}{' (will be made)' if place != home else ''}, {free / 1e9:.1f} GB free"
    if free < LOW_DISK:
        return Finding("warn", found, f"make room there, or set {PREFIX}HOME: models and audio in work need it")
    return Finding("ok", found)


def _model(w: Wiring) -> Finding:
    s, name = w.settings, w.settings.model
    if s.engine == "paced":
        return Finding("ok", "none: the engine is paced, which makes its text up")
    if name.startswith(S3):
        there = bucket_files(name, S3Bucket(w.s3))
        return Finding("ok", f"{job_model(name)}, {len(there)} files in {name}; fetched and checked on first use")
    directory = models.local_model(name, s.models, s.models_folder)
    if directory is None:
        return _remote_model(name, s.models)
    size = (directory / "model.bin").stat().st_size
    knows = "English only" if models.is_english_only(directory) else "multilingual"
    return Finding("ok", f"{name}, {size / 1e6:,.0f} MB, {knows}, in {directory}")


def _remote_model(name: str, cache: Path) -> Finding:
    if found := models.packages(name):
        return Finding("ok", f"{name}, in the packages {', '.join(found)}; put together on first use")
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_S)
    except Exception as e:
        away = f"{name} is not on this machine, and the model hub does not answer ({type(e).__name__})"
        return Finding("FAIL", away, f"put a CTranslate2 directory at {cache / name}, or set {PREFIX}MODEL to one")
    todo = f"to spare a new machine that, put a CTranslate2 directory at {cache / name}"
    return Finding("warn", f"{name} is not on this machine; it will be fetched by name on first use", todo)


def _device(w: Wiring) -> Finding:
    s = w.settings
    if s.engine == "paced":
        return Finding("ok", "none is needed: the engine is paced")
    how = engine_options(s, s.device, s.compute_type, 1)
    possible = ", ".join(compute_types(how.device))
    on = f"CPU, {s.cores} cores to use"
    if how.device == "cuda":
        on = ", ".join(gpu_name(i) or "a CUDA device" for i in range(how.parallel))
    if how.device == "cuda" and not _loads("libcublas.so.12"):
        todo = "install CUDA 12's cuBLAS, and name its folder in LD_LIBRARY_PATH"
        return Finding("warn", f"{on}; libcublas.so.12 is not found, without which no model runs there", todo)
    batch, free = default_batch_size(how, _here(s)), free_memory(how)
    room = f" ({free / 1e9:.1f} GB are free)" if free is not None else ""
    found = f"{on}; computes in {how.compute_type} (can in {possible}), {batch} chunks at a time{room}"
    if how.notice:
        return Finding("warn", f"{found}; {how.notice}", f"set {PREFIX}COMPUTE_TYPE to what it can compute in")
    return Finding("ok", found)


def _here(settings: Settings) -> Path | None:
    """The model's directory, where it is on this machine and whole."""
    try:
        return models.local_model(settings.model, settings.models, settings.models_folder)
    except UsageError:
        return None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _decoder(w: Wiring) -> Finding:
    with tempfile.TemporaryDirectory() as folder, DecoderPool() as pool:
        wav, pcm = Path(folder) / "silence.wav", Path(folder) / "silence.pcm"
        with wave.open(str(wav), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(8000))
        report = pool.decode(wav, pcm, DecodeOptions(wall_s=DECODER_S))
    if not 0.4 < report.decoded_s < 0.6:
        raise UsageError(f"half a second of sound came back as {report.decoded_s:.2f} s")
    # asked in a process of its own: what decodes strangers' files is not loaded here
    ask = [sys.executable, "-P", "-c", "import av; print(av.ffmpeg_version_info)"]
    version = subprocess.run(ask, capture_output=True, text=True, timeout=DECODER_S, check=False).stdout.strip()
    walls = "limits and Landlock" if landlock.version() else "limits (this kernel has no Landlock to add)"
    return Finding("ok", f"FFmpeg {version or '?'} inside PyAV decodes behind {walls}; no ffmpeg binary is used")


def _cloud(w: Wiring) -> Finding:
    s = w.settings
    cloud = by_name(s.cloud, s.metadata_url)
    if s.cloud == "none":
        return Finding("ok", "notices of preemption are not asked for")
    if cloud is None:
        return Finding("ok", "no cloud's metadata service answers; there will be no notices of preemption")
    try:
        here = s.cloud == "auto" or cloud.here(2.0)
    except OSError:
        here = False
    if not here:
        return Finding("warn", f"{cloud.name}'s metadata service does not answer", f"set {PREFIX}CLOUD=auto or none")
    return Finding("ok", f"{cloud.name}'s metadata service answers; its notices of preemption are heeded")


CHECKS = (
    Check("home", _home, f"set {PREFIX}HOME to a folder that can be written to"),
    Check("database", check_database, f"see {PREFIX}DATABASE_URL"),
    Check("broker", check_broker_url, f"see {PREFIX}BROKER_URL"),
    Check("work", check_work, f"see {PREFIX}WORK_URL and {PREFIX}S3_ENDPOINT"),
    Check("output", check_output, f"see {PREFIX}OUT_URL and {PREFIX}S3_ENDPOINT"),
    Check("sources", check_sources, f"see {PREFIX}S3_ENDPOINT"),
    Check("model", _model, f"set {PREFIX}MODEL to one that there is"),
    Check("device", _device, f"see {PREFIX}DEVICE and {PREFIX}COMPUTE_TYPE"),
    Check("decoder", _decoder, "install PyAV (the package av) anew; the sandbox needs Linux"),
    Check("cloud", _cloud, f"see {PREFIX}CLOUD and {PREFIX}METADATA_URL"),
)
