"""Killed at any moment, the same command goes on from the last checkpoint: real model, real SIGKILL."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jiwer
import pytest

from pipeline.scoring import normalised
from tests.acceptance.command import query, run
from tests.acceptance.test_run import wait_for_checkpoints
from tests.conftest import joined, read_16k, write_wav

BATCH = 4


@pytest.fixture(scope="module")
def four_minutes(tmp_path_factory: pytest.TempPathFactory, english_clips: list[Path]) -> Path:
    samples = joined([read_16k(c) for c in english_clips], pause_s=0.8, seconds=240.0, seed=7)
    return write_wav(tmp_path_factory.mktemp("audio") / "four.wav", samples)


def plan(home: Path) -> list[tuple[object, ...]]:
    return query(home, "SELECT position, channel, start_s, end_s, plan FROM shards ORDER BY position")


def chunks(home: Path) -> int:
    found: int = query(home, "SELECT sum(chunks) FROM shards")[0][0]
    return found


def letters(text: str) -> str:
    """What was said, however it is spelt: in these clips tiny.en writes "One, two" or "12", as the batch has it."""
    return normalised(text, "en").replace("one", "1").replace(" ", "")


def test_three_kills_cost_at_most_a_batch_each_and_change_nothing(
    home: Path, tmp_path: Path, four_minutes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = tmp_path / "undisturbed"
    monkeypatch.setenv("SPOTSCRIBE_HOME", str(undisturbed))
    expected = run(four_minutes, "--batch-size", BATCH, out=tmp_path / "expected")
    assert expected.code == 0
    count = chunks(undisturbed)
    assert count > 3 * BATCH / 2

    monkeypatch.setenv("SPOTSCRIBE_HOME", str(home))
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    log = tmp_path / "decoded"
    command = [
        sys.executable,
        "-m",
        "tests.acceptance.counting",
        str(log),
        "run",
        str(four_minutes),
        "--model",
        "tiny.en",
    ]
    command += ["--batch-size", str(BATCH), "--out", str(tmp_path / "out"), "--json"]
    for kill in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if kill:
            wait_for_checkpoints(home, min(count - 2, kill * count // 4))
        time.sleep(chance.uniform(0.0, 2.5))
        process.kill()
        process.communicate()
    stood = query(home, "SELECT count(*) FROM checkpoints")[0][0]
    last = subprocess.run(command, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr

    from tests.acceptance.command import Ran

    ended = Ran(last.returncode, last.stdout, last.stderr)
    assert ended.summary["chunks_reused"] == stood, seed
    assert ended.summary["chunks_decoded"] == count - stood
    assert plan(home) == plan(undisturbed), seed
    assert query(home, "SELECT count(*), count(DISTINCT chunk) FROM checkpoints") == [(count, count)]
    decoded = Counter(log.read_text().split("\n")[:-1])
    again = sum(n - 1 for n in decoded.values())
    assert again <= 3 * BATCH, (seed, again)

    texts = [letters(Path(r.files["four.wav"]["outputs"]["txt"]).read_text()) for r in (expected, ended)]
    assert jiwer.cer(*texts) < 0.025, seed  # one chunk would be more; other batches count in words or in figures
    assert not [p for p in (home / "work").rglob("*") if p.is_file()]


@pytest.mark.parametrize("moment", ["preparing", "between plan and first batch", "before files are written"])
def test_killed_at_named_moments(home: Path, tmp_path: Path, fox: Path, moment: str) -> None:
    """The process kills itself right there; the next run ends as if nothing had been."""
    hook = {
        "preparing": "chunking.audio:write_flac",
        "between plan and first batch": "pipeline.whisper:WhisperEngine.decode",
        "before files are written": "pipeline.finish:Finisher.deliver",
    }[moment]
    module, name = hook.split(":")
    code = (
        f"import os, {module} as m\n"
        f"owner, _, attribute = {name!r}.rpartition('.')\n"
        "setattr(getattr(m, owner) if owner else m, attribute, lambda *a, **k: os.kill(os.getpid(), 9))\n"
        "from workers.cli import main\nmain()\n"
    )
    arguments = ["run", str(fox), "--model", "tiny.en", "--out", str(tmp_path / "out"), "--json"]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False)
    assert killed.returncode == -9
    done = run(fox, out=tmp_path / "out")
    assert done.code == 0
    assert "fox" in Path(done.files[fox.name]["outputs"]["txt"]).read_text().lower()
    assert query(home, "SELECT count(*) FROM checkpoints") == [(1,)]
    assert query(home, "SELECT count(*) FROM transcripts") == [(1,)]


def test_two_runs_at_once_share_a_home(home: Path, tmp_path: Path, english_clips: list[Path]) -> None:
    """Both want the same recordings: each is decoded once, and both end well."""
    from tests.acceptance.command import PROGRAM

    command = [*PROGRAM, "run", *map(str, english_clips), "--model", "tiny.en", "--json", "--out"]
    both = [
        subprocess.Popen([*command, str(tmp_path / f"out{i}")], stdout=subprocess.PIPE, text=True) for i in range(2)
    ]
    for process in both:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert query(home, "SELECT count(*) FROM transcripts")[0][0] == len(english_clips)
    assert all(len(list((tmp_path / f"out{i}").glob("*.txt"))) == len(english_clips) for i in range(2))
