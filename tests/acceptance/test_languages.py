"""Languages through the real steps, with an engine that hears tones: each is a language, and each window is encoded once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chunking.audio import write_flac
from chunking.errors import PermanentError
from chunking.planner import PlanOptions, Track, plan
from chunking.speech import FRAME_S
from chunking.timeline import Plan, Span, Transcript
from pipeline.engine import Answer, Ask, Encoded, Floats, Heard, Piece, Samples
from pipeline.finish import Finisher
from pipeline.inhand import ClaimOptions
from pipeline.paced import WORDS, PacedEngine
from pipeline.telemetry import Tally
from pipeline.transcribe import Transcriber
from storage import checkpoints, jobs, leases, plans, submission
from storage.database import Database
from storage.jobs import JobOptions, JobView, MediaObject
from storage.leases import Step
from storage.objects import LocalStore

TONES = {"en": 300.0, "de": 500.0, "fr": 700.0}


class Polyglot(PacedEngine):
    """Its windows' features are how loud each tone is; its text says what it was asked."""

    multilingual = True
    parallel = 2

    def __init__(self, stop_after: int | None = None) -> None:
        """`stop_after`: with so many calls of the decoder the run is stopped."""
        super().__init__(0.0)
        self.encoded: list[bytes] = []
        self.asked: list[tuple[str, str]] = []
        self.deaf = False
        self.stop = threading.Event()
        self._calls, self._stop_after = 0, stop_after

    def features(self, samples: Samples, window: float) -> Floats:
        spectrum = np.abs(np.fft.rfft(samples.astype(np.float32), 16000))
        return np.append(spectrum[[round(f) for f in TONES.values()]], float(samples.size))[None, :].astype(np.float32)

    def listen(self, features: Sequence[Floats]) -> list[Heard]:
        if self.deaf:
            raise PermanentError("no ears")
        return [Heard(self._languages(f), Encoded(self._once(f))) for f in features]

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = []
        for ask in asks:
            if isinstance(ask.features, np.ndarray):
                self._once(ask.features)
            self.asked.append((ask.language, ask.task))
            text = f"This is {ask.language} as {ask.task}, and {' '.join(WORDS[: round(2 * ask.duration)])}."
            answers.append(Answer((Piece(0.0, ask.duration, text),), 10, -0.2, 0.0))
        self._calls += 1
        if self._calls == self._stop_after:
            self.stop.set()
        return answers

    def _once(self, features: Floats) -> Floats:
        self.encoded.append(features.tobytes())
        return features

    @staticmethod
    def _languages(features: Floats) -> dict[str, float]:
        loud = features[0, : len(TONES)] / features[0, : len(TONES)].sum()
        return dict(zip(TONES, (float(x) for x in loud), strict=True))


def tones(spoken: Sequence[tuple[str, float]], pause_s: float = 0.6) -> tuple[np.ndarray, tuple[Span, ...]]:
    """Sound and where it speaks: for each language its tone for those seconds, and a pause."""
    parts, speech, at = [], [], 0.0
    for language, seconds in spoken:
        time = np.arange(round(seconds * 16000)) / 16000
        parts += [8000 * np.sin(2 * np.pi * TONES[language] * time), np.zeros(round(pause_s * 16000))]
        speech.append(Span(at, at + seconds))
        at += seconds + pause_s
    return np.concatenate(parts).astype(np.int16), tuple(speech)


