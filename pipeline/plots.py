"""Bar charts as SVG that can stand in a page: text is text, colours are the page's, nothing is loaded.

The only importer of matplotlib, which lays out ticks and labels well. Its inline styles become attributes, since the
page's Content-Security-Policy heeds no inline style, and its colours are names that the page's style gives colours to.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.extras import needs

INK, MUTED, LINE, BAR = "#000001", "#000002", "#000003", "#000004"
"""Stand-ins: report.css gives each its colour, light and dark."""
_SIZE = (5.6, 2.7)
"""Inches, at 72 units each."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "spotscribe",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "xtick.color": MUTED,
    "xtick.labelsize": 9.5,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


@dataclass(frozen=True, slots=True)
class Bars:
    """What a chart shows, and what a table beside it says in words and figures."""

    title: str
    unit: str
    """Of the values."""
    names: tuple[str, ...]
    values: tuple[float, ...]
    axis: str = ""
    """What the names are."""
    note: str = ""


def bar_chart(bars: Bars, *, lying: bool = False) -> str:
    """SVG. `lying`: bars from left to right, for long names. Raises UsageError where matplotlib is missing."""
    matplotlib = needs("matplotlib", "A report")
    figures = needs("matplotlib.figure", "A report")
    with matplotlib.rc_context(_STYLE):
        height = 0.15 + 0.32 * len(bars.names) if lying else _SIZE[1]
        figure = figures.Figure(figsize=(_SIZE[0], height), layout="constrained")
        axes = figure.add_subplot()
        places = range(len(bars.values))
        draw, width = (axes.barh, 0.62) if lying else (axes.bar, 0.86)
        _label(axes, draw(places, bars.values, width, color=BAR), bars, lying=lying)
        _scale(axes, bars, lying=lying)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return plain(out.getvalue())


def shown(value: float) -> str:
    """A value as it stands at its bar."""
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 10 or value == int(value) else f"{value:.1f}"


def plain(svg: str) -> str:
    """The drawing alone: without prologue, metadata, its own style, size and ids; styles as attributes."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    for size in ("width", "height"):
        body = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", body, count=1)
    body = re.sub(r' style="([^"]*)"', lambda m: _attributes(m[1]), body)
    body = re.sub(r' id="(?!m[0-9a-f]{10})[^"]*"', "", body)
    return body.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)


def _attributes(style: str) -> str:
    """`fill: #fff; font: 10px 'Sans'` → attributes. The page chooses fonts; a font's size is in `font`."""
    out = ""
    for part in style.split(";"):
        name, _, value = (p.strip() for p in part.partition(":"))
        if name == "font":
            size = re.search(r"[0-9.]+px", value)
            out += f' font-size="{size[0]}"' if size else ""
        elif name:
            out += f' {name}="{value}"'
    return out


def _scale(axes: Any, bars: Bars, *, lying: bool) -> None:
    """No axis of values: each stands at its bar."""
    room = max(bars.values, default=0.0) or 1.0
    if lying:
        axes.set_yticks(range(len(bars.names)), bars.names)
        axes.set_ylim(len(bars.names) - 0.5, -0.5)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xlim(0, room * 1.25)
    else:  # names are edges between bars
        axes.set_xticks([i + 0.5 for i in range(len(bars.names))], bars.names)
        axes.set_xlabel(bars.axis)
        axes.yaxis.set_visible(False)
        axes.set_ylim(0, room * 1.15)
    axes.tick_params(length=0 if lying else 3)


def _label(axes: Any, drawn: Sequence[Any], bars: Bars, *, lying: bool) -> None:
    for bar, value in zip(drawn, bars.values, strict=True):
        if not value:
            continue
        x, y = bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height()
        at = (x, y - bar.get_height() / 2) if lying else (x - bar.get_width() / 2, y)
        ha, va, away = ("left", "center", (4, 0)) if lying else ("center", "bottom", (0, 2))
        axes.annotate(shown(value), at, xytext=away, textcoords="offset points", color=INK, fontsize=9.5, ha=ha, va=va)
