"""What an evaluation comes to: figures of each cell, which are worth their cost, differences in plain words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from pipeline import evaluation
from pipeline.evaluation import Cell, Evaluation, Measured
from pipeline.resampling import Estimate, Sample, cheapest, front

FEW_RECORDINGS = 30
BUSY = 0.15
"""Of a machine's cores, taken by other work: speeds are not to be trusted then."""
NAMED = 3
MOST = 1 / 3
"""Of all words wrong: where so many are in NAMED recordings, these are odd, or their references are."""
TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class Terms:
    """What a user compares by."""

    device_hour: float | None = None
    """Price of an hour of a GPU, or of the machine where the model runs on CPU; None: costs are device-seconds."""
    tolerance: float = TOLERANCE
    """How far above the best rate a cell is as good, absolute."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Words and letters in error over some recordings together."""

    recordings: int
    words: int
    wer: Estimate
    deletions: int
    insertions: int
    substitutions: int
    cer: float


@dataclass(frozen=True, slots=True)
class Row:
    """A cell."""

    cell: Cell
    computed_in: str
    all: Figures
    by_language: dict[str, Figures]
    by_label: dict[str, Figures]
    """Empty where there are no labels; recordings without one are under the empty one."""
    audio_s: float
    rtfx: float
    memory_mb: float
    cost: float
    """Of an hour of audio: a price, or device-seconds."""
    worth_it: bool
    """No other cell is as exact and as cheap, and better in one of the two."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two cells, or of a cell between two evaluations."""

    what: str
    wer: Estimate
    faster: float
    """How many times as fast."""
    alike: bool
    """Each recording has as many errors in both."""

    def __str__(self) -> str:
        return f"{self.what}: {in_words(self.wer, alike=self.alike)}; {self.faster:.2g} times as fast"


