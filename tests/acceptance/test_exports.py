"""`spotscribe export` and `clip`, as a user calls them; and the documentation's own examples, in DuckDB and pandas."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import soundfile
from click.testing import CliRunner

from chunking.errors import UsageError
from pipeline.rows import COLUMNS, NAMES, WORD
from pipeline.settings import Settings
from tests.acceptance.command import query, run, spotscribe
from tests.conftest import read_16k, write_wav
from workers.cli import cli
from workers.wiring import Wiring

PAGE = (Path(__file__).parents[2] / "docs" / "exports.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, voice: Path, fox: Path) -> Iterator[Path]:
    """A home with three transcripts, one of two channels, and one that was rejected, all of one label."""
    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPOTSCRIBE_HOME", str(folder / "home"))
        said, quick = read_16k(voice), read_16k(fox)
        calls = folder / "calls"
        calls.mkdir()
        write_wav(calls / "voice.wav", said)
        write_wav(calls / "fox.wav", quick)
        (calls / "bad.wav").write_bytes(b"nothing of the kind" * 99)
        assert run(calls, "--word-timestamps", out=folder / "out").code == 3
        both = np.zeros((len(said), 2), np.int16)
        both[:, 0], both[: len(quick), 1] = said, quick
        write_wav(calls / "both.wav", both)
        assert run(calls / "both.wav", "--channels", "split", out=folder / "out").code == 0
        with sqlite3.connect(folder / "home" / "spotscribe.db") as connection:
            connection.execute("INSERT INTO labels SELECT 'november', id FROM jobs")
        yield folder / "home"


def job_of(home: Path, name: str) -> int:
    sql = f"SELECT j.id FROM jobs j JOIN recordings r ON r.id = j.recording_id WHERE r.url LIKE '%/{name}'"
    return int(query(home, sql)[0][0])


@pytest.fixture(scope="module")
def lake(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The label as Parquet."""
    folder = tmp_path_factory.mktemp("reader")
    done = spotscribe("export", "--label", "november", "--format", "parquet", "--out", folder / "lake")
    assert done.code == 0, done.stderr
    assert "3 jobs exported: 3 done\n" in done.stdout
    assert "without a transcript: 1 rejected" in done.stdout
    return folder / "lake"


