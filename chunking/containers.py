"""What a media file's own bytes say, where the demuxer does not: promises to check, and why it was refused.

FFmpeg reports a duration without saying whether it was read or guessed, and corrects a promise that the file does not
keep. Telling a cut upload from a wrong header needs the promise.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

from chunking.errors import Code

DEMUXERS = (
    "3dostr,aa,aac,aax,ac3,ac4,act,aea,aiff,amr,amrnb,amrwb,ape,asf,au,avi,bonk,caf,dhav,dsf,dts,dtshd,eac3,flac,flv,gsm,"
    "gxf,iff,ilbc,ircam,kux,loas,matroska,webm,mlp,mmf,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpc,mpc8,mpeg,mpegts,mxf,nistsphere,"
    "nut,ogg,oma,osq,paf,pvf,qcp,rm,rso,sbc,shn,sox,swf,tak,truehd,tta,voc,vqf,w64,wav,wsd,wtv,wv,xwma"
)
"""FFmpeg's names of the containers that hold their own media: no playlists, scripts, devices, pictures or bare PCM."""
ENCRYPTED = frozenset({"enca", "encv", "drms", "aavd"})
"""MP4 sample entries of protected tracks: Common Encryption, FairPlay, Audible."""
UNTIMED = frozenset(
    ("aac", "ac3", "amr", "amrnb", "amrwb", "dts", "dtshd", "eac3", "gsm", "loas", "mlp", "mp3", "truehd")
)
"""Bare frames one after another: no clock, and a duration that FFmpeg guesses from the bit rate."""
CONTINUOUS = UNTIMED | {"aiff", "ape", "au", "caf", "dsf", "flac", "mpeg", "mpegts", "ogg", "tta", "voc", "w64", "wav"}
"""Never recorded with holes: a hole in the time stamps is damage."""

