"""Writes the pages of docs/ that are made from the code (`make docs`). A test holds them to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from infra.dashboard import dashboard
from pipeline.metrics import EXPORTER, WORKER, Metric
from pipeline.settings import PREFIX, Settings
from storage.published import comments
from storage.tables import Base
from storage.views import views

DOCS = Path(__file__).parent.parent / "docs"
OF_RESULTS = ("recordings", "jobs", "labels", "shards", "checkpoints", "transcripts", "segments", "coverage", "outputs")


def schema() -> str:
    """What the database holds."""
    return "\n".join([*_head(), *_diagram(), *_views(), *_tables()]) + "\n"


def _head() -> Iterator[str]:
    yield "# The schema"
    yield ""
    yield "Analysts read the views: they are stable, columns are only ever added. Tables may change with a version, and"
    yield "the role `spotscribe_analyst` (infra/roles.sql) does not see them. All of this is commented in Postgres"
    yield "(`\\d+ jobs_v` in psql). In SQLite labels and flags are text, separated by a space; Postgres has arrays."
    yield "Queries to begin with: [queries.md](queries.md). This page is written by `make docs`."
    yield ""


def _diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "erDiagram"
    for name in OF_RESULTS:
        for key in sorted(Base.metadata.tables[name].foreign_keys, key=lambda k: k.parent.name):
            if key.column.table.name != name and key.column.table.name in OF_RESULTS:
                yield f"    {key.column.table.name} ||--o{{ {name} : {key.parent.name}"
    yield "```"


def _views() -> Iterator[str]:
    for view in views(postgres=True):
        yield f"\n## {view.name}\n"
        yield f"{view.about}\n"
        yield "| column | what it is |"
        yield "|---|---|"
        yield from (f"| `{name}` | {about} |" for name, about in view.columns.items())


def _tables() -> Iterator[str]:
    yield "\n## Tables\n"
    yield "| table | what a row is |"
    yield "|---|---|"
    about = dict(comments())
    yield from (f"| `{name}` | {about[f'TABLE {name}']} |" for name in sorted(Base.metadata.tables))


def settings() -> str:
    """All settings."""
    return "\n".join([*_settings()]) + "\n"


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Each is a variable, or the same name in lower case without the prefix in a TOML file: the one that"
    yield "`SPOTSCRIBE_CONFIG` names, else `spotscribe.toml` in the current folder, else in the user's settings folder."
    yield "A variable wins. An unknown name in the file is an error. This page is written by `make docs`."
    yield ""
    yield "| variable | default | what it is |"
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        default = "" if field.default_factory is not None else f"`{field.default}`" if field.default != "" else ""
        yield f"| `{PREFIX}{name.upper()}` | {default} | {field.description} |"


def metrics() -> str:
    """All metrics."""
    return "\n".join([*_metrics()]) + "\n"


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "Prometheus reads them from each worker (`SPOTSCRIBE_METRICS_LISTEN=:9108`, path `/metrics`) and from one"
    yield "`spotscribe exporter`, which asks the database. No label is a job, a recording or a user's: the number of"
    yield "series is bounded. This page is written by `make docs`."
    yield from _table("Served by each worker", WORKER)
    yield from _table("Served by the exporter", EXPORTER)


def _table(title: str, served: tuple[Metric, ...]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield "| name | kind | labels | what it says |"
    yield "|---|---|---|---|"
    for m in served:
        yield f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.about} |"


PAGES = {"schema.md": schema, "settings.md": settings, "metrics.md": metrics}

DASHBOARD = Path(__file__).parent / "grafana" / "dashboard.json"

if __name__ == "__main__":
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
