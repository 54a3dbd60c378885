"""What `make bench` found, as Markdown: ratios round by round, medians, a run's stages and its share of the ceiling."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.bench_peers import CEILING, SPOTSCRIBE, Run

FEW_WORDS = 1000
"""In fewer, one word more or less moves WER by more than what is compared."""
BUSY = 0.1
"""When others take more of the cores than this, times say little."""
STAGES = {
    "fetch": "recordings read",
    "decode_media": "recordings decoded (a child process each)",
    "vad": "VAD",
    "plan": "chunks planned",
    "shards": "shards written",
    "read": "chunks read from shards",
    "features": "log-mel features",
    "encode": "model, encoder ¹",
    "decode": "model, decoder ¹",
    "judge": "answers judged ²",
    "write": "checkpoints written",
    "finish": "transcripts stitched and stored",
}


Time = Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Results:
    """All of one call of `make bench`."""

    head: dict[str, str]
    """Date, machine, recordings, …: lines of the report's first table."""
    audio_s: float
    cores: int
    words: int
    """In the references."""
    runs: dict[str, tuple[Run, ...]]
    """Of Spotscribe, the engine alone and each peer: one for each round."""
    missing: dict[str, str] = field(default_factory=dict)
    """Peers that could not be measured, and why."""
    notes: dict[str, str] = field(default_factory=dict)
    """How peers were called."""

    @property
    def peers(self) -> dict[str, tuple[Run, ...]]:
        return {name: runs for name, runs in self.runs.items() if name not in {SPOTSCRIBE, CEILING}}


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the rounds."""

    median: float
    least: float
    most: float

    def shown(self, form: str = "{:.2f}") -> str:
        one, least, most = (form.format(x) for x in (self.median, self.least, self.most))
        return one if least == most else f"{one} [{least}, {most}]"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[Run], peers: Mapping[str, Sequence[Run]], time: Time) -> Spread | None:
    """Seconds of the fastest peer ÷ ours, taken in each round. Peers without such a time do not count."""
    found = []
    for i, run in enumerate(ours):
        theirs = [t for runs in peers.values() if (t := time(runs[i])) is not None]
        own = time(run)
        if theirs and own:
            found.append(min(theirs) / own)
    return spread(found) if found else None


def inside(run: Run) -> float | None:
    return run.inside_s


def process(run: Run) -> float | None:
    return run.usage.process_s


def rendered(r: Results) -> str:
    """The whole report."""
    parts = [
        "# Benchmarks",
        "Written by `make bench`; the next call writes it anew. A figure with [least, most] is the median of rounds."
        " A machine's speed moves from minute to minute, so ratios are taken within each round, in which all contenders"
        " run one after the other, each round another one first.",
        _table(("", ""), [*r.head.items()], figures=False),
        "## Beside its peers",
        "\n".join(f"- {line}" for line in _verdict(r)),
        _speeds(r),
        _words(r),
        "\n".join(f"- {line}" for line in _remarks(r)),
        "## Where a run's time goes",
        _stages(r),
        "## Share of the engine's own ceiling",
        _ceiling(r),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = True) -> str:
    """`figures`: they stand in all columns but the first."""
    ruler = ["---:" if figures and i else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def _speeds(r: Results) -> str:
    rows = []
    for name in (SPOTSCRIBE, *r.peers):
        row = [name]
        for time in (inside, process):
            known = [r.audio_s / t for x in r.runs[name] if (t := time(x)) is not None]
            row += [spread(known).shown("{:.1f}") if known else "-", _beside(r, name, time)]
        rows.append(row)
    return _table(("", "RTFx", "Spotscribe ÷ it", "RTFx of the whole process", "Spotscribe ÷ it"), rows)


def _beside(r: Results, name: str, time: Time) -> str:
    found = None if name == SPOTSCRIBE else ratios(r.runs[SPOTSCRIBE], {name: r.runs[name]}, time)
    return found.shown() if found else "-"


def _words(r: Results) -> str:
    rows = []
    for name in (SPOTSCRIBE, *r.peers):
        runs = r.runs[name]
        scores = sorted((x.score for x in runs if x.score), key=lambda s: s.wer)
        middle = scores[len(scores) // 2]
        wrong = (middle.substitutions, middle.deletions, middle.insertions)
        memory, cpu = (statistics.median(values) for values in _used(runs))
        rows.append((name, f"{middle.wer:.4f}", *map(str, wrong), f"{memory:.0f}", f"{cpu:.1f}"))
    head = ("", "WER", "words substituted", "deleted", "inserted", "peak memory, MB", "CPU of the whole process, s")
    return _table(head, rows)


def _used(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    return [x.usage.memory_mb for x in runs], [x.usage.cpu_s for x in runs]


def _verdict(r: Results) -> list[str]:
    """The few lines that a README quotes."""
    lines = []
    for time, what in ((inside, "from the first file read to the last text"), (process, "with start and model load")):
        if (found := ratios(r.runs[SPOTSCRIBE], r.peers, time)) is not None:
            lines.append(f"Spotscribe is **{found.shown()} times** as fast as the fastest peer of each round, {what}.")
    if r.peers:
        wer = {name: _wer(r.runs[name]) for name in (SPOTSCRIBE, *r.peers)}
        own = wer.pop(SPOTSCRIBE)
        best = min(wer, key=lambda n: wer[n])
        fastest = min(r.peers, key=lambda n: statistics.median(x.best_s for x in r.peers[n]))
        lines.append(
            f"Its WER is {own:.4f}: {own - wer[best]:+.4f} beside the most exact peer ({best}),"
            f" {own - wer[fastest]:+.4f} beside the fastest ({fastest})."
        )
    return lines


def _others(r: Results) -> str:
    found = [x.usage.others for runs in r.runs.values() for x in runs]
    line = f"Everything else on this machine took {_percent(statistics.median(found))} of its cores meanwhile"
    line += f" ({_percent(max(found))} at most)"
    return f"**{line}: do not trust these times.**" if statistics.median(found) > BUSY else f"{line}."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _wer(runs: Sequence[Run]) -> float:
    return statistics.median(x.score.wer for x in runs if x.score)


def _remarks(r: Results) -> list[str]:
    lines = [f"**{name} was not measured:** {why}." for name, why in r.missing.items()]
    lines += [f"{name}: {note}." for name, note in r.notes.items() if name in r.peers]
    if undone := max(x.counts.get("not_done", 0) for x in r.runs[SPOTSCRIBE]):
        lines.append(
            f"Spotscribe did not end {undone:.0f} recordings as done; they count with the text that they have."
        )
    if r.words < FEW_WORDS:
        lines.append(
            f"**Only {r.words} words are compared: this WER, and speeds from {r.audio_s:.0f} s of audio, say little.**"
        )
    lines.append(_others(r))
    lines.append(
        "RTFx: seconds of audio per second. WER: over all words together, after Whisper's normaliser (English for"
        " English, basic for others; a letter is a word where a script has no spaces)."
    )
    lines.append(
        "Peak memory: of all processes of a contender together, by samples, a page that several share counted once."
    )
    return lines


def _stages(r: Results) -> str:
    runs = r.runs[SPOTSCRIBE]
    seconds = _stage_seconds(runs, r.runs[CEILING])
    whole = sum(seconds.values())
    known = [s for s in STAGES if s in seconds] + sorted(set(seconds) - set(STAGES))
    rows = [(STAGES.get(s, s), f"{seconds[s]:.2f}", f"{100 * seconds[s] / whole:.1f} %") for s in known]
    wall = statistics.median(x.best_s for x in runs)
    cpu = statistics.median(x.usage.cpu_s for x in runs)
    return "\n\n".join(
        (
            _table(("stage", "seconds", "share"), [*rows, ("all", f"{whole:.2f}", "100 %")]),
            "Seconds by the clock, summed over threads, medians of the rounds; a thread that waits for a core counts"
            f" too. The run took {wall:.2f} s on {r.cores} cores ({wall * r.cores:.1f} core-seconds), and {cpu:.1f} s"
            " of CPU with start and model load.",
            "¹ A run times its calls of the model as a whole; they are split here as the engine alone splits them."
            " ² Measured with the engine alone, one answer a chunk.",
        )
    )


def _stage_seconds(runs: Sequence[Run], alone: Sequence[Run]) -> dict[str, float]:
    """Medians. What a run does not tell comes from the engine alone."""
    names = {name for x in runs for name in x.stage_s}
    seconds = {name: statistics.median(x.stage_s.get(name, 0.0) for x in runs) for name in names}
    encode, decode, judge = (statistics.median(x.stage_s[s] for x in alone) for s in ("encode", "decode", "judge"))
    model, whole = seconds.get("decode", 0.0), encode + decode
    return {**seconds, "encode": model * encode / whole, "decode": model * decode / whole, "judge": judge}


def _ceiling(r: Results) -> str:
    runs, alone = r.runs[SPOTSCRIBE], r.runs[CEILING]
    share = spread([100 * b.best_s / a.best_s for a, b in zip(runs, alone, strict=True)])
    speed = spread([r.audio_s / x.best_s for x in alone])
    one, counts = runs[-1].counts, alone[-1].counts
    return (
        f"A run makes **{share.shown('{:.0f}')} %** of what the engine alone makes: {speed.shown('{:.1f}')} times real"
        f" time with the same {counts['chunks']:.0f} chunks in the same windows, in {counts['batches']:.0f} batches as"
        f" full as they can be, on {counts['threads']:.0f} threads, with the recordings decoded, cut and their features"
        f" computed beforehand, and no second attempts. The run took {one['batches']:.0f} batches"
        f" ({100 * one['mean_batch_fill']:.0f} % full in the mean), second attempts and rests included."
    )
