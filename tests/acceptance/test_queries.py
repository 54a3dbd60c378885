"""`search` and `costs` as a user calls them, over what the real model heard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.command import query, run, spotscribe


@pytest.fixture
def heard(home: Path, tmp_path: Path, english_clips: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clips, transcribed at a price."""
    monkeypatch.setenv("SPOTSCRIBE_PRICE_PER_HOUR", "3.6")
    assert run(*english_clips, "--formats", "json", out=tmp_path / "out").code == 0
    return tmp_path / "out"


def test_what_was_said_is_found(heard: Path, home: Path) -> None:
    found = [json.loads(line) for line in spotscribe("search", "brown", "fox", "--json").stdout.splitlines()]
    assert len(found) == 1
    assert "**brown** **fox**" in found[0]["snippet"].lower()
    document = json.loads((heard / f"{Path(found[0]['url']).stem}.json").read_text())
    assert document["segments"][found[0]["position"]]["start"] == found[0]["start_s"]
    shown = spotscribe("search", '"brown fox"').stdout
    assert "brown fox" in shown.lower()
    assert f"job {found[0]['job']}" in shown
    assert "--fuzzy" in spotscribe("search", "brwon").stdout
    assert "brown" in spotscribe("search", "brwon", "--fuzzy").stdout.lower()
    assert "nothing found" in spotscribe("search", "fox", "--since", "2100-01-01").stdout


@pytest.mark.parametrize("wrong", [["search", "!!"], ["search", "fox", "--since", "soon"], ["costs", "--by", "planet"]])
def test_what_cannot_be_asked_is_one_line(home: Path, wrong: list[str]) -> None:
    asked = spotscribe(*wrong)
    assert asked.code == 2
    assert "Traceback" not in asked.stderr
    assert asked.stdout == ""


def test_what_it_cost(heard: Path, home: Path) -> None:
    said = json.loads(spotscribe("costs", "--by", "model", "--json").stdout)
    (group,) = said["groups"]
    device_s, cost = query(home, "SELECT sum(device_s), sum(cost) FROM checkpoints")[0]
    assert group["device_s"] == pytest.approx(device_s)
    assert group["device_s"] > 0.05
    assert group["cost"] == pytest.approx(cost) == pytest.approx(device_s / 1000)
    assert group["jobs"] == len(list(heard.glob("*.json")))
    assert "tiny.en int8" in spotscribe("costs", "--by", "model").stdout
    dearer = json.loads(spotscribe("costs", "--price", "36", "--json").stdout)["groups"][0]
    assert dearer["cost"] == pytest.approx(10 * cost)


def test_a_report_says_what_it_cost(heard: Path, home: Path, tmp_path: Path) -> None:
    assert spotscribe("report", "--out", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    cost, audio_s = query(home, "SELECT sum(cost), sum(duration_s) FROM jobs")[0]
    assert f"{cost * 3600 / audio_s:.4g} for an hour of recordings" in page
    assert "of the device" in page
