"""`spotscribe evaluate`: words in error, speed and cost on the user's own audio, over a grid of ways to transcribe."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from pydantic import TypeAdapter

from chunking.errors import SpotscribeError, UsageError
from pipeline import evaluation
from pipeline.cutting import USUAL, WAYS
from pipeline.devices import EngineOptions, engine_options
from pipeline.evaluation import Cell, Evaluation, read_saved, to_json
from pipeline.evaluation_table import table
from pipeline.languages import MULTI
from pipeline.references import read_manifest
from pipeline.scoring import score
from pipeline.settings import Settings
from pipeline.verdicts import TOLERANCE, Difference, Judgement, Terms, judged, since
from storage.objects import write_atomically
from workers.bootstrap import end_tidily
from workers.display import printable, say
from workers.evaluate_grid import Planned, listed, machine, measure
from workers.options import BATCH_SIZE, COMPUTE_TYPES, DEBUG, DEVICE, job_options, listening
from workers.presence import Presence
from workers.wiring import make_folder, model_directory, read_settings

T = TypeVar("T")
FINE, UNMEASURED, GATE = 0, 3, 4
EXIT_CODES = """\b
Exit codes:
  0    measured, and as good as it must be
  1    Spotscribe itself failed (--debug shows where)
  2    the request is wrong; nothing was done
  3    a cell could not be measured; the others were
  4    worse than --max-wer allows, or than --against was, more surely than chance makes it
  130  interrupted (143: by SIGTERM); nothing is kept
