"""Search in what was said: one function over Postgres (`search_segments`, published.py) and SQLite (FTS5).

The query is as people write it: words must all be there, "a phrase" as it stands, OR between two, -word must not.
Postgres knows the words' stems by each segment's language, SQLite those of English alone. Scripts without spaces have
no words to index: there the query is looked for as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, delete, func, select, text

from chunking.errors import UsageError
from storage.database import Database, upsert
from storage.published import UNSPACED, has_trigrams
from storage.tables import SegmentRow, Term

MARK = "**"
"""Before and after each word of a snippet that was looked for."""
_ALIKE = 0.75
"""How alike a word must be to what was asked for (difflib's ratio): one letter of four may be another."""
_PART = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')


_WORD = re.compile(r"\w+")
AT_ONCE = 500
"""Rows of one statement."""
LONGEST = 60
"""Letters beyond which something is no word."""


def words(said: str) -> list[str]:
    """The words of a text as they are compared: in small letters."""
    return [w for w in _WORD.findall(said.lower()) if len(w) <= LONGEST]


@dataclass(frozen=True, slots=True)
class Hit:
    """A segment that was found, the best first."""

    job: int
    url: str
    position: int
    channel: int
    start_s: float
    end_s: float
    language: str
    rank: float
    snippet: str
    """Its text, with `MARK` around what was looked for."""


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for, and where."""

    query: str
    most: int = 20
    label: str | None = None
    language: str | None = None
    since: datetime | None = None
    """Only in jobs that ended since then."""
    fuzzy: bool = False
    """What is spelt nearly so: names as the model heard them."""


def search(tx: Connection, asked: Search) -> list[Hit]:
    """Segments that have what is asked for, the best first. Raises UsageError where nothing can be looked for."""
    if not re.search(r"\w", asked.query):
        raise UsageError("there is no word to search for")
    rows = _in_sqlite(tx, asked) if tx.dialect.name == "sqlite" else _in_postgres(tx, asked)
    return [Hit(*row) for row in rows]


def know(tx: Connection, texts: Iterable[str]) -> None:
    """Note the words of these texts, so that they are found however they are spelt in a query.

    In a transaction of its own, and in order: two that have the same new words wait for each other.
    """
    terms = sorted({word for said in texts for word in words(said)})
    for first in range(0, len(terms), AT_ONCE):
        rows = [{"term": term} for term in terms[first : first + AT_ONCE]]
        tx.execute(upsert(tx, Term).values(rows).on_conflict_do_nothing())


def forget_unsaid(database: Database) -> int:
    """Forget the words that no segment has any more; how many. Looks through all that was ever said."""
    with database.reading() as tx:
        unsaid = set(tx.execute(select(Term.term)).scalars())
        last = tx.execute(select(func.max(SegmentRow.transcript_id))).scalar() or 0
        for first in range(0, last + 1, AT_ONCE):
            unsaid -= _said(tx, SegmentRow.transcript_id.between(first, first + AT_ONCE - 1))
    with database.transaction() as tx:
        keep_words(tx, alone=True)
        going = sorted(unsaid - _said(tx, SegmentRow.transcript_id > last))  # without what was said since we looked
        for first in range(0, len(going), AT_ONCE):
            tx.execute(delete(Term).where(Term.term.in_(going[first : first + AT_ONCE])))
    return len(going)


def keep_words(tx: Connection, *, alone: bool = False) -> None:
    """Until the transaction ends no word is forgotten; `alone`: nor is a transcript written whose words count."""
    if tx.dialect.name == "postgresql":  # SQLite has one writer
        shared = "" if alone else "_shared"
        tx.execute(text(f"SELECT pg_advisory_xact_lock{shared}(hashtext('spotscribe.words ' || current_schema()))"))


def _said(tx: Connection, which: Any) -> set[str]:
    return {word for said in tx.execute(select(SegmentRow.text).where(which)).scalars() for word in words(said)}


def fts5(query: str) -> str:
    """The same query as FTS5 has it. Each word becomes a string, so nothing in it is an operator."""
    alternatives: list[list[str]] = [[]]
    without: list[str] = []
    for minus, phrase, word in _PART.findall(query):
        if word == "OR" and not minus:
            alternatives.append([])
        elif re.search(r"\w", said := (phrase or word).replace('"', " ")):
            (without if minus else alternatives[-1]).append(f'"{said}"')
    wanted = " OR ".join(f"({' AND '.join(part)})" for part in alternatives if part)
    return " NOT ".join([f"({wanted})", *without]) if wanted else ""


def _in_postgres(tx: Connection, asked: Search) -> Sequence[Any]:
    if asked.fuzzy and not has_trigrams(tx):
        raise UsageError("the database has no pg_trgm, which --fuzzy needs: install it, then `spotscribe db upgrade`")
    values = ":query, :most, :label, :language, CAST(:since AS timestamptz), :fuzzy"
    return tx.execute(text(f"SELECT * FROM search_segments({values})"), {**_values(asked), "fuzzy": asked.fuzzy}).all()


_HITS = """
WITH f AS MATERIALIZED ({found})
SELECT min(j.id), r.url, s.position, s.channel, s.start_s, s.end_s, s.language, f.rank, f.shown
FROM f JOIN segments s ON s.transcript_id = f.id / 1048576 AND s.position = f.id % 1048576
    JOIN jobs j ON j.transcript_id = s.transcript_id JOIN recordings r ON r.id = j.recording_id
WHERE (:language IS NULL OR s.language = :language) AND (:since IS NULL OR j.finished_at >= datetime(:since))
    AND (:label IS NULL OR EXISTS (SELECT 1 FROM labels l WHERE l.job_id = j.id AND l.label = :label))
GROUP BY f.id ORDER BY f.rank DESC, min(j.id) DESC, s.position LIMIT :most
"""
"""Row ids as the migration makes them (0006): a transcript's number and the segment's place in it."""
_BY_WORDS = _HITS.format(
    found="SELECT rowid AS id, -bm25(segments_search) AS rank, highlight(segments_search, 0, '**', '**') AS shown "
    "FROM segments_search WHERE segments_search MATCH :query"
)
_BY_LETTERS = _HITS.format(
    found="SELECT rowid AS id, 1.0 AS rank, replace(text, :query, '**' || :query || '**') AS shown "
    "FROM segments_search WHERE instr(text, :query)"
)


def _in_sqlite(tx: Connection, asked: Search) -> Sequence[Any]:
    values = _values(asked)
    if re.search(f"[{UNSPACED}]", asked.query):
        return tx.execute(text(_BY_LETTERS), values).all()
    values["query"] = _alike(tx, asked.query) if asked.fuzzy else fts5(asked.query)
    return tx.execute(text(_BY_WORDS), values).all() if values["query"] else []


def _alike(tx: Connection, query: str) -> str:
    """The words ever said that are spelt nearly like each word of the query: each must be there in one way."""
    said = list(tx.execute(text("SELECT term FROM terms")).scalars())
    ways = [get_close_matches(word, said, 8, _ALIKE) for word in words(query)]
    return " AND ".join(f"({' OR '.join(map(_quoted, near))})" for near in ways) if all(ways) else ""


def _quoted(term: str) -> str:
    return f'"{term}"'


def _values(asked: Search) -> dict[str, Any]:
    since = asked.since.isoformat() if asked.since else None
    return {
        "query": asked.query, "most": asked.most, "label": asked.label, "language": asked.language, "since": since,
    }  # fmt: skip
