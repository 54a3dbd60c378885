"""What several commands ask for in the same way: how to decode, and in which formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from chunking.errors import PermanentError, UsageError
from pipeline.exports import Format
from pipeline.prompts import cleaned, prompt_tokens
from pipeline.settings import Settings
from pipeline.sidecars import CHANNELS
from storage.jobs import JobOptions
from storage.urls import job_model

F = TypeVar("F", bound=Callable[..., Any])
COMPUTE_TYPES = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")

MODEL = click.option("--model", help="A name (tiny.en, small, large-v3-turbo, …), a directory in CTranslate2 form, or s3://BUCKET/…/NAME/ with one.  [default: tiny.en, or SPOTSCRIBE_MODEL]")  # fmt: skip # noqa: E501
COMPUTE_TYPE = click.option("--compute-type", type=click.Choice(COMPUTE_TYPES), help="Precision of the model's arithmetic; int8: of its weights, with float16 beside them on a GPU, float32 on CPU.  [default: int8, or SPOTSCRIBE_COMPUTE_TYPE]")  # fmt: skip # noqa: E501
BEAM_SIZE = click.option("--beam-size", type=click.IntRange(1, 20), default=1, show_default=True, help="1: greedy.")
BATCH_SIZE = click.option("--batch-size", type=click.IntRange(1, 512), help="Chunks that are decoded together.  [default: what there is memory for, up to 64 on each GPU, 16 a core on CPU]")  # fmt: skip # noqa: E501
DEVICE = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="What the model runs on.  [default: auto, or SPOTSCRIBE_DEVICE]")  # fmt: skip # noqa: E501
FORMATS = click.option("--formats", default="txt,json", show_default=True, help=f"Any of {', '.join(Format)}.")
DEBUG = click.option("--debug", is_flag=True, help="Show tracebacks.")
_TASK = click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    default="transcribe",
    show_default=True,
    help="translate: into English.",
)
_LISTENING = (
    click.option(
        "--language",
        help="A code such as en, de, zh; multi: each stretch in its own.  [default: detected for each recording]",
    ),
    click.option(
        "--channels",
        type=click.Choice(CHANNELS),
        default="mix",
        show_default=True,
        help="split: each channel on its own; auto: split where the two carry different speech.",
    ),
    click.option(
        "--track",
        type=click.IntRange(0),
        help="Which audio track, from 0.  [default: the one flagged default, or the first]",
    ),
    click.option(
        "--hotwords", metavar="WORDS", help="Names that may be said, as they are spelt: 'Kovacs, Spotscribe'."
    ),
    click.option("--initial-prompt", metavar="TEXT", help="A text in the style wanted. Read before each chunk."),
)
"""What is listened to, and what is known of it beforehand."""
_WORDS = click.option("--word-timestamps", is_flag=True, help="Times of each word as well.")
_DECODING = (MODEL, COMPUTE_TYPE, BEAM_SIZE, _TASK, *_LISTENING, _WORDS)


def listening(command: F) -> F:
    """Those of `decoding` that are not the model's."""
    for option in reversed(_LISTENING):
        command = option(command)
    return command


def decoding(command: F) -> F:
    """The options that may change a transcript's words; `job_options` reads them."""
    for option in reversed(_DECODING):
        command = option(command)
    return command


def job_options(settings: Settings, directory: Path | None, asked: dict[str, Any]) -> JobOptions:
    """From what `decoding` gives. `directory`: the model, where it is on this machine. Raises UsageError."""
    from pipeline.models import is_english_only, knows

    model = job_model(asked["model"] or settings.model)
    english_only = is_english_only(directory) if directory is not None else model.endswith(".en")
    if asked["task"] == "translate" and english_only:
        raise UsageError("--task translate: this model knows English only; choose a model without .en in its name")
    language = _language(asked["language"], english_only=english_only)
    if language is not None and directory is not None and not knows(directory, language):
        raise UsageError(f"--language {language}: this model does not know it; large-v3 and large-v3-turbo may")
    job = JobOptions(
        model=str(Path(model).absolute()) if Path(model).is_dir() else model,
        compute_type=asked["compute_type"] or settings.compute_type,
        language=language,
        task=asked["task"],
        channels=asked["channels"],
        word_timestamps=asked["word_timestamps"],
        beam_size=asked["beam_size"],
        hotwords=_cleaned("--hotwords", asked["hotwords"]),
        initial_prompt=_cleaned("--initial-prompt", asked["initial_prompt"]),
        track=asked["track"],
    )
    if job.prompt:
        _check_length(job.prompt, directory or _found(model, settings))
    return job


def formats_of(text: str) -> tuple[str, ...]:
    """`txt,json` → its parts. Raises UsageError."""
    asked = tuple(dict.fromkeys(f.strip().lower() for f in text.split(",") if f.strip()))
    unknown = [f for f in asked if f not in set(Format)]
    if unknown or not asked:
        raise UsageError(f"--formats: {', '.join(unknown) or 'none given'}; possible: {', '.join(Format)}")
    return asked


def out_url(out: str) -> str:
    """Where files go, as a URL; empty stays empty. Raises UsageError."""
    if not out or out.startswith(("s3://", "file://")):
        return out
    if "://" in out:
        raise UsageError(f"--out: {out} is neither s3:// nor a folder")
    return Path(out).absolute().as_uri()


def _cleaned(option: str, text: str | None) -> str | None:
    try:
        return cleaned(text)
    except UsageError as e:
        raise UsageError(f"{option}: {e}") from None


def _check_length(prompt: str, directory: Path | None) -> None:
    """Whether the model takes so much, where it is here to tell; else its worker does, and the job fails saying so."""
    if directory is not None:
        from tokenizers import Tokenizer

        try:
            prompt_tokens(Tokenizer.from_file(str(directory / "tokenizer.json")), prompt)
        except PermanentError as e:
            raise UsageError(f"--hotwords, --initial-prompt: {e}") from None


def _found(model: str, settings: Settings) -> Path | None:
    """A model that may be on other machines only."""
    from pipeline.models import local_model

    try:
        return local_model(model, settings.models, settings.models_folder)
    except UsageError:
        return None


def _language(asked: str | None, *, english_only: bool) -> str | None:
    if asked is None:
        return "en" if english_only else None
    from pipeline.languages import MULTI
    from pipeline.whisper import LANGUAGES

    code = asked.strip().lower()
    possible = (MULTI, *LANGUAGES)
    if code not in possible:
        raise UsageError(f"--language: {asked!r} is no language code of Whisper; possible: {', '.join(possible)}")
    if code != "en" and english_only:
        raise UsageError(f"--language {code}: this model knows English only; choose a model without .en in its name")
    return code
