"""The canary, read by the real model, by one that drops words, and by one that is broken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from chunking.errors import DatabaseAway, PermanentError, UsageError
from chunking.speech import SpeechDetector
from pipeline import canary
from pipeline.canary import OWN, Canary, load, sing
from pipeline.devices import EngineOptions
from pipeline.engine import Answer, Ask, Engine
from pipeline.models import find_model
from pipeline.settings import Settings
from pipeline.whisper import WhisperEngine
from storage import canaries
from storage.canaries import compared
from storage.database import Database
from storage.fleet import Worker
from tests.conftest import write_wav
from workers import canary_keeper
from workers.canary_keeper import CanaryKeeper

ME = Worker("w", "h", "1", ("gpu",), "tiny.en int8 beam 1", device="cpu")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return WhisperEngine(find_model("tiny.en", tmp_path_factory.mktemp("models")), EngineOptions("cpu", "int8"))


@pytest.fixture(scope="module")
def bird(tmp_path_factory: pytest.TempPathFactory) -> Canary:
    return load("", tmp_path_factory.mktemp("scratch"))


class Worse:
    """The engine, mishearing a word, as after a wrong update; or that cannot decode at all.

    (One that loses words would not do: what it leaves out is seen, and asked for again.)
    """

    def __init__(self, engine: Engine, *, broken: bool = False) -> None:
        self._engine, self._broken = engine, broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decode(self, asks: Sequence[Ask]) -> list[Answer]:
        if self._broken:
            raise PermanentError("the kernel is wrong")
        heard = self._engine.decode(asks)
        return [
            replace(a, pieces=tuple(replace(p, text=p.text.replace("fail", "sale")) for p in a.pieces)) for a in heard
        ]


def test_ours_is_read_word_for_word(engine: Engine, bird: Canary) -> None:
    sung = sing(engine, bird, SpeechDetector())
    assert sung.wer == 0.0, sung.text
    assert sung.rtfx > 0


def test_a_worse_engine_shows(engine: Engine, bird: Canary) -> None:
    worse: Any = Worse(engine)
    assert sing(worse, bird, SpeechDetector()).wer > 0.05


def test_a_keeper_notes_what_was_read_and_goes_on_when_the_engine_is_broken(
    engine: Engine, database: Database, tmp_path: Path
) -> None:
    said: list[str] = []
    engines: list[Any] = [engine, engine, Worse(engine, broken=True)]
    for one in engines:
        stop = threading.Event()
        keeper = CanaryKeeper(Settings(home=tmp_path), database, one, ME, tmp_path, said.append)
        thread = threading.Thread(target=keeper.run, args=(stop,))
        before = total(database)
        thread.start()
        until(lambda before=before: total(database) > before)
        stop.set()
        thread.join()
    with database.reading() as tx:
        (found,) = compared(tx)
    assert (total(database), found.usual.wer, found.worst.wer) == (3, 0.0, 1.0)
    assert "the kernel is wrong" in found.worst.text
    assert len(said) == 1


def total(database: Database) -> int:
    with database.reading() as tx:
        return int(tx.execute(text("SELECT count(*) FROM canaries")).scalar_one())


def test_a_keeper_whose_database_was_away_tries_again_soon(
    engine: Engine, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_keeper, "AGAIN_S", 0.1)
    away = iter([True, True, False])
    note = canaries.note

    def noted(tx: Any, result: Any) -> None:
        if next(away):
            raise DatabaseAway("the database does not answer")
        note(tx, result)

    monkeypatch.setattr(canaries, "note", noted)
    stop = threading.Event()
    said: list[str] = []
    keeper = CanaryKeeper(Settings(home=tmp_path), database, engine, ME, tmp_path, said.append)
    thread = threading.Thread(target=keeper.run, args=(stop,))
    thread.start()
    until(lambda: total(database) == 1)
    stop.set()
    thread.join()
    assert len(said) == 2


def until(holds: Any) -> None:
    for _ in range(600):
        if holds():
            return
        threading.Event().wait(0.1)
    raise AssertionError("it never came to that")


def test_another_canary_is_another_series(tmp_path: Path, bird: Canary) -> None:
    file = write_wav(tmp_path / "mine.wav", np.asarray(bird.sound, np.float32) / 32768)
    (tmp_path / "mine.txt").write_text("other words")
    mine = load(str(file), tmp_path)
    assert mine.text == "other words"
    assert abs(mine.duration_s - bird.duration_s) < 0.1
    assert mine.digest != bird.digest


@pytest.mark.parametrize("missing", ["mine.wav", "mine.txt"])
def test_what_is_missing_is_one_line_that_names_the_setting(tmp_path: Path, missing: str) -> None:
    (tmp_path / "mine.wav").write_bytes(OWN.read_bytes())
    (tmp_path / "mine.txt").write_text("words")
    (tmp_path / missing).unlink()
    with pytest.raises(UsageError, match="SPOTSCRIBE_CANARY"):
        load(str(tmp_path / "mine.wav"), tmp_path)


def test_ours_comes_with_its_licence() -> None:
    folder = Path(canary.__file__).parent / "canary_data"
    assert {p.name for p in folder.iterdir()} == {"LICENSE", "README.md", "beckett.flac", "beckett.txt"}
    assert sum(p.stat().st_size for p in folder.iterdir()) < 200_000