_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
_PICTURES = re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0\0\0\0|II\*\0|MM\0\*|RIFF.{4}WEBP", re.DOTALL)
_MEDIA = re.compile(
    rb"RIFF.{4}(WAVE|AVI )|RF64|riff\x2e\x91|fLaC|OggS|\x1aE\xdf\xa3|ID3[\x02-\x04]|FORM.{4}AIF|#!AMR|caff\0|\.snd"
    rb"|FLV\x01|\x30\x26\xb2\x75\x8e\x66\xcf\x11|wvpk|MAC |Creative Voice File|.{4}(ftyp|moov|mdat|wide|free|skip)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Promise:
    """Seconds of audio and bytes of file that a header announces; None where it does not."""

    seconds: float | None = None
    bytes: int | None = None
    cut: bool = False
    """The file ends where no such file may end, whatever was promised."""


class Source:
    """What FFmpeg reads: an open file from `begin` on, without its name, which would guide the probing."""

    def __init__(self, fd: int, begin: int = 0) -> None:
        self._fd, self._begin, self._at = fd, begin, 0

    def read(self, count: int) -> bytes:
        data = os.pread(self._fd, count, self._begin + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = (0, self._at, os.fstat(self._fd).st_size - self._begin)[whence]
        self._at = max(0, origin + offset)
        return self._at

    def tell(self) -> int:
        return self._at


def refusal(fd: int, size: int) -> tuple[Code, str]:
    """Why the demuxers refused this file, as a code and a line for the user."""
    head = os.pread(fd, 64, 0)
    if _PICTURES.match(head):
        return Code.NO_AUDIO, "this is a picture: it has no audio"
    if not _MEDIA.match(head):
        return Code.NOT_MEDIA, "this is not an audio or video file of a kind we decode"
    if size <= 64:
        return Code.EMPTY, "a header only: there is no audio in this file"
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip") and not find_box(fd, size, b"moov"):
        return Code.UNDECODABLE, "incomplete file: its index (moov) is missing, as after an interrupted upload"
    return Code.UNDECODABLE, "the file looks like media, but its structure is broken"


def find_box(fd: int, size: int, kind: bytes) -> int | None:
    """Offset of the first top-level MP4 box of that kind."""
    at = 0
    for _ in range(10_000):
        head = os.pread(fd, 16, at)
        if len(head) < 8:
            return None
        length, name = struct.unpack(">I4s", head[:8])
        if name == kind:
            return at
        if length == 1 and len(head) == 16:
            length = struct.unpack(">Q", head[8:])[0]
        if length < 8 or at + length >= size:
            return None
        at += length
    return None


def is_gsm(fd: int, size: int) -> bool:
    """Whether this is bare GSM 06.10, which has no header but 0xD in the first half byte of each 33-byte frame."""
    head = os.pread(fd, 33 * 64, 0)
    return size % 33 == 0 and len(head) >= 33 * 10 and all(byte >> 4 == 0xD for byte in head[::33])


def promise(
    fd: int, size: int, container: str, *, length: float | None, rate: int, first: int, decoded: float
) -> Promise:
    """What a file announces, in its header's own words where FFmpeg guesses or corrects.

    `length` is FFmpeg's word in seconds, `rate` the samples per second, `first` the offset of the first packet that
    decoded, `decoded` the seconds that did.
    """
    if container == "mp3":
        return _mp3_promise(fd, first, rate)
    if container == "wav":
        return _wav_promise(fd, size, decoded)
    cut = container == "ogg" and _ogg_is_cut(fd, size)
    return Promise(None if container in UNTIMED else length, cut=cut)


def _mp3_promise(fd: int, first_frame: int, rate: int) -> Promise:
    """The Xing, Info or VBRI header, which is the frame before `first_frame`, the first that holds audio."""
    begin = max(0, first_frame - 2048)
    text = os.pread(fd, min(first_frame, 2048), begin)
    at = max(text.rfind(b"Xing"), text.rfind(b"Info"))
    if at >= 0 and len(text) >= at + 16:
        flags, *numbers = struct.unpack(">III", text[at + 4 : at + 16])
        frames = numbers.pop(0) if flags & 1 else None
        total = numbers.pop(0) if flags & 2 else None
    elif (at := text.rfind(b"VBRI")) >= 0 and len(text) >= at + 18:
        total, frames = struct.unpack(">II", text[at + 10 : at + 18])
    else:
        return Promise()
    samples = 1152 if rate >= 32_000 else 576
    return Promise(frames * samples / rate if frames else None, begin + at + total if total else None)


def _wav_promise(fd: int, size: int, decoded: float) -> Promise:
    """The size of a WAV file's data chunk, which FFmpeg cuts down to what is there, and the seconds it would last."""
    head = os.pread(fd, 4096, 0)
    at = head.find(b"data", 12)
    if not head.startswith(b"RIFF") or at < 0 or len(head) < at + 8:
        return Promise()
    begin, length = at + 8, struct.unpack("<I", head[at + 4 : at + 8])[0]
    if length in _UNKNOWN_SIZES or size <= begin:
        return Promise()
    return Promise(decoded * length / min(length, size - begin), begin + length)


def _ogg_is_cut(fd: int, size: int) -> bool:
    """Whether an Ogg file ends inside a page (a page holds at most 65 307 bytes)."""
    begin = max(0, size - 65_307)
    tail = os.pread(fd, size - begin, begin)
    at = tail.rfind(b"OggS\0")
    if at < 0:
        return False
    lacing = tail[at + 27 : at + 27 + tail[at + 26]] if len(tail) > at + 26 else b""
    return len(tail) < at + 27 or len(lacing) < tail[at + 26] or at + 27 + len(lacing) + sum(lacing) > len(tail)


def next_ogg_chain(fd: int, start: int, size: int) -> int | None:
    """Offset of the next page, past `start`, that begins a new logical stream."""
    step = 1 << 20
    for at in range(start, size, step):
        for match in re.finditer(rb"OggS\0[\x02\x03\x06]", os.pread(fd, step + 5, at)):
            if at + match.start() > start:
                return at + match.start()
    return None


def is_tag(fd: int, at: int) -> bool:
    """Whether a tag, not audio, lies here, as between two joined MP3 files."""
    return os.pread(fd, 8, at).startswith((b"ID3", b"TAG", b"APETAGEX"))
