"""Export: transcripts of many jobs as files, each whole or not at all, in memory that does not grow with their number.

First the ledger says which job goes into which part (storage/exporting.py), then the parts are written, each noted once
its files are there. So whatever is killed, the same command writes what is missing, under the names it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.finish import Finisher
from pipeline.formats import JOB_FORMATS, TABLE_FORMATS
from pipeline.layout import job_file
from pipeline.rows import Row, rows_of
from pipeline.sound import Sounds
from storage import exporting, jobs
from storage.database import Database
from storage.destinations import Destinations
from storage.exporting import Part, PartJob, Selection
from storage.urls import join_url

PART_WORDS = 1_000_000
"""About 70 000 segments, and 10 to 20 MB of Parquet with the times of words."""
PORTION_WORDS, PORTION = 50_000, 200
"""Words, and jobs, whose segments are in memory as Python's objects at once."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """`out`: the URL of a folder or a prefix. `asked`: all of it but the cursor, in the user's words."""

    selection: Selection
    format: str
    out: str
    asked: str
    cursor: str | None = None
    """A name: only what has ended since it was exported under it the last time."""

    @property
    def name(self) -> str:
        """Of the ledger's entry: one without a cursor is known by what it asks for."""
        return f"cursor {self.cursor}" if self.cursor else f"export {self.digest}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.asked.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(slots=True)
class Exported:
    """What came of it. `states`: jobs by state; `without`: those that have no transcript; `at_work`: have not ended."""

    states: dict[str, int] = field(default_factory=dict)
    without: dict[str, int] = field(default_factory=dict)
    at_work: int = 0
    segments: int = 0
    files: int = 0
    bytes: int = 0
    """Files and bytes that this call wrote; the other figures are of the whole, as the ledger has it."""
    resumed: bool = False
    """It went on with one that had been interrupted."""


class Exporter:
    """Not safe to share by threads."""

    def __init__(
        self,
        database: Database,
        destinations: Destinations,
        finisher: Finisher,
        sounds: Sounds,
        *,
        part_words: int = PART_WORDS,
    ) -> None:
        self._db, self._destinations, self._finisher, self._sounds = database, destinations, finisher, sounds
        self._part_words = part_words

    def export(self, request: ExportRequest) -> Exported:
        """Raises UsageError (another process is at it, the cursor is another export's), OSError, TransientError."""
        if request.format in TABLE_FORMATS:
            TABLE_FORMATS[request.format].part()  # a package that is missing is told of before anything is done
        made = Exported()
        with exporting.alone(self._db, request.name):
            export, rounds = self._planned(request, made)
            with self._db.reading() as tx:
                parts = exporting.unwritten(tx, export)
            for part in parts:
                self._write(request, part, made)
            with self._db.reading() as tx:
                found = exporting.counts(tx, export, rounds)
                made.states, made.without, made.segments = found.states, found.without, found.segments
                made.at_work = exporting.at_work(tx, request.selection)
            if request.cursor is None:
                self._clear(export, rounds[-1])
        return made

    def _planned(self, request: ExportRequest, made: Exported) -> tuple[int, list[int]]:
        """The export, and the rounds that this call is to end, the last one last."""
        by_day = request.format in TABLE_FORMATS and TABLE_FORMATS[request.format].by_day
        with self._db.transaction() as tx:
            export = exporting.open_export(tx, request.name, request.asked)
            begun = sorted({p.round for p in exporting.unwritten(tx, export)})
            made.resumed = bool(begun)
            if request.cursor is None:
                if begun and exporting.still_right(tx, export, request.selection):
                    return export, begun
                made.resumed = False
                exporting.forget_jobs(tx, export)
                begun = []
            number = exporting.plan(tx, export, request.selection, part_words=self._part_words, by_day=by_day)
        return export, [*begun, number]

    def _write(self, request: ExportRequest, part: Part, made: Exported) -> None:
        with self._db.reading() as tx:
            of = exporting.jobs_of(tx, part)
        if request.format in JOB_FORMATS:
            urls, segments = self._files(request, of, made)
        else:
            urls, segments = self._table(request, part, of, made)
        self._db.again(lambda tx: exporting.written(tx, part, urls, segments))

    def _files(self, request: ExportRequest, of: Sequence[PartJob], made: Exported) -> tuple[list[str], int]:
        """A file for each job. Their names are nobody else's, so none of them needs to be remembered."""
        kind, segments = JOB_FORMATS[request.format], 0
        for portion in portions(of):
            for job, finished in self._finisher.read(portion).items():
                url = join_url(request.out, job_file(finished.job.url, job, request.format))
                self._put(url, kind.write(finished, self._sounds), kind.content_type, made)
                segments += len(finished.transcript.segments)
        return [], segments

    def _table(
        self, request: ExportRequest, part: Part, of: Sequence[PartJob], made: Exported
    ) -> tuple[list[str], int]:
        """One file for all of them; none where nobody says anything."""
        kind = TABLE_FORMATS[request.format]
        file, segments = kind.part(), 0
        for portion in portions(of):
            if rows := self._rows(portion, words=kind.words):
                file.add(rows)
                segments += len(rows)
        if not segments:
            return [], 0
        url = join_url(request.out, _part_name(request, part))
        self._put(url, file.content(), kind.content_type, made)
        return [url], segments

    def _rows(self, portion: Sequence[int], *, words: bool) -> list[Row]:
        with self._db.reading() as tx:
            views = jobs.views(tx, portion)
            ids = sorted({j.transcript_id for j in views if j.transcript_id is not None})
            made, segments = jobs.transcript_rows(tx, ids), exporting.segments_of(tx, ids, words=words)
            labels = exporting.labels_of(tx, portion)
        return [
            row
            for job in views
            if job.transcript_id in made
            for row in rows_of(
                job, made[job.transcript_id], labels.get(job.id, ()), segments.get(job.transcript_id, ())
            )
        ]

    def _put(self, url: str, content: bytes, content_type: str, made: Exported) -> None:
        self._destinations.write(url, content, content_type)
        made.files += 1
        made.bytes += len(content)

    def _clear(self, export: int, number: int) -> None:
        """Files that the export made an earlier time, and has not replaced, go: else their segments came twice."""
        with self._db.reading() as tx:
            stale = exporting.stale_files(tx, export, number)
        for url in sorted(stale):
            self._destinations.remove(url)
        with self._db.transaction() as tx:
            exporting.forget(tx, export, number)


def portions(of: Sequence[PartJob]) -> Iterator[list[int]]:
    """So few jobs at once that their transcripts are no burden to memory."""
    portion: list[int] = []
    words = 0
    for job in of:
        if portion and (words + job.words > PORTION_WORDS or len(portion) == PORTION):
            yield portion
            portion, words = [], 0
        portion.append(job.id)
        words += job.words
    if portion:
        yield portion


def _part_name(request: ExportRequest, part: Part) -> str:
    series = f"{request.cursor}-{part.round:05d}" if request.cursor else request.digest
    folder = f"day={part.day}/" if part.day else ""
    return f"{folder}part-{series}-{part.number:05d}.{request.format}"
