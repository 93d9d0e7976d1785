"""Plots as SVG, drawn by hand: they take their colours from the page, so that they fit a dark one too."""

import math
from collections.abc import Callable, Sequence

from constrained_k2.evaluation.ab.figures import FIGURES
from constrained_k2.evaluation.ab.judge import KINDS
from constrained_k2.evaluation.ab.latency import Histogram, Latency
from constrained_k2.evaluation.ab.report.tables import percent
from constrained_k2.evaluation.ab.report.text import as_html
from constrained_k2.evaluation.ab.results import Results

COLORS = 6
"""How many arms have a colour of their own; the shapes go on."""

_LEFT, _WIDTH = 290, 900
_PANELS: tuple[tuple[str, Callable[[Latency], Histogram]], ...] = (
    ("first token", lambda latency: latency.ttft),
    ("between tokens", lambda latency: latency.gap),
    ("whole answer", lambda latency: latency.duration),
)


def legend(arms: Sequence[str]) -> str:
    """The arms with their colours and shapes."""
    parts = [
        f'<li><svg width="14" height="14" aria-hidden="true">{_mark(number, 7, 7)}</svg> {as_html(arm)}</li>'
        for number, arm in enumerate(arms)
    ]
    return f'<ul class="legend">{"".join(parts)}</ul>'


def accuracy(results: Results) -> str:
    """Every figure of every arm, as a mark with its interval."""
    shown = [
        (place, figure)
        for place, figure in enumerate(FIGURES)
        if any(results.intervals[arm][place].value is not None for arm in results.arms)
    ]
    step = 12 + 9 * len(results.arms)
    height = 34 + step * len(shown)
    parts = _percent_grid(height)
    for row, (place, figure) in enumerate(shown):
        top = 10 + row * step
        middle = top + step / 2
        parts.append(
            f'<text x="{_LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end">{as_html(figure.title.strip())}</text>'
        )
        parts.append(f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{top + step:.1f}" y2="{top + step:.1f}"/>')
        for number, arm in enumerate(results.arms):
            interval = results.intervals[arm][place]
            if interval.value is None:
                continue
            y = top + 10 + number * 9
            ends = f"{percent(interval.low)} to {percent(interval.high)}"
            parts.append(
                f"<g><title>{as_html(arm)}: {percent(interval.value)} ({ends})</title>"
                f'<line class="s{number % COLORS} whisker" x1="{_at(interval.low):.1f}" x2="{_at(interval.high):.1f}" '
                f'y1="{y}" y2="{y}"/>{_mark(number, _at(interval.value), y)}</g>'
            )
    return _svg(height, "Every figure of every arm with its 95 % interval; the table below has the numbers", parts)


def failures(results: Results) -> str:
    """How many answers went wrong in which way, a bar an arm."""
    kinds = [kind for kind in KINDS if any(kind in result.kinds for result in results.arms.values())]
    if not kinds:
        return "<p>Nothing is wrong with any answer.</p>"
    most = max(max(result.kinds.values(), default=0) for result in results.arms.values())
    step = 14 + 13 * len(results.arms)
    height = 12 + step * len(kinds)
    room = _WIDTH - _LEFT - 60
    parts = []
    for row, kind in enumerate(kinds):
        top = 6 + row * step
        parts.append(
            f'<text x="{_LEFT - 12}" y="{top + step / 2:.1f}" text-anchor="end">{as_html(_short(KINDS[kind]))}'
            f"<title>{as_html(KINDS[kind])}</title></text>"
        )
        for number, (arm, result) in enumerate(results.arms.items()):
            count, y = result.kinds.get(kind, 0), top + 4 + number * 13
            width = count / most * room
            parts.append(
                f"<g><title>{as_html(arm)}: {count}</title>"
                f'<rect class="f{number % COLORS}" x="{_LEFT}" y="{y}" width="{max(width, 1):.1f}" height="10"/>'
                f'<text class="small" x="{_LEFT + width + 6:.1f}" y="{y + 9}">{count}</text></g>'
            )
    return _svg(height, "How many answers went wrong in which way; the table below has the numbers", parts)


def latencies(results: Results) -> str:
    """The share of all that took no longer, over milliseconds on a logarithmic axis: a panel a time, a curve an arm."""
    panels = []
    for title, pick in _PANELS:
        curves = {arm: list(pick(result.latency).cumulative()) for arm, result in results.arms.items()}
        known = [x for curve in curves.values() for x, _ in curve]
        if not known:
            continue
        panels.append(_panel(title, curves, min(known), max(known)))
    if not panels:
        return "<p>No answer was timed.</p>"
    return f'<div class="panels">{"".join(panels)}</div>'


def _panel(title: str, curves: dict[str, list[tuple[float, float]]], low: float, high: float) -> str:
    width, height, left, bottom, top = 290, 220, 38, 190, 26
    start, end = math.log10(low) - 0.05, math.log10(high) + 0.05

    def x(milliseconds: float) -> float:
        return left + (math.log10(milliseconds) - start) / (end - start) * (width - left - 10)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    parts = [f'<text class="title" x="{left}" y="14">{as_html(title)}, ms</text>']
    for share in (0, 0.5, 1):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>')
        parts.append(f'<text class="small" x="{left - 5}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for tick in _ticks(low, high):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="small" x="{x(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{tick:,g}</text>')
    for number, (arm, curve) in enumerate(curves.items()):
        if not curve:
            continue
        path, before = f"M{x(curve[0][0]):.1f},{y(0):.1f}", 0.0
        for milliseconds, share in curve:
            path += f"L{x(milliseconds):.1f},{y(before):.1f}V{y(share):.1f}"
            before = share
        middle = next(milliseconds for milliseconds, share in curve if share >= 0.5)
        parts.append(
            f'<g><title>{as_html(arm)}: half within {middle:.3g} ms</title><path class="s{number % COLORS} curve" '
            f'd="{path}"/>{_mark(number, x(middle), y(0.5))}</g>'
        )
    label = f"Distribution of times, {title}, by arm; the table below has the quantiles"
    head = f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="{as_html(label)}">'
    return f"{head}{''.join(parts)}</svg>"


def _ticks(low: float, high: float) -> list[float]:
    """1, 10, 100, ... within the range; 2 and 5 too where it is short."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 40 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in ticks if low / 1.1 <= tick <= high * 1.1]


def _percent_grid(height: float) -> list[str]:
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{_at(share):.1f}" x2="{_at(share):.1f}" y1="4" y2="{height - 20}"/>')
        parts.append(
            f'<text class="small" x="{_at(share):.1f}" y="{height - 6}" text-anchor="middle">{share:.0%}</text>'
        )
    return parts


def _at(share: float) -> float:
    return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - 24)


def _mark(number: int, x: float, y: float) -> str:
    """A circle, a square, a diamond, a triangle: arms differ in shape too, not in colour alone."""
    style = f'class="f{number % COLORS}"'
    if number % 4 == 0:
        return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    if number % 4 == 1:
        return f'<rect {style} x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    if number % 4 == 2:
        return f'<path {style} d="M{x:.1f},{y - 5.5:.1f}l5.5,5.5l-5.5,5.5l-5.5,-5.5z"/>'
    return f'<path {style} d="M{x:.1f},{y - 5:.1f}l5,9h-10z"/>'


def _short(text: str) -> str:
    return text if len(text) <= 42 else f"{text[:40].rsplit(' ', 1)[0]} …"


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{as_html(label)}">'
        f"{''.join(parts)}</svg>"
    )
