"""`spotscribe run` with the real model, as a user calls it: what comes out, what is said, what is not done twice."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.exports import SCHEMA_VERSION
from tests.acceptance.command import PROGRAM, query, run, spotscribe
from tests.conftest import joined, read_16k, write_wav


def words(path: str) -> str:
    return "".join(ch for ch in Path(path).read_text().lower() if ch.isalpha() or ch.isspace())


def test_a_folder_of_good_and_broken_files(home: Path, tmp_path: Path, english_clips: list[Path]) -> None:
    folder = tmp_path / "recordings"
    (folder / "deep").mkdir(parents=True)
    for i, clip in enumerate(english_clips):
        shutil.copy(clip, folder / "deep" / f"{i}-{clip.name}")
    broken = {
        "empty.mp3": (b"", "empty"),
        "text.wav": (b"this is no recording but a letter to my aunt\n" * 50, "not_media"),
        "cut.flac": (b"fLaC\x00\x00\x00\x22" + b"\0" * 20, None),
        "noise.mp3": (np.random.default_rng(1).bytes(60_000), None),
        "zeros.ogg": (bytes(50_000), None),
    }
    for name, (content, _) in broken.items():
        (folder / name).write_bytes(content)
    (folder / "notes.txt").write_text("not a recording")

    done = run(folder, out=tmp_path / "out")
    assert done.code == 3
    files = done.files
    assert len(files) == len(english_clips) + len(broken)
    for name, (_, code) in broken.items():
        assert files[name]["state"] == "rejected", files[name]
        assert files[name]["code"] == code or (
            code is None and files[name]["code"] in {"empty", "not_media", "undecodable"}
        )
        assert files[name]["error"]
        assert files[name]["outputs"] == {}
    good = [f for f in files.values() if f["state"] == "done"]
    assert len(good) == len(english_clips)
    for f in good:
        assert f["seconds"] > 0
        assert f["words"] > 0
        assert f["language"] == "en"
        assert sum(f["coverage"].values()) == pytest.approx(f["seconds"], abs=0.01)
        assert Path(f["outputs"]["txt"]).parent == tmp_path / "out" / "deep"
    fox = next(f for n, f in files.items() if "quick_brown_fox" in n)
    assert "the quick brown fox jumps over the lazy dog" in words(fox["outputs"]["txt"])
    assert "notes.txt" not in files
    summary = done.summary
    assert summary["chunks_decoded"] == len(query(home, "SELECT 1 FROM checkpoints"))
    assert summary["chunks_reused"] == 0
    assert 0 < summary["mean_batch_fill"] <= 1
    assert 0 < summary["model_busy"] <= 1
    assert summary["rtfx"] == pytest.approx(summary["audio_s"] / summary["wall_s"], rel=0.01)


def test_done_is_not_done_again_and_lost_files_are_written_again(home: Path, tmp_path: Path, fox: Path) -> None:
    first = run(fox, "--formats", "txt,srt,vtt,json", out=tmp_path / "out")
    assert first.code == 0
    outputs = first.files[fox.name]["outputs"]
    assert sorted(outputs) == ["json", "srt", "txt", "vtt"]
    document = json.loads(Path(outputs["json"]).read_text())
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["job"]["created_at"].endswith("+00:00")
    assert Path(outputs["vtt"]).read_text().startswith("WEBVTT")
    Path(outputs["srt"]).unlink()

    again = run(fox, "--formats", "txt,srt,vtt,json", out=tmp_path / "out")
    assert (again.code, again.summary["chunks_decoded"], again.summary["batches"]) == (0, 0, 0)
    assert again.files[fox.name]["outputs"] == outputs
    assert Path(outputs["srt"]).is_file()

    plain = spotscribe("run", fox, "--out", tmp_path / "out")
    assert "all of it had been done before" in plain.stdout
    assert str(tmp_path / "out") in plain.stdout

    forced = run(fox, "--force", out=tmp_path / "out")
    assert forced.summary["chunks_decoded"] == 1


def test_equal_content_is_decoded_once_under_whatever_name(home: Path, tmp_path: Path, fox: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.wav", "b.wav", "sub dir ümläut & 100%.wav"):
        shutil.copy(fox, folder / name)
    done = run(folder, out=tmp_path / "out")
    assert (done.code, done.summary["chunks_decoded"]) == (0, 1)
    texts = {words(f["outputs"]["txt"]) for f in done.files.values()}
    assert len(texts) == 1
    assert len({f["outputs"]["txt"] for f in done.files.values()}) == 3
    shutil.copy(fox, folder / "later.wav")
    assert run(folder, out=tmp_path / "out").summary["chunks_decoded"] == 0


def test_changed_content_under_the_same_name_is_a_new_recording(
    home: Path, tmp_path: Path, fox: Path, voice: Path
) -> None:
    path = tmp_path / "x.wav"
    shutil.copy(fox, path)
    first = run(path, out=tmp_path / "out").files["x.wav"]
    shutil.copy(voice, path)
    second = run(path, out=tmp_path / "out").files["x.wav"]
    assert first["outputs"]["txt"] == second["outputs"]["txt"]
    assert "fox" not in words(second["outputs"]["txt"])


def test_silence_is_done_with_an_empty_transcript(home: Path, tmp_path: Path) -> None:
    path = write_wav(tmp_path / "silence.wav", np.zeros(16000 * 5, np.int16))
    done = run(path, out=tmp_path / "out")
    found = done.files["silence.wav"]
    assert (done.code, found["state"], found["code"], found["words"]) == (0, "done", "no_speech", 0)
    assert found["coverage"] == {"transcribed_s": 0.0, "no_speech_s": 5.0, "failed_s": 0.0}
    assert Path(found["outputs"]["txt"]).read_text() == ""


def test_a_cut_file_is_partial_and_says_how_much(home: Path, tmp_path: Path, voice: Path) -> None:
    path = tmp_path / "cut.wav"
    path.write_bytes(voice.read_bytes()[:200_000])
    done = run(path, out=tmp_path / "out")
    found = done.files["cut.wav"]
    assert (done.code, found["state"], found["code"]) == (3, "partial", "truncated")
    assert "could be decoded" in found["error"]
    assert found["words"] > 3


def test_channels_split_and_word_times(home: Path, tmp_path: Path, fox: Path, voice: Path) -> None:
    import soundfile

    left, right = read_16k(fox), read_16k(voice)
    both = np.zeros((len(left) + len(right), 2), np.int16)
    both[: len(left), 0] = left
    both[len(left) :, 1] = right
    soundfile.write(tmp_path / "call.wav", both, 16000)
    done = run(
        tmp_path / "call.wav", "--channels", "split", "--word-timestamps", "--formats", "json", out=tmp_path / "out"
    )
    found = json.loads(Path(done.files["call.wav"]["outputs"]["json"]).read_text())
    by_channel = {c: " ".join(s["text"] for s in found["segments"] if s["channel"] == c).lower() for c in (0, 1)}
    assert "fox" in by_channel[0]
    assert "fox" not in by_channel[1]
    assert len(by_channel[1].split()) > 10
    assert sum(found["coverage"][k] for k in ("transcribed_s", "no_speech_s", "failed_s")) == pytest.approx(
        found["duration"], abs=0.01
    )
    for channel in (0, 1):
        times = [(w["start"], w["end"]) for s in found["segments"] if s["channel"] == channel for w in s["words"]]
        assert times
        assert all(a <= b for a, b in times)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(times))
    boundary = len(left) / 16000
    assert all(s["end"] <= boundary + 0.5 for s in found["segments"] if s["channel"] == 0)
    assert all(s["start"] >= boundary - 0.5 for s in found["segments"] if s["channel"] == 1)


def test_speech_without_a_pause_loses_and_doubles_nothing_at_the_cuts(
    home: Path, tmp_path: Path, english_clips: list[Path]
) -> None:
    """Clips with all silence cut out, joined: the same words as the clips one by one, save a few that the joints blur."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normal = EnglishTextNormalizer()
    tight = {c: without_silence(read_16k(c)) for c in english_clips}
    alone = [write_wav(tmp_path / f"{c.stem}.wav", samples) for c, samples in tight.items()]
    order = [
        english_clips[i] for i in (0, 3, 0, 2, 3, 0, 3, 0)
    ]  # not the numbers: written as words here, as digits there
    path = write_wav(tmp_path / "all.wav", np.concatenate([tight[c] for c in order]))
    files = run(path, *alone, out=tmp_path / "out").files
    text = {name: normal(Path(f["outputs"]["txt"]).read_text()) for name, f in files.items()}
    expected = " ".join(text[f"{c.stem}.wav"] for c in order)
    compared = jiwer.process_words(expected, text["all.wav"])
    assert compared.deletions + compared.insertions <= 0.05 * len(expected.split()), (expected, text["all.wav"])
    assert compared.wer < 0.12, (expected, text["all.wav"])