class Ground:
    """One job over SQLite, from a plan of its own to its transcript."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.db, self.folder, self.store, self.tally = database, folder, LocalStore(folder / "work"), Tally()

    def submit(self, spoken: Sequence[tuple[str, float]], options: JobOptions, plan_options: PlanOptions) -> Plan:
        samples, speech = tones(spoken)
        duration = len(samples) / 16000
        cut = plan([Track(0, speech, [1.0] * (int(duration / FRAME_S) + 1), FRAME_S)], duration, plan_options)
        with self.db.transaction() as tx:
            self.job = submission.submit(tx, MediaObject("file:///a", "1", 1), options, force=True)
            (lease,) = leases.claim(tx, Step.PREPARE, "w")
            for shard in cut.shards:
                file = self.folder / "shard.flac"
                write_flac(file, [samples[round(shard.span.start * 16000) : round(shard.span.end * 16000)]])
                self.store.put_file(f"{lease.fence}-{shard.index}", file)
            plans.store_plan(tx, lease, cut, [f"{lease.fence}-{s.index}" for s in cut.shards])
        return cut

    def transcribe(self, engine: Polyglot, batch_size: int = 8) -> None:
        claims = ClaimOptions("w")
        transcriber = Transcriber(self.db, self.store, engine, claims, batch_size=batch_size, tally=self.tally)
        transcriber.run(engine.stop, lambda: True)

    def finish(self) -> tuple[JobView, Transcript]:
        with self.db.transaction() as tx:
            (lease,) = leases.claim(tx, Step.FINISH, "w")
        Finisher(self.db, self.store, self.tally).finish(lease)
        with self.db.reading() as tx:
            view = jobs.view(tx, self.job)
            assert view.transcript_id is not None
            return view, checkpoints.read_transcript(tx, view.transcript_id)


@pytest.fixture
def ground(sqlite: Database, tmp_path: Path) -> Ground:
    return Ground(sqlite, tmp_path)


SHORT = PlanOptions(chunk_s=9.0)
GERMAN_MIDDLE = [*[("en", 7.0)] * 6, ("de", 4.0), ("de", 7.0), ("de", 3.5), *[("en", 4.2)] * 8]


def spoken_in(transcript: Transcript) -> list[str]:
    return [s.language for s in transcript.segments]


def test_a_jingle_does_not_decide_and_no_window_is_encoded_twice(ground: Ground) -> None:
    engine = Polyglot()
    ground.submit([("de", 8.0), *[("en", 16.0)] * 9], JobOptions(), PlanOptions())
    ground.transcribe(engine)
    view, transcript = ground.finish()
    assert {*spoken_in(transcript)} == {view.language} == {"en"}
    assert transcript.language_probability == view.language_probability
    assert 0.6 < transcript.language_probability < 1.0
    assert {s.language_probability for s in transcript.segments} == {transcript.language_probability}
    assert len(engine.asked) == 10
    assert len(engine.encoded) == len(engine.asked)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_each_stretch_is_in_its_own_language(ground: Ground, batch_size: int, task: str) -> None:
    engine = Polyglot()
    ground.submit(GERMAN_MIDDLE, JobOptions(language="multi", task=task), SHORT)
    ground.transcribe(engine, batch_size)
    view, transcript = ground.finish()
    _, speech = tones(GERMAN_MIDDLE)
    for (language, _), span in zip(GERMAN_MIDDLE, speech, strict=True):
        mine = [s for s in transcript.segments if s.span.overlap(span) > 1.0]
        assert {s.language for s in mine} == {language}, (language, span, mine)
        assert all((s.language_probability or 0.0) > 0.8 for s in mine)
    assert view.language == transcript.language == "en"
    assert {t for _, t in engine.asked} == {task}
    assert {x for x, _ in engine.asked} == {"en", "de"}


def test_a_killed_run_goes_on_in_the_same_languages(ground: Ground) -> None:
    options = JobOptions(language="multi")
    ground.submit(GERMAN_MIDDLE, options, SHORT)
    ground.transcribe(Polyglot(), 3)
    expected = [(s.start, s.end, s.language, s.text) for s in ground.finish()[1].segments]
    for calls in (1, 2, 4):
        ground.submit(GERMAN_MIDDLE, options, SHORT)
        ground.transcribe(Polyglot(stop_after=calls), 3)
        with ground.db.reading() as tx:
            assert 0 < checkpoints.count(tx, [ground.job]) < 15
        ground.transcribe(Polyglot(), 5)
        assert [(s.start, s.end, s.language, s.text) for s in ground.finish()[1].segments] == expected


@pytest.mark.parametrize("language", [None, "multi"])
def test_what_cannot_be_listened_to_is_decoded_all_the_same(ground: Ground, language: str | None) -> None:
    engine = Polyglot()
    engine.deaf = True
    ground.submit([("en", 7.0)] * 3, JobOptions(language=language), SHORT)
    ground.transcribe(engine)
    assert spoken_in(ground.finish()[1]) == ["en"] * 3


def test_a_language_that_is_told_is_not_listened_for(ground: Ground) -> None:
    engine = Polyglot()
    engine.deaf = True
    ground.submit([("en", 7.0)] * 3, JobOptions(language="de"), SHORT)
    ground.transcribe(engine)
    _, transcript = ground.finish()
    assert spoken_in(transcript) == ["de"] * 3
    assert transcript.language_probability == 1.0
