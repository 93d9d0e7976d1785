"""Draws the plots of the HTML report with matplotlib, as SVG inside the page."""

import io
from base64 import b64encode
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from constrained_k2.evaluation.ab.figures import FIGURES
from constrained_k2.evaluation.ab.latency import ENDS
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.evaluation.judge import KINDS

# One per arm, repeated after the sixth; readable on white. ``page.css`` has the same, and others for dark pages.
COLORS = ("#b35900", "#0a58a8", "#2b7a3d", "#8a2f8f", "#9a6700", "#455a64")
_MARKS = "osD^"  # arms differ in shape too, not in colour alone
_TEXT, _DIM, _LINE = "#1b1f24", "#57606a", "#d0d7de"
STYLE: Any = {
    "svg.hashsalt": "constrained_k2",  # the same plot is the same file
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a "$" in a name does not begin a formula
    "font.family": "sans-serif",
    "font.size": 12,
    "text.color": _TEXT,
    "ytick.labelcolor": _TEXT,
    "xtick.labelcolor": _DIM,
    "ytick.major.pad": 10,
    "grid.color": _LINE,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top", "axes.spines.bottom"), False),
    **dict.fromkeys(("xtick.bottom", "xtick.minor.bottom", "ytick.left", "ytick.minor.left"), False),
}
_WIDTH, _LABELS = 1040, 280  # px


def accuracy(results: Results) -> Markup:
    """Every figure of every arm: a mark and its interval."""
    arms, intervals = list(results.arms), results.intervals
    shown = [each for each in FIGURES if any(intervals[arm][each.name].value is not None for arm in arms)]
    axes = _rows([figure.title.strip() for figure in shown], 10 + 6 * len(arms))
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    for row, figure in enumerate(shown):
        for place, arm in enumerate(arms):
            found = intervals[arm][figure.name]
            if found.value is not None:
                ys = [row + (place - (len(arms) - 1) / 2) * 0.65 / len(arms)] * 3
                axes.plot([found.low, found.value, found.high], ys, markevery=[1], **_look(place))
    return _image(axes, "Every figure of every arm with its 95 % interval; the table below has the numbers")


def failures(results: Results) -> Markup:
    """Number of answers per kind of failure: a bar per arm."""
    arms = results.arms
    kinds = [kind for kind in KINDS if any(kind in result.kinds for result in arms.values())]
    axes = _rows([KINDS[kind] for kind in kinds], 10 + 13 * len(arms))
    axes.set_xticks([])
    for place, result in enumerate(arms.values()):
        ys = [row + (place - (len(arms) - 1) / 2) * 0.8 / len(arms) for row in range(len(kinds))]
        color = COLORS[place % len(COLORS)]
        bars = axes.barh(ys, [result.kinds.get(kind, 0) for kind in kinds], 0.7 / len(arms), color=color, clip_on=False)
        axes.bar_label(bars, padding=4, color=_DIM)
    return _image(axes, "Answers per kind of failure; the table below has the numbers")


def latencies(results: Results) -> Markup:
    """Cumulative distributions over milliseconds, on a logarithmic scale: a panel per time, a curve per arm."""
    times = {"ttft": "time to first token, ms", "gap": "between tokens, ms", "duration": "whole answer, ms"}
    with rc_context(STYLE):
        panels = Figure(figsize=(_WIDTH / 72, 3.4), dpi=72, layout="tight").subplots(1, len(times))
        for axes, (name, title) in zip(panels, times.items(), strict=True):
            axes.set_title(title)
            axes.set_xscale("log")
            axes.grid(clip_on=False)
            for place, result in enumerate(results.arms.values()):
                counts = getattr(result.latency, name).counts
                if counts.any():
                    curve = axes.ecdf(ENDS[counts > 0], counts[counts > 0], **_look(place))
                    curve.set_markevery([int(np.searchsorted(curve.get_ydata(), 0.5))])
            low, high = axes.get_xlim()
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axes.minorticks_off()
            axes.set_ylim(0, 1)
            axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    return _image(panels[0], "Distributions of times by arm; the table below has the quantiles")


def _look(place: int) -> dict[str, Any]:
    look = {"color": COLORS[place % len(COLORS)], "marker": _MARKS[place % len(_MARKS)]}
    return look | {"linewidth": 2, "markersize": 7, "clip_on": False}


def _rows(titles: list[str], row_height: int) -> Axes:
    height = row_height * len(titles) + 26
    left, bottom = _LABELS / _WIDTH, 22 / height
    with rc_context(STYLE):
        axes = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72).add_axes((left, bottom, 0.96 - left, 1 - bottom))
        axes.set_yticks(range(len(titles)), [_short(title) for title in titles])
        axes.set_yticks([row + 0.5 for row in range(len(titles))], minor=True)
        axes.grid(axis="x", clip_on=False)
        axes.grid(axis="y", which="minor", clip_on=False)
        axes.set_ylim(len(titles) - 0.5, -0.5)
    return axes


def _short(text: str) -> str:
    return text if len(text) <= 42 else f"{text[:40].rsplit(' ', 1)[0]} …"


def _image(axes: Axes, label: str) -> Markup:
    """Draw as SVG, on white, within the page."""
    file, figure = io.BytesIO(), axes.get_figure(root=True)
    assert figure is not None
    with rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    data = b64encode(file.getvalue()).decode()
    return Markup('<img class="plot" alt="{}" src="data:image/svg+xml;base64,{}">').format(label, data)
