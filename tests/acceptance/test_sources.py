"""Drop folders' commands as a user calls them: real Postgres, Redis protocol and S3; no worker is needed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.command import PROGRAM, spotscribe
from tests.acceptance.test_fleet import Fleet, _variables, fleet

__all__ = ["_variables", "fleet"]


def test_a_prefix_is_taken_once_and_only_once(fleet: Fleet) -> None:
    url = f"s3://{fleet.inbox}/calls/"
    seen = spotscribe("ingest", url, "--dry-run").stdout
    assert "would take 3 new" in seen
    assert "1 no media by their name" in seen
    assert fleet.query("SELECT (SELECT count(*) FROM sources), (SELECT count(*) FROM arrivals)") == [(0, 0)]
    assert "3 new of 4 objects" in spotscribe("ingest", url, "--formats", "srt", "--include", "*.wav").stdout
    assert fleet.query("SELECT count(*), count(DISTINCT job_id) FROM arrivals WHERE state = 'submitted'") == [(3, 3)]
    assert fleet.query("SELECT url FROM outputs WHERE url LIKE '%fox%'") == [
        (f"s3://{fleet.inbox}/calls/2026%2011/quick_brown_fox.srt",)
    ]
    again = spotscribe("ingest", url)
    assert (again.code, again.stdout) == (0, "")
    assert fleet.query("SELECT count(*) FROM jobs") == [(3,)]


def test_sources_are_kept_shown_paused_and_removed(fleet: Fleet, tmp_path: Path) -> None:
    assert spotscribe("sources", "list").stdout.count("\n") >= 1
    url = f"s3://{fleet.inbox}/kept/"
    added = spotscribe(
        "sources", "add", "kept", url, "--label", "{source}-{dir}", "--daily-hours", "2", "--max-size", "1G",
        "--notify", "https://user:secret@example.org/hook?token=secret", "--language", "en",
    )  # fmt: skip
    assert "kept:" in added.stdout
    assert "changed" in spotscribe("sources", "add", "kept", url, "--min-age", "2m").stdout
    fleet.s3.put_object(Bucket=fleet.inbox, Key="kept/a/x.wav", Body=b"something")
    [source] = [s for s in json.loads(spotscribe("sources", "list", "--json").stdout) if s["name"] == "kept"]
    assert (source["url"], source["settings"]["min_age_s"], source["settings"]["daily_hours"]) == (url, 120.0, None)
    assert "too young yet" in spotscribe("ingest", "--dry-run").stdout
    spotscribe("sources", "add", "kept", url, "--label", "{source}-{dir}")
    assert spotscribe("sources", "pause", "kept").code == 0
    assert spotscribe("ingest").stdout == ""
    assert spotscribe("ingest", url).code == 2
    assert "(paused)" in spotscribe("sources", "list").stdout
    assert spotscribe("sources", "resume", "kept").code == 0
    assert "kept: 1 new" in spotscribe("ingest").stdout
    assert fleet.query("SELECT label FROM labels") == [("kept-a",)]
    assert spotscribe("sources", "remove", "kept").code == 0
    assert spotscribe("sources", "remove", "kept").code == 2
    assert "kept" not in [s["name"] for s in json.loads(spotscribe("sources", "list", "--json").stdout)]
    spotscribe("sources", "add", "kept", url)
    assert spotscribe("ingest").stdout == ""  # what was taken stays taken
    shown = spotscribe("sources", "list").stdout
    assert "taken 1: 0 ended, 1 in the queue, 0 held" in shown


def test_no_secret_of_an_address_is_shown(fleet: Fleet) -> None:
    spotscribe(
        "sources", "add", "told", f"s3://{fleet.inbox}/told/", "--notify", "https://me:geheim@example.org/?k=geheim"
    )
    for arguments in (["sources", "list"], ["sources", "list", "--json"], ["notices", "--all"]):
        shown = spotscribe(*arguments)
        assert shown.code == 0
        assert "geheim" not in shown.stdout + shown.stderr
    spotscribe("sources", "remove", "told")


def test_a_source_that_cannot_be_listed_is_told_and_the_others_are(fleet: Fleet) -> None:
    spotscribe("sources", "add", "lost", "s3://no-such-bucket-at-all/x/")
    spotscribe("sources", "add", "found", f"s3://{fleet.inbox}/found/")
    fleet.s3.put_object(Bucket=fleet.inbox, Key="found/x.wav", Body=b"something else")
    ended = spotscribe("ingest")
    assert ended.code == 3
    assert "lost: there is no such bucket" in ended.stdout
    assert "found: 1 new" in ended.stdout
    assert "there is no such bucket" in spotscribe("sources", "list").stdout
    [said] = [p for p in json.loads(spotscribe("doctor", "--json").stdout)["parts"] if p["part"] == "sources"]
    assert said["state"] == "FAIL"
    assert "lost: there is no such bucket" in said["found"]
    assert "found" not in said["found"].replace("lost: there is no such bucket", "")
    for name in ("lost", "found"):
        spotscribe("sources", "remove", name)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_watch_ends_when_it_is_told_to(fleet: Fleet, sign: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "ingest", str(tmp_path), "--watch", "--every", "1s", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "watching" in process.stderr.readline()
    assert "listening for events on port" in process.stderr.readline()
    began = time.monotonic()
    process.send_signal(sign)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["ingest", "s3://{inbox}/calls"], {}, "everything below it is s3://{inbox}/calls/"),
        (["ingest", "/nowhere"], {}, "is no folder"),
        (["ingest", "http://host/x/"], {}, "neither an S3 prefix"),
        (["ingest", "--once", "--watch"], {}, "not both"),
        (["ingest", "--events", "sqs:https://host/1/q"], {}, "go with --watch"),
        (["ingest", "--formats", "srt"], {}, "--formats is an option of a source"),
        (["ingest", "--watch", "--every", "soon"], {}, "no duration"),
        (["ingest", "--watch", "--every", "0.1s"], {}, "less than a second"),
        (["ingest", "s3://{inbox}/x/", "--watch", "--listen", "nonsense"], {}, "no address to listen on"),
        (["ingest", "s3://{inbox}/x/", "--watch", "--listen", "0.0.0.0:0"], {}, "SPOTSCRIBE_EVENTS_TOKEN"),
        (["ingest", "s3://{inbox}/x/", "--watch", "--events", "nonsense"], {}, "nonsense"),
        (["ingest", "s3://{inbox}/x/", "--min-age", "old"], {}, "no duration"),
        (["ingest", "s3://{inbox}/x/", "--key", "{{name}}.txt"], {}, "lacks {{format}}"),
        (["ingest", "s3://{inbox}/x/", "--label", "{{job}}"], {}, "{{job}} is not possible"),
        (["ingest", "s3://{inbox}/x/", "--after", "burn"], {}, "possible: move:PREFIX, tag, delete"),
        (["ingest", "s3://{inbox}/x/", "--after", "move:x/"], {}, "where recordings are taken from"),
        (["ingest", "s3://{inbox}/x/", "--notify", "mailto:x"], {}, "mailto"),
        (["ingest", "s3://{inbox}/x/"], {"SPOTSCRIBE_DATABASE_URL": ""}, "a fleet needs Postgres"),
        (["ingest", "s3://{inbox}/x/"], {"SPOTSCRIBE_BROKER_URL": "redis://127.0.0.1:9/0"}, "does not answer"),
        (["sources", "add", "a/b", "s3://{inbox}/x/"], {}, "no name for a source"),
        (["sources", "add", "a", "s3://{inbox}/x"], {}, "everything below it"),
        (["sources", "pause", "none"], {}, "there is no source none"),
        (["sources", "list"], {"SPOTSCRIBE_DATABASE_URL": ""}, "SPOTSCRIBE_DATABASE_URL is not set"),
        (["deliver"], {}, "name jobs, or a label"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_line_and_nothing_is_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], says: str
) -> None:
    before = fleet.query("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM sources)")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = spotscribe(*[a.format(inbox=fleet.inbox) for a in arguments])
    assert ended.code == 2, ended
    assert says.format(inbox=fleet.inbox) in ended.stderr
    if not ended.stderr.startswith("Usage:"):
        assert len(ended.stderr.splitlines()) == 1
    assert fleet.query("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM sources)") == before
