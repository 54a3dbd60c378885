"""`spotscribe evaluate` as a user calls it: a grid measured with the real model, shown again, compared, and as a gate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import PROGRAM, Ran, query, run, spotscribe
from tests.benchmarks.bench_set import from_packages


def row(path: str, text: str, **more: str) -> dict[str, str]:
    return {"path": path, "text": text, "language": "en", **more}


@dataclass(frozen=True)
class Ground:
    """A manifest of three clips, one of them twice, and a file that is no recording; measured in two ways."""

    manifest: Path
    saved: Path
    ran: Ran

    @property
    def told(self) -> dict[str, Any]:
        return self.ran.summary

    def changed(self, **by_cell: int) -> Path:
        """The saved evaluation, of these cells alone, as if so many words more had been deleted in each recording."""
        record = json.loads(self.saved.read_text())
        record["measured"] = [m for m in record["measured"] if m["cell"]["compute_type"] in by_cell]
        for m in record["measured"]:
            for h in m["heard"]:
                h["score"]["deletions"] += by_cell[m["cell"]["compute_type"]]
        file = self.saved.with_name("old.json")
        file.write_text(json.dumps(record))
        return file


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("evaluate")
    rows = []
    for clip in from_packages("en").clips:
        shutil.copy(clip.file, folder)
        rows.append(row(clip.file.name, clip.text, label="clips"))
    shutil.copy(folder / rows[-1]["path"], folder / "copy.wav")
    (folder / "broken.mp3").write_bytes(b"a letter to my aunt\n" * 50)
    rows += [row("copy.wav", rows[-1]["text"]), row("broken.mp3", "not heard at all")]
    manifest, saved = folder / "mine.jsonl", folder / "now.json"
    manifest.write_text("\n".join(map(json.dumps, rows)))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("SPOTSCRIBE_")]:
            patch.delenv(name)
        patch.setenv("SPOTSCRIBE_HOME", str(folder / "home"))
        # A fleet's settings are no business of an evaluation's.
        patch.setenv("SPOTSCRIBE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
        grid = ("--models", "tiny.en", "--compute-types", "int8,float32")
        ran = spotscribe("evaluate", manifest, *grid, "--language", "en", "--save", saved, "--json")
        yield Ground(manifest, saved, ran)


def test_each_cell_is_a_run_with_figures_of_its_own(ground: Ground) -> None:
    assert ground.ran.code == 0
    told = ground.told
    first, second = told["rows"]
    assert (first["cell"]["compute_type"], second["cell"]["compute_type"]) == ("int8", "float32")
    assert second["computed_in"] == "float32"
    for r in (first, second):
        found = r["all"]
        assert found["recordings"] == 5
        assert found["deletions"] >= 4  # those of the file that is no recording
        assert 4 / found["words"] <= found["wer"]["value"] < 0.9
        assert found["wer"]["low"] <= found["wer"]["value"] <= found["wer"]["high"]
        assert r["rtfx"] > 0
        assert r["cost"] == pytest.approx(3600 * told["machine"]["units"] / r["rtfx"])
        assert {name: f["recordings"] for name, f in r["by_label"].items()} == {"": 2, "clips": 3}
    assert min(first["memory_mb"], second["memory_mb"]) > 100
    seconds = sum(c.seconds or 0 for c in from_packages("en").clips)
    assert first["audio_s"] == pytest.approx(seconds, abs=0.1)  # the copy was decoded once
    assert any("broken.mp3 (not_media)" in n for n in told["notes"])
    assert any("1 recording with the sound of another one" in n for n in told["notes"])
    assert told["differences"][0]["words"].startswith("int8 instead of float32 (tiny.en, beam 1): ")


def test_nothing_but_the_evaluation_is_left(ground: Ground) -> None:
    home = ground.manifest.parent / "home"
    assert [p for p in home.rglob("*") if p.is_file()] == []
    assert not any((home / "scratch").iterdir())


def test_a_saved_evaluation_is_shown_with_other_terms(ground: Ground) -> None:
    shown = spotscribe("evaluate", ground.saved, "--price", "0.5")
    assert shown.code == 0
    assert "cost per hour" in shown.stdout
    lines = shown.stdout.splitlines()
    rows = [line.lstrip("* ") for line in lines]
    assert sum(line.startswith(("tiny.en  int8 ", "tiny.en  float32")) for line in rows) == 2
    assert any(line.startswith("cheapest within 0.005 of its WER: tiny.en, ") for line in lines)
    again = spotscribe("evaluate", ground.saved, "--json").summary
    assert again == ground.told


def test_a_gate_for_the_rate(ground: Ground) -> None:
    assert spotscribe("evaluate", ground.saved, "--max-wer", "0.99").code == 0
    fails = spotscribe("evaluate", ground.saved, "--max-wer", "0.01")
    assert fails.code == 4
    assert fails.stderr.count("too high: tiny.en, ") == 2


def test_a_gate_for_getting_worse(ground: Ground) -> None:
    same = spotscribe("evaluate", ground.saved, "--against", ground.saved)
    assert same.code == 0
    assert same.stdout.count("as many words wrong in each recording; 1 times as fast") >= 2
    worse = spotscribe("evaluate", ground.changed(int8=-1, float32=1), "--against", ground.saved)
    assert worse.code == 4
    assert [line.split(" since ")[0] for line in worse.stderr.splitlines()] == ["worse: tiny.en, float32, beam 1"]
    assert worse.stdout.count("words wrong in 100") >= 2


def test_one_cell_against_what_an_earlier_one_made(ground: Ground, home: Path) -> None:
    ran = spotscribe("evaluate", ground.manifest, "--windows", "all-30", "--against", ground.changed(int8=5), "--json")
    assert ran.code == 0  # better than it was
    (row,) = ran.summary["rows"]
    assert row["cell"] == {"model": "tiny.en", "compute_type": "int8", "beam_size": 1, "windows": "all-30"}
    (then,) = ran.summary["against"]
    assert then["wer"]["high"] < 0
    (kept,) = (home / "evaluations").iterdir()
    assert kept.name.endswith("-mine.json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.jsonl"], "spotscribe: nowhere.jsonl cannot be read: No such file or directory"),
        (["MINE", "--models", "huge"], "spotscribe: no model is named 'huge'"),
        (["MINE", "--compute-types", "int8,float17"], "spotscribe: there is no compute type 'float17'"),
        (["MINE", "--compute-types", "int8_float16"], "spotscribe: this CPU cannot compute in int8_float16"),
        (["MINE", "--beams", "1,two"], "spotscribe: --beams: '1,two' is no list of numbers"),
        (["MINE", "--beams", "0"], "spotscribe: --beams: 0 is not between 1 and 20"),
        (["MINE", "--windows", "usual,wide"], "spotscribe: --windows: wide; possible: usual, "),
        (["MINE", "--models", ","], "spotscribe: --models: none given"),
        (["MINE", "--language", "de"], "spotscribe: --language de: this model knows English only"),
        (["MINE", "--save", "nowhere/e.json"], "spotscribe: --save: nowhere/e.json is in no folder that there is"),
        (["MINE", "--against", "MINE"], "is no saved evaluation: it: Invalid JSON"),
        (["MINE", "--beams", "5", "--against", "SAVED"], "has none of these cells; it has tiny.en, int8, beam 1; tiny"),
        (["SAVED", "--models", "base", "--save", "x"], "is shown: --models, --save would have to measure anew"),
        (["BAD"], "spotscribe: bad.jsonl, line 2: there is no file 'gone.wav'"),
    ],
)
def test_a_wrong_request_is_one_line(
    ground: Ground, home: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    bad = ground.manifest.with_name("bad.jsonl")
    bad.write_text("\n".join(json.dumps(row(p, "x")) for p in ("copy.wav", "gone.wav")))
    named = {"MINE": ground.manifest, "SAVED": ground.saved, "BAD": bad}
    ran = spotscribe("evaluate", *(named.get(a, a) for a in arguments), cwd=tmp_path)
    assert ran.code == 2
    assert says in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stdout == ""
    assert not (home / "evaluations").exists() or not any((home / "evaluations").iterdir())


def test_a_cell_that_cannot_be_measured_is_told_and_the_others_are_measured(
    ground: Ground, home: Path, tmp_path: Path
) -> None:
    model = tmp_path / "mine"
    shutil.copytree(_tiny(), model)
    (model / "SHA256SUMS").write_text(f"{'0' * 64}  model.bin\n")
    grid = ("--models", f"tiny.en,{model}", "--save", tmp_path / "e.json")
    ran = spotscribe("evaluate", ground.manifest, *grid)
    assert ran.code == 3
    assert "is not the file that SHA256SUMS lists" in ran.stdout
    assert "tiny.en" in ran.stdout
    again = spotscribe("evaluate", tmp_path / "e.json", "--json")
    assert again.code == 3
    assert len(again.summary["rows"]) == len(again.summary["failed"]) == 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_it_leaves_nothing(ground: Ground, home: Path, sent: signal.Signals, code: int) -> None:
    command = [*PROGRAM, "evaluate", str(ground.manifest), "--rounds", "50"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as going:
        assert going.stderr is not None
        assert "round 1" in going.stderr.readline()
        children = Path(f"/proc/{going.pid}/task/{going.pid}/children")
        while not (below := children.read_text().split()):  # without a pause: at its birth
            pass
        going.send_signal(sent)
        said = going.stderr.read()
    assert going.returncode == code
    assert said == "interrupted; nothing was saved, and the same command begins anew\n"
    deadline = time.monotonic() + 30  # whoever inherits a child that has ended takes a moment to notice
    while any(Path(f"/proc/{child}").exists() for child in below):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [p for p in home.rglob("*") if p.is_file()] == []
    assert [*(home / "scratch").iterdir()] == []


def _tiny() -> Path:
    from pipeline.models import find_model

    return find_model("tiny.en", Path("/nowhere"))


def test_run_cuts_as_it_is_asked_to(home: Path, tmp_path: Path, fox: Path) -> None:
    assert run(fox, "--windows", "all-30", out=tmp_path / "out").code == 0
    ((plan,),) = query(home, "SELECT plan FROM shards")
    assert [c["window"] for c in json.loads(plan)["chunks"]] == [30.0]
