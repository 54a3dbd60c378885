"""The pages in a real browser: they load nothing, follow the sound, find words, and run nothing that was said."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunking.errors import UsageError
from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript, Word
from pipeline.pages import embedded, transcript_page
from pipeline.sound import Sound
from tests.acceptance.command import run, spotscribe
from tests.unit.test_exports import ABOUT
from tests.unit.test_pages import HOSTILE
from workers.cli import cli

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium or google-chrome here")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1200, "height": 800}
HEARD = (
    "() => ({time: document.querySelector('audio').currentTime,"
    " now: [...document.querySelectorAll('.now')].map(e => e.textContent)})"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield started
        started.close()


def until(page: Any, true: str) -> None:
    """Waits for that. Playwright's own waiting needs eval, which the page's policy forbids."""
    for _ in range(600):
        if page.evaluate(true):
            return
        page.wait_for_timeout(50)
    raise AssertionError(true)


@contextmanager
def opened(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """The page, shown. At the end: nothing was complained of, and nothing but the file was asked for."""
    context = browser.new_context(**{"viewport": DESK, **options})
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("dialog", lambda d: (said.append(d.message), d.dismiss()))
    page.on("request", lambda r: asked.append(r.url.split("?")[0].split("#")[0]))
    page.goto(file.as_uri())
    if page.query_selector("audio"):
        until(page, "document.querySelector('audio').readyState > 0")
    yield page
    page.wait_for_timeout(50)
    assert said == []
    assert {u for u in asked if not u.startswith(("data:", "blob:"))} == {file.as_uri()}
    context.close()


def stand(page: Any, seconds: float) -> None:
    """The sound is at that second."""
    page.evaluate(
        "t => new Promise(done => { const a = document.querySelector('audio');"
        " a.addEventListener('seeked', () => setTimeout(done, 30), {once: true}); a.currentTime = t; })",
        seconds,
    )


def no_sideways(page: Any) -> bool:
    """Whether nothing is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.fixture(scope="module")
