"""The decoder's child and its server, which die, hang and lie; PCM and FLAC in parts."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunking.audio import DecodeOptions, DecoderPool, blocks, read_flac, read_pcm, write_flac
from chunking.errors import Code, DecoderFailed, Interrupted, PermanentError, TransientError
from chunking.timeline import SAMPLE_RATE, Span
from tests.unit.recordings import decode, encode, wav

HOOK = """
import ctypes, os, sys, time
from chunking import landlock, sandbox

landlock.forbid_all = lambda: False  # here a child may end its server, which Landlock forbids

def work(source, output, options):
    what = os.pread(source, 9, 0)
    if what == b"segfault":
        ctypes.string_at(0)
    if what == b"hang":
        time.sleep(600)
    if what == b"memory":
        bytes(8 << 30)
    if what == b"open":
        open("/etc/passwd")
    if what == b"server":
        os.kill(os.getppid(), 9)
        time.sleep(600)
    raise ValueError("secret text of the file")

sandbox.serve(int(sys.argv[1]), work)
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecoderPool]:
    (tmp_path / "hostile_decoder.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    with DecoderPool(module="hostile_decoder") as pool:
        yield pool


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("segfault", Code.DECODER_CRASHED),
        ("memory", Code.DECODER_CRASHED),
        ("open", Code.DECODER_CRASHED),
        ("raise", Code.DECODER_CRASHED),
        ("hang", Code.DECODER_TIMEOUT),
    ],
)
def test_a_child_that_dies_or_hangs_is_reported(hostile: DecoderPool, tmp_path: Path, what: str, code: Code) -> None:
    (tmp_path / "a.mp3").write_text(what)
    with pytest.raises(DecoderFailed) as caught:
        hostile.decode(tmp_path / "a.mp3", tmp_path / "a.pcm", DecodeOptions(wall_s=1.0))
    assert caught.value.code is code
    assert "secret" not in str(caught.value)


def test_a_server_that_dies_is_started_once_more(pool: DecoderPool, tmp_path: Path) -> None:
    source = wav(tmp_path / "a.wav", np.ones(16_000, np.int16))
    with DecoderPool() as own:
        decode(own, source)
        assert own._server is not None
        first = own._server.pid
        os.kill(first, signal.SIGKILL)
        assert decode(own, source)[0].duration_s == 1.0
        assert own._server.pid != first


def test_a_server_that_always_dies_is_not_the_recordings_fault(hostile: DecoderPool, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("server")
    with pytest.raises(TransientError):
        hostile.decode(tmp_path / "a.mp3", tmp_path / "a.pcm", DecodeOptions(wall_s=20.0))


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_closing_the_pool_ends_running_decodes(hostile: DecoderPool, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("hang")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            hostile.decode(tmp_path / "a.mp3", tmp_path / "a.pcm", DecodeOptions(wall_s=20.0))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while hostile._server is None or not (children := children_of(hostile._server.pid)):
        time.sleep(0.01)
    hostile.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [Interrupted]
    assert not Path(f"/proc/{children[0]}").exists()


def test_decodes_run_side_by_side(pool: DecoderPool, tmp_path: Path) -> None:
    sources = [wav(tmp_path / f"{n}.wav", np.full(16_000 * n, n, np.int16)) for n in range(1, 9)]
    got: dict[int, bool] = {}

    def run(n: int, source: Path) -> None:
        pcm = source.with_suffix(".pcm")
        report = pool.decode(source, pcm, DecodeOptions())
        got[n] = report.duration_s == n and bool((read_pcm(pcm, 1) == n).all())

    threads = [threading.Thread(target=run, args=(n, s)) for n, s in enumerate(sources, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == dict.fromkeys(range(1, 9), True)


def test_two_hours_take_no_more_memory_than_a_minute(pool: DecoderPool, tmp_path: Path) -> None:
    source = encode(tmp_path / "a.flac", np.zeros((1, 8000 * 7200), np.float32), rate=8000)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            assert pool._server is not None
            for child in children_of(pool._server.pid):
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if "VmHWM" in status:
                    peak = max(peak, int(status.split("VmHWM:")[1].split()[0]))

    thread = threading.Thread(target=watch)
    thread.start()
    report = pool.decode(source, tmp_path / "a.pcm", DecodeOptions(max_expansion=1e9))
    done.set()
    thread.join()
    assert report.duration_s == 7200
    assert 0 < peak < 150_000
    assert sum(len(block) for block in blocks(tmp_path / "a.pcm", 1)) == 7200 * SAMPLE_RATE


def least_of(folder: Path) -> int:
    """Files that stay open: a child that has just ended may not be noticed yet."""
    counts = []
    for _ in range(20):
        counts.append(len(os.listdir(folder)))
        time.sleep(0.02)
    return min(counts)


def test_the_server_leaves_nothing_open(pool: DecoderPool, tmp_path: Path) -> None:
    source = wav(tmp_path / "a.wav", np.ones(1600, np.int16))
    decode(pool, source)
    assert pool._server is not None
    server, ours = Path(f"/proc/{pool._server.pid}/fd"), Path("/proc/self/fd")
    before = least_of(server), least_of(ours)
    for _ in range(20):
        decode(pool, source)
    assert (least_of(server), least_of(ours)) == before
    assert b"AWS_" not in Path(f"/proc/{pool._server.pid}/environ").read_bytes()


# PCM and FLAC


def test_pcm_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.pcm"
    samples = np.arange(2 * 40_000, dtype=np.int16).reshape(-1, 2)
    path.write_bytes(samples.tobytes())
    assert np.array_equal(read_pcm(path, 2, 1), samples[:, 1])
    assert np.array_equal(read_pcm(path, 2, 0, Span(1.0, 2.0)), samples[16_000:32_000, 0])
    assert len(read_pcm(path, 2, 0, Span(9.0, 10.0))) == 0
    assert [len(block) for block in blocks(path, 2, 0, seconds=1.0)] == [16_000, 16_000, 8_000]


def test_flac_shards_come_back_exactly(tmp_path: Path) -> None:
    samples = np.random.default_rng(3).integers(-20_000, 20_000, 100_000, dtype=np.int16)
    write_flac(tmp_path / "a.flac", (samples[i : i + 30_000] for i in range(0, 100_000, 30_000)))
    assert np.array_equal(read_flac(tmp_path / "a.flac"), samples)
    assert np.array_equal(read_flac(tmp_path / "a.flac", Span(1.0, 2.0)), samples[16_000:32_000])
    memory = io.BytesIO()
    write_flac(memory, [samples])
    memory.seek(0)
    assert np.array_equal(read_flac(memory), samples)


def test_a_damaged_shard_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "x.flac").write_bytes(b"fLaC but not for long")
    with pytest.raises(PermanentError, match="stored sound is damaged"):
        read_flac(tmp_path / "x.flac")
