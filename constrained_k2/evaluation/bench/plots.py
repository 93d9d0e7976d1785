"""The figures as SVG: two small charts, without a library for it."""

import math
from html import escape
from pathlib import Path

from constrained_k2.evaluation.bench.run import Figures
from constrained_k2.evaluation.bench.workload import PHASES

_COLORS = ("#0b6e4f", "#c8553d", "#4c6fae")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 400, 70, 60, 50
Series = dict[str, list[tuple[str, float]]]


def write_plots(figures: Figures, folder: Path) -> list[Path]:
    """Write ``first_mask.svg`` and ``steps.svg``.

    Returns:
        Their paths.
    """
    first: Series = {
        arm: [(f"{size} tools", kinds["cold"].p50) for size, kinds in found.items()]
        for arm, found in figures.first_mask.items()
    }
    steps: Series = {arm: [(phase, found.fill[phase].p50) for phase in PHASES] for arm, found in figures.steps.items()}
    paths = []
    for name, title, series in (
        ("first_mask", "Time to the first mask, nothing compiled before: ms, p50", first),
        ("steps", "A mask, by where its token stands: us, p50", steps),
    ):
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(bars(title, series))
    return paths


def bars(title: str, series: Series) -> str:
    """Groups of bars over a logarithmic scale, each with its value.

    Args:
        title: With the unit.
        series: Name -> (group, value above zero); all series name the groups in one order, the first one all of them.
    """
    groups = [group for group, _ in next(iter(series.values()))]
    values = [value for points in series.values() for _, value in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    height = _HEIGHT - _TOP - _BOTTOM

    def y(value: float) -> float:
        return _TOP + height * (1 - (math.log10(value) - low) / (high - low))

    room = (_WIDTH - _LEFT - 10) / len(groups)
    width = room * 0.8 / len(series)
    parts = [_text(_LEFT, 22, title, size=15)]
    for power in range(low, high + 1):
        line = y(10.0**power)
        parts.append(f'<path d="M{_LEFT} {line:.1f}H{_WIDTH - 10}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, line + 4, f"{10.0**power:g}", anchor="end"))
    for number, (name, points) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<rect x="{_LEFT + number * 180}" y="34" width="11" height="11" fill="{color}"/>')
        parts.append(_text(_LEFT + number * 180 + 16, 44, name))
        for group, value in points:
            x = _LEFT + groups.index(group) * room + room * 0.1 + number * width
            top = y(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{width - 1:.1f}" height="{_TOP + height - top:.1f}" '
                f'fill="{color}"/>'
            )
            parts.append(_text(x + width / 2, top - 3, f"{value:.3g}", size=9, anchor="middle"))
    parts += [
        _text(_LEFT + (place + 0.5) * room, _HEIGHT - _BOTTOM + 18, group, anchor="middle")
        for place, group in enumerate(groups)
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
