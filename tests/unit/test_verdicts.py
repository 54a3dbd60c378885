"""What an evaluation comes to, from made-up measurements: words, costs, notes, comparisons, the saved file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chunking.errors import UsageError
from pipeline.evaluation import (
    Cell,
    Evaluation,
    Heard,
    Listed,
    Machine,
    Measured,
    Round,
    is_saved,
    one_step_apart,
    read_saved,
    to_json,
)
from pipeline.evaluation_table import table
from pipeline.resampling import Estimate
from pipeline.scoring import Score
from pipeline.verdicts import Terms, in_words, judged, since

CPU = Machine("A processor", "cpu", 1, 2)


def heard(errors: int, words: int = 20, state: str = "done", language: str = "en") -> Heard:
    score = Score(words, 0, errors, 0, 5 * words, errors)
    return Heard(state, "ok" if state == "done" else "not_media", language, 10.0 if state == "done" else 0.0, score)


def measured(cell: Cell, errors: list[int], wall_s: float = 10.0, others: float = 0.0) -> Measured:
    one = Round(wall_s, wall_s + 1, 2 * wall_s, 300.0, others, sum(errors))
    return Measured(cell, cell.compute_type, tuple(heard(e) for e in errors), (one,))


def evaluation(*cells: Measured, recordings: int = 40, machine: Machine = CPU) -> Evaluation:
    listed = tuple(Listed(f"{i}.wav", f"sound {i}", f"text {i}", "en") for i in range(recordings))
    return Evaluation("2026-11-30T12:00:00+00:00", "0.1.0", machine, "m.jsonl", {}, listed, cells)


INT8, FLOAT = Cell("base", "int8"), Cell("base", "float32")
SOME = [i % 3 for i in range(40)]


def test_int8_that_costs_words_is_told_with_how_many_and_how_surely() -> None:
    e = evaluation(measured(INT8, [x + 1 for x in SOME], 10.0), measured(FLOAT, SOME, 21.0))
    (said,) = map(str, judged(e, Terms()).differences)
    assert said == (
        "int8 instead of float32 (base, beam 1): 5.0 more words wrong in 100 (5.0 to 5.0); 2.1 times as fast"
    )


def test_a_difference_that_may_be_chance_is_told_as_none() -> None:
    e = evaluation(measured(INT8, SOME), measured(FLOAT, SOME[::-1]))
    (said,) = map(str, judged(e, Terms()).differences)
    assert "no difference in accuracy that this much audio can show (" in said
    e = evaluation(measured(INT8, SOME), measured(FLOAT, SOME))
    assert "as many words wrong in each recording; 1 times as fast" in str(judged(e, Terms()).differences[0])


@pytest.mark.parametrize(
    ("wer", "says"),
    [
        (Estimate(-0.004, -0.008, -0.001), "0.4 fewer words wrong in 100 (0.1 to 0.8)"),
        (Estimate(0.003, -0.001, 0.007), "that this much audio can show (0.3 more words wrong in 100; -0.1 to 0.7)"),
        (Estimate(0.0, 0.0, 0.0), "that this much audio can show (0.0 more words wrong in 100; 0.0 to 0.0)"),
        (Estimate(-0.0001, -0.0003, 0.0), "(0.0 fewer words wrong in 100; 0.0 to 0.0)"),
        (Estimate(0.05, None, None), "5.0 more words wrong in 100, and one recording cannot say how sure that is"),
    ],
)
def test_words_for_a_difference(wer: Estimate, says: str) -> None:
    assert in_words(wer).endswith(says)


def test_cells_are_compared_that_differ_in_one_thing() -> None:
    grid = [Cell("a", "int8"), Cell("a", "float32"), Cell("a", "int8", 5), Cell("b", "int8"), Cell("a", "int8", 1, "x")]
    assert sorted(one_step_apart(grid)) == [(0, 1), (2, 0), (3, 0), (4, 0)]
    e = evaluation(*(measured(c, SOME) for c in grid))
    said = {str(d).split(":")[0] for d in judged(e, Terms()).differences}
    assert said == {
        "int8 instead of float32 (a, beam 1)",
        "beam 5 instead of beam 1 (a, int8)",
        "windows x instead of windows usual (a, int8, beam 1)",
        "b instead of a (int8, beam 1)",
    }


def test_costs_are_core_seconds_or_what_they_cost() -> None:
    e = evaluation(measured(INT8, SOME, 10.0), measured(FLOAT, SOME, 20.0))
    (first, second) = judged(e, Terms()).rows
    assert (first.rtfx, first.cost, second.cost) == (40.0, 180.0, 360.0)
    (first, second) = judged(e, Terms(device_hour=0.5)).rows
    assert (first.cost, second.cost) == (0.0125, 0.025)
    gpus = judged(replace(e, machine=Machine("A GPU", "cuda", 2, 2)), Terms(device_hour=0.5)).rows
    assert gpus[0].cost == 0.025


def test_the_cheapest_that_is_good_enough_is_named() -> None:
    better = [*SOME]
    better[1] = 0  # one word of 800
    e = evaluation(measured(INT8, SOME, 10.0), measured(FLOAT, better, 20.0), measured(Cell("b", "int8"), SOME, 30.0))
    j = judged(e, Terms())
    assert [r.worth_it for r in j.rows] == [True, True, False]
    assert j.cheapest == 0
    assert judged(e, Terms(tolerance=0.001)).cheapest == 1
    text = table(e, j, Terms())
    assert "most exact: base, float32, beam 1" in text
    assert "cheapest within 0.005 of its WER: base, int8, beam 1" in text
    assert [line[0] for line in text.splitlines()[3:6]] == ["*", "*", " "]
    assert "core-s per hour" in text
    assert "cost per hour" in table(e, judged(e, Terms(0.5)), Terms(0.5))


def test_equal_sound_counts_once_in_speed_and_is_told() -> None:
    e = evaluation(measured(INT8, SOME, 10.0))
    twice = replace(e, recordings=(*e.recordings[:-1], replace(e.recordings[-1], sha256="sound 0")))
    j = judged(twice, Terms())
    assert (j.rows[0].audio_s, j.rows[0].rtfx) == (390.0, 39.0)
    assert "1 recording with the sound of another one: decoded once, and once in the speeds" in j.notes


def test_what_a_reader_must_know_is_noted() -> None:
    m = measured(INT8, [1, 1, 1], others=0.4)
    m = replace(m, heard=(heard(20, state="rejected"), heard(1, language="nl"), heard(1)))
    e = replace(evaluation(m, recordings=3), failed={"big": "no memory"})
    assert set(judged(e, Terms()).notes) == {
        "3 different recordings: take the intervals as rough, 30 and more tell more",
        "base, int8, beam 1: 1 recording not transcribed, all 20 words deleted: 0.wav (not_media)",
        "base, int8, beam 1: 1 recording taken for another language: 1.wav (nl, not en)",
        "other work took up to 40% of this machine's cores meanwhile: do not trust the speeds",
        "big could not be measured: no memory",
    }
    rounds = (m.rounds[0], replace(m.rounds[0], errors=5))
    assert (
        "base, int8, beam 1: 3 to 5 words wrong, from round to round; the first counts"
        in judged(replace(e, measured=(replace(m, rounds=rounds),)), Terms()).notes
    )


def test_the_recordings_that_make_most_of_it_are_named() -> None:
    notes = judged(evaluation(measured(INT8, [1] * 37 + [9, 0, 30])), Terms()).notes
    start = "base, int8, beam 1: 3 recordings have 53% of the words wrong; look at their references first: "
    assert notes == (f"{start}39.wav, 37.wav, 0.wav",)
    assert judged(evaluation(measured(INT8, [1] * 40)), Terms()).notes == ()


def test_languages_and_labels_have_figures_of_their_own() -> None:
    e = evaluation(measured(INT8, [2] * 20 + [0] * 20))
    listed = [replace(r, language="de", label="calls") if i < 20 else r for i, r in enumerate(e.recordings)]
    e = replace(e, recordings=tuple(listed))
    row = judged(e, Terms()).rows[0]
    assert {k: f.wer.value for k, f in row.by_language.items()} == {"de": 0.1, "en": 0.0}
    assert {k: f.recordings for k, f in row.by_label.items()} == {"": 20, "calls": 20}
    text = table(e, judged(e, Terms()), Terms())
    assert "\nlanguage  recordings" in text
    assert "\n(none)" in text


def test_an_evaluation_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    e = evaluation(measured(INT8, SOME), measured(FLOAT, SOME))
    file = tmp_path / "e.json"
    file.write_bytes(to_json(e))
    assert is_saved(file)
    assert read_saved(file) == e
    assert not is_saved(tmp_path / "none")


@pytest.mark.parametrize("broken", ["", "[]", '{"format": "spotscribe-evaluation/1"}', "lengths", "format"])
def test_a_file_that_is_none_is_told_in_one_line(tmp_path: Path, broken: str) -> None:
    record = json.loads(to_json(evaluation(measured(INT8, SOME))))
    if broken == "lengths":
        record["recordings"].pop()
    if broken == "format":
        record["format"] = "spotscribe-evaluation/9"
    file = tmp_path / "e.json"
    file.write_text(json.dumps(record) if broken in {"lengths", "format"} else broken)
    with pytest.raises(UsageError, match="is no saved evaluation") as told:
        read_saved(file)
    assert "\n" not in str(told.value)


def test_later_ones_are_compared_by_the_recordings_that_both_have() -> None:
    old = evaluation(measured(INT8, SOME, 10.0), recordings=40)
    new = evaluation(measured(INT8, [x + 1 for x in SOME[:30]], 15.0), measured(FLOAT, SOME[:30]), recordings=30)
    (worse,) = since(new, old)
    assert worse.wer.sign == 1
    assert worse.wer.value == pytest.approx(0.05)
    assert str(worse).startswith("base, int8, beam 1 since 2026-11-30: 5.0 more words wrong in 100 (5.0 to 5.0); 0.5 ")
    assert since(old, old)[0].alike
    other = replace(old, machine=Machine("Another", "cpu", 1, 8))
    assert "since 2026-11-30 on another machine: as many words wrong" in str(since(old, other)[0])


def test_one_cell_is_compared_with_one_cell_however_they_differ() -> None:
    (changed,) = since(evaluation(measured(Cell("small", "int8"), SOME)), evaluation(measured(INT8, SOME)))
    assert changed.what == "small, int8, beam 1, and then base, int8, beam 1, since 2026-11-30"


def test_a_reference_that_was_changed_is_another_recording() -> None:
    old = evaluation(measured(INT8, SOME))
    changed = replace(old, recordings=(replace(old.recordings[0], text_sha256="new"), *old.recordings[1:]))
    new = replace(changed, measured=(measured(INT8, [20, *SOME[1:]]),))
    assert since(new, old)[0].alike
