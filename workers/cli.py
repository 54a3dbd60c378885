"""The command line: `spotscribe run PATH…` and what else a user types."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from pydantic import ValidationError

from chunking.errors import SpotscribeError, UsageError
from pipeline.engine import LANGUAGES, WhisperEngine
from pipeline.exports import Format
from pipeline.ingestion import Findings, find_recordings
from pipeline.models import find_model, is_english_only
from pipeline.settings import Settings, default_batch_size, engine_options
from storage.jobs import JobOptions
from workers.bootstrap import tame_allocator
from workers.display import display, line, printable, say
from workers.local import FileEnd, LocalRun, RunOptions, Summary
from workers.presence import Presence

EXIT_CODES = """\b
Exit codes:
  0    all recordings are transcribed
  1    Spotscribe itself failed; nothing that was done is lost (--debug shows where)
  2    the request is wrong, or there is nothing to transcribe; nothing was done
  3    some recordings are partial, rejected or failed, or a file could not be written; the others are transcribed
  130  interrupted (143: by SIGTERM); the same command goes on from where it stopped
"""
COMPUTE_TYPES = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="spotscribe")
def cli() -> None:
    """Turn recordings into transcripts, with nothing lost and nothing silently dropped."""


@cli.command(epilog=EXIT_CODES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("transcripts"), show_default=True, help="Folder for the transcripts.")  # fmt: skip # noqa: E501
@click.option("--formats", default="txt,json", show_default=True, help=f"Any of {', '.join(Format)}.")
@click.option("--model", help="A name (tiny.en, small, large-v3-turbo, …) or a directory in CTranslate2 form.  [default: tiny.en, or SPOTSCRIBE_MODEL]")  # fmt: skip # noqa: E501
@click.option("--compute-type", type=click.Choice(COMPUTE_TYPES), default="int8", show_default=True, help="Precision of the model's arithmetic.")  # fmt: skip # noqa: E501
@click.option("--batch-size", type=click.IntRange(1, 512), help="Chunks that are decoded together.  [default: 64 on a GPU, 8 a core on CPU]")  # fmt: skip # noqa: E501
@click.option("--beam-size", type=click.IntRange(1, 20), default=1, show_default=True, help="1: greedy.")
@click.option("--language", help="A code such as en, de, zh.  [default: detected for each recording]")
@click.option("--task", type=click.Choice(["transcribe", "translate"]), default="transcribe", show_default=True, help="translate: into English.")  # fmt: skip # noqa: E501
@click.option("--channels", type=click.Choice(["mix", "split"]), default="mix", show_default=True, help="split: each channel on its own.")  # fmt: skip # noqa: E501
@click.option("--word-timestamps", is_flag=True, help="Times of each word as well.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--force", is_flag=True, help="Decode again what has been decoded before.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout at the end, and nothing else there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def run(
    paths: tuple[str, ...],
    out: Path,
    formats: str,
    model: str | None,
    compute_type: str,
    batch_size: int | None,
    beam_size: int,
    language: str | None,
    task: str,
    channels: str,
    word_timestamps: bool,
    device: str,
    force: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Transcribe files, folders (with all below them) and patterns on this machine.

    What is done already is not done again; an interrupted run goes on where it stopped. State lies in
    SPOTSCRIBE_HOME, or in the user's data folder.
    """
    settings = _settings()
    name = model or settings.model
    directory = find_model(name, settings.models)
    job = JobOptions(
        model=name if not Path(name).is_dir() else str(Path(name).absolute()),
        compute_type=compute_type,
        language=_language(language, directory),
        task=_task(task, directory),
        channels=channels,
        word_timestamps=word_timestamps,
        beam_size=beam_size,
    )
    how = engine_options(settings, device, compute_type, beam_size)
    options = RunOptions(job, out, _formats(formats), force, batch_size or default_batch_size(how), debug)
    findings = find_recordings(paths)
    _check_out(out)
    _make_home(settings.home)
    with Presence(settings.home) as presence:
        local = LocalRun(settings, presence, options)
        before = local.submit(findings.found)
        if not as_json:
            _greet(findings, name, [f for f in before if f.state != "done"])
        if local.left:
            engine = WhisperEngine(directory, how)
            with display(len(findings.found), as_json=as_json) as progress:
                local.work(engine, progress)
        summary = local.summary()
        local.close()
    _report(summary, findings, out, as_json=as_json)
    well = all(f.state == "done" and len(f.outputs) == len(options.formats) for f in summary.files)
    sys.exit(0 if well else 3)


