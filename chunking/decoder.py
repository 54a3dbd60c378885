"""Decodes any container to 16 kHz PCM, packet by packet, inside the sandbox: `python -m chunking.decoder FD`.

The only importer of PyAV: it brings its own FFmpeg, so that probing and decoding never disagree, and it can step over a
broken packet, which faster-whisper's `decode_audio` and PyAV's own `decode` loop do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import av
import av.subtitles.codeccontext
import av.subtitles.stream
import numpy as np
from av.audio.stream import AudioStream
from av.codec.codec import Codec, codecs_available
from av.container import InputContainer
from av.filter import Graph
from av.packet import Packet
from av.stream import Discard, Disposition

from chunking import containers, sandbox
from chunking.clock import Clock
from chunking.errors import Code, Rejected
from chunking.levels import Repair
from chunking.media import DecodeOptions, MediaReport
from chunking.mixdown import Block, PcmWriter
from chunking.timeline import SAMPLE_RATE

_FAILURES = (av.FFmpegError, ValueError, RuntimeError)
"""What PyAV raises for broken media."""
_LOWEST_RATE = 1000
"""Samples per second; a header that claims less is wrong, and would unpack to days."""
_NAMELESS = {1: "mono", 2: "stereo", 3: "2.1", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""What FFmpeg takes channels without names for (libavutil/channel_layout.c): its highpass passes over nameless ones."""
_RESUMES = 100
"""How often to go on behind bytes that the demuxer cannot read."""


def _decodes_audio(name: str) -> bool:
    try:
        return Codec(name, "r").type == "audio"
    except ValueError:
        return False


_OPTIONS = {
    "format_whitelist": containers.DEMUXERS,
    "protocol_whitelist": "none",
    "codec_whitelist": ",".join(
        filter(_decodes_audio, sorted(codecs_available))
    ),  # probing would run video decoders otherwise
}


class _Converter:
    """Resamples frames of one format, layout and rate to float blocks of about a second at 16 kHz.

    Frames of another kind need a new one: a filter graph that met a mono frame after stereo ones has crashed. The graph
    is ours rather than PyAV's AudioResampler to keep FFmpeg from starting threads and to fetch once for a second.
    """

    def __init__(self, frame: av.AudioFrame, *, highpass_hz: float | None) -> None:
        self._kind = frame.format.name, frame.layout.name, frame.sample_rate
        self.names = tuple(channel.name for channel in frame.layout.channels)
        self._rate = frame.sample_rate
        self._waiting = 0
        self._graph = Graph()
        self._graph.threads = 1
        layout, clock = frame.layout.name, Fraction(1, self._rate)
        source = self._graph.add_abuffer(None, self._rate, frame.format, layout, time_base=clock)
        filters = []
        if highpass_hz is not None:
            if layout.endswith(" channels"):
                layout = _NAMELESS.get(frame.layout.nb_channels, layout)
            named = self._graph.add("aformat", channel_layouts=layout)
            filters = [named, *(self._graph.add("highpass", f=str(highpass_hz)) for _ in range(2))]
        target = self._graph.add("aformat", sample_rates=str(SAMPLE_RATE), sample_fmts="flt", channel_layouts=layout)
        self._graph.link_nodes(source, *filters, target, self._graph.add("abuffersink"))
        self._graph.configure()
        self._graph.set_audio_frame_size(SAMPLE_RATE)

    def takes(self, frame: av.AudioFrame) -> bool:
        return self._kind == (frame.format.name, frame.layout.name, frame.sample_rate)

    def push(self, frame: av.AudioFrame) -> Iterator[Block]:
        frame.pts = None
        self._graph.push(frame)
        self._waiting += frame.samples
        if self._waiting >= self._rate:
            self._waiting = 0
            yield from self._pull()

    def flush(self) -> Iterator[Block]:
        self._graph.push(None)
        yield from self._pull()

    def _pull(self) -> Iterator[Block]:
        while True:
            try:
                frame = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            assert isinstance(frame, av.AudioFrame)
            packed = np.asarray(frame.to_ndarray(), dtype=np.float32)  # PyAV 18 crashes on 8 planes
            yield packed.reshape(-1, len(self.names)).T


