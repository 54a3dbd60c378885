"""`make bench-decode`: what the decoder's isolation costs: CPU time in this process, and in the sandboxed children.

Synthetic stereo at 44.1 kHz as mp3 and as mp4 with pictures, ten minutes and six seconds of it. CPU time of the server
and its children, from /proc, so a busy machine does little harm. Rounds alternate; medians.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from chunking import decoder
from chunking.audio import DecodeOptions, DecoderPool
from tests.unit.recordings import encode, voice

RATE = 44_100
LONG_S, SHORT_S, REPEATS = 600.0, 6.0, 20
"""Of a short file so many are decoded, since /proc counts hundredths of a second."""


def in_process(source: Path, pcm: Path, times: int) -> float:
    """CPU seconds without any isolation."""
    began = time.process_time()
    for _ in range(times):
        with source.open("rb", buffering=0) as given, pcm.open("wb", buffering=0) as taken:
            decoder._work(given.fileno(), taken.fileno(), {})
    return time.process_time() - began


def in_children(pool: DecoderPool, source: Path, pcm: Path, times: int) -> float:
    """CPU seconds of the server, of its children, and of what the parent does for them."""
    assert pool._server is not None
    before, began = _cpu_s(pool._server.pid), time.process_time()
    for _ in range(times):
        pool.decode(source, pcm, DecodeOptions())
    time.sleep(0.2)  # until the last child is reaped, and with it counted
    return _cpu_s(pool._server.pid) - before + time.process_time() - began


def _cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def made(folder: Path) -> dict[str, tuple[Path, float, int]]:
    """The files: name, length in seconds, how often each is decoded in a round."""
    found = {}
    for kind in ("mp3", "mp4"):
        for seconds, times in ((LONG_S, 1), (SHORT_S, REPEATS)):
            file = folder / f"{seconds:.0f}.{kind}"
            encode(file, voice(seconds, RATE, 2), RATE, video=seconds if kind == "mp4" else 0.0)
            found[f"{kind}, {seconds:.0f} s"] = (file, seconds, times)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-decode", description=__doc__)
    ask.add_argument("--rounds", type=int, default=5)
    rounds = ask.parse_args(arguments).rounds
    decoder._warm_up()
    print("| recording | ms of CPU in process | in a child | hours of audio a core-hour in process | in a child |")
    print("| --- " + "| ---: " * 4 + "|")
    with tempfile.TemporaryDirectory() as folder, DecoderPool() as pool:
        files, pcm = made(Path(folder)), Path(folder) / "out.pcm"
        for name, (file, seconds, times) in files.items():
            pool.decode(file, pcm, DecodeOptions())
            ways: list[Callable[[], float]] = [
                lambda f=file, n=times: in_process(f, pcm, n),  # type: ignore[misc]
                lambda f=file, n=times: in_children(pool, f, pcm, n),  # type: ignore[misc]
            ]
            took = [[way() / times for way in ways] for _ in range(rounds)]
            plain, apart = (median(t[i] for t in took) for i in (0, 1))
            print(f"| {name} | {plain * 1e3:.0f} | {apart * 1e3:.0f} | {seconds / plain:.0f} | {seconds / apart:.0f} |")


if __name__ == "__main__":
    main()
