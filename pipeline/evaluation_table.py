"""An evaluation as text for a terminal: a table of cells, one by language and label, and what it all comes to. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pipeline.evaluation import Evaluation
from pipeline.resampling import Estimate
from pipeline.verdicts import Difference, Figures, Judgement, Row, Terms

HEADS = ("WER", "95 % interval", "deleted", "inserted", "substituted", "CER")


def table(e: Evaluation, j: Judgement, terms: Terms, then: Sequence[Difference] = ()) -> str:
    """All of it. `then`: what has changed since an earlier evaluation."""
    lines = [_head(e, j), "", *_cells(e, j, terms)]
    for name, groups in (("language", [r.by_language for r in j.rows]), ("label", [r.by_label for r in j.rows])):
        if len(groups[0]) > 1:
            lines += ["", *_grouped(name, groups, j.rows)]
    lines += ["", *_conclusions(j, terms)]
    lines += [f"- {d}" for d in (*j.differences, *then)]
    lines += [f"note: {n}" for n in j.notes]
    return "\n".join(lines)


def _head(e: Evaluation, j: Judgement) -> str:
    row = j.rows[0]
    where = f"{e.machine.name}, {e.machine.units} {'GPUs' if e.machine.device == 'cuda' else 'cores'}"
    return f"{row.all.recordings} recordings, {row.all.words} words, {row.audio_s:.0f} s of audio; {where}"


def _cells(e: Evaluation, j: Judgement, terms: Terms) -> Iterator[str]:
    """A row for each cell, with a star where it is worth its cost."""
    unit = "GPU-s" if e.machine.device == "cuda" else "core-s"
    cost = f"{unit} per hour" if terms.device_hour is None else "cost per hour"
    rows: list[tuple[str, ...]] = [("", "model", "compute type", "beam", "windows", *HEADS, "RTFx", "MB", cost)]
    for r in j.rows:
        price = f"{r.cost:.4f}" if terms.device_hour is not None and math.isfinite(r.cost) else f"{r.cost:.0f}"
        cell = (r.cell.model, r.cell.compute_type, str(r.cell.beam_size), r.cell.windows)
        speed = (f"{r.rtfx:.1f}", f"{r.memory_mb:.0f}", price)
        rows.append(("*" if r.worth_it else "", *cell, *_shown(r.all), *speed))
    return _aligned(rows, left=5)


def _grouped(name: str, groups: Sequence[dict[str, Figures]], rows: Sequence[Row]) -> Iterator[str]:
    found: list[tuple[str, ...]] = [(name, "recordings", "words", "cell", *HEADS)]
    for key in groups[0]:
        for row, each in zip(rows, groups, strict=True):
            f = each[key]
            found.append((key or "(none)", str(f.recordings), str(f.words), str(row.cell), *_shown(f)))
    return _aligned(found, left=4)


def _shown(f: Figures) -> tuple[str, ...]:
    counts = (str(f.deletions), str(f.insertions), str(f.substitutions))
    return (f"{f.wer.value:.4f}", _interval(f.wer), *counts, f"{f.cer:.4f}")


def _interval(wer: Estimate) -> str:
    return "-" if wer.low is None or wer.high is None else f"{wer.low:.4f} to {wer.high:.4f}"


def _conclusions(j: Judgement, terms: Terms) -> Iterator[str]:
    if len(j.rows) < 2:
        return
    best, chosen = min(j.rows, key=lambda r: (r.all.wer.value, r.cost)), j.rows[j.cheapest]
    yield "*: no other is as exact and as cheap"
    yield f"most exact: {best.cell}"
    yield f"cheapest within {terms.tolerance:g} of its WER: {chosen.cell}"


def _aligned(rows: Sequence[tuple[str, ...]], *, left: int) -> Iterator[str]:
    """Columns as wide as they must be; the first `left` of them begin alike, the others end alike."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()
