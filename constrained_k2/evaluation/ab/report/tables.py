"""A run's figures as tables of plain text, for any page."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from constrained_k2.evaluation.ab.compare import Interval
from constrained_k2.evaluation.ab.figures import FIGURES, totals, value
from constrained_k2.evaluation.ab.judge import KINDS
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.evaluation.ab.vendor_verifier import PUBLISHED


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        header: The columns' titles; the first column is text, the others are figures.
        rows: Cells, as plain text.
        note: What a reader must know of it.
        is_long: Whether a page may fold it away.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    is_long: bool = False


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for none."""
    return "–" if share is None or math.isnan(share) else f"{share:.1%}"


def points(difference: float) -> str:
    """A difference of shares in percentage points."""
    return f"{difference * 100:+.1f}"


def all_tables(results: Results) -> Iterator[Table]:
    """Every table that has something to show."""
    yield figure_table(results)
    if results.differences:
        yield _differences(results)
    if results.directory.sampling.repetitions > 1:
        yield _pass_hat(results)
    if any(result.kinds for result in results.arms.values()):
        yield _failures(results)
    yield _latency(results)
    if len(set(results.categories)) > 1:
        yield _categories(results)
    yield _published(results)


def figure_table(results: Results, *, is_short: bool = False) -> Table:
    """Every figure of every arm, with its interval and denominator.

    Args:
        results: The run's.
        is_short: Leave out the denominators.
    """
    counts = {arm: totals(results.rows(arm)) for arm in results.arms}
    rows = []
    for place, figure in enumerate(FIGURES):
        found = {arm: value(figure, counts[arm]) for arm in results.arms}
        if any(bottom for _, bottom, _ in found.values()):
            bottoms = {arm: None if is_short else found[arm][1] for arm in results.arms}
            cells = (_with_interval(results.intervals[arm][place], bottoms[arm]) for arm in results.arms)
            rows.append((figure.title, *cells))
    note = (
        f"{int(results.paired.sum())} of {len(results.categories)} samples, those that every arm answered"
        f"{_times(results)}. In brackets the 95 % interval{'' if is_short else '; behind it, of how many'}."
    )
    if any(found["empty_calls"] for found in counts.values()):
        note += (
            " K2VV counts every answer that calls a function without parameters as wrong in schema_accuracy;"
            ' "arguments valid" does not.'
        )
    return Table("Figures", ("", *results.arms), tuple(rows), note)


def _times(results: Results) -> str:
    count = results.directory.sampling.repetitions
    return f" {count} times" if count > 1 else ""


def _with_interval(interval: Interval, bottom: int | None) -> str:
    if interval.value is None:
        return "–"
    text = f"{percent(interval.value)} [{interval.low * 100:.1f}, {interval.high * 100:.1f}]"
    return text if bottom is None else f"{text} of {bottom:,}"


def _differences(results: Results) -> Table:
    rows = []
    for place, figure in enumerate(FIGURES):
        found = [results.differences[arm][place] for arm in results.differences]
        if all(difference.interval.value is None for difference in found):
            continue
        cells = []
        for difference in found:
            interval = difference.interval
            if interval.value is None:
                cells.append("–")
                continue
            verdict = " worse" if difference.is_worse else " better" if difference.is_better else ""
            cells.append(f"{points(interval.value)} [{points(interval.low)}, {points(interval.high)}]{verdict}")
        rows.append((figure.title, *cells))
    for column, title in (("right", "nothing wrong"), ("in_form", "right in form")):
        tests = [results.pairings[arm][column] for arm in results.differences]
        cells = [f"{test.only_first} : {test.only_second}, p = {test.p:.2g}" for test in tests]
        rows.append((f"samples with {title} in {results.baseline} only : here only (McNemar, exact)", *cells))
    note = (
        "Percentage points, with the paired 95 % interval (bootstrap over samples). Called worse or better where the "
        "99 % interval leaves out zero."
    )
    return Table(f"Difference to {results.baseline}", ("", *results.differences), tuple(rows), note)


def _pass_hat(results: Results) -> Table:
    count = results.directory.sampling.repetitions
    rows = tuple(
        (f"pass^{k}", *(percent(results.pass_hat[arm].get(k)) for arm in results.arms)) for k in range(1, count + 1)
    )
    return Table(
        "pass^k", ("", *results.arms), rows, "How likely k answers to a sample have nothing wrong, all of them."
    )


def _failures(results: Results) -> Table:
    rows = tuple(
        (meaning, *(str(result.kinds.get(kind, 0)) for result in results.arms.values()))
        for kind, meaning in KINDS.items()
        if any(kind in result.kinds for result in results.arms.values())
    )
    return Table("What is wrong", ("", *results.arms), rows, "Answers, each by the first of these that applies.")


def _latency(results: Results) -> Table:
    figures = {arm: result.latency.to_json() for arm, result in results.arms.items()}
    titles = {"ttft_ms": "first token", "inter_token_ms": "between tokens", "duration_ms": "whole answer"}
    rows = [
        (f"{title}, ms, {label}", *(_number(figures[arm][f"{name}_{label}"]) for arm in results.arms))
        for name, title in titles.items()
        for label in ("p50", "p90", "p99")
    ]
    rows += [
        ("tokens a second, one answer", *(_number(figures[arm]["tokens_per_second"]) for arm in results.arms)),
        ("calls a second, one answer", *(_number(figures[arm]["calls_per_second"]) for arm in results.arms)),
    ]
    note = "As the client sees it, with the requests of all arms in between; of one answer, not of the server."
    if results.argmax_share is not None:
        share = percent(results.argmax_share)
        note += f" Masks ruled out the model's first choice at {share} of the masked tokens that the server looked at."
    return Table("Times", ("", *results.arms), tuple(rows), note)


def _number(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:,.3g}" if figure < 1000 else f"{figure:,.0f}"


def _categories(results: Results) -> Table:
    rows = []
    shown = [figure for figure in FIGURES if figure.name in {"right", "in_form"}]
    for category in dict.fromkeys(results.categories):
        counts = {arm: totals(results.rows(arm, category)) for arm in results.arms}
        cells = (
            " / ".join(percent(value(figure, counts[arm])[2]) for figure in shown) + f" of {counts[arm]['requests']}"
            for arm in results.arms
        )
        rows.append((category, *cells))
    return Table("By category", ("", *results.arms), tuple(rows), "Answers with nothing wrong / right in form.")


def _published(results: Results) -> Table:
    figures = {figure.name: figure for figure in FIGURES}
    rows = []
    for arm in results.arms:
        counts = totals(results.arms[arm].table)
        _, finished, accuracy = value(figures["schema_accuracy"], counts)
        f1 = percent(value(figures["tool_call_f1"], counts)[2])
        successful = counts["successful_tool_call"]
        rows.append((f"{arm} (this run)", f1, f"{finished:,}", f"{successful:,}", percent(accuracy)))
    for row in PUBLISHED:
        counted = (f"{row.finish_tool_calls:,}", f"{row.successful:,}", f"{row.schema_accuracy:.2%}")
        rows.append((f"{row.model}, {row.provider}", row.tool_call_f1, *counted))
    header = ("", "tool_call_f1", "count_finish_reason_tool_calls", "count_successful_tool_call", "schema_accuracy")
    note = (
        "The tables that K2 Vendor Verifier published on 15 November 2025, other requests to the real models: to know "
        "where the field stands, not to compare with."
    )
    return Table("As K2 Vendor Verifier counts", header, tuple(rows), note, is_long=True)
