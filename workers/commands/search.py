"""`spotscribe search`: where something was said."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

import click

from pipeline.filters import parse_moment
from storage import search as searching
from storage.search import MARK, Hit, Search
from workers.commands.jobs import open_database
from workers.display import printable, say
from workers.options import DEBUG


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--label", help="Only in jobs that were submitted under this name.")
@click.option("--language", help="Only what is said in this language: en, de, …")
@click.option("--since", help="Only in jobs that ended since then (2026-12-01, or 7d ago).")
@click.option("--fuzzy", is_flag=True, help="Also what is spelt nearly so: names as the model heard them.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="So many at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@DEBUG
def search(
    query: tuple[str, ...],
    label: str | None,
    language: str | None,
    since: str | None,
    fuzzy: bool,
    limit: int,
    as_json: bool,
    debug: bool,
) -> None:
    """Find what was said, the best first: words that must all be there, "a phrase", this OR that, -without.

    Postgres knows the words of each language by their stems, so that `calls` finds `called`.
    """
    moment = parse_moment(since, datetime.now(UTC)) if since else None
    asked = Search(" ".join(query), limit, label, language, moment, fuzzy)
    database = open_database()
    with database.reading() as tx:
        hits = searching.search(tx, asked)
    for hit in hits:
        say(json.dumps(asdict(hit)) if as_json else _line(hit))
    if not hits and not as_json:
        say("nothing found" + ("" if fuzzy else "; --fuzzy also finds what is spelt nearly so"))


def _line(hit: Hit) -> str:
    minutes, seconds = divmod(int(hit.start_s), 60)
    hours, minutes = divmod(minutes, 60)
    parts = printable(hit.snippet).split(MARK)
    shown = "".join(click.style(p, bold=True) if i % 2 else p for i, p in enumerate(parts))
    return f"{hours}:{minutes:02d}:{seconds:02d}  job {hit.job}  {printable(hit.url)}\n    {shown.strip()}"
