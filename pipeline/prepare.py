"""Prepare: a recording becomes shards of 16 kHz mono and a plan. CPU only; never on the GPU's time.

Everything goes through files in scratch and blocks of half a minute, so memory does not grow with the recording.
"""

from __future__ import annotations

import logging
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from chunking import audio, speech
from chunking.audio import DecodeOptions, DecoderPool, MediaReport
from chunking.errors import Archived, Code, Interrupted, PermanentError, Rejected, TransientError, UsageError
from chunking.media import Channels
from chunking.planner import PlanOptions, Track, plan
from chunking.speech import Samples, SpeechDetector
from chunking.stereo import choice
from chunking.timeline import Shard, Span
from pipeline import tracing
from pipeline.languages import MULTI, SHORT_CHUNK_S
from pipeline.telemetry import Tally
from storage import buckets, jobs, leases, plans, recordings
from storage.database import Database
from storage.jobs import JobView, Verdict
from storage.leases import Heartbeat, Lease
from storage.objects import ObjectStore
from storage.readers import Fetched, Readers
from storage.recordings import Media
from storage.urls import bucket_of

LOG = logging.getLogger("spotscribe.prepare")


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Limits on what a recording may be, and how it is cut."""

    max_duration_s: float = 24 * 3600.0
    max_bytes: int = 16 << 30
    plan: PlanOptions = field(default_factory=PlanOptions)


class Preparer:
    """A worker's prepare step. Safe to share by threads."""

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        decoder: DecoderPool,
        scratch: Path,
        *,
        tally: Tally,
        readers: Readers | None = None,
        options: PrepareOptions | None = None,
    ) -> None:
        self._db, self._store, self._decoder, self._scratch, self._tally = database, store, decoder, scratch, tally
        self._readers = readers or Readers()
        self._options = options or PrepareOptions()
        self._detector = SpeechDetector()
        self._heart = Heartbeat(database)

    def prepare(self, lease: Lease) -> None:
        """Do the step for the leased job. Ends the lease in every case, unless it was lost."""
        with self._heart.keep(lease), tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            try:
                self._prepare(lease, Path(folder))
            except Rejected as e:
                self._end(lease, "rejected", e)
            except Interrupted:
                self._give_back(lease, 0.0)
            except (UsageError, TransientError, OSError) as e:
                # No credentials, a full disk, a lost mount: this machine's fault, and not the recording's.
                self._give_back(lease, jobs.TRY_AGAIN_S, str(e))
            except PermanentError as e:
                self._end(lease, "failed", e)

    def _prepare(self, lease: Lease, folder: Path) -> None:
        with self._db.reading() as tx:
            job = jobs.view(tx, lease.id)
        self._tally.add(prepared_bytes=job.size_bytes)
        if job.size_bytes > self._options.max_bytes:
            raise Rejected(f"larger than {self._options.max_bytes} bytes", code=Code.TOO_LARGE)
        source = self._fetched(lease, job, folder)
        if source is None:
            return
        with self._db.transaction() as tx:
            if jobs.claim_content(tx, lease, source.sha256) != "lead":
                if tracing.on():
                    tracing.link(jobs.leader_trace(tx, lease.id))
                return
        pcm = folder / "sound.pcm"
        report, tracks = self._heard(source.path, pcm, job)
        channels = report.pcm_channels
        with self._tally.stage("plan"):
            found = plan(tracks, report.duration_s, self._plan_options(job))
        cut = replace(found, lost=tuple(Span(a, b) for a, b in report.lost))
        self._tally.add(prepared_s=cut.duration, planned_s=sum(c.span.duration for c in cut.chunks))
        with self._tally.stage("shards"):
            keys = [self._store_shard(lease, s, pcm, channels, folder) for s in cut.shards]
        with self._db.transaction() as tx:
            recordings.describe(tx, [lease.id], _media(report))
            plans.store_plan(tx, lease, cut, keys, _verdict(report))

    def _fetched(self, lease: Lease, job: JobView, folder: Path) -> Fetched | None:
        """The recording's bytes. None: its bucket refuses and is left alone for a while, and the job waits for that."""
        bucket = bucket_of(job.url)
        if bucket is None:
            return self._fetch(job, folder)
        with self._db.reading() as tx:
            refusals = buckets.refusals(tx, bucket)
        if refusals:
            with self._db.transaction() as tx:
                if rest := buckets.resting(tx, bucket):
                    buckets.put_off(tx, lease, rest)
                    return None
        try:
            source = self._fetch(job, folder)
        except Archived:  # it says nothing of the bucket
            raise
        except Rejected as e:
            if e.code is Code.DENIED:
                with self._db.transaction() as tx:
                    buckets.refused(tx, bucket, str(e), refusals)
            elif refusals:  # that it is gone is an answer as well
                with self._db.transaction() as tx:
                    buckets.answered(tx, bucket)
            raise
        if refusals:
            with self._db.transaction() as tx:
                buckets.answered(tx, bucket)
        return source

    def _fetch(self, job: JobView, folder: Path) -> Fetched:
        with self._tally.stage("fetch"):
            return self._readers.fetch(job.url, job.version, folder)

    def _plan_options(self, job: JobView) -> PlanOptions:
        """Where several languages are spoken, chunks are short, so that few hold two of them."""
        options = self._options.plan
        return replace(options, chunk_s=SHORT_CHUNK_S) if job.options.language == MULTI else options

    def _heard(self, source: Path, pcm: Path, job: JobView) -> tuple[MediaReport, list[Track]]:
        """The PCM file, as the job wants its channels, and the speech in each."""
        wanted, track = job.options.channels, job.options.track
        report = self._decoded(source, pcm, "split" if wanted == "auto" else wanted, track)
        tracks = self._tracks(pcm, report)
        if wanted == "auto" and report.pcm_channels > 1:
            chosen = choice(*tracks) if report.pcm_channels == 2 else "mix"
            if chosen != "split":
                report = self._decoded(source, pcm, chosen, track)
                tracks = self._tracks(pcm, report)
        return report, tracks

    def _decoded(self, source: Path, pcm: Path, channels: str, track: int | None) -> MediaReport:
        options = DecodeOptions(
            channels=cast(Channels, channels),
            track=track,
            max_duration_s=self._options.max_duration_s,
            max_bytes=self._options.max_bytes,
        )
        with self._tally.stage("decode_media"):
            return self._decoder.decode_repaired(source, pcm, options)

    def _tracks(self, pcm: Path, report: MediaReport) -> list[Track]:
        with self._tally.stage("vad"):
            tracks = []
            for channel in range(report.pcm_channels):
                found = self._detector.probabilities(audio.blocks(pcm, report.pcm_channels, channel))
                spans = speech.spans(found, report.duration_s)
                tracks.append(Track(channel, spans, array("f", found.tobytes()), speech.FRAME_S))
        return tracks

    def _store_shard(self, lease: Lease, shard: Shard, pcm: Path, channels: int, folder: Path) -> str:
        """Write one shard to the work store. The fence in its key keeps two preparers apart."""
        file = folder / f"{shard.index}.flac"
        audio.write_flac(file, _span_blocks(pcm, channels, shard.channel, shard.span))
        key = f"shards/{lease.id}/{shard.index:05d}-{lease.fence}.flac"
        self._store.put_file(key, file)
        return key

    def _give_back(self, lease: Lease, wait_s: float, why: str | None = None) -> None:
        with self._db.transaction() as tx:
            leases.release(tx, lease, wait_s=wait_s, error=why)
        if why is not None:
            self._tally.count("put_off", "prepare")
            LOG.warning("put off: %s", why, extra={"job": lease.id})

    def _end(self, lease: Lease, state: str, error: PermanentError) -> None:
        with self._db.transaction() as tx:
            jobs.end_job(tx, lease, state, Verdict(error.code, str(error)))
        self._tally.count("ended", state, error.code.value)
        tracing.note(state=state, code=error.code.value)
        LOG.info("ended", extra={"job": lease.id, "state": state, "code": error.code.value, "error": str(error)})


