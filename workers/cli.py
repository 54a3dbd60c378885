"""The command line: which commands there are, and how each ends."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import NoReturn

import click

from chunking.errors import SpotscribeError, UsageError
from workers.bootstrap import all_to_stay, end_at_once, tame_allocator, tame_libraries

COMMANDS = {
    "run": ("run", "Transcribe files and folders on this machine."),
    "ingest": ("ingest", "Take what appears in a bucket or a folder."),
    "sources": ("sources", "Keep the drop folders that are watched."),
    "submit": ("submit", "Give a fleet recordings to transcribe."),
    "status": ("jobs", "How the jobs stand, or one job."),
    "show": ("jobs", "Print a job's transcript."),
    "search": ("search", "Find where something was said."),
    "export": ("export", "Write transcripts of many jobs as files or tables."),
    "clip": ("clip", "Cut the sound of a recording, or of the least certain segments."),
    "report": ("report", "Write a page about many jobs, and what of them needs a look."),
    "cancel": ("jobs", "End jobs that have not ended."),
    "retry": ("jobs", "Start jobs again that did not end well."),
    "deliver": ("notices", "Write jobs' files again."),
    "purge": ("purge", "Delete all of a recording, or what is old."),
    "notices": ("notices", "Notices that were not taken, recordings not put away."),
    "worker": ("worker", "Work for a fleet, until told to leave."),
    "scale": ("scale", "How many workers the backlog asks for, and why."),
    "simulate": ("simulate", "What a load will take and cost, before it is paid for."),
    "exporter": ("exporter", "Serve metrics of the whole fleet, from its database."),
    "canary": ("canary", "Whether workers still read a known recording as they did."),
    "costs": ("costs", "What transcripts cost, and what was spent on nothing."),
    "db": ("db", "Migrate the database, or say how it stands."),
    "evaluate": ("evaluate", "Measure words in error, speed and cost on your own audio."),
    "doctor": ("doctor", "Check each part of the set-up, and say what to do."),
    "chaos": ("chaos", "Kill workers at random and check that nothing is lost."),
}
"""Name: the module in workers/commands that has it, and what `spotscribe --help` says."""


class Commands(click.Group):
    """Imports a command's module only when it is called: some load a model's libraries, some need not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        with all_to_stay():
            module = importlib.import_module(f"workers.commands.{COMMANDS[name][0]}")
            command = getattr(module, name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="spotscribe")
def cli() -> None:
    """Turn recordings into transcripts, with nothing lost and nothing silently dropped."""


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


def main() -> None:
    """The console script: errors as one line, never a traceback unless --debug."""
    tame_allocator()
    tame_libraries()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    end_at_once()
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