def _open(fd: int, size: int, begin: int = 0) -> InputContainer:
    try:
        source = containers.Source(fd, begin)
        return av.open(source, "r", options=_OPTIONS, metadata_errors="replace", buffer_size=1 << 16)
    except (*_FAILURES, OSError):
        if containers.is_gsm(fd, size):
            return av.open(containers.Source(fd), "r", format="gsm")
        code, message = containers.refusal(fd, size)
        raise Rejected(message, code=code) from None


def _pick(container: InputContainer, wanted: int | None) -> int:
    """Position of the audio track to decode."""
    tracks = container.streams.audio
    if not tracks:
        what = "only video" if container.streams.video else "no audio track"
        raise Rejected(f"no audio: the file holds {what}", code=Code.NO_AUDIO)
    if wanted is not None and not 0 <= wanted < len(tracks):
        raise Rejected(f"no audio track {wanted}: the file has {len(tracks)}, counted from 0", code=Code.NO_AUDIO)
    flagged = (i for i, track in enumerate(tracks) if track.disposition & Disposition.default)
    chosen = wanted if wanted is not None else next(flagged, 0)
    codec = tracks[chosen].codec_context
    if codec is not None and codec.codec_tag in containers.ENCRYPTED:
        raise Rejected("the audio is encrypted (DRM)", code=Code.DRM)
    if codec is None:
        raise Rejected("no decoder knows this file's audio codec", code=Code.UNDECODABLE)
    return chosen


class _Decoding:
    """One recording on its way through: packets in, PCM on one time line out."""

    def __init__(self, fd: int, output: int, options: DecodeOptions) -> None:
        self._fd, self._options = fd, options
        self._size = os.fstat(fd).st_size
        self._clock = Clock()
        self._writer = PcmWriter(output, options, self._size)
        self._highpass_hz = options.repair.highpass_hz if options.repair is not None else None
        self._converter: _Converter | None = None
        self._stopped = False  # the demuxer gave up before the end

    def run(self) -> MediaReport:
        container = _open(self._fd, self._size)
        track = _pick(container, self._options.track)
        self._consume(container, container.streams.audio[track], 0)
        links = self._consume_links() if container.format.name == "ogg" else 0
        self._flush()
        return self._report(container, track, chained=links > 0)

    def _consume_links(self) -> int:
        """Go on with each further stream of a chained Ogg file, at which FFmpeg stops; returns how many there were."""
        links = 0
        while self._stopped and (at := containers.next_ogg_chain(self._fd, self._clock.end, self._size)) is not None:
            links += 1
            self._stopped = False
            self._clock.end = at
            try:
                container = _open(self._fd, self._size, at)
                stream = container.streams.audio[_pick(container, None)]
            except Rejected:
                self._stopped = True
                continue
            self._consume(container, stream, at)
        return links

    def _consume(self, container: InputContainer, stream: AudioStream, begin: int) -> None:
        """Decode one container, which starts `begin` bytes into the file, to its end."""
        stream.codec_context.thread_count = 1
        self._clock.begin(container.format.name, (container.start_time or 0) / 1e6, _length(container, stream))
        others = [other for other in container.streams if other is not stream]
        watched = others if stream.duration is None else []
        for other in others:
            if other not in watched:
                other.discard = Discard.all
        for packet in self._packets(container, [stream, *watched]):
            if packet.stream_index == stream.index:
                self._decode(packet, begin)
            elif packet.pts is not None:
                begins = float(packet.pts * packet.time_base)
                ends = begins + float((packet.duration or 0) * packet.time_base)
                self._clock.other_track(begins, ends, (packet.pos or 0) + packet.size)

    def _packets(self, container: InputContainer, streams: list[Any]) -> Iterator[Packet[Any]]:
        """All packets, going on behind what the demuxer cannot read (but not in Ogg, where that is a new link)."""
        for _ in range(1 if container.format.name == "ogg" else _RESUMES):
            try:
                yield from container.demux(streams)
            except _FAILURES:
                self._stopped = True
                self._clock.packet_failed(0)
            else:
                self._stopped = False
                return

    def _decode(self, packet: Packet[Any], begin: int) -> None:
        try:
            frames = packet.decode()
        except _FAILURES:
            if packet.size:
                self._clock.packet_failed(packet.size)
            return
        if packet.size:
            at = None if packet.pos is None or packet.pos < 0 else packet.pos + begin
            tag = at is not None and at > self._clock.end and containers.is_tag(self._fd, self._clock.end)
            self._silence(self._clock.packet_decoded(at, packet.size, after_tag=tag))
        for frame in frames:
            assert isinstance(frame, av.AudioFrame)
            self._frame(frame)

    def _frame(self, frame: av.AudioFrame) -> None:
        if frame.sample_rate < _LOWEST_RATE:
            raise Rejected(f"a sample rate of {frame.sample_rate} Hz cannot be right", code=Code.UNDECODABLE)
        if self._converter is not None and not self._converter.takes(frame):
            self._flush()
        self._writer.open(frame.layout.nb_channels)
        self._silence(self._clock.frame_begins(frame.time))
        self._clock.frame_ends(frame.samples / frame.sample_rate)
        if self._converter is None:
            self._converter = _Converter(frame, highpass_hz=self._highpass_hz)
        for block in self._converter.push(frame):
            self._writer.write(block, self._converter.names)

    def _silence(self, seconds: float) -> None:
        """Bring the PCM file up to the clock, which has just moved on by `seconds`."""
        if seconds:
            self._flush()
            self._writer.silence(round(self._clock.position * SAMPLE_RATE) - self._writer.samples)

    def _flush(self) -> None:
        if self._converter is not None:
            for block in self._converter.flush():
                self._writer.write(block, self._converter.names)
            self._converter = None

    def _report(self, container: InputContainer, track: int, *, chained: bool) -> MediaReport:
        clock, stream = self._clock, container.streams.audio[track]
        if not clock.decoded and not clock.errors and not clock.packets:
            raise Rejected("a header only: there is no audio in this file", code=Code.EMPTY)
        if not clock.decoded or clock.is_noise:
            raise Rejected("nothing in this file decodes as audio", code=Code.UNDECODABLE)
        name, rate = container.format.name, stream.codec_context.sample_rate
        length = None if chained else _length(container, stream)
        promise = containers.promise(
            self._fd, self._size, name, length=length, rate=rate, first=clock.first or 0, decoded=clock.decoded
        )
        short = clock.is_short(promise, self._size)
        return MediaReport(
            container=name,
            codec=stream.codec_context.name,
            sample_rate=rate,
            channels=stream.codec_context.layout.nb_channels,
            pcm_channels=self._writer.channels,
            track=track,
            tracks=len(container.streams.audio),
            expected_s=promise.seconds if short or clock.believes(promise) else None,
            decoded_s=clock.decoded,
            duration_s=self._writer.samples / SAMPLE_RATE,
            start_s=clock.start,
            inserted_silence_s=clock.silence,
            lost=tuple(clock.lost),
            decode_errors=clock.errors,
            nonfinite=self._writer.nonfinite,
            peak=self._writer.peak,
            levels=self._writer.levels,
            mixed=self._writer.mixed,
            truncated=short or promise.cut or self._stopped,
            damaged=clock.damaged,
        )


