"""The schema's history. It runs by itself on first use (storage/database.py), on SQLite and Postgres alike."""

HEAD = "0009"
"""The newest revision, so that an up-to-date database costs one query and no import of Alembic."""