def _span_blocks(pcm: Path, channels: int, channel: int, span: Span, seconds: float = 30.0) -> Iterator[Samples]:
    at = span.start
    while at < span.end:
        upto = min(span.end, at + seconds)
        yield audio.read_pcm(pcm, channels, channel, Span(at, upto))
        at = upto


def _media(report: MediaReport) -> Media:
    """The level is that of the loudest channel."""
    repaired = report.repair
    return Media(
        container=report.container,
        codec=report.codec,
        sample_rate=report.sample_rate,
        channels=report.channels,
        track=report.track,
        tracks=report.tracks,
        mixed=report.mixed,
        expected_s=report.expected_s,
        decoded_s=report.decoded_s,
        duration_s=report.duration_s,
        decode_errors=report.decode_errors,
        loudest_db=max(x.loudest_db for x in report.levels),
        clipped=max(x.clipped for x in report.levels),
        dc_offset=max((x.offset for x in report.levels), key=abs),
        gain_db=max(repaired.gains_db, default=0.0) if repaired else 0.0,
        highpass_hz=repaired.highpass_hz if repaired else None,
    )


def _verdict(report: MediaReport) -> Verdict | None:
    """What is to be said against the recording."""
    if report.truncated:
        expected = report.expected_s if report.expected_s and report.expected_s > report.decoded_s + 0.1 else None
        of = f" of {expected:.1f} s" if expected else ""
        return Verdict(Code.TRUNCATED, f"the file ends early: {report.decoded_s:.1f} s{of} could be decoded")
    if report.damaged:
        lost = sum(end - start for start, end in report.lost)
        return Verdict(Code.DAMAGED, f"the file is damaged: {lost:.1f} s of its sound could not be decoded")
    return None
