"""Hotwords and initial prompts with the real model: names are spelt as asked, echoes go, and nothing is cut in silence."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from chunking.audio import write_flac
from chunking.planner import Track, plan
from chunking.timeline import Chunk, Span
from pipeline.devices import EngineOptions
from pipeline.echoes import echoing
from pipeline.engine import Ask
from pipeline.finish import Finisher
from pipeline.inhand import ClaimOptions
from pipeline.models import find_model
from pipeline.prompts import LONGEST_PROMPT, TIMES
from pipeline.reading import Reading
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from pipeline.whisper import WhisperEngine
from storage import jobs, leases, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.leases import Step
from storage.objects import LocalStore
from tests.acceptance.command import run, spotscribe
from tests.conftest import package_file, read_16k

NAMES = "Spotscribe, Kubernetes, Kovacs, Anastasia Petrova, Zürich"
TOO_LONG = " ".join(["Spotscribe"] * 150)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> WhisperEngine:
    return WhisperEngine(find_model("tiny.en", tmp_path_factory.mktemp("models")), EngineOptions("cpu", threads=1))


def test_hotwords_are_spelt_as_asked_and_kept_where_nothing_else_is_said(home: Path, tmp_path: Path, fox: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(fox, folder / "fox.wav")
    shutil.copy(package_file("pytest_audioeval", "samples", "audio", "en", "hello_world.wav"), folder / "hello.wav")
    plain = run(folder, out=tmp_path / "plain")
    asked = ("--hotwords", " Hello World,\n Quick Brown Fox, Lazy Dog ", "--initial-prompt", "")
    named = run(folder, *asked, out=tmp_path / "named")
    assert (plain.code, named.code) == (0, 0)
    assert "lazy dog" in (tmp_path / "plain" / "fox.txt").read_text()
    assert "Lazy Dog" in (tmp_path / "named" / "fox.txt").read_text()
    assert "Hello World" in (tmp_path / "named" / "hello.txt").read_text()
    assert named.summary["chunks_decoded"] == 2
    assert (
        run(folder, "--hotwords", "Hello World, Quick Brown Fox, Lazy Dog", out=tmp_path / "named").summary["batches"]
        == 0
    )
    assert run(folder, out=tmp_path / "plain").summary["batches"] == 0


def test_a_prompt_that_is_too_long_is_one_line_and_nothing_is_done(home: Path, tmp_path: Path, fox: Path) -> None:
    done = spotscribe("run", fox, "--out", tmp_path / "out", "--hotwords", TOO_LONG)
    assert done.code == 2
    assert f"tokens, and the model takes {LONGEST_PROMPT - TIMES}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (home / "spotscribe.db").exists()
    assert "U+001B" in spotscribe("run", fox, "--initial-prompt", "\x1b[0m").stderr
    assert "<|endoftext|>" in spotscribe("run", fox, "--hotwords", "<|endoftext|>").stderr


def test_a_job_whose_prompt_is_too_long_for_its_workers_model_ends_and_says_so(
    sqlite: Database, tmp_path: Path, engine: WhisperEngine, fox: Path
) -> None:
    """Whoever submitted it had no model to ask. The job beside it goes on."""
    samples, store, tally = read_16k(fox), LocalStore(tmp_path / "work"), Tally()
    made = plan([Track(0, (Span(0.2, 2.6),), [1.0] * 100, 0.032)], len(samples) / 16000)
    with sqlite.transaction() as tx:
        options = JobOptions(language="en", hotwords=TOO_LONG), JobOptions(language="en")
        ids = [submission.submit(tx, MediaObject(f"file:///{i}", "1", 1), o) for i, o in enumerate(options)]
        for lease in leases.claim(tx, Step.PREPARE, "w", limit=2):
            write_flac(tmp_path / "shard.flac", [samples])
            store.put_file(f"a{lease.id}", tmp_path / "shard.flac")
            plans.store_plan(tx, lease, made, [f"a{lease.id}"])
    Transcriber(sqlite, store, engine, ClaimOptions("w"), batch_size=8, tally=tally).run(
        threading.Event(), lambda: True
    )
    with sqlite.transaction() as tx:
        finishing = leases.claim(tx, Step.FINISH, "w", limit=2)
    for lease in finishing:
        Finisher(sqlite, store, tally).finish(lease)
    with sqlite.reading() as tx:
        long, other = jobs.views(tx, ids)
    assert (long.state, long.code, other.state) == ("failed", "prompt_too_long", "done")
    assert "tokens, and the model takes 221" in (long.error or "")


def test_over_noise_the_model_says_its_prompt_and_none_of_it_is_left(engine: WhisperEngine) -> None:
    echoes = 0
    for seed in range(3):
        noise = (np.random.default_rng(seed).normal(size=3 * 16000) * 3000).astype(np.int16)
        chunk = Chunk(0, Span(0.0, 3.0), (Span(0.1, 2.9),), 10.0)
        reading = Reading(chunk, 0, "en", prompt=NAMES)
        while (asked := reading.request) is not None:
            prompt = engine.prompt(NAMES) if asked.prompted else ()
            features = engine.features(noise, asked.window)
            (answer,) = engine.decode(
                [Ask(features, asked.window, 3.0, "en", temperature=asked.temperature, prompt=prompt)]
            )
            echoes += asked.prompted and bool(echoing(answer, NAMES))
            reading.take(answer)
        left = " ".join(s.text for s in reading.result().segments)
        assert not any(name in left for name in NAMES.split(", ")), left
    assert echoes


def test_the_longest_prompt_leaves_the_model_its_limits_its_silence_and_its_word_times(
    engine: WhisperEngine, fox: Path
) -> None:
    samples = read_16k(fox)
    features, seconds = engine.features(samples, 10.0), len(samples) / 16000
    longest = engine.prompt(" ".join(["The lazy cat sleeps all day."] * 31) + " The dog. A")
    assert len(longest) == LONGEST_PROMPT
    (plain,) = engine.decode([Ask(features, 10.0, seconds, "en", words=True)])
    ask = Ask(features, 10.0, seconds, "en", words=True, prompt=longest)
    one, two = engine.decode([ask, ask])
    assert one == two
    assert one.text.lower().split()[:4] == plain.text.lower().split()[:4]
    assert one.no_speech_prob < 0.6
    assert not one.hit_limit
    starts = [[w.start for p in a.pieces for w in p.words][:4] for a in (plain, one)]
    assert starts[0] == pytest.approx(starts[1], abs=0.1)
    noise = (np.random.default_rng(0).normal(size=29 * 16000) * 3000).astype(np.int16)
    looped = engine.prompt(" ".join(["word"] * 220))
    (loop,) = engine.decode([Ask(engine.features(noise, 30.0), 30.0, 29.0, "en", prompt=looped)])
    assert (loop.hit_limit, loop.tokens) == (True, 448 - 4 - len(looped))