def _length(container: InputContainer, stream: AudioStream) -> float | None:
    """Where the audio should end, in seconds from the container's start."""
    start = (container.start_time or 0) / 1e6
    if stream.duration is not None and stream.time_base is not None:
        late = float((stream.start_time or 0) * stream.time_base) - start
        return float(stream.duration * stream.time_base) + max(0.0, late)
    return container.duration / 1e6 if container.duration else None


def _work(source: int, output: int, options: dict[str, Any]) -> dict[str, Any]:
    try:
        repair = Repair(**options.pop("repair")) if options.get("repair") else None
        return asdict(_Decoding(source, output, DecodeOptions(**(options | {"repair": repair}))).run())
    except av.FFmpegError as error:
        raise Rejected(f"FFmpeg fails on this file ({type(error).__name__})", code=Code.UNDECODABLE) from None


def _warm_up() -> None:
    """Decode a moment of silence: PyAV and numpy import as they go, and a child can no longer open a module's file."""
    wav = b"RIFF\xa4\x0c\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\x80\x0c\0\0" + bytes(3200)
    with open(os.memfd_create("in"), "w+b", buffering=0) as source, open(os.memfd_create("out"), "w+b") as output:
        source.write(wav)
        _work(source.fileno(), output.fileno(), {})


if __name__ == "__main__":
    _warm_up()
    sandbox.serve(int(sys.argv[1]), _work)
