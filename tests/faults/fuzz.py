"""Broken media by the thousand, into the decoder: `python -m tests.faults.fuzz --files 1000` (`make fuzz`).

Whole files of many formats are cut, spliced, repeated, or have bytes and bits changed, each time in a way that its seed
repeats. Each has to end in a state within its wall clock, and the process that asked must not notice.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np

from chunking.audio import DecodeOptions, DecoderPool
from chunking.errors import Code, SpotscribeError

FORMATS = {
    "wav": "pcm_s16le", "w64": "pcm_s24le", "aiff": "pcm_s16be", "au": "pcm_mulaw", "caf": "pcm_s16le", "mp3": "libmp3lame",
    "mp2": "mp2", "ac3": "ac3", "aac": "aac", "flac": "flac", "m4a": "aac", "mov": "alac", "ogg": "libopus", "oga": "flac",
    "webm": "libopus", "mka": "libmp3lame", "mkv": "aac", "ts": "aac", "wma": "wmav2", "avi": "libmp3lame", "flv": "aac",
    "wv": "wavpack",
}  # fmt: skip
"""Suffix: the codec in it."""
WALL_S = 10.0
SECONDS = 2.0


def seed_files(folder: Path) -> list[bytes]:
    """A whole, short recording of each format that this PyAV can write."""
    t = np.arange(round(SECONDS * 48_000)) / 48_000
    sound = (0.4 * np.sin(2 * np.pi * 220 * t) * (0.6 + 0.4 * np.sin(8 * np.pi * t))).astype(np.float32)
    made = []
    for suffix, codec in FORMATS.items():
        path = folder / f"seed.{suffix}"
        with av.open(str(path), "w") as out:
            stream = out.add_stream(codec, rate=48_000, layout="stereo")
            stream.bit_rate = 128_000
            for begin in range(0, len(sound), 1024):
                frame = av.AudioFrame.from_ndarray(
                    np.repeat(sound[begin : begin + 1024], 2)[np.newaxis], "flt", "stereo"
                )
                frame.sample_rate, frame.pts = 48_000, begin
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        made.append(path.read_bytes())
    return made


def _bytes_changed(whole: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    data = bytearray(whole)
    for _n in range(chance.choice([1, 4, 32, 256])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def _head_changed(whole: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Where the numbers are that a parser believes."""
    upto = min(len(whole), chance.choice([64, 512, 4096]))
    return _bytes_changed(whole[:upto], chance, others) + whole[upto:]


def _bits_flipped(whole: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    data = bytearray(whole)
    for _n in range(chance.choice([1, 8, 64])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _cut(whole: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    return whole[: chance.randrange(len(whole))]


def _torn(whole: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    a, b = sorted(chance.randrange(len(whole)) for _ in range(2))
    return whole[:a] + whole[b:]


def _spliced(whole: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    other = chance.choice(others)
    return whole[: chance.randrange(len(whole))] + other[chance.randrange(len(other)) :]


def _repeated(whole: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    a, b = sorted(chance.randrange(len(whole)) for _ in range(2))
    return whole[:b] + whole[a:b] * chance.choice([1, 3, 20]) + whole[b:]


def _numbers_set(whole: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    """Four bytes become a number that overflows something."""
    data = bytearray(whole)
    for _n in range(chance.choice([1, 3])):
        at = chance.randrange(max(1, min(len(data), 4096) - 4))
        data[at : at + 4] = chance.choice(
            [b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\1"]
        )
    return bytes(data)


WAYS: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    _bytes_changed, _head_changed, _bits_flipped, _cut, _torn, _spliced, _repeated, _numbers_set,
)  # fmt: skip


@dataclass
class Found:
    """What came of many broken files."""

    ends: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    surprises: list[str] = field(default_factory=list)
    """Files whose end was none of ours, with the seed that makes each again."""


def broken(seed: int, wholes: Sequence[bytes]) -> bytes:
    """The broken file of that seed."""
    chance = random.Random(seed)
    data = chance.choice(wholes)
    for _ in range(chance.choice([1, 1, 2])):
        data = chance.choice(WAYS)(data or b"\0", chance, wholes)
    return data


def fuzz(files: int, first: int = 0, wall_s: float = WALL_S) -> Found:
    """Decode that many broken files, from that seed on."""
    found = Found()
    with tempfile.TemporaryDirectory() as name, DecoderPool() as pool:
        folder = Path(name)
        wholes = seed_files(folder)
        source, pcm = folder / "broken", folder / "pcm"
        for seed in range(first, first + files):
            source.write_bytes(broken(seed, wholes))
            began = time.monotonic()
            try:
                report = pool.decode(source, pcm, DecodeOptions(wall_s=wall_s))
                end = "partial" if report.truncated or report.damaged else "done"
            except SpotscribeError as e:
                end = e.code.value
                if e.code is Code.INTERNAL or "\n" in str(e):
                    found.surprises.append(f"seed {seed}: {e!r}")
            except Exception as e:  # the very thing that is looked for
                end = "surprise"
                found.surprises.append(f"seed {seed}: {e!r}")
            found.ends[end] += 1
            found.slowest_s = max(found.slowest_s, time.monotonic() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first file; each further one counts on")
    asked = parser.parse_args()
    found = fuzz(asked.files, asked.seed)
    for end, count in found.ends.most_common():
        print(f"{count:6d}  {end}")
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"slowest {found.slowest_s:.2f} s of {WALL_S:g}; largest child {memory:.0f} MB; {len(found.surprises)} surprises"
    )
    for surprise in found.surprises:
        print(surprise)
    raise SystemExit(bool(found.surprises))


if __name__ == "__main__":
    main()
