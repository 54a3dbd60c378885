"""Words and letters in error, and manifests: what counts, and what is said of bad lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.errors import UsageError
from pipeline import extras
from pipeline.references import BadManifest, read_manifest
from pipeline.scoring import Score, normalised, score

texts = st.lists(st.sampled_from(["cat", "dog", "sat", "hmm", "mr", "twenty", "ok"]), max_size=12).map(" ".join)
languages = st.sampled_from(["en", "de", "zh"])


@given(texts, texts, languages)
def test_errors_are_of_words_that_there_are(said: str, heard: str, language: str) -> None:
    s = score(said, heard, language)
    assert s.words == len(normalised(said, language).split())
    assert 0 <= s.substitutions + s.deletions <= s.words
    assert s.words - s.deletions + s.insertions == len(normalised(heard, language).split())
    assert s.letter_errors <= max(len(normalised(t, language)) for t in (said, heard))


@given(texts, languages)
def test_what_is_read_right_has_no_errors_and_what_is_not_read_is_deleted(said: str, language: str) -> None:
    right, nothing = score(said, said.upper() + ".", language), score(said, "", language)
    assert (right.errors, right.letter_errors) == (0, 0)
    assert (nothing.deletions, nothing.errors) == (nothing.words, nothing.words)
    assert nothing.letter_errors == nothing.letters == right.letters


@given(st.lists(st.tuples(texts, texts), max_size=5))
def test_together_is_the_sum(pairs: list[tuple[str, str]]) -> None:
    each = [score(a, b, "en") for a, b in pairs]
    together = sum(each, Score())
    assert together.errors == sum(s.errors for s in each)
    assert together.wer == together.errors / max(1, together.words)
    assert together.cer == together.letter_errors / max(1, together.letters)


def test_letters_are_words_where_there_are_no_spaces_and_spaces_are_no_letters() -> None:
    s = score("今天天气", "今天 天", "zh")
    assert (s.words, s.deletions, s.letters, s.letter_errors) == (4, 1, 4, 1)


def test_nobody_speaks_and_something_is_written() -> None:
    s = score("", "thank you", "en")
    assert (s.words, s.insertions, s.wer) == (0, 2, 2.0)


def test_a_missing_package_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(UsageError, match=r"Parquet needs the package pyarrow: pip install 'spotscribe\[analytics\]'"):
        extras.needs("pyarrow", "Parquet")


def manifest(folder: Path, *rows: object) -> Path:
    (folder / "a.wav").write_bytes(b"sound")
    file = folder / "m.jsonl"
    file.write_text("\n".join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows), "utf-8")
    return file


ROW = {"path": "a.wav", "text": "hello", "language": "en"}


def test_a_manifest_is_read_as_it_is_written(tmp_path: Path) -> None:
    odd = {**ROW, "text": "one\u2028line", "language": " PT-BR ", "label": "calls", "seconds": 3, "licence": "CC0"}
    (tmp_path / "m.jsonl").write_text("")
    file = manifest(tmp_path, "\ufeff" + json.dumps(ROW), "", odd, {**ROW, "text": ""})
    plain, other, silent = read_manifest(file)
    assert plain.file == tmp_path / "a.wav"
    assert (plain.text, plain.language, plain.seconds, plain.label) == ("hello", "en", None, "")
    assert (other.text, other.language, other.seconds, other.label) == ("one\u2028line", "pt", 3.0, "calls")
    assert silent.text == ""


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**ROW, "label": 5}, "m.jsonl, line 2: 'label' is 5, and no text"),
        ({**ROW, "language": " "}, "m.jsonl, line 2: 'language' is missing"),
        ({"path": "a.wav", "language": "en"}, "m.jsonl, line 2: 'text' is missing"),
        ({**ROW, "seconds": -1}, "m.jsonl, line 2: 'seconds' is -1, and no length"),
        ({**ROW, "seconds": True}, "m.jsonl, line 2: 'seconds' is True, and no length"),
        ({**ROW, "path": "a\0b"}, "m.jsonl, line 2: there is no file 'a\\x00b'"),
        ("{", "m.jsonl, line 2: this is no JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, says: str) -> None:
    with pytest.raises(BadManifest) as told:
        read_manifest(manifest(tmp_path, ROW, row))
    assert str(told.value) == says


def test_an_empty_manifest_is_no_evaluation(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match="holds no recording"):
        read_manifest(manifest(tmp_path, "", " "))
