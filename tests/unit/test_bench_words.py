"""The benchmark of word times: what it takes for the truth, what it counts, and all of it in miniature."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chunking.timeline import SAMPLE_RATE, Span, Word
from tests.benchmarks.bench_process import ROOT, Usage
from tests.benchmarks.bench_set import from_packages
from tests.benchmarks.bench_words import (
    OURS,
    PAUSE_S,
    PEER,
    Edges,
    Placed,
    Recording,
    edges_of,
    main,
    near,
    recordings,
    sound_of,
    table,
    together,
)


def tone(seconds: float, level: float) -> np.ndarray:
    t = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (32767 * level * np.sin(2 * np.pi * 200 * t)).astype(np.int16)


def test_a_clip_sounds_from_its_first_loud_moment_to_its_last() -> None:
    click = np.concatenate([tone(0.1, 0), tone(0.005, 0.9), tone(0.3, 0)])
    found = sound_of(np.concatenate([click, tone(0.5, 0.5), tone(0.3, 0), tone(0.4, 0.05), tone(0.6, 0.001)]))
    assert found is not None
    assert found.start == pytest.approx(0.405, abs=0.02)
    assert found.end == pytest.approx(1.605, abs=0.02)


def test_a_room_that_is_too_loud_is_not_judged() -> None:
    assert sound_of(np.concatenate([tone(1.0, 0.005), tone(1.0, 0.5), tone(1.0, 0.005)])) is None
    assert sound_of(np.zeros(8, np.int16)) is None


SPEECH = (Span(1.0, 2.0), Span(3.0, 4.0))
RECORDING = Recording(
    Path("x.wav"),
    (Placed("It is so.", Span(1.0, 2.0)), Placed("May be it", Span(3.0, 4.0)), Placed("no", None)),
    SPEECH,
)


def test_only_words_that_were_read_right_are_compared() -> None:
    heard = [
        Word(1.1, 1.4, " it", 1.0), Word(1.4, 1.7, " was", 1.0), Word(1.7, 2.25, " So.", 1.0),
        Word(3.5, 3.6, " be", 1.0), Word(3.6, 3.9, " it,", 1.0), Word(3.85, 4.0, " No", 1.0),
    ]  # fmt: skip
    found = edges_of(RECORDING, heard)
    assert found.starts == pytest.approx((0.1,))
    assert found.ends == pytest.approx((0.25, -0.1))
    assert (found.words, found.inside, found.in_order) == (6, 5, 5)
    assert edges_of(RECORDING, []).words == 0


def test_shares_are_of_all_recordings_together() -> None:
    found = together([Edges((0.05, -0.15), (), 2, 1, 2), Edges((0.3, 0.2), (0.1,), 2, 2, 2)])
    assert [near(found.starts, s) for s in (0.1, 0.2, 0.5)] == [0.25, 0.75, 1.0]
    assert (found.words, found.inside, found.in_order) == (4, 3, 4)


def test_the_table_sets_ours_beside_the_peer() -> None:
    usage = Usage(2.0, 3.0, 100.0, 0.0)
    mine, theirs = Edges((0.05, 0.0), (0.1, 0.3), 4, 4, 4), Edges((0.05, 0.4), (0.3, 0.1), 4, 2, 4)
    text = table([RECORDING], {OURS: (mine, usage), PEER: (theirs, usage)})
    assert "1 recordings of 3 clips, 2 of them quiet enough to be judged." in text
    assert f"| {OURS} | starts | 2 | 100.0% | 100.0% | 100.0% | 0.025 s | 100.0% | 100.0% | 3 |" in text
    assert "starts 2.00 times as often, ends 1.00 times as often, for 1.00 times its CPU seconds" in text
    assert PEER not in table([RECORDING], {OURS: (mine, usage)})


def test_clips_are_joined_once_each_with_pauses_between_them(tmp_path: Path) -> None:
    clips = from_packages("en").clips
    found = recordings(clips, tmp_path, 1.0, seed=5)
    assert sorted(p.text for r in found for p in r.clips) == sorted(c.text for c in clips)
    assert [r.clips for r in found] == [r.clips for r in recordings(clips, tmp_path, 1.0, seed=5)]
    (whole,) = recordings(clips, tmp_path, 600.0, seed=5)
    sounds = [p.sound for p in whole.clips if p.sound]
    assert len(sounds) >= 2
    assert all(b.start - a.end >= PAUSE_S[0] for a, b in itertools.pairwise(sounds))
    for sound in sounds:  # the VAD agrees
        assert min(abs(s.start - sound.start) for s in whole.speech) < 0.1


def test_the_whole_of_it_on_the_clips_of_a_package() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.bench_words"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [[x.strip() for x in line.split("|")] for line in done.stdout.splitlines() if line.startswith("| ")]
    found = {(r[1], r[2]): r for r in rows}
    assert {(OURS, "starts"), (OURS, "ends"), (PEER, "starts"), (PEER, "ends")} <= set(found)
    for edge in ("starts", "ends"):
        row = found[OURS, edge]
        assert int(row[3]) >= 2
        assert float(row[5].rstrip("%")) >= 90.0
        assert row[8] == row[9] == "100.0%"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--manifest", "nowhere.jsonl"], "bench-words: nowhere.jsonl cannot be read: No such file or directory"),
        (["--models", "huge"], "bench-words: no model is named 'huge'"),
    ],
)
def test_a_wrong_request_ends_with_one_line(asked: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as told:
        main(asked)
    assert str(told.value.code).startswith(says)
