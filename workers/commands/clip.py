"""`spotscribe clip`: the sound of a stretch of a recording, or of the segments that somebody should listen to."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from chunking.audio import SOUND_SUFFIXES, Pcm
from chunking.errors import PermanentError, UsageError
from chunking.timeline import SAMPLE_RATE
from pipeline import clips, review
from pipeline.layout import job_file
from pipeline.review import Cut, Entry, Unheard
from pipeline.sound import Sound, Sounds
from storage import exporting, jobs
from storage import review as storage_review
from storage.database import Database
from storage.destinations import Destinations
from storage.jobs import JobView
from storage.review import Doubtful
from storage.urls import join_url
from workers.bootstrap import end_tidily
from workers.commands.jobs import LABEL, check_jobs, open_database
from workers.display import printable, say
from workers.options import DEBUG, out_url
from workers.presence import Presence
from workers.wiring import Wiring, make_folder, read_settings

AROUND_S = 0.5
MOST = 1000


@click.command()
@click.argument("job", type=int, required=False)
@click.option("--from", "start", metavar="TIME", help="Where it begins: 83.5, 1:23, 1:02:03.")
@click.option("--to", "end", metavar="TIME", help="Where it ends; at most ten minutes later.")
@click.option("--channel", type=click.IntRange(0), help="One channel of the recording, from 0.  [default: all, mixed]")
@LABEL
@click.option("--least-certain", "count", type=click.IntRange(1, MOST), metavar="K", help="With --label: its K segments with the lowest log-probability.")  # fmt: skip # noqa: E501
@click.option("--flag", "flags", multiple=True, help="With --least-certain: only those with this flag (docs/quality.md). May be given again.")  # fmt: skip # noqa: E501
@click.option("--around", type=click.FloatRange(0, 60), help="Seconds of sound before and after.  [default: 0, with --least-certain 0.5]")  # fmt: skip # noqa: E501
@click.option("--out", metavar="FILE|FOLDER|s3://…", help="A .wav, .flac, .mp3 or .ogg file. With --least-certain a folder, or a file for all of them one after the other.  [default: here, .wav]")  # fmt: skip # noqa: E501
@DEBUG
def clip(
    job: int | None,
    start: str | None,
    end: str | None,
    channel: int | None,
    label: str | None,
    count: int | None,
    flags: tuple[str, ...],
    around: float | None,
    out: str | None,
    debug: bool,
) -> None:
    """Cut the sound of a recording, to listen to it: 16 kHz, what was too quiet made louder, as the model had it.

    With --least-certain a table lies beside the clips: which job, where, what was understood, and why it is doubtful.
    """
    one, several = (job, start, end), (label, count)
    first = None not in one and several == (None, None) and not flags
    second = None not in several and one == (None, None, None) and channel is None
    if not first and not second:
        raise UsageError("say JOB, --from and --to; or --label and --least-certain")
    settings = read_settings()
    database = open_database()
    make_folder(settings.home, "SPOTSCRIBE_HOME")
    end_tidily()
    wiring = Wiring(settings)
    with Presence(settings.home, "clip-") as presence, wiring.sounds(presence.scratch) as sounds:
        desk = _Desk(database, sounds, wiring, presence.scratch)
        if job is not None and start is not None and end is not None:
            desk.one(job, start, end, channel, around or 0.0, out)
        elif label is not None and count is not None:
            desk.least_certain(label, count, flags, AROUND_S if around is None else around, out)


class _Desk:
    """Where clips are cut."""

    def __init__(self, database: Database, sounds: Sounds, wiring: Wiring, scratch: Path) -> None:
        self._db, self._sounds, self._wiring, self._scratch = database, sounds, wiring, scratch

    def one(self, job: int, start: str, end: str, channel: int | None, around_s: float, out: str | None) -> None:
        """A stretch of a job's recording."""
        begin, until = clips.seconds_of(start), clips.seconds_of(end)
        if begin >= until:
            raise UsageError(f"--to {end} must be later than --from {start}")
        if until - begin + 2 * around_s > clips.LONGEST_S:
            raise UsageError(f"a clip is at most {clips.LONGEST_S / 60:.0f} minutes long")
        with self._db.reading() as tx:
            check_jobs(tx, [job])
            view = jobs.view(tx, job)
        name = out or job_file(view.url, job, f"{begin:g}-{until:g}.wav")
        if not _is_sound(name):
            raise UsageError(f"--out: a clip's file ends in {', '.join(SOUND_SUFFIXES)}")
        with self._sounds.of(view, "split" if channel is not None else None) as sound:
            pcm = _cut(sound, begin, until, around_s, channel)
        self._write(out_url(name), pcm)
        say(f"{printable(name)}: {len(pcm) / SAMPLE_RATE:.1f} s")

    def least_certain(self, label: str, count: int, flags: tuple[str, ...], around_s: float, out: str | None) -> None:
        """The label's most doubtful segments, and what they are."""
        with self._db.reading() as tx:
            if not exporting.any_labelled(tx, label):
                raise UsageError(f"no jobs have the label {label}")
            found = storage_review.least_certain(tx, label, count, flags)
            views = {j.id: j for j in jobs.views(tx, sorted({d.job for d in found}))}
        if not found:
            raise UsageError(f"no segment of {label} {'has these flags' if flags else 'is there to listen to'}")
        place = out or "clips"
        joined = _is_sound(place)
        if joined and review.longest(found, around_s) > clips.LONGEST_S:
            raise UsageError("that is more than ten minutes in one file: take fewer of them, or a folder")
        write = self._joined if joined else self._apart
        missing = write(place, found, views, around_s)
        if missing:
            sys.exit(3)

    def _apart(self, place: str, found: list[Doubtful], views: dict[int, JobView], around_s: float) -> int:
        """Each clip in a file of its own. How many could not be cut."""
        folder, entries, missing = out_url(place), dict[int, Entry](), 0
        for made in review.cuts(self._sounds, found, views, around_s):
            if isinstance(made, Unheard):
                missing += _tell(made)
                continue
            name = review.clip_name(made, ".wav")
            self._write(join_url(folder, name), made.pcm)
            entries[made.rank] = Entry(name, views[made.segment.job].url, made.segment, made.before_s)
        self._index(join_url(folder, "index.csv"), [entries[r] for r in sorted(entries)])
        say(f"{len(entries)} clips and index.csv in {printable(place)}")
        return missing

    def _joined(self, place: str, found: list[Doubtful], views: dict[int, JobView], around_s: float) -> int:
        """All clips in one file. How many could not be cut."""
        cut, missing = dict[int, Cut](), 0
        for made in review.cuts(self._sounds, found, views, around_s):
            if isinstance(made, Unheard):
                missing += _tell(made)
            else:
                cut[made.rank] = made
        if not cut:
            raise PermanentError("none of the recordings can be heard any more")
        ordered = [cut[r] for r in sorted(cut)]
        pcm, starts = clips.join([c.pcm for c in ordered])
        self._write(out_url(place), pcm)
        name = Path(place).name
        entries = [
            Entry(name, views[c.segment.job].url, c.segment, at + c.before_s)
            for c, at in zip(ordered, starts, strict=True)
        ]
        self._index(out_url(review.index_name(place)), entries)
        say(f"{printable(place)}: {len(ordered)} clips, {len(pcm) / SAMPLE_RATE:.1f} s")
        return missing

    def _write(self, url: str, pcm: Pcm) -> None:
        kind = f"audio/{_suffix(url)[1:]}"
        self._places(url).write(url, clips.encoded(pcm, f"x{_suffix(url)}", self._scratch), kind)

    def _index(self, url: str, entries: list[Entry]) -> None:
        self._places(url).write(url, review.index_of(entries).encode("utf-8", "replace"), "text/csv; charset=utf-8")

    def _places(self, url: str) -> Destinations:
        return self._wiring.destinations if url.startswith("s3://") else Destinations()


def _cut(sound: Sound, begin: float, until: float, around_s: float, channel: int | None) -> Pcm:
    if channel is not None and channel >= sound.channels:
        have = f"{sound.channels} channel{'s' if sound.channels != 1 else ''}"
        raise UsageError(f"--channel {channel}: the recording has {have}, counted from 0")
    if begin >= sound.duration_s:
        raise UsageError(f"--from: the recording is {sound.duration_s:.1f} s long")
    return clips.cut(sound, clips.stretch(begin, until, around_s, sound.duration_s), channel)


def _tell(unheard: Unheard) -> int:
    count = len(unheard.ranks)
    click.echo(f"{count} segment{'s' if count != 1 else ''} left out: {printable(unheard.why)}", err=True)
    return count


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _is_sound(name: str) -> bool:
    return _suffix(name) in SOUND_SUFFIXES
