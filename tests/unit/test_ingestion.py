"""What a user names becomes recordings, each once; what is no media is told, not dropped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chunking.errors import Code, Rejected, UsageError
from pipeline.ingestion import find_recordings, target_paths
from storage.readers import LocalReader
from storage.urls import bucket_and_key, file_version


def make(folder: Path, *names: str, content: bytes = b"RIFF....WAVEfmt ") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_folders_are_searched_below_and_hidden_files_left(tmp_path: Path) -> None:
    make(tmp_path, "a.wav", "b/c.MP3", "b/d/e.ogg", ".hidden.wav", ".git/x.wav", "no_suffix", "call.2024-01-05")
    make(tmp_path, "notes.txt", "text_without_suffix", content=b"hello")
    make(tmp_path, "picture.webp", content=b"RIFF....WEBPVP8 ")
    make(tmp_path, "picture.heic", content=b"\0\0\0\x18ftypheic")
    found = find_recordings([str(tmp_path)])
    assert sorted(str(f.target) for f in found.found) == ["a", "b/c", "b/d/e", "call", "no_suffix"]
    assert sorted(p.name for p in found.skipped) == ["notes.txt", "picture.heic", "picture.webp", "text_without_suffix"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    for name in (str(tmp_path / "pipe.wav"), "/dev/zero", ""):
        with pytest.raises(UsageError, match=r"neither a file nor a folder|path is empty"):
            find_recordings([name])


def test_a_file_that_is_named_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    make(tmp_path, "notes.txt")
    assert len(find_recordings([str(tmp_path / "notes.txt")]).found) == 1


def test_each_recording_once(tmp_path: Path) -> None:
    make(tmp_path, "a.wav", "b.wav")
    found = find_recordings([str(tmp_path), str(tmp_path / "a.wav"), str(tmp_path / "*.wav")])
    assert len(found.found) == 2


def test_patterns_and_names_that_look_like_patterns(tmp_path: Path) -> None:
    make(tmp_path, "call[1].wav", "call1.wav", "x/y/z.wav")
    assert [f.path.name for f in find_recordings([str(tmp_path / "call[1].wav")]).found] == ["call[1].wav"]
    assert [f.path.name for f in find_recordings([str(tmp_path / "call?.wav")]).found] == ["call1.wav"]
    assert [f.path.name for f in find_recordings([str(tmp_path / "**/z.wav")]).found] == ["z.wav"]


@pytest.mark.parametrize("name", ["missing.wav", "*.wav", "empty"])
def test_nothing_to_transcribe_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no such file|no recordings"):
        find_recordings([str(tmp_path / name)])


def test_a_folder_of_other_files_says_so(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.pdf", content=b"%PDF")
    with pytest.raises(UsageError, match=r"no recordings in .* \(2 other files\)"):
        find_recordings([str(tmp_path)])


def test_targets_of_like_named_recordings_differ(tmp_path: Path) -> None:
    make(tmp_path, "x/a.wav", "y/a.mp3", "y/a.wav")
    a, b, c = find_recordings([str(tmp_path / "x/a.wav"), str(tmp_path / "y/a.mp3"), str(tmp_path / "y/a.wav")]).found
    assert next(str(p) for p in target_paths(a.path, a.target, ".txt")) == "a.txt"
    assert [str(p) for p in target_paths(b.path, b.target, ".txt")][1] == "a.mp3.txt"
    assert len({list(target_paths(f.path, f.target, ".txt"))[2] for f in (a, b, c)}) == 3


def test_names_that_the_file_system_bears_but_not_with_more_letters(tmp_path: Path) -> None:
    make(tmp_path, f"{'n' * 250}.wav")
    (found,) = find_recordings([str(tmp_path)]).found
    assert all(len(os.fsencode(p.name)) < 255 for p in target_paths(found.path, found.target, ".json"))
    assert list(target_paths(found.path, found.target, ".json"))


@pytest.mark.parametrize("url", ["s3://b/calls/#archive/", "s3://b/a?b.wav"])
def test_no_part_of_an_s3_address_is_left_out_without_a_word(url: str) -> None:
    with pytest.raises(UsageError, match="%23"):
        bucket_and_key(url)


def test_a_file_that_was_changed_since_is_another_recording(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(b"one")
    version = file_version(file)
    assert LocalReader().fetch(file.as_uri(), version, tmp_path).path == file
    file.write_bytes(b"another")
    with pytest.raises(Rejected) as caught:
        LocalReader().fetch(file.as_uri(), version, tmp_path)
    assert caught.value.code is Code.GONE