def tone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty seconds of sound, as a page holds it."""
    pcm = tmp_path_factory.mktemp("tone") / "pcm"
    (4000 * np.sin(np.arange(16000 * 20) * 0.1)).astype("<i2").tofile(pcm)
    return embedded(Sound(pcm, 1, 20.0))


def words(text: str, start: float, channel: int = 0, probability: float = 0.9, **more: Any) -> Segment:
    """A segment with a word each second."""
    parts = tuple(Word(start + i, start + i + 0.8, f" {w}", probability) for i, w in enumerate(text.split()))
    return Segment(start, start + len(parts), text, "en", channel, words=parts, **more)


TALK = Transcript(
    20.0,
    2,
    "en",
    0.99,
    (
        words("Crème brûlée for", 0.0),
        words("table nine please", 1.5, 1, 0.4),
        words("The nine tables wait", 8.0, 0, 0.2, flags=("loop", "tail")),
    ),
    (
        CoverageSpan(Span(0, 12), Coverage.TRANSCRIBED, "", 0),
        CoverageSpan(Span(12, 14.5), Coverage.FAILED, "unread", 0),
        CoverageSpan(Span(14.5, 20), Coverage.NO_SPEECH, "", 0),
        CoverageSpan(Span(0, 5), Coverage.TRANSCRIBED, "", 1),
        CoverageSpan(Span(5, 20), Coverage.NO_SPEECH, "", 1),
    ),
)


@pytest.fixture
def talk(tmp_path: Path, tone: str) -> Path:
    file = tmp_path / "talk.html"
    file.write_text(transcript_page(TALK, ABOUT, tone), encoding="utf-8")
    return file


def test_the_words_that_are_heard_are_marked_in_each_channel(browser: Any, talk: Path) -> None:
    with opened(browser, talk) as page:
        for second, now in ((0.3, ["Crème"]), (1.6, ["brûlée", "table"]), (5.5, []), (9.2, ["nine"]), (0.1, ["Crème"])):
            stand(page, second)
            assert page.evaluate(HEARD)["now"] == now, second
        assert page.evaluate("parseFloat(document.querySelector('.head').style.left)") == pytest.approx(0.5, abs=0.3)


def test_a_click_on_a_word_plays_from_there(browser: Any, talk: Path) -> None:
    with opened(browser, talk) as page:
        page.get_by_text("tables", exact=True).click()
        until(page, "document.querySelector('audio').currentTime > 10.05")  # it plays
        heard = page.evaluate(HEARD)
        assert 10.0 <= heard["time"] < 14.0
        page.keyboard.press("Space")
        until(page, "document.querySelector('audio').paused")
        before = page.evaluate(HEARD)["time"]
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(HEARD)["time"] == pytest.approx(before - 5, abs=0.05)
        page.get_by_role("button", name="Play from 0:01").press("Enter")
        until(page, "document.querySelector('audio').currentTime < 4")
        page.keyboard.press("k")
        until(page, "document.querySelector('audio').paused")


def test_a_link_to_a_second_begins_there(browser: Any, talk: Path) -> None:
    with opened(browser, talk) as page:
        page.goto(f"{talk.as_uri()}?#t=8.5")
        until(page, "document.querySelector('audio').currentTime === 8.5")


def test_search_finds_counts_and_steps(browser: Any, talk: Path) -> None:
    def found(page: Any) -> list[str]:
        texts: list[str] = page.evaluate("[...CSS.highlights.get('hits') ?? []].map(r => r.toString())")
        return texts

    with opened(browser, talk) as page:
        page.keyboard.press("/")
        page.keyboard.type("nine")
        count = page.locator("output")
        assert (count.inner_text(), found(page)) == ("2 hits", ["nine", "nine"])
        page.keyboard.press("Enter")
        assert count.inner_text() == "1 of 2"
        page.keyboard.press("Shift+Enter")
        assert count.inner_text() == "2 of 2"
        page.get_by_role("button", name="Next hit").click()
        assert count.inner_text() == "1 of 2"
        assert page.evaluate("[...CSS.highlights.get('hit')][0].startContainer.parentElement.dataset.s") == "2.50"
        box = page.get_by_role("searchbox")
        for query, texts in (
            ("BRULEE  for", ["brûlée for"]),
            ("table", ["table", "table"]),
            ("loop", []),
            ("nowhere", []),
        ):
            box.fill(query)
            assert found(page) == texts, query
        assert count.inner_text() == "no hit"
        box.press("Escape")
        assert (count.inner_text(), found(page), box.input_value()) == ("", [], "")
        assert page.evaluate(HEARD)["time"] == 0  # no key of the search moved the sound


def test_gaps_flags_channels_and_doubt_are_in_their_places(browser: Any, talk: Path) -> None:
    with opened(browser, talk) as page:
        text = " ".join(page.inner_text("main").split())
        order = [
            "0:00 Channel 1",
            "Crème brûlée for",
            "0:01 Channel 2",
            "table nine please",
            "The nine tables wait loop tail",
        ]
        order += ["0:12–0:14 Channel 1: failed, 2.5 s: unread", "0:14–0:20 no speech, 5.5 s"]
        at = [text.index(part) for part in order]
        assert at == sorted(at)
        assert page.locator(".turn .d3").count() == 4
        assert page.locator(".turn .d2").first.get_attribute("title") == "unsure (40 %)"
        style = "getComputedStyle(document.querySelector('.turn .d3')).textDecorationStyle"
        assert page.evaluate(style) == "wavy"
        page.get_by_label("Show doubt").uncheck()
        assert page.evaluate("getComputedStyle(document.querySelector('.turn .d3')).textDecorationLine") == "none"
        assert "1.2 s could not be read." in page.locator("[role=note]").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_in_either_scheme(browser: Any, talk: Path, scheme: str) -> None:
    with opened(browser, talk, viewport=PHONE, color_scheme=scheme) as page:
        assert no_sideways(page)
        red, green, blue = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).map(Number)"
        )
        assert (red + green + blue < 200) is (scheme == "dark")


def test_following_keeps_the_word_in_sight_until_the_reader_scrolls(browser: Any, tmp_path: Path, tone: str) -> None:
    lines = tuple(words("alpha beta gamma delta", i * 0.05) for i in range(300))
    many = Transcript(20.0, 1, "en", 1.0, lines, ())
    (tmp_path / "long.html").write_text(transcript_page(many, ABOUT, tone), encoding="utf-8")
    with opened(browser, tmp_path / "long.html", reduced_motion="reduce") as page:
        stand(page, 14.0)
        until(
            page,
            "(() => { const r = document.querySelector('.now').getBoundingClientRect();"
            " return r.top > 0 && r.bottom < innerHeight; })()",
        )
        assert page.evaluate("scrollY") > 300
        page.evaluate("document.querySelector('audio').play()")
        page.mouse.move(600, 600)
        page.mouse.wheel(0, -5000)
        until(page, "!document.querySelector('#follow').checked")
        page.evaluate("document.querySelector('audio').pause()")


def test_nothing_that_was_said_runs(browser: Any, tmp_path: Path, tone: str) -> None:
    hostile = Transcript(
        20.0,
        1,
        "en",
        1.0,
        (
            replace(words("a b", 0.0), text=HOSTILE, words=(Word(0, 1, HOSTILE, 0.1),)),
            Segment(5, 6, HOSTILE, HOSTILE, flags=(HOSTILE,)),
        ),
        (CoverageSpan(Span(8, 9), Coverage.FAILED, HOSTILE),),
    )
    about = replace(ABOUT, source_url=f"s3://bucket/{HOSTILE}", model=HOSTILE, job_id=HOSTILE, code=HOSTILE)
    file = tmp_path / "hostile.html"
    file.write_text(transcript_page(hostile, about, tone), encoding="utf-8")
    with opened(browser, file) as page:
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        assert page.inner_text("main").count("<img src=x onerror=alert(1)>") == 4
        page.get_by_role("searchbox").fill("<img src=x")
        assert page.locator("output").inner_text() == "2 hits"


def test_show_and_report_write_pages_of_a_real_run(
    browser: Any, home: Path, tmp_path: Path, voice: Path, fox: Path
) -> None:
    (tmp_path / "broken.mp3").write_bytes(b"<script>alert(1)</script>" * 100)
    done = run(voice, fox, tmp_path / "broken.mp3", "--word-timestamps", out=tmp_path / "out")
    assert set(done.files) == {voice.name, fox.name, "broken.mp3"}
    with sqlite3.connect(home / "spotscribe.db") as connection:
        (job,) = connection.execute(
            "SELECT j.id FROM jobs j JOIN recordings r ON r.id = j.recording_id WHERE r.url LIKE '%fox%'"
        ).fetchone()
    shown = spotscribe("show", job, "--format", "html")
    assert shown.code == 0, shown.stderr
    (tmp_path / "fox.html").write_text(shown.stdout, encoding="utf-8")
    transcript = json.loads(spotscribe("show", job, "--format", "json").stdout)
    with opened(browser, tmp_path / "fox.html") as page:
        assert page.evaluate("document.querySelector('audio').duration") == pytest.approx(
            transcript["duration"], abs=0.2
        )
        said = [w for s in transcript["segments"] for w in s["words"]]
        middle = said[len(said) // 2]
        stand(page, (middle["start"] + middle["end"]) / 2)
        assert page.evaluate(HEARD)["now"] == [middle["text"].strip()]
    exported = spotscribe("export", job, "--format", "html", "--out", tmp_path / "pages")
    assert exported.code == 0, exported.stderr
    (page_file,) = (tmp_path / "pages").glob("*.html")
    assert page_file.read_text("utf-8").strip() == shown.stdout.strip()
    reported = spotscribe("report", "--out", tmp_path / "report.html")
    assert reported.code == 0, reported.stderr
    for viewport, scheme in ((DESK, "light"), (PHONE, "dark")):
        with opened(browser, tmp_path / "report.html", viewport=viewport, color_scheme=scheme) as page:
            assert no_sideways(page)
            text = page.inner_text("body")
            assert "2 done" in text
            assert "rejected, not_media" in text or "rejected, undecodable" in text
            assert fox.name in text
            assert page.locator("figure svg").count() == page.locator("figure details").count() > 3
            bar = page.evaluate("getComputedStyle(document.querySelector('figure [fill=\"#000004\"]')).fill")
            assert bar == ("rgb(10, 88, 202)" if scheme == "light" else "rgb(138, 180, 248)")


def wrong(*arguments: str) -> str:
    """What is said of a request that is refused, before anything is done."""
    with pytest.raises(UsageError) as caught:
        cli(arguments, standalone_mode=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wrong_requests_are_told_in_one_line(home: Path) -> None:
    assert "there are no jobs" in wrong("report")
    assert "no jobs have the label x" in wrong("report", "--label", "x")
    assert "is no time" in wrong("report", "--since", "yesterday")
    assert "name a file" in wrong("report", "--out", "")
    assert "--sound is for --format html" in wrong("show", "1", "--sound", "none")


def test_a_page_without_the_sound_or_with_a_link_to_it(home: Path, tmp_path: Path, fox: Path) -> None:
    moved = shutil.copy(fox, tmp_path / "moved.wav")
    assert run(moved, out=tmp_path / "out").code == 0
    Path(moved).unlink()
    assert "--sound none makes the page without it" in wrong("show", "1", "--format", "html")
    assert "a page plays what is at" in wrong("show", "1", "--format", "html", "--sound", "javascript:x")
    assert "<audio" not in spotscribe("show", 1, "--format", "html", "--sound", "none").stdout
    linked = spotscribe("show", 1, "--format", "html", "--sound", "https://example.org/a.mp3").stdout
    assert 'src="https://example.org/a.mp3"' in linked