def test_the_examples_of_the_page_work(home: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake.parent)
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    days, words = (duckdb.sql(statement).fetchall() for statement in sql.split(";")[:2])
    count = query(home, "SELECT count(*) FROM segments")[0][0]
    assert sum(row[2] for row in days) == count
    assert {row[1] for row in days} == {"en"}
    known = {}
    (python,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(python, known)
    assert len(known["segments"]) == count
    assert list(known["words"].columns) == list(WORD)
    assert len([p for p in known["words"]["probability"] if p < 0.5]) == len(words)
    assert known["doubtful"]["recording"].iloc[0].startswith("file://")
    again = re.findall(r"`(QUALIFY [^`]*)`", PAGE)[0]
    assert len(duckdb.sql(f"FROM read_parquet('lake/**/*.parquet') {again}").fetchall()) == count


def test_the_page_names_each_column(lake: Path) -> None:
    table = PAGE.partition("## Columns")[2].partition("## Reading it")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    assert [(name, meaning.partition(" (a list")[0]) for name, meaning in rows] == [
        (c.name, c.meaning) for c in COLUMNS
    ]
    (file,) = lake.glob("day=*/part-*.parquet")
    found = pq.ParquetFile(file)
    assert tuple(found.schema_arrow.names) == NAMES
    assert found.metadata.row_group(0).column(0).compression == "ZSTD"
    assert str(found.schema_arrow.field("words").type.value_type.field("text").type) == "string"


def test_the_page_names_each_option() -> None:
    for name in ("export", "clip"):
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        options = {o for p in command.params for o in p.opts if o.startswith("--")} - {"--debug"}
        assert {o for o in options if o not in PAGE} == set()


def test_words_are_lists_of_structs_and_none_where_none_were_asked_for(home: Path, lake: Path) -> None:
    frame = pd.read_parquet(lake).set_index(["job_id", "segment"])
    both, voice = job_of(home, "both.wav"), job_of(home, "voice.wav")
    assert frame.loc[both]["words"].isna().all()
    assert set(frame.loc[both]["channel"]) == {0, 1}
    for _, row in frame.loc[voice].iterrows():
        assert "".join(w["text"] for w in row["words"]).split() == row["text"].split()


def test_a_file_for_a_job_lines_and_a_table(home: Path, tmp_path: Path) -> None:
    fox = job_of(home, "fox.wav")
    for kind in ("txt", "jsonl", "csv"):
        done = spotscribe("export", fox, "--format", kind, "--out", tmp_path / "o", "--json")
        assert (done.summary["states"], done.summary["files"], done.summary["segments"]) == ({"done": 1}, 1, 1)
    assert "quick brown fox" in (tmp_path / "o" / f"fox.{fox}.txt").read_text().lower()
    (lines,) = (tmp_path / "o").glob("part-*.jsonl")
    assert [list(json.loads(line)) for line in lines.read_text().splitlines()] == [list(NAMES)]
    (table,) = (tmp_path / "o").glob("part-*.csv")
    assert duckdb.sql(f"SELECT job_id, len(flags::JSON::TEXT[]) FROM '{table}'").fetchall() == [(fox, 0)]


def test_a_cursor_on_s3(home: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SPOTSCRIBE_S3_ENDPOINT": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    s3, bucket = Wiring(Settings(s3_endpoint=s3_endpoint)).s3, f"b{uuid.uuid4().hex[:8]}"
    arguments = ("export", "--cursor", bucket, "--format", "csv", "--out", f"s3://{bucket}/lake", "--json")
    s3.create_bucket(Bucket=bucket)
    done = spotscribe(*arguments).summary
    assert (done["states"], done["without"], done["resumed"]) == ({"done": 3}, {"rejected": 1}, False)
    assert spotscribe(*arguments).summary["states"] == {}
    (item,) = s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert item["Key"] == f"lake/part-{bucket}-00001-00001.csv"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "--out", "x"], "say what to export"),
        (["export", "999", "--out", "x"], "there is no job 999"),
        (["export", "1", "--label", "november", "--out", "x"], "not both"),
        (["export", "--label", "nobody", "--out", "x"], "no jobs have the label nobody"),
        (["export", "--since", "soon", "--out", "x"], "'soon' is no time"),
        (["export", "--since", "1d", "--until", "2d", "--out", "x"], "--since must be before --until"),
        (["export", "--cursor", "a/b", "--out", "x"], "--cursor: a name"),
        (["export", "1", "--out", "gs://x"], "neither s3:// nor a folder"),
        (["export", "1", "--out", "/dev/null/x"], "/dev/null is a file"),
        (["clip", "1"], "say JOB, --from and --to"),
        (["clip", "1", "--from", "1", "--to", "2", "--label", "x"], "say JOB, --from and --to"),
        (["clip", "--label", "november", "--least-certain", "2", "--channel", "1"], "say JOB, --from and --to"),
        (["clip", "1", "--from", "1:75", "--to", "2"], "no time in a recording"),
        (["clip", "1", "--from", "2", "--to", "1"], "must be later"),
        (["clip", "1", "--from", "0", "--to", "10:01"], "at most 10 minutes"),
        (["clip", "1", "--from", "0", "--to", "1", "--out", "x.doc"], "ends in .wav, .flac, .mp3, .ogg"),
        (["clip", "999", "--from", "0", "--to", "1"], "there is no job 999"),
        (["clip", "--label", "nobody", "--least-certain", "3"], "no jobs have the label nobody"),
        (["clip", "--label", "november", "--least-certain", "3", "--flag", "no"], "no segment of november has these flags"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_is_done(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    """In this process: there are many of them. How an error becomes a line is tested with other commands."""
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(cli, arguments).exception
    assert isinstance(error, UsageError)
    assert says in str(error)
    assert "\n" not in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_clip_is_what_lies_there_in_the_recording(home: Path, tmp_path: Path, voice: Path) -> None:
    both = job_of(home, "both.wav")
    done = spotscribe("clip", both, "--from", "0:01", "--to", "3.5", "--channel", 0, "--out", "c.flac", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "c.flac: 2.5 s\n"), done.stderr
    pcm, rate = soundfile.read(tmp_path / "c.flac", dtype="int16")
    assert rate == 16000
    assert np.abs(pcm[200:-200].astype(int) - read_16k(voice)[16200:55800]).max() <= 1
    spotscribe("clip", both, "--from", "9", "--to", "99", cwd=tmp_path)
    (named,) = tmp_path.glob("*.wav")
    assert named.name == f"both.{both}.9-99.wav"
    assert 0 < soundfile.info(named).duration < 3
    late = spotscribe("clip", both, "--from", "90", "--to", "99", cwd=tmp_path)
    assert re.fullmatch(r"spotscribe: --from: the recording is 1\d\.\d s long\n", late.stderr)
    absent = spotscribe("clip", both, "--from", "0", "--to", "1", "--channel", "2", cwd=tmp_path)
    assert "the recording has 2 channels" in absent.stderr


def test_the_least_certain_segments_with_what_was_understood(home: Path, tmp_path: Path) -> None:
    scores = [r[0] for r in query(home, "SELECT avg_logprob FROM segments ORDER BY avg_logprob")]
    done = spotscribe("clip", "--label", "november", "--least-certain", 3, "--out", "review", cwd=tmp_path)
    assert done.code == 0, done.stderr
    with (tmp_path / "review" / "index.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [float(r["avg_logprob"]) for r in rows] == pytest.approx(scores[:3], abs=1e-4)
    for row in rows:
        length = float(row["end_s"]) - float(row["start_s"])
        assert length < soundfile.info(tmp_path / "review" / row["file"]).duration <= length + 1.001
    assert len(list((tmp_path / "review").iterdir())) == 4
    done = spotscribe("clip", "--label", "november", "--least-certain", 2, "--out", "all.ogg", cwd=tmp_path)
    assert done.code == 0, done.stderr
    with (tmp_path / "all.csv").open(newline="") as f:
        joined = list(csv.DictReader(f))
    assert [r["text"] for r in joined] == [r["text"] for r in rows[:2]]
    assert float(joined[1]["at_s"]) > float(joined[0]["end_s"]) - float(joined[0]["start_s"])


def test_what_is_gone_or_changed_is_told_of_and_the_others_are_cut(home: Path, tmp_path: Path) -> None:
    calls, voice = home.parent / "calls", job_of(home, "voice.wav")
    (calls / "voice.wav").rename(calls / "kept.wav")
    os.utime(calls / "fox.wav")
    try:
        gone = spotscribe("clip", voice, "--from", "0", "--to", "1", cwd=tmp_path)
        assert (gone.code, gone.stderr) == (
            1,
            f"spotscribe: job {voice}, {(calls / 'voice.wav').as_uri()}: the file is gone\n",
        )
        done = spotscribe("clip", "--label", "november", "--least-certain", 100, "--out", "review", cwd=tmp_path)
        assert done.code == 3
        told = sorted(line.partition("/calls/")[2] for line in done.stderr.splitlines())
        assert told == [
            "fox.wav: the file was changed since it was submitted; submit it again", "voice.wav: the file is gone",
        ]  # fmt: skip
    finally:
        (calls / "kept.wav").rename(calls / "voice.wav")
    with (tmp_path / "review" / "index.csv").open(newline="") as f:
        assert {r["recording"].rpartition("/")[2] for r in csv.DictReader(f)} == {"both.wav"}
