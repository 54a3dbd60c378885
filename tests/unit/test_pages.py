"""Pages hold what a transcript has, and nothing that it says becomes markup. What they do: acceptance/test_pages.py."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from chunking.errors import Code, UsageError
from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript
from pipeline import meanings
from pipeline.pages import embedded, title_of, transcript_page
from pipeline.plots import Bars, bar_chart
from pipeline.report import advice, rows_of, span
from pipeline.sound import Sound
from tests.unit.test_exports import ABOUT, FULL, said, transcript

HOSTILE = """</script><img src=x onerror=alert(1)>"'`{{ 7*7 }}{% raw %}&lt;<!--]]>\u2028"""
DOCS = Path(__file__).parents[2] / "docs"


class Elements(HTMLParser):
    """Counts elements and attributes by name, and collects text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen += [tag, *(name for name, _ in attrs)]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_says_what_the_transcript_says() -> None:
    page = transcript_page(FULL, ABOUT)
    text = " ".join("".join(Elements(page).texts).split())
    for part in (
        "öl.mp3",
        "Grüß Gott.",
        "0:10–0:12 failed, 2.3 s: loop",
        "0:04–0:10 no speech, 6.0 s",
        "low confidence",
        "large-v3",
    ):
        assert part in text
    assert "<audio" not in page
    assert "{{" not in page


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters() | st.sampled_from("\x00\ud800\u202e<>&\"'`"), max_size=40))
def test_whatever_is_said_or_called_stays_text(said_text: str) -> None:
    def elements(text: str) -> list[str]:
        heard = transcript(said(f"x{text}", 0, 1))
        spans = (CoverageSpan(Span(0, 60), Coverage.FAILED, f"r{text}"),)
        about = replace(ABOUT, source_url=f"s3://bucket/n{text}", model=f"m{text}")
        return Elements(transcript_page(replace(heard, coverage=spans), about)).seen

    assert elements(said_text) == elements("plain")
    assert elements(HOSTILE) == elements("plain")


def test_the_policy_names_the_one_script_and_style_and_loads_nothing() -> None:
    page = transcript_page(FULL, ABOUT, "https://example.org:8443/a/öl.mp3?x=1&y=2")
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[0].replace("&#39;", "'")
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "media-src https://example.org:8443;" in policy
    assert 'src="https://example.org:8443/a/öl.mp3?x=1&amp;y=2"' in page
    assert " style=" not in page
    assert not re.search(r"\son[a-z]+=", page)


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "ftp://host/a",
        "//host/a.mp3",
        "https://",
        "https://a b/c",
        "https://x;y/",
        "http://[",
        "#",
        "file:///etc/passwd",
    ],
)
def test_a_link_that_no_page_should_play_is_refused(link: str) -> None:
    with pytest.raises(UsageError):
        transcript_page(FULL, ABOUT, link)


def test_the_sound_is_all_channels_mixed_as_long_as_it_was(tmp_path: Path) -> None:
    tone = (8000 * np.sin(np.arange(16000 * 65) * 0.1)).astype("<i2")
    np.stack([tone, -tone // 2], axis=1).tofile(tmp_path / "pcm")
    url = embedded(Sound(tmp_path / "pcm", 2, 65.0))
    (tmp_path / "sound.mp3").write_bytes(base64.b64decode(url.removeprefix("data:audio/mpeg;base64,")))
    samples, rate = soundfile.read(tmp_path / "sound.mp3")
    assert (rate, samples.ndim) == (16000, 1)
    assert abs(len(samples) / rate - 65) < 0.2
    assert abs(np.sqrt(np.mean(samples**2)) - 2000 / 32768 / np.sqrt(2)) < 0.005
    assert (tmp_path / "sound.mp3").stat().st_size < 65 * 3100


def test_a_title_is_the_name_of_the_recording() -> None:
    assert title_of("s3://bucket/a%20b/Kov%C3%A1cs%2F7.wav") == "Kovács/7.wav"
    assert title_of("s3://bucket/") == "s3://bucket/"


def test_each_code_and_each_flag_has_its_meaning() -> None:
    assert set(meanings.ADVICE) == set(Code)
    flags = {
        f
        for row in re.findall(r"^\| (`.*?) \|", (DOCS / "quality.md").read_text("utf-8"), re.MULTILINE)
        for f in re.findall(r"`([a-z_]+)`", row)
    }
    assert set(meanings.FLAGS) == flags - {"failed", "no_speech"}
    assert set(meanings.DOUBTFUL) <= set(meanings.FLAGS)
    assert advice("failed", "of a later version") == "Look at the error."


def test_a_chart_is_text_and_shapes_without_styles_of_its_own() -> None:
    svg = bar_chart(Bars(HOSTILE, "jobs", ("a</text><script>", "b"), (1.0, 12345.0)), lying=True)
    assert svg.startswith("<svg")
    assert "12\u202f345" in svg
    for part in ("style", "<script", "<metadata", 'href="http', "<?xml"):
        assert part not in svg
    assert 'fill="#000004"' in svg


def test_a_charts_figures_are_in_words_too() -> None:
    bars = Bars("Length", "recordings", ("10 s", "1 min"), (1.0, 0.0, 2.5))
    assert rows_of(bars) == [("under 10 s", "1"), ("10 s to 1 min", "0"), ("1 min and more", "2.5")]
    assert rows_of(Bars("Flags", "%", ("loop",), (1.0,)))[0][0].startswith("loop (the same words")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.96, "60 s"), (90, "1.5 min"), (3600, "1 h"), (86400, "24 h"), (200000, "2.3 d")],
)
def test_a_stretch_of_time_is_in_one_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_an_empty_transcript_is_a_page() -> None:
    page = transcript_page(Transcript(0.0, 1, "", 0.0, (), ()), ABOUT)
    assert "Nobody was heard to speak." in page


def test_a_segment_without_times_of_words_is_a_piece() -> None:
    page = transcript_page(transcript(Segment(1.0, 3.5, "Good day, all.", "en", avg_logprob=-0.8)), ABOUT)
    assert re.search(
        r'<span class="t d2" data-s="1\.00" data-e="3\.50" title="unsure \(45 %\)">Good day, all\.</span>', page
    )
