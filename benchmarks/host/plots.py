"""Plots of the host benchmark, as SVG."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from benchmarks.host.run import Figures
from benchmarks.host.workload import PHASES
from constrained_k2.evaluation.ab.report.plots import COLORS, STYLE
from constrained_k2.evaluation.ab.report.tables import three_digits

Series = Mapping[str, Mapping[str, float]]
"""Arm -> group -> value above zero; all arms have the same groups, in one order."""


def write_plots(figures: Figures, folder: Path) -> list[Path]:
    """Write ``first_mask.svg`` and ``steps.svg``; return their paths."""
    first: Series = {
        arm: {f"{size} tools": kinds["cold"].p50 for size, kinds in found.items()}
        for arm, found in figures.first_mask.items()
    }
    steps: Series = {arm: {phase: found.fill[phase].p50 for phase in PHASES} for arm, found in figures.steps.items()}
    paths = [folder / "first_mask.svg", folder / "steps.svg"]
    bars("Time to the first mask with cold caches, ms, p50", first, paths[0])
    bars("Time to fill one mask, by the phase of its token, us, p50", steps, paths[1])
    return paths


def bars(title: str, series: Series, path: Path) -> None:
    """Write groups of bars on a logarithmic scale, each bar with its value."""
    groups = list(next(iter(series.values())))
    with rc_context(STYLE):
        axes = Figure(figsize=(10, 5.6), dpi=72, layout="tight").subplots()
        axes.set_title(title, pad=30)
        axes.set_yscale("log")
        axes.grid(axis="y")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        for number, (arm, values) in enumerate(series.items()):
            shift = (number - (len(series) - 1) / 2) * 0.8 / len(series)
            xs = [place + shift for place, group in enumerate(groups) if group in values]  # --skip-slow leaves some out
            color = COLORS[number % len(COLORS)]
            heights = [values[group] for group in groups if group in values]
            drawn = axes.bar(xs, heights, 0.76 / len(series), label=arm, color=color)
            axes.bar_label(drawn, fmt=three_digits, padding=2, fontsize=9)
        axes.set_xticks(range(len(groups)), groups)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(series), frameon=False)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.savefig(path, metadata={"Date": None})
