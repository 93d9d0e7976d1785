"""Plots by matplotlib, as SVG that takes its colours from the page's style sheet, light or dark."""

import io
import re
from typing import Any
from xml.etree import ElementTree as ET

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from constrained_k2.evaluation.ab.effects import Effects
from constrained_k2.evaluation.ab.figures import FIGURES
from constrained_k2.evaluation.ab.report.changes import bin_title
from constrained_k2.evaluation.ab.report.table import percent
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.evaluation.judge import KINDS

# One per arm, repeated after the sixth; readable on white. ``page.css`` maps them to those of dark pages.
COLORS = ("#b35900", "#0a58a8", "#2b7a3d", "#8a2f8f", "#9a6700", "#455a64")
_MARKS = "osD^"  # arms differ in shape too, not in colour alone
_TEXT, _DIM, _LINE = "#1b1f24", "#57606a", "#d0d7de"
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: selectable, searchable, read aloud
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
_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_VARIABLES = {color: f"var(--c{number}, {color})" for number, color in enumerate(COLORS)}
_VARIABLES |= {_TEXT: f"var(--text, {_TEXT})", _DIM: f"var(--dim, {_DIM})", _LINE: f"var(--line, {_LINE})"}


def accuracy(results: Results) -> Markup:
    """Every figure of every arm: a mark and its interval."""
    arms, intervals = list(results.arms), results.intervals
    shown = [number for number in range(len(FIGURES)) if any(intervals[arm][number].value is not None for arm in arms)]
    axes = _rows([FIGURES[number].title.strip() for number in shown], 10 + 6 * len(arms))
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    for row, number in enumerate(shown):
        for place, arm in enumerate(arms):
            found = intervals[arm][number]
            if found.value is not None:
                ys = [row + (place - (len(arms) - 1) / 2) * 0.65 / len(arms)] * 3
                tip = f"{arm}: {percent(found.value)} ({percent(found.low)} to {percent(found.high)})"
                axes.plot([found.low, found.value, found.high], ys, markevery=[1], **_look(place, tip))
    return _svg(axes, "Every figure of every arm with its 95 % interval; the table below has the numbers")


def failures(results: Results) -> Markup:
    """Number of answers per kind of failure: a bar per arm."""
    arms = results.arms
    kinds = [kind for kind in KINDS if any(kind in result.kinds for result in arms.values())]
    axes = _rows([KINDS[kind] for kind in kinds], 10 + 13 * len(arms))
    axes.set_xticks([])
    for place, (arm, result) in enumerate(arms.items()):
        ys = [row + (place - (len(arms) - 1) / 2) * 0.8 / len(arms) for row in range(len(kinds))]
        color = COLORS[place % len(COLORS)]
        bars = axes.barh(ys, [result.kinds.get(kind, 0) for kind in kinds], 0.7 / len(arms), color=color, clip_on=False)
        for bar, text in zip(bars, axes.bar_label(bars, padding=4, color=_DIM), strict=True):
            bar.set_gid(f"tip:{arm}: {text.get_text()}")
    return _svg(axes, "Answers per kind of failure; the table below has the numbers")


def calibration(effects: Effects) -> Markup:
    """Share of wrong answers by the most probability that was forbidden at one token: a mark and its interval."""
    bins = [each for each in effects.calibration.bins if each.answers]
    axes = _rows([f"{bin_title(each.low, each.high)} ({each.answers:,})" for each in bins], 26)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0% wrong", "25%", "50%", "75%", "100%"])
    for row, each in enumerate(bins):
        share, (low, high) = each.wrong / each.answers, each.interval
        tip = f"{each.wrong:,} of {each.answers:,} wrong: {percent(share)} ({percent(low)} to {percent(high)})"
        axes.plot([low, share, high], [row] * 3, markevery=[1], **_look(1, tip))
    return _svg(axes, "Share of wrong answers by forbidden probability; the table below has the numbers")


def latencies(results: Results) -> Markup:
    """Cumulative distributions over milliseconds, on a logarithmic scale: a panel per time, a curve per arm."""
    times = {"ttft": "time to first token, ms", "gap": "between tokens, ms", "duration": "whole answer, ms"}
    with rc_context(STYLE):
        panels = Figure(figsize=(_WIDTH / 72, 3.4), dpi=72, layout="tight").subplots(1, len(times))
        for axes, (name, title) in zip(panels, times.items(), strict=True):
            axes.set_title(title)
            axes.set_xscale("log")
            axes.grid(clip_on=False)
            for place, (arm, result) in enumerate(results.arms.items()):
                if curve := list(getattr(result.latency, name).cumulative()):
                    xs, ys = zip((curve[0][0], 0.0), *curve, strict=True)
                    middle = next(number for number, share in enumerate(ys) if share >= 0.5)
                    look = _look(place, f"{arm}: half within {xs[middle]:.3g} ms")
                    axes.plot(xs, ys, drawstyle="steps-post", markevery=[middle], **look)
            low, high = axes.get_xlim()
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axes.minorticks_off()
            axes.set_ylim(0, 1)
            axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    return _svg(panels[0], "Distributions of times by arm; the table below has the quantiles")


def _look(place: int, tip: str) -> dict[str, Any]:
    look = {"color": COLORS[place % len(COLORS)], "marker": _MARKS[place % len(_MARKS)], "gid": f"tip:{tip}"}
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


def _svg(axes: Axes, label: str) -> Markup:
    """Draw as SVG without inline styles, which the page's policy forbids, and without references.

    Styles become attributes, colours the style sheet's variables, references copies, and ``tip:`` ids tooltips.
    """
    file, figure = io.BytesIO(), axes.get_figure(root=True)
    assert figure is not None
    with rc_context(STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    ET.register_namespace("", _SVG[1:-1])
    root = ET.fromstring(file.getvalue())  # noqa: S314 - matplotlib wrote it
    shapes = {f"#{shape.get('id')}": shape for shape in root.iter(f"{_SVG}path")}
    for element in list(root.iter()):
        if (shape := shapes.get(element.attrib.pop(f"{_XLINK}href", ""))) is not None:
            element.tag, element.attrib["d"] = shape.tag, shape.attrib["d"]
            element.set("transform", f"translate({element.attrib.pop('x')} {element.attrib.pop('y')})")
        for name, value in re.findall(r"([a-z-]+): ([^;]+)", element.attrib.pop("style", "")):
            if name != "font-family":  # the page has its own
                element.set(name, _VARIABLES.get(value, value))
        kind, _, tip = element.attrib.pop("id", "").partition(":")
        if kind == "tip":
            ET.SubElement(element, f"{_SVG}title").text = tip
        for child in [*element.findall(f"{_SVG}defs"), *element.findall(f"{_SVG}metadata")]:
            element.remove(child)
    attributes = {"class": "plot", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    root.attrib.clear()
    root.attrib.update(attributes)
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 - written by an XML library
