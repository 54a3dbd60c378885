"""Any container to 16 kHz PCM on disk, in a sandboxed child process; PCM in blocks; FLAC shards.

The only importer of soundfile: libsndfile writes FLAC in a stream, without a second FFmpeg in this process.
PCM files are raw interleaved 16-bit samples. Nothing here grows with the length of a recording.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import soundfile

from chunking.errors import Code, DecoderFailed, Interrupted, PermanentError, Rejected, TransientError
from chunking.levels import Level, repair
from chunking.media import MAX_CHANNELS, DecodeOptions, MediaReport
from chunking.timeline import SAMPLE_RATE, Span

__all__ = [
    "DecodeOptions",
    "DecoderPool",
    "MediaReport",
    "blocks",
    "read_flac",
    "read_pcm",
    "write_flac",
    "write_mp3",
    "write_sound",
]

Pcm = npt.NDArray[np.int16]

_SAMPLE_BYTES = 2
_WALL_S, _WALL_BYTES_PER_S = 60.0, 200_000
"""The slowest decoder met does ten times this rate; a day of speech at 24 kbit/s gets 20 minutes."""
_REPORT_BYTES = 1 << 16
_FLAC_LEVEL = 0.5
"""Of 0 to 1. An hour of speech takes 0.7 s; 0 saves nothing, 1 takes twice as long for 2 % fewer bytes."""
_MP3_LEVEL = 0.9
"""Of 0 to 1: 24 kbit/s, at which speech is plain to hear. An hour is 10.8 MB."""


class DecoderPool:
    """Decodes recordings in children of one small server process, several at once; threads may share it."""

    def __init__(self, *, module: str = "chunking.decoder") -> None:
        self._module = module
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0
        self._closed = 0  # how often

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Have the server started now, so that the first decode need not wait for it. Does not wait itself."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the server and every decode still running (each raises `Interrupted`). A later decode starts anew."""
        with self._lock:
            self._closed += 1
            self._stop()

    def decode(self, source: Path, pcm: Path, options: DecodeOptions) -> MediaReport:
        """Decode `source` into the file `pcm`, replacing it; on an error its content is worth nothing.

        Raises `Rejected` with a code when the recording is at fault, `DecoderFailed` (DECODER_CRASHED,
        DECODER_TIMEOUT) when the decoder died or hung on it, `OSError` when a file cannot be read or written, and
        `TransientError` when the server, started anew, died again, or the pool was closed (`Interrupted`).
        """
        with source.open("rb", buffering=0) as given, pcm.open("wb", buffering=0) as taken:
            fds = given.fileno(), taken.fileno()
            size = os.fstat(fds[0]).st_size
            if not size:
                raise Rejected("the file is empty (0 bytes)", code=Code.EMPTY)
            if size > options.max_bytes:
                raise Rejected(f"larger than {options.max_bytes} bytes", code=Code.TOO_LARGE)
            wall = options.wall_s or _WALL_S + size / _WALL_BYTES_PER_S
            request = _request(options, wall)
            closed = self._closed
            answer = self._ask(request, fds, wall)
            if answer is None:  # the server itself ended
                if self._closed != closed:
                    raise Interrupted
                os.ftruncate(fds[1], 0)
                os.lseek(fds[1], 0, os.SEEK_SET)
                answer = self._ask(request, fds, wall)
        return _report(answer)

    def decode_repaired(self, source: Path, pcm: Path, options: DecodeOptions) -> MediaReport:
        """Like `decode`, and where the sound is too quiet or lies under rumble, once more with that repaired."""
        report = self.decode(source, pcm, options)
        if (needed := repair(report.levels)) is None:
            return report
        self.decode(source, pcm, replace(options, repair=needed))
        return replace(report, repair=needed)

    def _ask(self, request: bytes, fds: tuple[int, int], wall: float) -> dict[str, Any] | None:
        """One request to its end; None when the server ended, which says nothing about this recording."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs, self._lock:
                try:
                    socket.send_fds(self._running(), [request], [*fds, theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError):
                    self._stop()
                    return None
                server = self._server
            ours.settimeout(wall)
            try:
                answer = ours.recv(_REPORT_BYTES)
            except TimeoutError:  # leaving closes `ours`, and with it ends the child
                raise DecoderFailed(f"no result within {wall:.0f} s", code=Code.DECODER_TIMEOUT) from None
            except ConnectionResetError:
                answer = b""
        if answer:
            return dict(json.loads(answer))
        return None if _has_ended(server) else {"died": 0}

    def _running(self) -> socket.socket:
        """The control socket of a live server. A forked copy of this process gets a server of its own."""
        alive = self._server is not None and self._owner == os.getpid() and self._server.poll() is None
        if self._control is None or not alive:
            self._stop()
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._server = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._module, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=_environment(),
                    start_new_session=True,
                )
            self._owner = os.getpid()
        return self._control

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()  # the server kills its children and leaves
        if self._server is not None and self._owner == os.getpid():
            try:
                self._server.wait(5.0)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        self._control = self._server = None


def _has_ended(server: subprocess.Popen[bytes] | None) -> bool:
    try:
        return server is None or server.wait(1.0) is not None
    except subprocess.TimeoutExpired:
        return False


def _environment() -> dict[str, str]:
    """What the server may know: where Python's modules are. No credentials, no proxies."""
    return {
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",  # a process with threads must not fork
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
    }


