"""`--channels` and levels with the real model: each speaker on their own channel, and quiet speech like loud speech."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile

from pipeline.scoring import normalised
from tests.acceptance.command import query, run, spotscribe
from tests.conftest import read_16k, write_wav

RATE = 16_000


def document(out: Path, name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return read


def said(out: Path, name: str) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = document(out, name)["segments"]
    return segments


def text_of(segments: list[dict[str, Any]]) -> str:
    return normalised(" ".join(s["text"] for s in segments), "en")


@pytest.fixture
def call(tmp_path: Path, voice: Path, fox: Path) -> Path:
    """The fox is spoken twice on the left; between, and over the end of it, the voice speaks on the right."""
    left, right = read_16k(fox), read_16k(voice)
    sides = np.random.default_rng(1).normal(0, 20, (len(left) * 2 + len(right) + 2 * RATE, 2))
    sides[: len(left), 0] += left
    sides[-len(left) :, 0] += left
    begin = len(left) + RATE // 2
    sides[begin : begin + len(right), 1] += right
    return write_wav(tmp_path / "call.wav", sides.astype(np.int16))


def test_two_speakers_are_told_apart_by_themselves(home: Path, tmp_path: Path, call: Path, voice: Path) -> None:
    out = tmp_path / "out"
    assert run(call, voice, "--channels", "auto", "--formats", "json", out=out).code == 0
    alone, segments = text_of(said(out, voice.stem)), said(out, "call")
    assert {s["channel"] for s in segments} == {0, 1}
    assert [s["start"] for s in segments] == sorted(s["start"] for s in segments)
    left, right = ([s for s in segments if s["channel"] == c] for c in (0, 1))
    assert text_of(left).count("fox") == 2
    assert "fox" not in text_of(right)
    assert jiwer.wer(alone, text_of(right)) < 0.1
    assert query(home, "SELECT mixed FROM recordings WHERE url LIKE '%call.wav'") == [("split",)]


def test_one_room_on_two_channels_is_read_once(home: Path, tmp_path: Path, fox: Path) -> None:
    sound = read_16k(fox)
    late = np.concatenate((np.zeros(8, np.int16), sound[:-8])) // 2
    file = write_wav(tmp_path / "room.wav", np.stack((sound, late), axis=1))
    assert run(file, "--channels", "auto", "--formats", "json", out=tmp_path / "out").code == 0
    assert text_of(said(tmp_path / "out", "room")).count("fox") == 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_alone(home: Path, tmp_path: Path, call: Path, side: str) -> None:
    assert run(call, "--channels", side, "--formats", "json", out=tmp_path / "out").code == 0
    assert text_of(said(tmp_path / "out", "call")).count("fox") == (2 if side == "left" else 0)


def test_quiet_rumbling_and_shifted_speech_reads_as_it_is(home: Path, tmp_path: Path, voice: Path) -> None:
    speech = read_16k(voice) / 32768
    rumble = 0.5 * np.sin(2 * np.pi * 25 * np.arange(len(speech)) / RATE)
    made = {"asis": speech, "quiet": speech / 300, "rumble": speech / 10 + rumble, "offset": speech / 10 + 0.6}
    files = []
    for name, samples in made.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE, subtype="PCM_24")
        files.append(tmp_path / f"{name}.wav")
    out = tmp_path / "out"
    assert run(*files, "--formats", "json", out=out).code == 0
    expected = text_of(said(out, "asis"))
    for name in made:
        assert jiwer.wer(expected, text_of(said(out, name))) < 0.1, name
    noted = {name: document(out, name)["source"]["media"] for name in made}
    assert (noted["asis"]["gain_db"], noted["asis"]["highpass_hz"]) == (0, None)
    assert noted["quiet"]["gain_db"] > 20
    assert (noted["rumble"]["highpass_hz"], noted["offset"]["highpass_hz"]) == (200, 80)
    quiet = spotscribe("status", document(out, "quiet")["job"]["id"]).stdout
    assert f"made {noted['quiet']['gain_db']:.0f} dB louder" in quiet
    assert "pcm_s24le in wav, 16000 Hz, 1 channel" in quiet


def test_what_is_nothing_stays_nothing_however_quiet(home: Path, tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    made = {"dither": 0.00003, "room": 0.001, "hiss": 0.01}
    files = [
        write_wav(tmp_path / f"{name}.wav", (chance.normal(0, level, 20 * RATE) * 32768).round().astype(np.int16))
        for name, level in made.items()
    ]
    ran = run(*files, out=tmp_path / "out")
    assert ran.code == 0
    assert {(f["state"], f["words"]) for f in ran.files.values()} == {("done", 0)}
