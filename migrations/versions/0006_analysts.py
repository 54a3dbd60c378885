"""Search in segments, by the language they are in; device seconds and cost where they are spent; indexes for queries."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

SPENT = (("checkpoints", "device_s"), ("checkpoints", "cost"), ("jobs", "device_s"), ("jobs", "cost"))
OF_WORKERS = ("device_s", "price_per_hour")
CONFIGS = {
    "arabic": "ar", "armenian": "hy", "basque": "eu", "catalan": "ca", "danish": "da", "dutch": "nl", "english": "en",
    "estonian": "et", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hindi": "hi", "hungarian": "hu",
    "indonesian": "id", "italian": "it", "lithuanian": "lt", "nepali": "ne", "norwegian": "no", "polish": "pl",
    "portuguese": "pt", "romanian": "ro", "russian": "ru", "serbian": "sr", "spanish": "es", "swedish": "sv",
    "tamil": "ta", "turkish": "tr", "yiddish": "yi",
}  # fmt: skip
"""Postgres' text search configurations and Whisper's codes; which there are depends on the server's version."""


def upgrade() -> None:
    for table, column in SPENT:
        op.add_column(table, sa.Column(column, sa.Float(), nullable=False, server_default="0"))
    for column in OF_WORKERS:
        op.add_column("workers", sa.Column(column, sa.Float(), nullable=False, server_default="0"))
    op.add_column("workers", sa.Column("market", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "terms", sa.Column("term", sa.Text(), nullable=False), sa.PrimaryKeyConstraint("term", name="pk_terms")
    )
    op.create_index("ix_jobs_transcript_id", "jobs", ["transcript_id"])
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"])
    op.create_index("ix_segments_language", "segments", ["language"])
    if op.get_bind().dialect.name == "sqlite":
        _sqlite()
    else:
        _postgres()


def _postgres() -> None:
    bind = op.get_bind()
    here = set(bind.execute(sa.text("SELECT cfgname FROM pg_ts_config")).scalars())
    cases = " ".join(
        f"WHEN '{code}' THEN 'pg_catalog.{name}'::regconfig" for name, code in CONFIGS.items() if name in here
    )
    op.execute(
        "CREATE FUNCTION search_config(language text) RETURNS regconfig LANGUAGE sql IMMUTABLE PARALLEL SAFE AS "
        f"$$ SELECT CASE language {cases} ELSE 'pg_catalog.simple'::regconfig END $$"
    )
    op.execute(
        "ALTER TABLE segments ADD COLUMN search tsvector "
        "GENERATED ALWAYS AS (to_tsvector(search_config(language), text)) STORED"
    )
    op.execute("CREATE INDEX ix_segments_search ON segments USING gin (search)")
    op.execute(
        "INSERT INTO terms SELECT DISTINCT w FROM segments, regexp_split_to_table(lower(text), '\\W+') w "
        "WHERE w <> '' AND length(w) <= 60"
    )
    try:
        with bind.begin_nested():
            op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except sa.exc.DBAPIError:  # not installed on the server, or no right to: names are found by their spelling only
        return
    op.execute("CREATE INDEX ix_terms_trigram ON terms USING gin (term gin_trgm_ops)")


def _sqlite() -> None:
    """A table of words beside the segments. Its row ids are made of their keys, for SQLite may change their own."""
    row = "{0}.transcript_id * 1048576 + {0}.position"
    op.execute(
        "CREATE VIRTUAL TABLE segments_search USING fts5(text, tokenize = 'porter unicode61 remove_diacritics 2')"
    )
    op.execute(f"INSERT INTO segments_search (rowid, text) SELECT {row.format('segments')}, text FROM segments")
    said = {
        w
        for r in op.get_bind().execute(sa.text("SELECT text FROM segments"))
        for w in re.findall(r"\w+", r.text.lower())
    }
    if terms := [{"term": w} for w in said if len(w) <= 60]:
        op.get_bind().execute(sa.text("INSERT INTO terms (term) VALUES (:term)"), terms)
    op.execute(
        "CREATE TRIGGER segments_search_insert AFTER INSERT ON segments BEGIN "
        f"INSERT INTO segments_search (rowid, text) VALUES ({row.format('new')}, new.text); END"
    )
    op.execute(
        "CREATE TRIGGER segments_search_delete AFTER DELETE ON segments BEGIN "
        f"DELETE FROM segments_search WHERE rowid = {row.format('old')}; END"
    )
    op.execute(
        "CREATE TRIGGER segments_search_update AFTER UPDATE OF text ON segments BEGIN "
        f"UPDATE segments_search SET text = new.text WHERE rowid = {row.format('old')}; END"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in ("insert", "delete", "update"):
            op.execute(f"DROP TRIGGER segments_search_{name}")
        op.execute("DROP TABLE segments_search")
    else:
        op.execute("ALTER TABLE segments DROP COLUMN search")
        op.execute("DROP FUNCTION search_config(text)")
    op.drop_table("terms")
    op.drop_index("ix_segments_language", "segments")
    op.drop_index("ix_jobs_finished_at", "jobs")
    op.drop_index("ix_jobs_transcript_id", "jobs")
    op.drop_column("workers", "market")
    for column in OF_WORKERS:
        op.drop_column("workers", column)
    for table, column in SPENT:
        op.drop_column(table, column)
