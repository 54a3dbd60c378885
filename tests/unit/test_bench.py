"""`make bench`: what it computes from made-up runs, what it says of bad manifests, and one real call."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.references import BadManifest, Reference
from pipeline.scoring import Score
from tests.benchmarks.bench import _command, _options, main
from tests.benchmarks.bench_peers import CEILING, SPOTSCRIBE, Run, rotated
from tests.benchmarks.bench_process import ROOT, CannotRun, Usage, environment, measured, plain, versions
from tests.benchmarks.bench_report import Results, inside, process, ratios, rendered, spread
from tests.benchmarks.bench_set import from_manifest, from_packages, score


def clip(text: str, language: str = "en") -> Reference:
    return Reference(Path("a.wav"), text, language, 1.0)


def run(inside_s: float | None, process_s: float, wrong: int = 1, others: float = 0.05, **stages: float) -> Run:
    found = None if stages.get("judge") else Score(2000, wrong, 2, 3)
    counts = {"chunks": 4, "batches": 2, "threads": 2, "mean_batch_fill": 0.5, "not_done": 0}
    return Run(Usage(process_s, 2 * process_s, 300.0, others), inside_s, found, stages, counts)


def made_up() -> Results:
    return Results(
        head={"date": "2026-11-30"},
        audio_s=100.0,
        cores=2,
        words=2000,
        runs={
            SPOTSCRIBE: (run(1.0, 2.0, 5, decode=3.0, vad=1.0), run(2.0, 3.0, 5, decode=3.0, vad=1.0)),
            CEILING: tuple(run(0.8, 9.0, encode=1.0, decode=2.0, judge=0.1) for _ in range(2)),
            "quick": (run(3.0, 4.0, 9), run(8.0, 9.0, 9)),
            "slow": (run(4.0, 4.5, 1), run(7.0, 9.5, 1)),
            "command": (run(None, 5.0, 7), run(None, 6.0, 7)),
        },
        missing={"absent": "it cannot be installed: no such version"},
        notes={"quick": "as its README says"},
    )


def test_wer_is_over_all_words_together_after_the_normaliser_of_the_language() -> None:
    clips = [clip("Doctor Smith said: it's colour!"), clip("the cat sat there"), clip("ça va", "fr")]
    found = score(clips, ["dr. smith said it is color", "the cut sat", "Ça va bien."])
    assert (found.substitutions, found.deletions, found.insertions) == (1, 1, 1)
    assert found.wer == pytest.approx(3 / (6 + 4 + 2))


def test_a_letter_is_a_word_where_there_are_no_spaces() -> None:
    found = score([clip("今天天气", "zh")], ["今天天"])
    assert (found.words, found.deletions) == (4, 1)


def test_a_text_that_normalises_to_nothing_does_no_harm() -> None:
    assert score([clip("hmm"), clip("yes")], ["well", "yes"]).insertions == 1


def test_each_round_begins_with_another_contender() -> None:
    assert [rotated("abc", i)[0] for i in range(4)] == ["a", "b", "c", "a"]
    assert rotated("abc", 1) == ["b", "c", "a"]


def test_ratios_are_taken_with_the_fastest_peer_of_each_round() -> None:
    r = made_up()
    found = ratios(r.runs[SPOTSCRIBE], r.peers, inside)
    assert found is not None
    assert (found.median, found.least, found.most) == (3.25, 3.0, 3.5)  # quick in the first round, slow in the second
    assert ratios(r.runs[SPOTSCRIBE], r.peers, process) == spread([2.0, 2.0])
    assert ratios(r.runs[SPOTSCRIBE], {"command": r.runs["command"]}, inside) is None


def test_the_report_holds_each_contender_and_who_is_missing() -> None:
    report = rendered(made_up())
    assert "**3.25 [3.00, 3.50] times** as fast" in report
    assert "| spotscribe | 75.0 [50.0, 100.0] | - |" in report
    assert "| command | - | - | 18.3 [16.7, 20.0] |" in report
    assert "| slow | 0.0030 | 1 | 2 | 3 | 300 |" in report
    assert "**absent was not measured:** it cannot be installed: no such version." in report
    assert "quick: as its README says." in report
    assert "+0.0020 beside the most exact peer (slow)" in report
    assert "say little" not in report
    assert "took 5 % of its cores meanwhile (5 % at most)." in report


def test_the_report_says_when_the_machine_was_not_quiet() -> None:
    r = made_up()
    disturbed = {
        name: tuple(replace(x, usage=replace(x.usage, others=0.4)) for x in runs) for name, runs in r.runs.items()
    }
    assert "took 40 % of its cores meanwhile (40 % at most): do not trust" in rendered(replace(r, runs=disturbed))


def test_the_model_s_seconds_are_split_as_the_engine_alone_splits_them() -> None:
    report = rendered(made_up())
    assert "| model, encoder ¹ | 1.00 | 24.4 % |" in report
    assert "| model, decoder ¹ | 2.00 | 48.8 % |" in report
    assert "| all | 4.10 | 100 % |" in report
    assert "A run makes **60 [40, 80] %**" in report


def test_peers_may_all_be_missing() -> None:
    r = made_up()
    alone = Results(r.head, r.audio_s, r.cores, 20, {n: r.runs[n] for n in (SPOTSCRIBE, CEILING)}, r.missing)
    report = rendered(alone)
    assert "Only 20 words are compared" in report
    assert "fastest peer" not in report


ROW = {"path": "a.wav", "text": "hello", "language": "en", "seconds": 1.0}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["nonsense"], "m.jsonl, line 1: this is no JSON"),
        (["", "[]"], "m.jsonl, line 2: a JSON object is wanted"),
        ([{**ROW, "text": None}], "m.jsonl, line 1: 'text' is missing"),
        ([{**ROW, "path": "b.wav"}], "m.jsonl, line 1: there is no file 'b.wav'"),
        ([{**ROW, "seconds": "long"}], "m.jsonl, line 1: 'seconds' is 'long', and no length"),
        ([{**ROW, "seconds": None}], "the length of a.wav cannot be told; give it as 'seconds'"),
        ([{**ROW, "language": "de"}], "holds no recording in the language 'en'"),
        ([ROW, {**ROW, "path": "c.wav"}], "c.wav and a.wav are the same bytes: keep one of them"),
    ],
)
def test_a_bad_manifest_is_told_in_one_line(tmp_path: Path, lines: list[object], says: str) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound")
    (tmp_path / "c.wav").write_bytes(b"no sound")
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    with pytest.raises(BadManifest) as told:
        from_manifest(manifest, "en")
    assert str(told.value).endswith(says)
    assert "\n" not in str(told.value)


def test_a_manifest_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match="cannot be read: No such file or directory"):
        from_manifest(tmp_path / "m.jsonl", "en")


def test_without_a_manifest_there_are_clips_with_texts() -> None:
    assert len(from_packages("en").clips) == 3
    assert {c.language for c in from_packages("auto").clips} > {"en", "es", "zh"}
    with pytest.raises(BadManifest, match="no package carries"):
        from_packages("xx")


def test_who_ends_badly_says_why_without_naming_places(tmp_path: Path) -> None:
    code = "import sys; sys.exit('no wheel at https://index.example/simple in /home/somebody/venv/lib')"
    with pytest.raises(CannotRun, match=r"^ended with 1: no wheel at … in …/lib$"):
        measured([sys.executable, "-c", code], tmp_path, environment())
    with pytest.raises(CannotRun, match="cannot be imported: ModuleNotFoundError"):
        versions(Path(sys.executable), "no_such_module", ())
    assert plain("either/or at 3/4") == "either/or at 3/4"


def test_memory_counts_children_too(tmp_path: Path) -> None:
    hold = "import time; held = b'x' * 80_000_000; time.sleep(0.6)"
    alone = measured([sys.executable, "-c", hold], tmp_path, environment())
    below = f"import subprocess, sys; held = b'x' * 80_000_000; subprocess.run([sys.executable, '-c', {hold!r}])"
    together = measured([sys.executable, "-c", below], tmp_path, environment())
    assert 80 < alone.memory_mb < 120
    assert 0 <= alone.others <= 1.1
    assert 160 < together.memory_mb < 220


def test_a_report_names_no_folder_of_the_machine() -> None:
    o = _options(["--manifest", "/home/somebody/audio/clips/m.jsonl", "--rounds", "2"])
    assert _command(o) == 'make bench ARGS="--manifest …/clips/m.jsonl --rounds 2"'


def test_the_whole_of_it_on_two_clips(tmp_path: Path) -> None:
    lines = []
    for c in from_packages("en").clips[:2]:
        shutil.copy(c.file, tmp_path)
        lines.append(json.dumps({"path": c.file.name, "text": c.text, "language": "en"}))
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    out, raw = tmp_path / "bench.md", tmp_path / "bench.json"
    asked = ["--manifest", str(tmp_path / "m.jsonl"), "--rounds", "1", "--peers", "faster-whisper-sequential"]
    command = [sys.executable, "-m", "tests.benchmarks.bench", *asked, "--out", str(out), "--json", str(raw)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report, runs = out.read_text(encoding="utf-8"), json.loads(raw.read_text())["runs"]
    assert report.strip() == done.stdout.strip()
    assert set(runs) == {SPOTSCRIBE, CEILING, "faster-whisper-sequential"}
    assert all(r["inside_s"] > 0 and r["usage"]["memory_mb"] > 50 for [r] in runs.values())
    assert runs[SPOTSCRIBE][0]["counts"]["not_done"] == 0
    assert str(tmp_path.parent) not in report


def test_a_wrong_request_ends_with_one_line() -> None:
    with pytest.raises(SystemExit) as told:
        main(["--manifest", "nowhere.jsonl"])
    assert told.value.code == "bench: nowhere.jsonl cannot be read: No such file or directory"
    with pytest.raises(SystemExit) as told:
        main(["--out", "nowhere/bench.md"])
    assert told.value.code == "bench: nowhere/bench.md: there is no such folder"
    with pytest.raises(SystemExit) as told:
        main(["--model", "huge"])
    assert str(told.value.code).startswith("bench: no model is named 'huge'")
