"""A worker reads the canary at its start and every so often, beside its work, and notes what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from chunking.errors import TransientError
from chunking.speech import SpeechDetector
from pipeline import canary
from pipeline.engine import Engine
from pipeline.settings import Settings
from storage import canaries
from storage.canaries import Result
from storage.database import Database
from storage.fleet import Worker

AGAIN_S = 300.0
"""After a database or memory that was short."""


class CanaryKeeper:
    """`run` in a thread of its own. Nothing that goes wrong here is the work's concern."""

    def __init__(
        self, settings: Settings, database: Database, engine: Engine, me: Worker, scratch: Path,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._db, self._engine, self._me = settings, database, engine, me
        self._scratch, self._say = scratch, say

    def run(self, stop: threading.Event) -> None:
        """Until told to stop."""
        try:
            detector = SpeechDetector()
            bird = canary.load(self._settings.canary, self._scratch)
        except Exception as e:  # a wrong setting, a broken file
            self._say(f"no canary: {e}")
            return
        while not stop.is_set():
            every_s = self._settings.canary_every_s
            try:
                self._note(bird, canary.sing(self._engine, bird, detector))
            except TransientError as e:
                self._say(f"the canary was not read or not noted: {e}")
                every_s = min(every_s, AGAIN_S)
            except Exception as e:  # that it cannot be read is what canaries are for
                self._say(f"the canary cannot be read: {type(e).__name__}: {e}")
                self._failed(bird, f"{type(e).__name__}: {e}")
            stop.wait(every_s)

    def _failed(self, bird: canary.Canary, why: str) -> None:
        try:
            self._note(bird, canary.Sung(why, 1.0, 0.0))
        except Exception as e:  # no right to write it, say: never the end of a worker
            self._say(f"the canary was not noted: {e}")

    def _note(self, bird: canary.Canary, sung: canary.Sung) -> None:
        me = self._me
        result = Result(
            me.name, canary.versions(), me.engine, me.device, bird.digest, sung.wer, sung.rtfx, sung.text
        )  # fmt: skip
        with self._db.transaction() as tx:
            canaries.note(tx, result)
