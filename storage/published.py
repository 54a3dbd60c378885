"""What analysts find in the database beside the tables: views, a search function, and comments on all of it.

Made anew after each migration, since it holds no data: what is wanted is written down once, here and in views.py, and
the tables' comments are the docstrings in tables.py.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, text

from storage import tables
from storage.views import views

ANALYST, WORKER = "spotscribe_analyst", "spotscribe_worker"
"""Roles of infra/roles.sql."""


def withdraw(tx: Connection) -> None:
    """Take the views and functions away, so that no migration stumbles over them."""
    postgres = tx.dialect.name == "postgresql"
    if postgres:
        tx.execute(text(f"DROP FUNCTION IF EXISTS {SEARCH}"))
    for view in reversed(views(postgres=postgres)):
        tx.execute(text(f"DROP VIEW IF EXISTS {view.name}"))


def publish(tx: Connection) -> None:
    """Make them anew."""
    withdraw(tx)
    postgres = tx.dialect.name == "postgresql"
    for view in views(postgres=postgres):
        _run(tx, f"CREATE VIEW {view.name} AS {view.query}")
    if not postgres:
        return
    schema = str(tx.execute(text("SELECT quote_ident(current_schema())")).scalar_one())
    _run(tx, _search(schema, trigrams=has_trigrams(tx)))
    tx.execute(text(f"REVOKE ALL ON FUNCTION {SEARCH} FROM PUBLIC"))
    for on, about in comments():
        _run(tx, f"COMMENT ON {on} IS '{about.replace(chr(39), chr(39) * 2)}'")
    _grant(tx)


def has_trigrams(tx: Connection) -> bool:
    """Whether Postgres can tell which words are spelt nearly alike."""
    return bool(tx.execute(text("SELECT count(*) FROM pg_extension WHERE extname = 'pg_trgm'")).scalar())


def _run(tx: Connection, statement: str) -> None:
    """A statement with literals, which no driver is to look for parameters in."""
    tx.exec_driver_sql(statement.replace("%", "%%") if tx.dialect.name == "postgresql" else statement)


def comments() -> Iterator[tuple[str, str]]:
    """What is commented in Postgres, and how: `TABLE jobs`, `COLUMN jobs_v.url`."""
    documented = _docstrings()
    for mapper in tables.Base.registry.mappers:
        kind = mapper.class_
        yield f"TABLE {kind.__tablename__}", _flat(inspect.getdoc(kind) or "")
        names = {attribute.key: attribute.columns[0].name for attribute in mapper.column_attrs}
        for of in kind.__mro__:
            for attribute, about in documented.get(of.__name__, {}).items():
                if attribute in names:
                    yield f"COLUMN {kind.__tablename__}.{names[attribute]}", about
    for view in views(postgres=True):
        yield f"VIEW {view.name}", view.about
        for column, about in view.columns.items():
            yield f"COLUMN {view.name}.{column}", about


def _docstrings() -> dict[str, dict[str, str]]:
    """Class: attribute: the docstring below it."""
    found: dict[str, dict[str, str]] = {}
    for kind in ast.parse(Path(tables.__file__).read_text(encoding="utf-8")).body:
        if isinstance(kind, ast.ClassDef):
            of = found.setdefault(kind.name, {})
            for before, node in zip(kind.body, kind.body[1:], strict=False):
                said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value
                if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(said, str):
                    of[before.target.id] = _flat(said)
    return found


def _flat(said: str) -> str:
    return " ".join(said.split()).replace("`", "")


def _grant(tx: Connection) -> None:
    """What is made anew has lost its rights: analysts read the views and search, workers search."""
    here = set(tx.execute(text("SELECT rolname FROM pg_roles WHERE rolname LIKE 'spotscribe%'")).scalars())
    if ANALYST in here:
        for view in views(postgres=True):
            tx.execute(text(f"GRANT SELECT ON {view.name} TO {ANALYST}"))
    for role in {ANALYST, WORKER} & here:
        tx.execute(text(f"GRANT EXECUTE ON FUNCTION {SEARCH} TO {role}"))


_MEANT = """
        SELECT j.id, j.recording_id FROM jobs j
        WHERE j.transcript_id = s.transcript_id AND (since IS NULL OR j.finished_at >= since)
            AND (in_label IS NULL OR EXISTS (SELECT FROM labels l WHERE l.job_id = j.id AND l.label = in_label))
