"""What a run shows: a progress bar on a terminal, plain lines in a pipe, nothing with --json."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # showing a job must not load a model's libraries
    from workers.local import FileEnd, Progress

Show = Callable[["Progress"], None]


@contextmanager
def display(files: int, *, as_json: bool) -> Iterator[Show]:
    """Yields what to call with each progress."""
    if sys.stderr.isatty():
        with _bar(files, lines=not as_json) as show:
            yield show
    else:
        yield _silent if as_json else _plain


def say(text: str) -> None:
    """A line on stdout. If nobody reads there any more, the work goes on all the same."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (it stays open to the end)


def line(end: FileEnd) -> str:
    """One ended file in one line."""
    why = f": {end.error}" if end.error else ""
    text = f"{end.seconds:8.1f} s  {end.words:6d} words" if end.state in {"done", "partial"} else " " * 24
    return f"{end.state:9}{text}  {printable(end.source)}{why}"


def printable(name: str) -> str:
    """A file name as it may be shown: control characters would break the line or the terminal."""
    return "".join("?" if unicodedata.category(ch) in {"Cc", "Cs"} else ch for ch in name)


def clock(seconds: float) -> str:
    """A stretch of time, for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d} min"


def _silent(progress: Progress) -> None:
    pass


def _plain(progress: Progress) -> None:
    for end in progress.newly:
        say(line(end))


@contextmanager
def _bar(files: int, *, lines: bool) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[files]} files"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[audio]}"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[left]}"),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("run", total=None, files=f"0/{files}", audio="", speed="", left="")

        def show(p: Progress) -> None:
            if lines:
                for end in p.newly:
                    console.print(line(end), markup=False, highlight=False, soft_wrap=True)
            bar.update(
                task,
                total=p.total_s or None,
                completed=p.done_s,
                files=f"{p.ended}/{p.files}",
                audio=f"{p.done_s / 60:.1f}/{p.total_s / 60:.1f} min",
                speed=f"{p.rtfx:.0f}x",
                left=f"{p.left_s:.0f} s left" if p.left_s is not None else "",
            )

        yield show
