"""`spotscribe purge` as a user calls it: shown first, deleted with --yes, and the page says each option."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from pathlib import Path

import pytest

from tests.acceptance.command import query, run, spotscribe
from workers.cli import cli

PAGE = (Path(__file__).parents[2] / "docs" / "retention.md").read_text(encoding="utf-8")


@pytest.fixture
def calls(home: Path, tmp_path: Path, voice: Path, fox: Path) -> Path:
    """A folder whose recordings are transcribed, one of them twice under two names."""
    folder = tmp_path / "calls"
    folder.mkdir()
    for name, source in (("voice.wav", voice), ("fox.wav", fox), ("copy.wav", fox)):
        (folder / name).write_bytes(source.read_bytes())
    assert run(folder, out=tmp_path / "out").code == 0
    return folder


def test_a_recording_is_shown_and_then_goes(calls: Path, home: Path, tmp_path: Path) -> None:
    fox, out = calls / "fox.wav", tmp_path / "out"
    shown = spotscribe("purge", "--recording", fox)
    assert shown.code == 0
    assert "2 recordings, 2 jobs" in shown.stdout
    assert f"equal bytes, and gone with it: {(calls / 'copy.wav').as_uri()}" in shown.stdout
    assert "nothing is deleted yet" in shown.stdout
    assert len(query(home, "SELECT id FROM jobs")) == 3
    alone = spotscribe("purge", "--recording", fox.as_uri(), "--only-this-url", "--yes")
    assert alone.code == 0, alone.stderr
    assert "it is nowhere any more" in alone.stdout
    assert "out of reach: the recording itself" in alone.stdout
    assert not list(out.glob("fox.*"))
    assert len(list(out.glob("copy.*"))) == 2
    assert "copy.wav" in spotscribe("search", "brown").stdout
    sha = hashlib.sha256(fox.read_bytes()).hexdigest()
    assert spotscribe("purge", "--recording", sha, "--yes").code == 0
    assert spotscribe("search", "brown").stdout.find("copy.wav") == -1
    [(left,)] = query(home, "SELECT url FROM recordings")
    assert left == (calls / "voice.wav").as_uri()
    assert not list(out.glob("copy.*"))
    assert fox.exists()
    assert "no recording is known" in spotscribe("purge", "--recording", fox, "--yes").stdout
    assert run(fox, out=out).files["fox.wav"]["state"] == "done"  # asked for by hand it is transcribed


def test_results_go_by_age_and_the_job_says_so(calls: Path, home: Path, tmp_path: Path) -> None:
    asked = ("purge", "--older-than", "30d", "--what", "results")
    assert "nothing is that old" in spotscribe(*asked).stdout
    with sqlite3.connect(home / "spotscribe.db") as connection:
        connection.execute("UPDATE jobs SET finished_at = '2026-01-01 00:00:00.000'")
    shown = spotscribe(*asked).stdout
    assert "3 jobs" in shown
    assert "2 transcripts" in shown
    assert "6 output files stay" in shown
    assert f"of: {(calls / 'fox.wav').as_uri()}" in shown
    assert "purged: 3 jobs" in spotscribe(*asked, "--outputs", "--yes").stdout
    assert not [f for f in (tmp_path / "out").rglob("*") if f.is_file()]
    [(job,)] = query(home, "SELECT min(id) FROM jobs")
    told = spotscribe("show", job)
    assert told.code == 2
    assert re.search(r"its result was purged on \d{4}-\d\d-\d\d", told.stderr)
    assert re.search(r"purged +its result went on \d{4}-\d\d-\d\d", spotscribe("status", job).stdout)
    assert query(home, "SELECT count(*) FROM terms") == [(0,)]
    assert run(calls, out=tmp_path / "out").code == 0
    assert len(list((tmp_path / "out").iterdir())) == 6
    assert spotscribe("purge", "--older-than", "0s", "--what", "recordings", "--yes").code == 0
    assert query(home, "SELECT count(*) FROM recordings") == [(0,)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say what goes"),
        (("--recording", "x", "--older-than", "1d"), "say what goes"),
        (("--older-than", "1d"), "--what"),
        (("--older-than", "soon", "--what", "work"), "no duration"),
        (("--recording", "x.wav", "--outputs"), "of a recording all goes"),
        (("--recording", "12345"), "there is no job 12345"),
        (("--older-than", "1d", "--what", "work", "--source", "s"), "there is no source s"),
    ],
)
def test_wrong_requests_are_told(home: Path, arguments: tuple[str, ...], says: str) -> None:
    done = spotscribe("purge", *arguments)
    assert done.code == 2
    assert says in done.stderr


def test_the_page_names_each_option_and_no_other() -> None:
    options = {o for n in ("purge", "sources") for o in _options(n)}
    assert set(_options("purge")) - {"--debug"} <= set(re.findall(r"--[a-z-]+", PAGE))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= options | {
        "--keep-work", "--keep-results", "--keep-recordings", "--fuzzy",
    }  # fmt: skip


def _options(name: str) -> list[str]:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    return [o for p in command.params for o in p.opts if o.startswith("--")]