"""
_ANY_JOB = f"((in_label IS NULL AND since IS NULL) OR EXISTS ({_MEANT}))"
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Letters of scripts that have no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese. There is no word
to index, so the query is looked for as it stands."""
RANKED = 2000
"""Hits of which the best are found: of a word that a tenth of all segments have, not all are read."""
_NEAR = r"""
    SELECT CASE WHEN bool_and(near IS NOT NULL) THEN string_agg('(' || near || ')', ' & ') END FROM (
        SELECT (
            SELECT string_agg(t.term, ' | ') FROM (
                SELECT term FROM terms WHERE term % asked.word ORDER BY similarity(term, asked.word) DESC, term LIMIT 8
            ) t
        ) AS near
        FROM regexp_split_to_table(lower(query), '\W+') AS asked (word) WHERE fuzzy AND asked.word <> ''
    ) ways
"""
"""For each word of the query the words that are spelt nearly so, as to_tsquery has it; null where one has none."""
SEARCH = "search_segments(text,integer,text,text,timestamp with time zone,boolean)"


def _search(schema: str, *, trigrams: bool) -> str:
    """How the search is made. It runs with its owner's rights: analysts may read the views, and no table.

    So it looks for its tables where they are, and never among the caller's temporary ones, as Postgres else does first.
    """
    return rf"""
CREATE FUNCTION search_segments(
    query text, most integer DEFAULT 20, in_label text DEFAULT NULL, in_language text DEFAULT NULL,
    since timestamp with time zone DEFAULT NULL, fuzzy boolean DEFAULT false
) RETURNS TABLE (
    job_id bigint, url text, "position" integer, channel integer, start_s double precision, end_s double precision,
    language text, rank real, snippet text
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
WITH RECURSIVE spoken AS (
    (SELECT s.language FROM segments s ORDER BY s.language LIMIT 1)
    UNION ALL
    SELECT (SELECT s.language FROM segments s WHERE s.language > spoken.language ORDER BY s.language LIMIT 1)
    FROM spoken WHERE spoken.language IS NOT NULL
), near AS MATERIALIZED (
    SELECT ({_NEAR if trigrams else "SELECT NULL::text"}) AS ways
), asked AS MATERIALIZED (
    SELECT k.config, k.languages,
        CASE WHEN fuzzy THEN to_tsquery(k.config, near.ways) ELSE websearch_to_tsquery(k.config, query) END AS wanted
    FROM near CROSS JOIN (
        SELECT search_config(k.language) AS config, array_agg(k.language) AS languages FROM spoken k
        WHERE k.language IS NOT NULL AND (in_language IS NULL OR k.language = in_language) GROUP BY 1
    ) k
), found AS (
    SELECT s.*, a.config, a.wanted, ts_rank(s.search, a.wanted) AS score FROM asked a CROSS JOIN LATERAL (
        SELECT s.transcript_id, s.position, s.channel, s.start_s, s.end_s, s.language, s.text, s.search
        FROM segments s WHERE s.search @@ a.wanted AND s.language = ANY (a.languages) AND {_ANY_JOB} LIMIT {RANKED}
    ) s
    UNION ALL
    SELECT s.*, NULL, NULL, 1 FROM (
        SELECT s.transcript_id, s.position, s.channel, s.start_s, s.end_s, s.language, s.text, s.search
        FROM segments s WHERE query ~ '[{UNSPACED}]' AND strpos(s.text, query) > 0
            AND (in_language IS NULL OR s.language = in_language) AND {_ANY_JOB} LIMIT {RANKED}
    ) s
), best AS (
    SELECT * FROM found ORDER BY score DESC, transcript_id DESC, "position" LIMIT most
)
SELECT j.id, r.url, s.position, s.channel, s.start_s, s.end_s, s.language, s.score,
    coalesce(
        ts_headline(s.config, s.text, s.wanted, 'StartSel=**, StopSel=**, HighlightAll=true'),
        replace(s.text, query, '**' || query || '**')
    )
FROM best s CROSS JOIN LATERAL ({_MEANT} ORDER BY j.id LIMIT 1) j JOIN recordings r ON r.id = j.recording_id
ORDER BY s.score DESC, s.transcript_id DESC, s.position
$$"""
