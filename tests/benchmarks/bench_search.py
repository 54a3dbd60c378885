"""`make bench-search`: how fast a million segments are written and searched, in a Postgres of its own.

Texts of 12 words drawn by Zipf's law (the r-th commonest as often as 1/r), the commonest being English stop words. Each
query's words are drawn as they are spoken, stop words left out; the clock is the client's. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import accumulate, count, islice
from pathlib import Path

from sqlalchemy import Connection, text

from infra import laptop
from storage.database import Database
from storage.search import Search, search

STOP = [
    "the",
    "of",
    "and",
    "to",
    "a",
    "in",
    "that",
    "is",
    "was",
    "he",
    "for",
    "it",
    "with",
    "as",
    "his",
    "on",
    "be",
    "at",
    "by",
    "i",
    "this",
    "had",
    "not",
    "are",
    "but",
    "from",
    "or",
    "have",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "her",
    "all",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "more",
    "no",
    "if",
    "out",
    "so",
    "up",
    "into",
    "them",
    "can",
    "me",
]
SYLLABLES = ("ka lo mi ten ru sha per vol in est or ac", "ra mo ning ter sul vi den pol ti ble ment zo qua")
ENDINGS = ("", "s", "ed", "ing", "ly", "er", "al", "ic", "y", "ism")
VOCABULARY = 30_000
PER_RECORDING, WORDS = 100, 12
AT_ONCE = 50_000


def vocabulary() -> list[str]:
    """The commonest first."""
    first, second = (s.split() for s in SYLLABLES)
    made = (a + b + (c if c != "ka" else "") + e for c in first for a in first for b in second for e in ENDINGS)
    found = list(dict.fromkeys([*STOP, *made]))
    return found[:VOCABULARY]


class Speech:
    """Texts by Zipf's law."""

    def __init__(self, seed: int) -> None:
        self._words, self._chance = vocabulary(), random.Random(seed)
        self._upto = list(accumulate(1 / rank for rank in range(1, len(self._words) + 1)))

    def text(self) -> str:
        return " ".join(self._chance.choices(self._words, cum_weights=self._upto, k=WORDS))

    def query(self, words: int) -> str:
        """Words as they are spoken, but for stop words."""
        drawn = (self._chance.choices(self._words, cum_weights=self._upto)[0] for _ in count())
        return " ".join(islice((word for word in drawn if word not in STOP), words))

    def misspelt(self) -> str:
        word = self.query(1)
        at = self._chance.randrange(len(word))
        return word[:at] + self._chance.choice("aeiou") + word[at + 1 :]


def fill(database: Database, segments: int, speech: Speech, *, timed_words: bool = False) -> tuple[float, float]:
    """Recordings of ten minutes, with what finish writes of them. Seconds in all, and of the segments' own COPY.

    `timed_words`: each word with its times as well."""
    began, copying = time.perf_counter(), 0.0
    with database.transaction() as tx:
        for statement in (
            "INSERT INTO recordings (url, identity, size_bytes, created_at) "
            "SELECT 's3://b/' || i, i, 9, now() FROM generate_series(1, :n) i",
            "INSERT INTO transcripts (sha256, options_digest, model, compute_type, task, language, "
            "language_probability, duration_s, channels, words, transcribed_s, no_speech_s, failed_s, created_at) "
            "SELECT md5(i::text), 'd', 'm', 'int8', 'transcribe', 'en', 1, 600, 1, 1200, 600, 0, 0, now() "
            "FROM generate_series(1, :n) i",
            "INSERT INTO jobs (recording_id, options, options_digest, model, state, code, transcript_id, created_at, "
            "finished_at) SELECT i, '{}', 'd', 'm', 'done', 'ok', i, now(), now() FROM generate_series(1, :n) i",
        ):
            tx.execute(text(statement), {"n": segments // PER_RECORDING})
    for first in range(0, segments, AT_ONCE):
        rows = [(i, speech.text()) for i in range(first, min(segments, first + AT_ONCE))]
        began_copy = time.perf_counter()
        with database.transaction() as tx:
            _copy(tx, rows, timed_words=timed_words)
        copying += time.perf_counter() - began_copy
    with database.transaction() as tx:
        words = "SELECT DISTINCT w FROM segments, regexp_split_to_table(lower(text), ' ') w"
        tx.execute(text(f"INSERT INTO terms {words}"))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.execute(text("VACUUM ANALYZE"))
    return time.perf_counter() - began, copying


def _copy(tx: Connection, rows: Sequence[tuple[int, str]], *, timed_words: bool) -> None:
    columns = "transcript_id, position, channel, start_s, end_s, text, language, avg_logprob, no_speech_prob"
    cursor = tx.connection.driver_connection.cursor()  # type: ignore[union-attr]
    with cursor.copy(f"COPY segments ({columns}, compression_ratio, temperature, flags, words) FROM STDIN") as copy:
        for i, said in rows:
            recording, position = divmod(i, PER_RECORDING)
            start = 6.0 * position
            times = [[start + 0.4 * n, start + 0.4 * n + 0.3, w, 0.9] for n, w in enumerate(said.split())]
            words = json.dumps(times) if timed_words else None
            copy.write_row((recording + 1, position, 0, start, start + 5, said, "en", -0.3, 0.0, 1.2, 0.0, "", words))


def timed(database: Database, queries: Sequence[Search]) -> tuple[float, float, float]:
    """Milliseconds, median and p95, and hits in the mean."""
    took, hits = [], 0
    with database.reading() as tx:
        for asked in queries:
            began = time.perf_counter()
            hits += len(search(tx, asked))
            took.append(1e3 * (time.perf_counter() - began))
    took.sort()
    return took[len(took) // 2], took[int(len(took) * 0.95)], hits / len(queries)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="make bench-search", description=__doc__)
    ask.add_argument("--segments", type=int, default=1_000_000)
    ask.add_argument("--queries", type=int, default=300)
    asked = ask.parse_args(arguments)
    speech, n = Speech(1), asked.queries
    kinds = {
        "two words": [Search(speech.query(2)) for _ in range(n)],
        "one word": [Search(speech.query(1)) for _ in range(n)],
        "a phrase of two": [Search(f'"{speech.query(2)}"') for _ in range(n)],
        "one word OR another": [Search(speech.query(2).replace(" ", " OR ")) for _ in range(n)],
        "a misspelt word": [Search(speech.misspelt(), fuzzy=True) for _ in range(n)],
    }
    with tempfile.TemporaryDirectory() as folder, laptop.postgres_server(Path(folder)) as url:
        database = Database(url)
        database.upgrade()
        whole, copying = fill(database, asked.segments, speech)
        size = "SELECT pg_total_relation_size('segments')"
        with database.reading() as tx:
            megabytes = tx.execute(text(size)).scalar_one() / 1e6
        rate = asked.segments / copying
        print(f"{asked.segments} segments: {whole:.0f} s in all, {rate:.0f} a second by COPY, {megabytes:.0f} MB\n")
        print("| query | p50 ms | p95 ms | hits |")
        print("|---|---:|---:|---:|")
        for name, queries in kinds.items():
            timed(database, queries[:20])
            median, p95, hits = timed(database, queries)
            print(f"| {name} | {median:.1f} | {p95:.1f} | {hits:.1f} |", flush=True)
        database.close()


if __name__ == "__main__":
    main()