def _request(options: DecodeOptions, wall: float) -> bytes:
    seconds = options.max_duration_s + 60
    most = int(seconds * SAMPLE_RATE * _SAMPLE_BYTES * (MAX_CHANNELS if options.channels == "split" else 1))
    return json.dumps({"options": asdict(options), "cpu_s": int(wall) + 1, "output_bytes": most}).encode()


def _report(answer: dict[str, Any] | None) -> MediaReport:
    if answer is None:
        raise TransientError("the decoder's server does not run here")
    if "report" in answer:
        report = answer["report"]
        lost, levels = tuple((a, b) for a, b in report["lost"]), tuple(Level(**x) for x in report["levels"])
        return MediaReport(**{**report, "lost": lost, "levels": levels})
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"] or errno.EIO))
    if "died" in answer:
        raise DecoderFailed(f"the decoder died on this file ({answer['died']})", code=Code.DECODER_CRASHED)
    code = Code(answer["error"])
    raise (DecoderFailed if code is Code.DECODER_CRASHED else Rejected)(answer["message"], code=code)


def read_pcm(path: Path, channels: int, channel: int = 0, span: Span | None = None) -> Pcm:
    """One channel of a PCM file, or the part of it inside `span`."""
    first = 0 if span is None else max(0, round(span.start * SAMPLE_RATE))
    count = -1 if span is None else max(0, round(span.end * SAMPLE_RATE) - first) * channels
    samples = np.fromfile(path, dtype="<i2", count=count, offset=first * channels * _SAMPLE_BYTES)
    return np.ascontiguousarray(samples[: len(samples) // channels * channels].reshape(-1, channels)[:, channel])


def blocks(path: Path, channels: int, channel: int = 0, seconds: float = 30.0) -> Iterator[Pcm]:
    """One channel of a PCM file in blocks; the last may be shorter, none is empty."""
    index = 0
    while len(block := read_pcm(path, channels, channel, Span(index * seconds, (index + 1) * seconds))):
        yield block
        index += 1


def write_flac(file: Path | BinaryIO, pcm: Iterable[Pcm]) -> None:
    """Write 16 kHz mono FLAC, block by block."""
    with soundfile.SoundFile(
        file, "w", SAMPLE_RATE, channels=1, format="FLAC", subtype="PCM_16", compression_level=_FLAC_LEVEL
    ) as flac:
        for block in pcm:
            flac.write(block)


SOUND_SUFFIXES = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", None), ".ogg": ("OGG", None)}
"""Formats that a clip can be written in, and libsndfile's names of them."""


def write_sound(path: Path, pcm: Iterable[Pcm]) -> None:
    """Write 16 kHz mono in the format of the path's suffix, which must be one of SOUND_SUFFIXES.

    In blocks of some seconds: libsndfile's Vorbis encoder overflows its stack on long ones.
    """
    kind, subtype = SOUND_SUFFIXES[path.suffix.lower()]
    with soundfile.SoundFile(path, "w", SAMPLE_RATE, channels=1, format=kind, subtype=subtype) as sound:
        for block in pcm:
            sound.write(block)


def write_mp3(file: Path | BinaryIO, pcm: Iterable[Pcm]) -> None:
    """Write 16 kHz mono MP3 at 24 kbit/s, block by block: which every browser plays.

    At a constant rate, since browsers guess places in one that varies. libsndfile's Opus is a third smaller and takes
    ten times as long: 55 s beside 5 s for seven minutes.
    """
    with soundfile.SoundFile(
        file,
        "w",
        SAMPLE_RATE,
        channels=1,
        format="MP3",
        subtype="MPEG_LAYER_III",
        compression_level=_MP3_LEVEL,
        bitrate_mode="CONSTANT",
    ) as mp3:
        for block in pcm:
            mp3.write(block)


def read_flac(file: Path | BinaryIO, span: Span | None = None) -> Pcm:
    """A FLAC shard's samples, or those inside `span` (in seconds of the shard). Raises PermanentError if damaged."""
    try:
        with soundfile.SoundFile(file) as flac:
            if span is not None:
                flac.seek(min(max(0, round(span.start * SAMPLE_RATE)), flac.frames))
            count = -1 if span is None else max(0, round(span.end * SAMPLE_RATE) - flac.tell())
            samples: Pcm = flac.read(count, dtype="int16")
    except soundfile.LibsndfileError as e:
        raise PermanentError(f"the stored sound is damaged: {e}") from e
    return samples