"""


@click.command(epilog=EXIT_CODES)
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--models", metavar="NAME,…", help="Names or directories.  [default: tiny.en, or SPOTSCRIBE_MODEL]")
@click.option("--compute-types", metavar="TYPE,…", help=f"Any of {', '.join(COMPUTE_TYPES)}.  [default: int8, or SPOTSCRIBE_COMPUTE_TYPE]")  # fmt: skip # noqa: E501
@click.option("--beams", metavar="N,…", default="1", show_default=True, help="Sizes of the beam, 1 to 20.")
@click.option("--windows", metavar="WAY,…", default=USUAL, show_default=True, help=f"How recordings are cut: {', '.join(WAYS)}.")  # fmt: skip # noqa: E501
@listening
@BATCH_SIZE
@DEVICE
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each cell; the median speed counts.")  # fmt: skip # noqa: E501
@click.option("--price", type=click.FloatRange(0), help="Of an hour of a GPU, or of this machine where the model runs on CPU.")  # fmt: skip # noqa: E501
@click.option("--tolerance", type=click.FloatRange(0), default=TOLERANCE, show_default=True, help="How much higher a WER is as good, for the cheapest cell.")  # fmt: skip # noqa: E501
@click.option("--max-wer", type=click.FloatRange(0), help="Exit with 4 where a cell's WER is higher: 0.12.")
@click.option("--against", metavar="FILE", type=click.Path(path_type=Path), help="A saved evaluation: exit with 4 where a cell is worse than it was there.")  # fmt: skip # noqa: E501
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path), help="[default: a new file in SPOTSCRIBE_HOME/evaluations]")  # fmt: skip # noqa: E501
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout at the end, and nothing else there.")
@DEBUG
def evaluate(
    manifest: Path,
    price: float | None,
    tolerance: float,
    max_wer: float | None,
    against: Path | None,
    save: Path | None,
    as_json: bool,
    debug: bool,
    **asked: Any,
) -> None:
    """Measure words in error, speed and cost on your own audio.

    MANIFEST is a JSONL file: path, text, language and, if you like, label for each recording. Or it is a saved
    evaluation, which is shown and compared anew. docs/evaluation.md says how to read the table.
    """
    earlier = read_saved(against) if against else None
    saved = read_saved(manifest) if evaluation.is_saved(manifest) else None
    if saved:
        _check_shown(manifest, (*asked, "save"))
    if saved and earlier:
        _check_common(saved.recordings, [m.cell for m in saved.measured], earlier, against)
    found = saved or _measured(manifest, asked, earlier, against, save)
    terms = Terms(price, tolerance)
    judgement, then = judged(found, terms), since(found, earlier) if earlier else ()
    gates = [*_too_high(judgement, max_wer), *(f"worse: {d}" for d in then if d.wer.sign > 0)]
    if as_json:
        say(json.dumps(_as_json(found, judgement, then, gates)))
    else:
        say(_printable(table(found, judgement, terms, then)))
    for gate in gates:
        click.echo(gate, err=True)
    sys.exit(GATE if gates else UNMEASURED if found.failed else FINE)


def _check_shown(file: Path, options: Sequence[str]) -> None:
    """Whether nothing is asked for that a saved evaluation cannot answer. Raises UsageError."""
    source = click.get_current_context().get_parameter_source
    given = [f"--{n.replace('_', '-')}" for n in options if source(n) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(f"{file} is a saved evaluation, and is shown: {', '.join(given)} would have to measure anew")


def _measured(
    manifest: Path, asked: dict[str, Any], earlier: Evaluation | None, against: Path | None, save: Path | None
) -> Evaluation:
    """Check the whole request, run the grid, and save what was found."""
    settings = read_settings()
    score("", "", "en")  # whether its packages are here
    references = read_manifest(manifest)
    grid = _grid(settings, asked)
    recordings = listed(references, manifest)
    if earlier:
        _check_common(recordings, [p.cell for p in grid.planned], earlier, against)
    at = datetime.now(UTC)
    file = _place(settings, manifest, at, save)
    end_tidily()
    try:
        with Presence(settings.home, prefix="evaluate-") as presence:
            results = measure(grid.planned, references, presence.scratch, asked["rounds"], _tell)
    except (KeyboardInterrupt, SystemExit) as e:
        _tell("interrupted; nothing was saved, and the same command begins anew")
        os._exit(143 if isinstance(e, SystemExit) else 130)
    if not results.measured:
        raise SpotscribeError(next(iter(results.failed.values())))
    found = Evaluation(
        at=at.isoformat(timespec="seconds"),
        spotscribe=version("spotscribe"),
        machine=machine(settings, grid.how),
        manifest=manifest.name,
        options=grid.options,
        recordings=recordings,
        measured=results.measured,
        failed=results.failed,
    )
    write_atomically(file, to_json(found))
    _tell(f"saved: {file}")
    return found


@dataclass(frozen=True, slots=True)
class Grid:
    """What is to be measured. `how`: on which device."""

    planned: tuple[Planned, ...]
    how: EngineOptions
    options: dict[str, str]


def _grid(settings: Settings, asked: dict[str, Any]) -> Grid:
    """All combinations; each is checked as `run` would check it. Raises UsageError."""
    models = _parts("--models", asked["models"] or settings.model, str)
    types = _parts("--compute-types", asked["compute_types"] or settings.compute_type, str)
    beams = _parts("--beams", asked["beams"], int)
    ways = _parts("--windows", asked["windows"], str)
    if bad := [b for b in beams if not 1 <= b <= 20]:
        raise UsageError(f"--beams: {bad[0]} is not between 1 and 20")
    if unknown := [w for w in ways if w not in WAYS]:
        raise UsageError(f"--windows: {', '.join(unknown)}; possible: {', '.join(WAYS)}")
    if asked["language"] == MULTI and any(w.startswith("chunks-") for w in ways):
        raise UsageError("--windows chunks-…: with --language multi the longest chunk is given")
    options, told = _options(asked), asked["compute_types"] is not None
    directories = {model: model_directory(settings, model) for model in models}
    planned, how = [], EngineOptions()
    for cell in (Cell(*x) for x in itertools.product(models, types, beams, ways)):
        run = {"model": cell.model, "compute_type": cell.compute_type, "beam_size": cell.beam_size}
        job_options(settings, directories[cell.model], asked | run | {"task": "transcribe", "word_timestamps": False})
        device = asked["device"] or settings.device
        how = engine_options(settings, device, cell.compute_type, cell.beam_size, named=told)
        own = {"--model": str(directories[cell.model] or cell.model), "--beam-size": str(cell.beam_size)}
        own |= {"--windows": cell.windows} | ({"--compute-type": cell.compute_type} if told else {})
        planned.append(Planned(cell, how.compute_type, tuple(itertools.chain(*(own | options).items()))))
    return Grid(tuple(planned), how, options)


def _options(asked: dict[str, Any]) -> dict[str, str]:
    """Of `run`, for every cell."""
    names = ("language", "channels", "track", "hotwords", "initial_prompt", "batch_size", "device")
    return {f"--{n.replace('_', '-')}": str(asked[n]) for n in names if asked[n] is not None}


def _parts(option: str, text: str, made: Callable[[str], T]) -> tuple[T, ...]:
    parts = dict.fromkeys(p.strip() for p in text.split(",") if p.strip())
    try:
        found = tuple(made(p) for p in parts)
    except ValueError:
        raise UsageError(f"{option}: {text!r} is no list of numbers") from None
    if not found:
        raise UsageError(f"{option}: none given")
    return found


def _place(settings: Settings, manifest: Path, at: datetime, save: Path | None) -> Path:
    """Where the evaluation will be. Raises UsageError."""
    if save is None:
        make_folder(settings.home / "evaluations", "SPOTSCRIBE_HOME")
        return settings.home / "evaluations" / f"{at:%Y-%m-%dT%H%M%SZ}-{manifest.stem}.json"
    if save.is_dir() or not save.absolute().parent.is_dir():
        raise UsageError(f"--save: {save} is {'a folder' if save.is_dir() else 'in no folder that there is'}")
    return save


def _check_common(
    recordings: Sequence[evaluation.Listed], cells: Sequence[Cell], old: Evaluation, file: Path | None
) -> None:
    """Whether there is anything to compare. Raises UsageError."""
    had = [m.cell for m in old.measured]
    if not evaluation.counterparts(cells, had):
        raise UsageError(f"--against: {file} has none of these cells; it has {'; '.join(map(str, had))}")
    common = len(evaluation.in_both(recordings, old.recordings))
    if not common:
        raise UsageError(f"--against: {file} has none of these recordings, with these texts")
    if common < len(recordings):
        _tell(f"{file} is compared by the {common} of {len(recordings)} recordings that it has, with these texts")


def _too_high(j: Judgement, max_wer: float | None) -> list[str]:
    rows = [r for r in j.rows if max_wer is not None and r.all.wer.value > max_wer]
    return [f"too high: {r.cell}: WER {r.all.wer.value:.4f}, and {max_wer:g} is allowed" for r in rows]


def _as_json(e: Evaluation, j: Judgement, then: Sequence[Difference], gates: Sequence[str]) -> dict[str, Any]:
    """With the words of each difference beside its figures."""

    def plain(value: Any, kind: Any) -> Any:
        return json.loads(TypeAdapter(kind).dump_json(value))  # no Infinity, which is no JSON

    found: dict[str, Any] = plain(j, Judgement)
    for difference, words in zip(found["differences"], j.differences, strict=True):
        difference["words"] = str(words)
    since_then = [plain(d, Difference) | {"words": str(d)} for d in then]
    about = {"at": e.at, "spotscribe": e.spotscribe, "machine": plain(e.machine, type(e.machine))}
    return about | found | {"against": since_then, "failed": e.failed, "gates": list(gates)}


def _printable(text: str) -> str:
    """Names of files are in it."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _tell(text: str) -> None:
    click.echo(printable(text), err=True)
