"""A transcribed recording's sound once more: fetched as it was then, decoded, and read in pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from chunking.audio import DecodeOptions, DecoderPool, Pcm, read_pcm
from chunking.errors import PermanentError, TransientError
from chunking.media import Channels
from chunking.timeline import Span
from storage.jobs import JobView
from storage.readers import Readers


@dataclass(frozen=True, slots=True)
class Sound:
    """A decoded recording: 16 kHz, 16 bit, in a file that lasts as long as the context it came from."""

    pcm: Path
    channels: int
    duration_s: float

    def samples(self, span: Span, channel: int | None = None) -> Pcm:
        """One channel inside the span, or without `channel` the mean of all."""
        if channel is not None:
            return read_pcm(self.pcm, self.channels, channel, span)
        every = [read_pcm(self.pcm, self.channels, c, span) for c in range(self.channels)]
        return every[0] if len(every) == 1 else cast(Pcm, np.mean(every, axis=0).astype(np.int16))


class Sounds:
    """Safe to share by threads."""

    def __init__(
        self, readers: Callable[[], Readers], decoder: DecoderPool, scratch: Path, limits: DecodeOptions
    ) -> None:
        """`readers`: made when first needed. `scratch`: a folder that is there, for 2 MB a minute and channel."""
        self._readers, self._decoder, self._scratch, self._limits = readers, decoder, scratch, limits

    @contextmanager
    def of(self, job: JobView, channels: Channels | None = None) -> Iterator[Sound]:
        """The job's recording, what was too quiet made louder as it was for the model.

        `channels`: other than the job's. Raises Rejected (its file is gone or another one, or may not be read),
        DecoderFailed, TransientError, each with the recording's URL in its message.
        """
        options = replace(self._limits, channels=channels or heard(job), track=job.options.track)
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            pcm = Path(folder) / "sound.pcm"
            try:
                source = self._readers().fetch(job.url, job.version, Path(folder))
                report = self._decoder.decode_repaired(source.path, pcm, options)
            except (PermanentError, TransientError) as e:
                raise type(e)(f"job {job.id}, {job.url}: {e}", code=e.code) from e
            yield Sound(pcm, report.pcm_channels, report.duration_s)


def heard(job: JobView) -> Channels:
    """Which channels the job's transcript is of."""
    asked = job.options.channels
    if asked == "auto":
        return "split" if (job.channels or 1) > 1 else "mix"
    return cast(Channels, asked)
