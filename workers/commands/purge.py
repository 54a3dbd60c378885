"""`spotscribe purge`: all that is known of a recording, or what is old, shown first and deleted with --yes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from chunking.errors import UsageError
from pipeline.filters import parse_duration
from pipeline.retention import Found, Purged, Purger
from storage import purge as stored
from storage import sources
from storage.database import Database
from storage.purge import Old, What
from storage.urls import bucket_and_key, s3_url
from workers.commands.jobs import check_jobs, open_database
from workers.display import printable, say
from workers.options import DEBUG
from workers.presence import Presence
from workers.wiring import Wiring, read_settings

SHOWN = 10
"""Names of a kind that are shown."""
OUT_OF_REACH = (
    "the recording itself, which is never deleted; exports, clips and copies made before; notices already sent; "
    "backups; old versions in a bucket that keeps them; scratch of killed processes on other machines, until they "
    "start again"
)
IN_POSTGRES = "; what Postgres keeps of deleted rows until it vacuums, and its log"


@click.command()
@click.option("--recording", "named", metavar="URL|FILE|SHA256|JOB", help="All that is known of this recording, in all its versions, and of equal bytes elsewhere.")  # fmt: skip # noqa: E501
@click.option("--only-this-url", is_flag=True, help="With --recording: leave equal bytes at other URLs alone.")
@click.option("--older-than", metavar="TIME", help="What belongs to jobs that ended so long ago: 30d, 1y.")
@click.option("--what", type=click.Choice([w.value for w in What]), help="work: audio in work, checkpoints; results: transcripts too; recordings: all rows.")  # fmt: skip # noqa: E501
@click.option("--label", help="With --older-than: only jobs with this label.")
@click.option("--source", metavar="NAME", help="With --older-than: only what came from this source.")
@click.option("--outputs", is_flag=True, help="With --older-than: the output files as well.")
@click.option("--yes", is_flag=True, help="Delete; without it what would go is shown.")
@DEBUG
def purge(
    named: str | None,
    only_this_url: bool,
    older_than: str | None,
    what: str | None,
    label: str | None,
    source: str | None,
    outputs: bool,
    yes: bool,
    debug: bool,
) -> None:
    """Delete what is known of a recording (privacy requests), or what is older than a time (retention).

    Killed or interrupted, the same command goes on. Recordings themselves are never deleted. See docs/retention.md.
    """
    if (named is None) == (older_than is None):
        raise UsageError("say what goes: --recording URL, or --older-than 30d with --what")
    if named is not None:
        if what or label or source or outputs:
            raise UsageError("--what, --label, --source and --outputs are for --older-than: of a recording all goes")
        _recording(named, equal=not only_this_url, yes=yes)
        return
    if only_this_url or what is None or older_than is None:
        raise UsageError("--older-than wants --what work, results or recordings (and has no --only-this-url)")
    seconds = parse_duration(older_than)
    database = open_database()
    old = Old(What(what), seconds, label, _source(database, source))
    _old(_purger(database), old, files=outputs and old.what is not What.WORK, yes=yes)


def _purger(database: Database) -> Purger:
    wiring = Wiring(read_settings())
    return Purger(database, wiring.store, wiring.destinations)


def _source(database: Database, name: str | None) -> int | None:
    if name is None:
        return None
    with database.reading() as tx:
        found = sources.named(tx, [name])
    if not found:
        raise UsageError(f"there is no source {name}")
    return found[0].id


def _old(purger: Purger, old: Old, *, files: bool, yes: bool) -> None:
    counts, stay = purger.counts(old, files=files)
    if stay:
        say(f"{stay} jobs of that age stay: files or notices of theirs are still to come")
    if not counts["jobs"]:
        say("nothing is that old")
    elif not yes:
        _say_counts(counts, files=files)
        _say_names("of", purger.names(old, SHOWN, files=files), counts["jobs"])
        say("nothing is deleted yet: --yes deletes it")
    else:
        done = purger.old(old, files=files)
        done.words = purger.forget_words() if old.what is not What.WORK else 0
        _report(done)
        return
    if yes and old.what is not What.WORK:  # what a killed purge left
        purger.forget_words()


def _recording(named: str, *, equal: bool, yes: bool) -> None:
    database = open_database()
    url, sha256 = _address(database, named)
    purger = _purger(database)
    found = purger.find(url, sha256, equal=equal)
    _show(found, url or f"sha256 {sha256}")
    if not yes:
        say("nothing is deleted yet: --yes deletes it")
        return
    settings = read_settings()
    with Presence(settings.home, "purge-") as presence:
        presence.dead(())  # sound that killed processes left on this machine
        done = purger.recording(url, sha256, equal=equal)
    _report(done)
    left = ", ".join(f"{n} in {where}" for where, n in sorted(done.left.items()))
    say(f"looked for its {'URL' if url else 'SHA-256'} in every table: {left or 'it is nowhere any more'}")
    say(f"out of reach: {OUT_OF_REACH}{'' if database.is_sqlite else IN_POSTGRES}")
    if found.exports:
        say(f"  it was exported, as {', '.join(found.exports)}: those files have to go by hand")
    if done.stayed or done.left:
        raise SystemExit(1)


def _address(database: Database, named: str) -> tuple[str | None, str | None]:
    """The URL or the SHA-256 that is meant. Raises UsageError."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", named):
        return None, named.lower()
    if named.startswith("s3://"):
        return s3_url(*bucket_and_key(named)), None
    if named.startswith("file://"):
        return named, None
    if not named.isdecimal():
        return Path(named).expanduser().absolute().as_uri(), None
    with database.reading() as tx:
        check_jobs(tx, [int(named)])
        return stored.url_of_job(tx, int(named)), None


def _show(found: Found, what: str) -> None:
    if not found.recordings:
        say(f"no recording is known as {printable(what)}")
        return
    say(f"{printable(what)}:")
    _say_counts(found.counts, files=True)
    for title, names in (("equal bytes, and gone with it", found.equal), ("file", found.files)):
        _say_names(title, names[:SHOWN], len(names))


def _say_names(title: str, names: Sequence[str], total: int) -> None:
    """The first ones, and how many there are beside them."""
    for name in names:
        say(f"  {title}: {printable(name)}")
    if total > len(names):
        say(f"  … and {total - len(names)} more")


def _say_counts(counts: dict[str, int], *, files: bool) -> None:
    said = [f"{n} {kind}" for kind, n in counts.items() if n and (files or kind != "files")]
    say(f"  {', '.join(said)}")
    if not files and counts["files"]:
        say(f"  {counts['files']} output files stay (--outputs)")


def _report(done: Purged) -> None:
    say(f"purged: {done.jobs} jobs, {done.objects} objects in work, {done.files} files, {done.words} words forgotten")
    for url, why in list(done.stayed.items())[:SHOWN]:
        say(f"  could not be deleted, and its job stays: {printable(url)}: {why}")
