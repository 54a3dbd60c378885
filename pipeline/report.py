"""A label's jobs as one HTML page that needs no network and no script: counts, plots, and what needs a look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from chunking.errors import Code
from pipeline.meanings import ADVICE, FLAGS
from pipeline.pages import asset, policy, render
from pipeline.plots import Bars, bar_chart, shown
from storage.summary import DURATIONS_S, LOGPROBS, SPEEDS, WAITS_S, Count, Scope, Summary

STATES = ("done", "partial", "failed", "rejected", "cancelled")
CANCELLED = "Somebody cancelled it; retry starts it again."


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and what it shows."""

    bars: Bars
    svg: str


def report_page(found: Summary, scope: Scope, now: datetime) -> str:
    """The page. Raises UsageError where Jinja2 or matplotlib are missing."""
    style = asset("base.css") + asset("report.css")
    total, ended = sum(found.states.values()), sum(found.states.get(s, 0) for s in STATES)
    seconds = sum(found.coverage_s.values())
    return render(
        "report.html.j2",
        style=style,
        csp=policy(style),
        scope=scope,
        now=now.astimezone(UTC),
        found=found,
        total=total,
        at_work=total - ended,
        states=[(s, found.states[s], found.states[s] / total) for s in STATES if s in found.states],
        ends=[(e, advice(e.state, e.code)) for e in found.ends],
        charts=charts(found),
        coverage=[(k, s, s / seconds if seconds else 0.0) for k, s in found.coverage_s.items()],
        speed=_speed(found),
        recorded=span(found.recorded_s),
        device=span(found.device_s),
        cost=_cost(found),
        spans=span,
        shown=shown,
        rows_of=rows_of,
    )


def advice(state: str, code: str) -> str:
    """What to do about jobs that ended so."""
    if state == "cancelled":
        return CANCELLED
    return ADVICE[Code(code)] if code in set(Code) else "Look at the error."


def charts(found: Summary) -> list[Chart]:
    """The plots of what there is."""
    standing = [
        Bars("Length of recordings", "recordings", _marks(DURATIONS_S, span), found.durations, "length"),
        Bars(
            "Time from submission to end", "recordings", _marks(WAITS_S, span), found.waits, "time",
            "Waiting included.",
        ),
        Bars(
            "Speed of single recordings", "recordings", _marks(SPEEDS, lambda x: f"{x:g}×"), found.speeds,
            "seconds of recording for each second from submission to end", "Waiting included.",
        ),
        Bars(
            "Confidence", "segments", _marks(LOGPROBS, lambda x: f"{x:g}".replace("-", "\u2212")), found.logprobs,
            "mean log-probability of a segment’s tokens", "Right is surer; the model itself is doubted below \u22121.",
        ),
    ]  # fmt: skip
    lying = [
        Bars("Flags", "% of segments", _names(found.flags), tuple(100 * f.count / found.segments for f in found.flags)),
        Bars("Languages", "minutes of text", _names(found.languages), tuple(c.seconds / 60 for c in found.languages)),
        Bars("Why seconds failed", "seconds", _names(found.reasons), tuple(c.seconds for c in found.reasons)),
    ]
    drawn = [Chart(b, bar_chart(b)) for b in standing if any(b.values)]
    return drawn + [Chart(b, bar_chart(b, lying=True)) for b in lying if b.names]


def rows_of(bars: Bars) -> list[tuple[str, str]]:
    """The chart in words: each bar's name and value. Names of a histogram are the edges between its bars."""
    if len(bars.names) == len(bars.values):
        names = [f"{n} ({FLAGS[k]})" if (k := n.replace(" ", "_")) in FLAGS else n for n in bars.names]
    else:
        between = [f"{a} to {b}" for a, b in zip(bars.names, bars.names[1:], strict=False)]
        names = [f"under {bars.names[0]}", *between, f"{bars.names[-1]} and more"]
    return [(name, shown(value)) for name, value in zip(names, bars.values, strict=True)]


def span(seconds: float) -> str:
    """A stretch of time for people, in one unit where that is plain: `30 s`, `10 min`, `2.5 h`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size and (size < 86400.0 or seconds >= 2 * size):
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"


def _marks(edges: tuple[float, ...], name: Callable[[float], str]) -> tuple[str, ...]:
    return tuple(name(edge) for edge in edges)


def _names(counts: Sequence[Count]) -> tuple[str, ...]:
    return tuple(c.name.replace("_", " ") or "none" for c in counts)


def _cost(found: Summary) -> tuple[str, str] | None:
    """What it cost, and an hour of recordings; None where no price was told."""
    if not found.cost:
        return None
    each = f"{found.cost * 3600 / found.recorded_s:.4g}" if found.recorded_s else "\u2013"
    return f"{found.cost:.2f}" if found.cost >= 1 else f"{found.cost:.2g}", each


def _speed(found: Summary) -> float | None:
    """Seconds of recordings decoded for each second between the first submission and the last end."""
    if found.first is None or found.last is None or not found.decoded_s:
        return None
    took = (found.last - found.first).total_seconds()
    return found.decoded_s / took if took > 0 else None
