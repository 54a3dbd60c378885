"""`spotscribe run`: transcribe on this machine, without any server."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from chunking.errors import UsageError
from pipeline import tracing
from pipeline.cutting import USUAL, WAYS
from pipeline.devices import default_batch_size, engine_options
from pipeline.ingestion import Findings, find_recordings
from workers.bootstrap import end_tidily
from workers.display import clock, display, line, printable, say
from workers.local import FileEnd, LocalRun, RunOptions, Summary
from workers.options import BATCH_SIZE, DEBUG, DEVICE, FORMATS, decoding, formats_of, job_options
from workers.presence import Presence
from workers.wiring import load_engine, make_folder, model_directory, read_settings

EXIT_CODES = """\b
Exit codes:
  0    all recordings are transcribed
  1    Spotscribe itself failed; nothing that was done is lost (--debug shows where)
  2    the request is wrong, or there is nothing to transcribe; nothing was done
  3    some recordings are partial, rejected or failed, or a file could not be written; the others are transcribed
  130  interrupted (143: by SIGTERM); the same command goes on from where it stopped
"""


@click.command(epilog=EXIT_CODES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("transcripts"), show_default=True, help="Folder for the transcripts.")  # fmt: skip # noqa: E501
@FORMATS
@decoding
@BATCH_SIZE
@DEVICE
@click.option("--windows", type=click.Choice([*WAYS]), default=USUAL, show_default=True, help="How recordings are cut that are not cut yet: the longest chunks, the lengths of windows (see evaluate).")  # fmt: skip # noqa: E501
@click.option("--force", is_flag=True, help="Decode again what has been decoded before.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout at the end, and nothing else there.")
@DEBUG
def run(
    paths: tuple[str, ...],
    out: Path,
    formats: str,
    batch_size: int | None,
    device: str | None,
    windows: str,
    force: bool,
    as_json: bool,
    debug: bool,
    **asked: Any,
) -> None:
    """Transcribe files, folders (with all below them) and patterns on this machine.

    What is done already is not done again; an interrupted run goes on where it stopped. State lies in
    SPOTSCRIBE_HOME, or in the user's data folder.
    """
    settings = read_settings()
    name = asked["model"] or settings.model
    directory = model_directory(settings, name)
    job = job_options(settings, directory, asked)
    how = engine_options(
        settings, device or settings.device, job.compute_type, job.beam_size, named=asked["compute_type"] is not None
    )
    batch = batch_size or default_batch_size(how, directory)
    options = RunOptions(job, out, formats_of(formats), force, batch, debug, WAYS[windows])
    findings = find_recordings(paths)
    _check_out(out)
    make_folder(settings.home, "SPOTSCRIBE_HOME")
    if how.notice:
        click.echo(how.notice, err=True)
    end_tidily()
    with Presence(settings.home) as presence:
        tracing.start(settings, presence.name)
        local = LocalRun(settings, presence, options)
        before = local.submit(findings.found)
        if not as_json:
            _greet(findings, name, [f for f in before if f.state != "done"])
        if local.left:
            engine = load_engine(settings, directory, how)
            with display(len(findings.found), as_json=as_json) as progress:
                local.work(engine, progress)
        summary = local.summary()
        local.close()
        tracing.flush(tracing.EXPORT_S)
    _report(summary, findings, out, as_json=as_json)
    well = all(f.state == "done" and len(f.outputs) == len(options.formats) for f in summary.files)
    sys.exit(0 if well else 3)


def _greet(findings: Findings, model: str, ended_badly: list[FileEnd]) -> None:
    files = len(findings.found)
    english = " (English only, for trying out; small and large-v3-turbo read better)" if model == "tiny.en" else ""
    say(f"{files} recording{'s' if files != 1 else ''}, model {model}{english}")
    for end in ended_badly:
        say(line(end))


def _check_out(out: Path) -> None:
    """Whether the folder could be made, without making it yet: the rest of the request may still be wrong."""
    nearest = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise UsageError(f"--out: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"--out: {nearest} may not be written to")


def _report(summary: Summary, findings: Findings, out: Path, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(asdict(summary) | {"passed_over": len(findings.skipped)}))
        return
    states = [f.state for f in summary.files]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "partial", "rejected", "failed") if s in states)
    if not summary.wall_s:
        say(f"{counts}: all of it had been done before, nothing to decode (--force decodes again)")
    elif summary.audio_s:
        say(f"{counts}: {clock(summary.audio_s)} of audio in {clock(summary.wall_s)} ({summary.rtfx:.1f}x)")
    else:
        say(counts)
    if passed_over := len(findings.skipped):
        named = ", ".join(printable(p.name) for p in findings.skipped[:3]) + (", …" if passed_over > 3 else "")
        say(f"passed over {passed_over} other file{'s' if passed_over != 1 else ''} there: {named}")
    if any(f.outputs for f in summary.files):
        say(f"transcripts: {os.path.abspath(out)}")