def _greet(findings: Findings, model: str, ended_badly: list[FileEnd]) -> None:
    files = len(findings.found)
    english = " (English only, for trying out; small and large-v3-turbo read better)" if model == "tiny.en" else ""
    say(f"{files} recording{'s' if files != 1 else ''}, model {model}{english}")
    for end in ended_badly:
        say(line(end))


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as e:
        first = e.errors()[0]
        name = "SPOTSCRIBE_" + "_".join(map(str, first["loc"])).upper()
        raise UsageError(f"{name}: {first['msg']}, not {first['input']!r}") from None


def _check_out(out: Path) -> None:
    """Whether the folder could be made, without making it yet: the rest of the request may still be wrong."""
    nearest = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise UsageError(f"--out: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"--out: {nearest} may not be written to")


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"SPOTSCRIBE_HOME: {home} cannot be made: {e.strerror}") from None


def _formats(text: str) -> tuple[str, ...]:
    asked = tuple(dict.fromkeys(f.strip().lower() for f in text.split(",") if f.strip()))
    unknown = [f for f in asked if f not in set(Format)]
    if unknown or not asked:
        raise UsageError(f"--formats: {', '.join(unknown) or 'none given'}; possible: {', '.join(Format)}")
    return asked


def _language(asked: str | None, model: Path) -> str | None:
    if asked is None:
        return "en" if is_english_only(model) else None
    code = asked.strip().lower()
    if code not in LANGUAGES:
        raise UsageError(f"--language: {asked!r} is no language code of Whisper; possible: {', '.join(LANGUAGES)}")
    if code != "en" and is_english_only(model):
        raise UsageError(f"--language {code}: this model knows English only; choose a model without .en in its name")
    return code


def _task(task: str, model: Path) -> str:
    if task == "translate" and is_english_only(model):
        raise UsageError("--task translate: this model knows English only; choose a model without .en in its name")
    return task


def _report(summary: Summary, findings: Findings, out: Path, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(asdict(summary) | {"passed_over": len(findings.skipped)}))
        return
    states = [f.state for f in summary.files]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "partial", "rejected", "failed") if s in states)
    if not summary.wall_s:
        say(f"{counts}: all of it had been done before, nothing to decode (--force decodes again)")
    elif summary.audio_s:
        say(f"{counts}: {_clock(summary.audio_s)} of audio in {_clock(summary.wall_s)} ({summary.rtfx:.1f}x)")
    else:
        say(counts)
    if passed_over := len(findings.skipped):
        named = ", ".join(printable(p.name) for p in findings.skipped[:3]) + (", …" if passed_over > 3 else "")
        say(f"passed over {passed_over} other file{'s' if passed_over != 1 else ''} there: {named}")
    if any(f.outputs for f in summary.files):
        say(f"transcripts: {os.path.abspath(out)}")


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d} min"


def _line(error: Exception) -> str:
    """What went wrong, in one line for a user."""
    if isinstance(error, SpotscribeError):
        return str(error).strip()
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}; when that is mended, the same command goes on from here"
    first = (str(error).strip() or "no further word").splitlines()[0]
    return f"{type(error).__name__}: {first} (--debug shows where)"


def _leave(code: int) -> NoReturn:
    """Without waiting for a batch that the model is still at: all that counts is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def main() -> None:
    """The console script: errors as one line, never a traceback unless --debug."""
    tame_allocator()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, _terminated)
    debug = "--debug" in sys.argv
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        e.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; nothing is lost: the same command goes on from here", err=True)
        _leave(130)
    except SystemExit as e:
        if e.code == 143:
            click.echo("terminated; nothing is lost: the same command goes on from here", err=True)
            _leave(143)
        raise
    except Exception as e:
        if debug:
            traceback.print_exc()
        click.echo(f"spotscribe: {_line(e)}", err=True)
        _leave(2 if isinstance(e, UsageError) else 1)
