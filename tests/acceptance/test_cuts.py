"""Chunks that cut speech anywhere, mid-word too, with the real model: no word is lost or doubled at the cuts."""

from __future__ import annotations

import threading
from pathlib import Path

import jiwer
import numpy as np
import pytest
from whisper_normalizer.english import EnglishTextNormalizer

from chunking.audio import write_flac
from chunking.planner import PlanOptions, Track, plan
from chunking.speech import FRAME_S
from chunking.timeline import Plan, Span
from pipeline.devices import EngineOptions
from pipeline.finish import Finisher
from pipeline.inhand import ClaimOptions
from pipeline.models import find_model
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from pipeline.whisper import WhisperEngine
from storage import checkpoints, jobs, leases, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.leases import Step
from storage.objects import LocalStore
from tests.conftest import read_16k


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> WhisperEngine:
    return WhisperEngine(
        find_model("tiny.en", tmp_path_factory.mktemp("models")), EngineOptions("cpu", parallel=2, threads=1)
    )


def transcribed(
    database: Database, folder: Path, engine: WhisperEngine, samples: np.ndarray, cut: Plan, name: str
) -> str:
    """The text that this plan leads to, through the real steps."""
    store, tally = LocalStore(folder / "work"), Tally()
    with database.transaction() as tx:
        job = submission.submit(tx, MediaObject(f"file:///{name}", "1", 1), JobOptions(language="en"))
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        for shard in cut.shards:
            file = folder / "shard.flac"
            write_flac(file, [samples[round(shard.span.start * 16000) : round(shard.span.end * 16000)]])
            store.put_file(f"{name}/{shard.index}", file)
        plans.store_plan(tx, lease, cut, [f"{name}/{s.index}" for s in cut.shards])
    transcriber = Transcriber(database, store, engine, ClaimOptions("w"), batch_size=8, tally=tally)
    transcriber.run(threading.Event(), lambda: True)
    with database.transaction() as tx:
        (lease,) = leases.claim(tx, Step.FINISH, "w")
    Finisher(database, store, tally).finish(lease)
    with database.reading() as tx:
        view = jobs.view(tx, job)
        assert view.transcript_id is not None
        return checkpoints.read_transcript(tx, view.transcript_id).text


def test_cuts_anywhere_lose_and_double_nothing(
    sqlite: Database, tmp_path: Path, engine: WhisperEngine, english_clips: list[Path]
) -> None:
    clips = {c.stem: read_16k(c) for c in english_clips}
    samples = np.concatenate(
        [clips[n] for n in ("beckett", "quick_brown_fox", "beckett", "hello_world", "quick_brown_fox", "beckett")]
    )
    duration = len(samples) / 16000
    frames = int(duration / FRAME_S) + 1
    speech = (Span(0.0, duration),)
    normal = EnglishTextNormalizer()

    whole = plan([Track(0, speech, [1.0] * frames, FRAME_S)], duration, PlanOptions(chunk_s=29.0))
    expected = normal(transcribed(sqlite, tmp_path, engine, samples, whole, "whole"))
    errors, count = 0, 0
    for i, chunk_s in enumerate((9.0, 10.3, 12.1)):
        cut = plan([Track(0, speech, [1.0] * frames, FRAME_S)], duration, PlanOptions(chunk_s=chunk_s))
        assert sum(c.cut_after for c in cut.chunks) >= 3
        found = normal(transcribed(sqlite, tmp_path, engine, samples, cut, f"cut{i}"))
        compared = jiwer.process_words(expected, found)
        errors += compared.insertions + compared.deletions + compared.substitutions
        count += len(expected.split())
    assert errors / count < 0.06, (errors, count, found, expected)