@dataclass(frozen=True, slots=True)
class Judgement:
    """All of it."""

    rows: tuple[Row, ...]
    cheapest: int
    """The number of the cheapest row that is as good as the best."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def judged(e: Evaluation, terms: Terms) -> Judgement:
    """What the cells are worth."""
    everything = list(range(len(e.recordings)))
    wers = _figures(e, everything)
    costs = [e.device_s(m) if terms.device_hour is None else e.price(m, terms.device_hour) for m in e.measured]
    worth = front([f.wer.value for f in wers], costs)
    languages = _groups([r.language for r in e.recordings])
    labels = _groups([r.label for r in e.recordings]) if any(r.label for r in e.recordings) else {}
    by_language = {name: _figures(e, mine) for name, mine in languages.items()}
    by_label = {name: _figures(e, mine) for name, mine in labels.items()}
    rows = tuple(
        Row(
            cell=m.cell,
            computed_in=m.computed_in,
            all=wers[i],
            by_language={name: each[i] for name, each in by_language.items()},
            by_label={name: each[i] for name, each in by_label.items()},
            audio_s=e.audio_s(m),
            rtfx=e.rtfx(m),
            memory_mb=m.memory_mb,
            cost=costs[i],
            worth_it=i in worth,
        )
        for i, m in enumerate(e.measured)
    )
    best = cheapest([f.wer.value for f in wers], costs, terms.tolerance)
    return Judgement(rows, best, tuple(_differences(e)), tuple(_notes(e)))


def _figures(e: Evaluation, recordings: Sequence[int]) -> list[Figures]:
    """Of each cell."""
    sample, found = _sample(e.measured, recordings, [e.contents[i] for i in recordings]), []
    for i, m in enumerate(e.measured):
        s = m.score(recordings)
        found.append(
            Figures(
                len(recordings), s.words, sample.rate(i), s.deletions, s.insertions, s.substitutions, round(s.cer, 6)
            )
        )
    return found


def _sample(measured: Sequence[Measured], recordings: Sequence[int], contents: Sequence[str]) -> Sample:
    words = [measured[0].heard[i].score.words for i in recordings]
    return Sample(words, [[m.heard[i].score.errors for i in recordings] for m in measured], contents)


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(name, []).append(i)
    return dict(sorted(found.items()))


def _differences(e: Evaluation) -> Iterator[Difference]:
    everything = range(len(e.recordings))
    sample = _sample(e.measured, everything, e.contents)
    for i, base in evaluation.one_step_apart([m.cell for m in e.measured]):
        new, old = e.measured[i], e.measured[base]
        faster = e.rtfx(new) / (e.rtfx(old) or 1.0)
        yield Difference(_change(new.cell, old.cell), sample.difference(i, base), faster, _alike(new, old))


def _alike(new: Measured, old: Measured) -> bool:
    return [h.score.errors for h in new.heard] == [h.score.errors for h in old.heard]


def _change(new: Cell, old: Cell) -> str:
    """`int8 instead of float32 (base, beam 1)`."""
    shown = {f.name: (_shown(f.name, new), _shown(f.name, old)) for f in fields(Cell)}
    changed = next(pair for pair in shown.values() if pair[0] != pair[1])
    same = [a for name, (a, b) in shown.items() if a == b and not (name == "windows" and a == "windows usual")]
    return f"{changed[0]} instead of {changed[1]} ({', '.join(same)})"


def _shown(name: str, cell: Cell) -> str:
    value = str(getattr(cell, name))
    return {"beam_size": f"beam {value}", "windows": f"windows {value}"}.get(name, value)


def in_words(wer: Estimate, *, alike: bool = False) -> str:
    """A difference of two rates, so that it is not taken for more than it is."""
    if alike:
        return "as many words wrong in each recording"
    if wer.low is None or wer.high is None:
        return f"{_more(wer)}, and one recording cannot say how sure that is"
    if wer.sign:
        shown = -wer if wer.sign < 0 else wer
        return f"{_more(wer)} ({_hundred(shown.low)} to {_hundred(shown.high)})"
    return (
        f"no difference in accuracy that this much audio can show "
        f"({_more(wer)}; {_hundred(wer.low)} to {_hundred(wer.high)})"
    )


def _more(wer: Estimate) -> str:
    return f"{_hundred(abs(wer.value))} {'fewer' if wer.value < 0 else 'more'} words wrong in 100"


def _hundred(rate: float | None) -> str:
    return f"{100 * (rate or 0.0):.1f}".replace("-0.0", "0.0")


def since(new: Evaluation, old: Evaluation) -> tuple[Difference, ...]:
    """What has changed in the cells that both have, by the recordings that both have."""
    common = evaluation.in_both(new.recordings, old.recordings)
    contents = [new.contents[i] for i in common]
    found = []
    for i, j in evaluation.counterparts([m.cell for m in new.measured], [m.cell for m in old.measured]).items():
        mine, its = _only(new.measured[i], common.keys()), _only(old.measured[j], common.values())
        sample = _sample([mine, its], range(len(common)), contents)
        what = str(mine.cell) if mine.cell == its.cell else f"{mine.cell}, and then {its.cell},"
        faster = new.rtfx(new.measured[i]) / (old.rtfx(old.measured[j]) or 1.0)
        where = "" if new.machine == old.machine else " on another machine"
        when = f"{what} since {old.at[:10]}{where}"
        found.append(Difference(when, sample.difference(0, 1), faster, _alike(mine, its)))
    return tuple(found)


def _only(m: Measured, recordings: Iterable[int]) -> Measured:
    return Measured(m.cell, m.computed_in, tuple(m.heard[i] for i in recordings), m.rounds)


def _notes(e: Evaluation) -> Iterator[str]:
    """What a reader must know not to be misled."""
    distinct = len(set(e.contents))
    if distinct < FEW_RECORDINGS:
        yield f"{distinct} different recordings: take the intervals as rough, {FEW_RECORDINGS} and more tell more"
    if copies := len(e.recordings) - distinct:
        yield f"{_recordings(copies)} with the sound of another one: decoded once, and once in the speeds"
    told: dict[str, list[str]] = {}
    for m in e.measured:
        for note in _notes_on(e, m):
            told.setdefault(note, []).append(str(m.cell))
    for note, cells in told.items():
        yield f"{'each cell' if len(cells) == len(e.measured) > 1 else '; '.join(cells)}: {note}"
    if (busy := max(r.others for m in e.measured for r in m.rounds)) > BUSY:
        yield f"other work took up to {busy:.0%} of this machine's cores meanwhile: do not trust the speeds"
    for cell, why in e.failed.items():
        yield f"{cell} could not be measured: {why}"


def _notes_on(e: Evaluation, m: Measured) -> Iterator[str]:
    both = list(zip(e.recordings, m.heard, strict=True))
    lost = [(r, h) for r, h in both if h.state not in {"done", "partial"}]
    if lost:
        names = _named([f"{r.name} ({h.code or h.state})" for r, h in lost])
        words = sum(h.score.deletions for _, h in lost)
        yield f"{_recordings(len(lost))} not transcribed, all {words} words deleted: {names}"
    misheard = [f"{r.name} ({h.language}, not {r.language})" for r, h in both if h.language not in {"", r.language}]
    if misheard:
        yield f"{_recordings(len(misheard))} taken for another language: {_named(misheard)}"
    worst = sorted(both, key=lambda x: -x[1].score.errors)[:NAMED]
    share = sum(h.score.errors for _, h in worst) / max(1, sum(h.score.errors for h in m.heard))
    if share > MOST and len(both) >= FEW_RECORDINGS:
        names = _named([r.name for r, _ in worst])
        yield f"{NAMED} recordings have {share:.0%} of the words wrong; look at their references first: {names}"
    if len(errors := Counter(r.errors for r in m.rounds)) > 1:
        yield f"{min(errors)} to {max(errors)} words wrong, from round to round; the first counts"


def _recordings(count: int) -> str:
    return f"{count} recording{'s' if count != 1 else ''}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
