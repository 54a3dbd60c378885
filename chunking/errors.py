"""The errors that cross stages: two families, a few named cases, and a code that a user can look up.

A docstring is the message for users. Retrying looks at the family only: a permanent error ends the job with its code,
a transient one puts the work back in the queue.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Why a job ended as it did. `ok` and `no_speech` belong to `done`, `truncated` and `damaged` to `partial`."""

    OK = "ok"
    NO_SPEECH = "no_speech"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    EMPTY = "empty"
    NOT_MEDIA = "not_media"
    UNDECODABLE = "undecodable"
    NO_AUDIO = "no_audio"
    DRM = "drm"
    TOO_LONG = "too_long"
    TOO_LARGE = "too_large"
    GONE = "gone"
    DENIED = "denied"
    DECODER_CRASHED = "decoder_crashed"
    DECODER_TIMEOUT = "decoder_timeout"
    QUARANTINED = "quarantined"
    PROMPT_TOO_LONG = "prompt_too_long"
    INTERNAL = "internal"


class SpotscribeError(Exception):
    """Something went wrong."""

    code: Code = Code.INTERNAL

    def __init__(self, message: str | None = None, *, code: Code | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        if code is not None:
            self.code = code


class PermanentError(SpotscribeError):
    """Trying again with the same input cannot help."""


class TransientError(SpotscribeError):
    """Trying again later may help."""


class UsageError(PermanentError):
    """The request itself is wrong; nothing was done."""


class Rejected(PermanentError):
    """The recording cannot be transcribed, whoever tries."""


class Archived(Rejected):
    """The object is in an archive: restore it, and then `spotscribe retry`."""

    code = Code.DENIED


class DecoderFailed(PermanentError):
    """The decoder died or hung on this recording."""

    code = Code.DECODER_CRASHED


class DatabaseAway(TransientError):
    """The database does not answer."""


class OutOfMemory(TransientError):
    """The device has no memory for so large a batch."""


class DeviceLost(TransientError):
    """The device does not work any more; only a new process can tell whether it will again."""


class LeaseLost(TransientError):
    """Another worker holds the lease now; what this one wrote was refused."""


class Interrupted(TransientError):
    """The worker was asked to stop; the work goes on from its last checkpoint."""
