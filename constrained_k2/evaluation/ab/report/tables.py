"""A run's figures, and what the constraint changed, as tables of plain text for every kind of report."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from constrained_k2.evaluation.ab.effects import Curve, Effects, Outcome, SiteStats
from constrained_k2.evaluation.ab.figures import FIGURES, Figure, totals, value
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.evaluation.judge import KINDS
from constrained_k2.explain.keywords import advice
from constrained_k2.explain.view import MAX_SHOWN, printable

Row = tuple[str, ...]  # a title and its cells

_CHANGES, _THRESHOLDS = "What the constraint changed", "Which calls a threshold declines"  # titles
_MAX_PLACES = 15


class Table(NamedTuple):
    """A table of a report; its text is not escaped."""

    title: str
    columns: Row  # titles of all columns but the first, which holds the rows' titles
    rows: tuple[Row, ...]
    note: str = ""  # how to read it
    holds_text: bool = False  # True if its cells are words, which may wrap, rather than figures


def percent(share: float | None) -> str:
    """A share (0 to 1) as a percentage; a dash for None and NaN."""
    return "–" if share is None or math.isnan(share) else f"{share:.1%}"


def all_tables(results: Results) -> Iterator[Table]:
    """The tables of a full report, without those that this run has no data for."""
    yield figure_table(results)
    if results.differences:
        yield _differences(results)
    if results.directory.sampling.repetitions > 1:
        yield _pass_hat(results)
    if any(result.kinds for result in results.arms.values()):
        yield _failures(results)
    yield from _change_tables(results)
    yield _latency(results)
    if len(set(results.categories)) > 1:
        yield _categories(results)


def figure_table(results: Results, *, is_short: bool = False) -> Table:
    """Every figure of every arm, with its interval and (unless ``is_short``) its denominator."""

    def cell(arm: str, figure: Figure) -> str:
        interval = results.intervals[arm][figure.name]
        if interval.value is None:
            return "–"
        of = "" if is_short else f" of {interval.of:,}"
        return f"{percent(interval.value)} [{interval.low * 100:.1f}, {interval.high * 100:.1f}]{of}"

    repetitions = results.directory.sampling.repetitions
    times = f", {repetitions} times each" if repetitions > 1 else ""
    note = (
        f"{int(results.paired.sum())} of {len(results.categories)} samples: those that every arm answered{times}. "
        f"In brackets the 95 % interval{'' if is_short else ', then the denominator'}."
    )
    if any(totals(results.rows(arm))["empty_calls"] for arm in results.arms):
        note += (
            " In schema_accuracy, K2VV counts every answer that calls a function without parameters as wrong;"
            ' "arguments valid" does not.'
        )
    return Table("Figures", tuple(results.arms), _figure_rows(results.arms, cell), note)


def _figure_rows(arms: Iterable[str], cell: Callable[[str, Figure], str]) -> tuple[Row, ...]:
    rows = ((figure.title, *(cell(arm, figure) for arm in arms)) for figure in FIGURES)
    return tuple(row for row in rows if set(row[1:]) != {"–"})


def _differences(results: Results) -> Table:
    def cell(arm: str, figure: Figure) -> str:
        found = results.differences[arm][figure.name]
        if found.difference is None:
            return "–"
        change, low, high = found.difference * 100, found.low * 100, found.high * 100
        verdict = " neutral" if figure.better == "neutral" else " worse" * found.is_worse or " better" * found.is_better
        return f"{change:+.1f} [{low:+.1f}, {high:+.1f}]{verdict}"

    rows = _figure_rows(results.differences, cell)
    for column, title in (("right", "with nothing wrong"), ("in_form", "right in form")):
        tests = [results.pairings[arm][column] for arm in results.differences]
        cells = [f"{test.only_baseline} : {test.only_this}, p = {test.p:.2g}" for test in tests]
        rows += ((f"samples {title} only in {results.baseline} : only here (McNemar, exact)", *cells),)
    note = (
        "Percentage points, with the paired 95 % interval (bootstrap over samples). Worse or better: the 99 % interval "
        "excludes zero. Neutral: this figure makes no arm better or worse."
    )
    return Table(f"Difference to {results.baseline}", tuple(results.differences), rows, note)


def _pass_hat(results: Results) -> Table:
    ks = range(1, results.directory.sampling.repetitions + 1)
    rows = tuple((f"pass^{k}", *(percent(results.pass_hat[arm].get(k)) for arm in results.arms)) for k in ks)
    note = "Probability that k answers to one sample all have nothing wrong."
    return Table("pass^k", tuple(results.arms), rows, note)


def _failures(results: Results) -> Table:
    rows = ((title, *(str(arm.kinds[kind]) for arm in results.arms.values())) for kind, title in KINDS.items())
    found = tuple(row for row in rows if set(row[1:]) != {"0"})
    return Table("Failures", tuple(results.arms), found, "Answers, each counted under the first kind that applies.")


def _latency(results: Results) -> Table:
    figures = [result.latency.to_json() for result in results.arms.values()]
    times = {"ttft_ms": "time to first token", "inter_token_ms": "between tokens", "duration_ms": "whole answer"}
    names = {f"{name}_{p}": f"{title}, ms, {p}" for name, title in times.items() for p in ("p50", "p90", "p99")}
    names |= {f"{what}_per_second": f"{what} per second of one answer" for what in ("tokens", "calls")}
    note = "Measured by the client while requests of all arms are in flight."
    if results.argmax_share is not None:
        share = percent(results.argmax_share)
        note += f" The mask ruled out the model's most likely token at {share} of the masked tokens that were examined."
    rows = tuple((title, *(three_digits(found[name]) for found in figures)) for name, title in names.items())
    return Table("Latency", tuple(results.arms), rows, note)


def three_digits(figure: float | None) -> str:
    """A positive number, to three digits or whole; a dash for none."""
    return "–" if figure is None else f"{figure:,.3g}" if figure < 1000 else f"{figure:,.0f}"


def _categories(results: Results) -> Table:
    shown = [figure for figure in FIGURES if figure.name in {"right", "in_form"}]

    def cell(arm: str, category: str) -> str:
        counts = totals(results.rows(arm, category))
        return " / ".join(percent(value(figure, counts)[2]) for figure in shown) + f" of {counts['requests']}"

    rows = tuple((each, *(cell(arm, each) for arm in results.arms)) for each in dict.fromkeys(results.categories))
    return Table("By category", tuple(results.arms), rows, "Answers with nothing wrong / right in form.")


def _change_tables(results: Results) -> Iterator[Table]:
    """The changes by the constraint in each arm that was asked again."""
    for effects in results.effects:
        tables = [_places(effects)]
        if effects.curve is not None:
            tables.append(_thresholds(effects.curve))
        for table in tables:
            yield table if len(results.effects) == 1 else table._replace(title=f"{table.title}: {effects.arm}")


def _places(effects: Effects) -> Table:
    rows = tuple(
        (
            _where(place),
            ", ".join(place.site.keywords),
            _change(place),
            *(f"{count:,}" for count in (place.answers, place.right, place.repaired, place.harmed)),
            advice(place.site.keywords),
        )
        for place in effects.places[:_MAX_PLACES]
    )
    note = (
        f"{effects.arm}, asked again at temperature 0: {effects.answers:,} answers, {effects.examined:,} tokens "
        f"examined, {effects.overrides:,} of them overridden. A row is a place and the keyword that forbids the "
        "likeliest token there; its change is the most frequent one, of whole values where both answers hold them, "
        "with its count. Right: overridden answers that are right; repaired: right answers that are wrong without the "
        "constraint; harmed: wrong answers that are right without it."
    )
    if len(effects.places) > _MAX_PLACES:
        note += f" {len(effects.places) - _MAX_PLACES:,} further places are in scores.json."
    if effects.left_out:
        note += f" {effects.left_out:,} samples are left out, the first one because: {effects.error[:200]}"
    columns = ("forbidden by", "wanted → written", "answers", "right", "repaired", "harmed", "what to do")
    return Table(_CHANGES, columns, rows, note, holds_text=True)


def _thresholds(curve: Curve) -> Table:
    def row(first: Outcome, second: Outcome) -> Row:
        counts = (f"{one:,} / {other:,}" for one, other in zip(first[1:], second[1:], strict=True))
        return f"{first.threshold:g}{' (chosen)' * (first.threshold == curve.chosen)}", *counts

    note = (
        "Greedy answers of this arm, which declines no call, and the calls that each threshold would have declined. "
        "Cells show one half of the samples / the other half. Rightly: no call that was asked for is lost. The chosen "
        "threshold has the smallest sum of calls not asked for and calls lost in the first half."
    )
    columns = ("calls not asked for", "declined", "rightly", "calls lost")
    return Table(_THRESHOLDS, columns, tuple(map(row, curve.first, curve.second)), note)


def telling_lines(results: Results) -> Iterator[str]:
    """Lines about the places that tell most, for a terminal."""
    effects = next((each for each in results.effects if each.places), None)
    if effects is None:
        return
    yield f"{_CHANGES}, in {effects.answers:,} greedy answers:"
    for place in effects.most_informative():
        fate = f"{place.right:,} right, {place.repaired:,} of them wrong without it"
        yield f"  {_where(place)}, {_shown(', '.join(place.site.keywords)) or 'unknown'}: {_change(place)}"
        yield f"    answers overridden: {place.answers:,}; {fate}, {place.harmed:,} wrong that were right"


def _where(place: SiteStats) -> str:
    phase, tool, pointer, _ = place.site
    if pointer is None:
        return _shown(" ".join(filter(None, (tool, phase.replace("_", " ")))))
    return _shown(f"{tool or 'answer'} {pointer or '(the object)'}")


def _change(place: SiteStats) -> str:
    (before, after), times = place.change
    quotes = ("", "") if place.values else ("“", "”")  # values are JSON, tokens may be blank
    before, after = (_shown(each).join(quotes) for each in (before, after))
    return f"{before} → {after} ({times:,})"


def _shown(text: str) -> str:
    return printable(text, MAX_SHOWN)