def without_silence(samples: np.ndarray) -> np.ndarray:
    loud = np.convolve(np.abs(samples.astype(np.float32)), np.ones(800) / 800, "same")
    return samples[loud > 0.08 * np.percentile(loud, 95)]


def test_requests_that_are_wrong_are_one_line_and_code_2(home: Path, tmp_path: Path, fox: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("x")
    cases = [
        (["run", tmp_path / "docs"], "no recordings in"),
        (["run", tmp_path / "missing.wav"], "no such file"),
        (["run", fox, "--formats", "doc"], "possible: txt, srt, vtt, json"),
        (["run", fox, "--language", "klingon"], "no language code"),
        (["run", fox, "--language", "de"], "knows English only"),
        (["run", fox, "--language", "multi"], "--language multi: this model knows English only"),
        (["run", fox, "--task", "translate"], "knows English only"),
        (["run", fox, "--model", tmp_path], "no Whisper model"),
        (["run", fox, "--model", "tinny"], "no model is named"),
        (["run", fox, "--compute-type", "int8_float16", "--device", "cpu"], "cannot compute in"),
        (["run", fox, "--device", "cuda"], "sees no CUDA device"),
        (["run", fox, "--batch-size", "0"], "batch-size"),
        (["run", fox, "--out", fox], "is a file"),
        (["run", fox, "--out", fox / "deeper"], "is a file"),
        (["run"], "Missing argument"),
        (["fly"], "No such command"),
    ]
    for arguments, said in cases:
        done = spotscribe(*arguments, cwd=tmp_path)
        assert done.code == 2, (arguments, done)
        assert said.lower() in done.stderr.lower(), (arguments, done.stderr)
        assert not (tmp_path / "transcripts").exists()
    assert not (home / "spotscribe.db").exists()  # nothing was done


def test_a_compute_type_that_is_set_for_other_machines_gives_way_and_the_transcript_says_to_what(
    home: Path, tmp_path: Path, fox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTSCRIBE_COMPUTE_TYPE", "int8_float16")
    monkeypatch.setenv("SPOTSCRIBE_DEVICE", "cpu")
    done = run(fox, out=tmp_path / "out")
    assert done.code == 0
    assert done.stderr.startswith("this CPU cannot compute in int8_float16; going on in int8_float32\n")
    assert query(home, "SELECT compute_type FROM transcripts") == [("int8_float32",)]
    written = json.loads(Path(done.files[fox.name]["outputs"]["json"]).read_text())
    assert written["model"] == {"name": "tiny.en", "compute_type": "int8_float32"}
    monkeypatch.setenv("SPOTSCRIBE_COMPUTE_TYPE", "int9")
    done = run(fox, out=tmp_path / "out")
    assert done.code == 2
    assert "no compute type 'int9'; this CPU can compute in float32" in done.stderr


def test_a_setting_that_is_wrong_is_named(
    home: Path, tmp_path: Path, fox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTSCRIBE_MAX_HOURS", "a lot")
    done = spotscribe("run", fox, "--out", tmp_path / "out")
    assert done.code == 2
    assert done.stderr.startswith("spotscribe: SPOTSCRIBE_MAX_HOURS: ")
    monkeypatch.setenv("SPOTSCRIBE_MAX_HOURS", "0.0001")
    done = run(fox, out=tmp_path / "out")
    assert (done.code, done.files[fox.name]["code"]) == (3, "too_long")
    monkeypatch.delenv("SPOTSCRIBE_MAX_HOURS")  # the limit is lifted, and so is what hung on it
    assert run(fox, out=tmp_path / "out").files[fox.name]["state"] == "done"


def test_a_file_that_cannot_be_written_is_told_and_harms_no_later_run(home: Path, tmp_path: Path, fox: Path) -> None:
    (tmp_path / "bad" / f"{fox.stem}.txt").mkdir(parents=True)  # a folder stands where the transcript belongs
    done = run(fox, "--formats", "txt,json", out=tmp_path / "bad")
    assert done.code == 3
    assert "could not be written" in done.files[fox.name]["error"]
    assert list(done.files[fox.name]["outputs"]) == ["json"]
    later = run(fox, "--formats", "txt", out=tmp_path / "good")
    assert (later.code, later.summary["chunks_decoded"]) == (0, 0)
    assert later.files[fox.name]["outputs"] == {"txt": str(tmp_path / "good" / f"{fox.stem}.txt")}


def test_each_run_writes_and_names_its_own_files_only(home: Path, tmp_path: Path, fox: Path) -> None:
    first = run(fox, "--formats", "txt,srt", out=tmp_path / "a").files[fox.name]["outputs"]
    Path(first["txt"]).write_text("edited by hand")
    Path(first["srt"]).unlink()
    again = run(fox, "--formats", "txt", "--force", out=tmp_path / "b").files[fox.name]["outputs"]
    assert again == {"txt": str(tmp_path / "b" / f"{fox.stem}.txt")}
    assert Path(first["txt"]).read_text() == "edited by hand"
    assert not Path(first["srt"]).exists()


def test_a_name_that_is_no_text(home: Path, tmp_path: Path, fox: Path) -> None:
    name = os.fsencode(tmp_path) + b"/bad\xff\x1b[31m.wav"
    shutil.copy(os.fsencode(fox), name)
    done = spotscribe("run", tmp_path, "--out", tmp_path / "out", "--model", "tiny.en")
    assert done.code == 0
    assert "\x1b" not in done.stdout


def test_a_reader_that_goes_away_does_not_stop_the_work(home: Path, tmp_path: Path, fox: Path) -> None:
    command = [*PROGRAM, "run", str(fox), "--out", str(tmp_path / "out"), "--model", "tiny.en"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert (tmp_path / "out" / f"{fox.stem}.txt").exists()


def test_what_was_rejected_before_is_named_again(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.wav").write_bytes(b"")
    for _ in range(2):
        done = spotscribe("run", tmp_path / "empty.wav", "--out", tmp_path / "out")
        assert done.code == 3
        assert "empty.wav: the file is empty" in done.stdout


def test_ctrl_c_ends_soon_says_how_to_go_on_and_the_next_run_does(
    home: Path, tmp_path: Path, english_clips: list[Path]
) -> None:
    path = write_wav(tmp_path / "long.wav", joined([read_16k(c) for c in english_clips], pause_s=0.7, seconds=240))
    command = [*PROGRAM, "run", str(path), "--out", str(tmp_path / "out"), "--model", "tiny.en"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_checkpoints(home, 1)
    process.send_signal(2)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - began < 60.0  # two seconds, and what a busy machine adds
    assert process.returncode == 130
    assert "the same command goes on from here" in stderr
    assert query(home, "SELECT count(*) FROM shards WHERE state = 'running'") == [(0,)]
    stood = query(home, "SELECT count(*) FROM checkpoints")[0][0]
    done = run(path, out=tmp_path / "out")
    assert done.code == 0
    assert done.summary["chunks_reused"] == stood
    assert list((home / "scratch").iterdir()) == []
    assert not [p for p in (home / "work").rglob("*") if p.is_file()]


def test_a_terminal_shows_a_bar(home: Path, tmp_path: Path, fox: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "run", str(fox), "--out", str(tmp_path / "out"), "--model", "tiny.en"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:
            break
        if not block:
            break
        shown += block
    assert process.wait(60) == 0
    text = shown.decode()
    assert "1/1 files" in text or "0/1 files" in text
    assert "1 done" in text


def test_a_pipe_gets_plain_lines(home: Path, tmp_path: Path, fox: Path) -> None:
    done = spotscribe("run", fox, "--out", tmp_path / "out", "--model", "tiny.en")
    assert done.code == 0
    assert any(line.startswith("done") and str(fox) in line for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout + done.stderr


def wait_for_checkpoints(home: Path, count: int, timeout: float = 180.0) -> None:
    import sqlite3

    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if query(home, "SELECT count(*) FROM checkpoints")[0][0] >= count:
                return
        except sqlite3.OperationalError:
            pass
        time.sleep(0.05)
    raise AssertionError("no checkpoint came")
