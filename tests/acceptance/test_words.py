"""`--word-timestamps` with the real model: words lie in speech, and sentences begin and end with theirs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import soundfile

from chunking.speech import SpeechDetector, spans
from tests.acceptance.command import run
from tests.conftest import read_16k, write_wav

PAUSE_S = 0.8


def test_sentences_begin_and_end_with_their_words_in_speech(home: Path, tmp_path: Path, voice: Path, fox: Path) -> None:
    pause, at = np.zeros(round(PAUSE_S * 16000), np.int16), []
    parts = [pause]
    for clip in (fox, voice, fox):
        at.append(sum(map(len, parts)) / 16000)
        parts += [read_16k(clip), pause]
    file = write_wav(tmp_path / "joined.wav", np.concatenate(parts))
    ran = run(file, "--word-timestamps", "--formats", "json", "--language", "en", out=tmp_path / "out")
    assert ran.code == 0, ran.stderr
    segments = json.loads((tmp_path / "out" / "joined.json").read_text())["segments"]

    assert len(segments) >= 4
    assert all(s["text"][-1] in ".?!" for s in segments)
    assert [(s["start"], s["end"]) for s in segments] == [
        (s["words"][0]["start"], s["words"][-1]["end"]) for s in segments
    ]
    assert [s["text"] for s in segments] == ["".join(w["text"] for w in s["words"]).strip() for s in segments]

    words = [w for s in segments for w in s["words"]]
    assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(words))
    samples = soundfile.read(file, dtype="int16")[0]
    speech = spans(SpeechDetector().probabilities([samples]), len(samples) / 16000)
    for w in words:
        assert any(s.start - 0.002 <= w["start"] <= w["end"] <= s.end + 0.002 for s in speech), w

    foxes = [w["start"] for w in words if w["text"].strip() == "The"]
    sounds = [next(s.start for s in speech if s.start > at[i] - 0.1) for i in (0, 2)]
    assert all(min(abs(f - s) for f in foxes) < 0.1 for s in sounds)
