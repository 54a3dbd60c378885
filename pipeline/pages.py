"""A transcript as one HTML page that needs no network: its text, what is doubted, and the sound that it follows.

Whatever the model said or a file is called stays text: Jinja2 escapes it, no script ever holds it, and the page's
Content-Security-Policy lets nothing run or load but the one script, the one style and the sound that are in it.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

from chunking.audio import Pcm, write_mp3
from chunking.errors import UsageError
from chunking.stitcher import split_words
from chunking.timeline import Coverage, Span, Transcript
from pipeline.exports import About
from pipeline.extras import needs
from pipeline.meanings import DOUBTFUL, FLAGS
from pipeline.paragraphs import Paragraph, layout, strip
from pipeline.sound import Sound
from pipeline.typography import clean

CONTENT_TYPE = "text/html; charset=utf-8"
BLOCK_S = 60.0
DOUBTS = ("sure", "fairly sure", "unsure", "very unsure")


def transcript_page(transcript: Transcript, about: About, sound: str | None = None, *, trouble: str = "") -> str:
    """The page. `sound`: what the player plays, `embedded(…)` or a link; None: there is no player. `trouble`: why.

    A link is https://…, http://…, or relative to the page. Raises UsageError for others, and where Jinja2 is missing.
    """
    items = layout(transcript)
    style, script = asset("base.css") + asset("transcript.css"), asset("transcript.js")
    return render(
        "transcript.html.j2",
        style=style,
        script=script,
        csp=policy(style, script, media=_media_source(sound) if sound else "'none'"),
        title=title_of(about.source_url),
        about=about,
        transcript=transcript,
        items=[("paragraph" if isinstance(i, Paragraph) else "stretch", i) for i in items],
        failed=[i for i in items if not isinstance(i, Paragraph) and i.kind is Coverage.FAILED],
        coverage={kind.value: transcript.seconds(kind) for kind in Coverage},
        strips=_strips(transcript),
        sound=sound,
        trouble=trouble,
        words=len(split_words(transcript.text)),
    )


def embedded(sound: Sound) -> str:
    """The sound, all channels mixed, as a URL that holds it: MP3 in base64, 14 MB an hour."""
    file = io.BytesIO()
    write_mp3(file, _blocks(sound))
    return "data:audio/mpeg;base64," + base64.b64encode(file.getbuffer()).decode()


def policy(style: str, script: str = "", *, media: str = "'none'") -> str:
    """A Content-Security-Policy under which nothing but this style and this script is heeded, and nothing is loaded."""
    parts = {
        "default-src": "'none'",
        "style-src": _digest(style),
        "script-src": _digest(script) if script else "'none'",
        "media-src": media,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def render(template: str, **values: Any) -> str:
    """The template with these values, all of them escaped but `style` and `script`, which are ours."""
    text: str = _environment().get_template(template).render(**values)
    return text.encode("utf-8", "replace").decode()


@cache
def asset(name: str) -> str:
    """A style or a script of the pages."""
    return files("pipeline").joinpath("page_templates", name).read_text("utf-8")


def title_of(url: str) -> str:
    """A recording's name for people: the last part of its URL."""
    return clean(unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])) or clean(url)


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`: a place in a recording."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


@cache
def _environment() -> Any:
    jinja2 = needs("jinja2", "An HTML page")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline", "page_templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": clock, "clean": clean, "title_of": title_of}
    environment.globals |= {"flags": FLAGS, "doubts": DOUBTS, "doubtful": DOUBTFUL}
    return environment


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _media_source(sound: str) -> str:
    if sound.startswith("data:audio/mpeg;base64,"):
        return "data:"
    try:
        parts = urlsplit(sound)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(f"{sound} is no URL that a page can play") from None
    if parts.scheme in {"http", "https"} and host and host.replace("-", "").replace(".", "").isalnum():
        return f"{parts.scheme}://{host}{f':{port}' if port else ''}"
    if not parts.scheme and not parts.netloc and parts.path:
        return "'self' file:"
    raise UsageError(f"{sound}: a page plays what is at https://… or http://…, or beside it (sound.mp3)")


def _blocks(sound: Sound) -> Iterator[Pcm]:
    at = 0.0
    while len(block := sound.samples(Span(at, at + BLOCK_S))):
        yield block
        at += BLOCK_S


def _strips(transcript: Transcript) -> list[dict[str, list[tuple[float, float]]]]:
    """For each channel where it was transcribed and where it failed: start and width in thousandths of the whole."""
    whole = transcript.duration or 1.0
    return [
        {
            kind.value: [
                (round(s.start / whole * 1000, 2), round(max(s.duration / whole * 1000, 1.0), 2))
                for s in strip(transcript.coverage, channel, kind, whole)
            ]
            for kind in (Coverage.TRANSCRIBED, Coverage.FAILED)
        }
        for channel in range(transcript.channels)
    ]
