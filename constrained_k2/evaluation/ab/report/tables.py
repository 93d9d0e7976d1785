"""A run's figures as tables of plain text, for every kind of report."""

from collections.abc import Callable, Iterable, Iterator

from constrained_k2.evaluation.ab.figures import FIGURES, PUBLISHED, Figure, totals, value
from constrained_k2.evaluation.ab.report.changes import change_tables
from constrained_k2.evaluation.ab.report.table import Row, Table, percent
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.evaluation.judge import KINDS


def all_tables(results: Results) -> Iterator[Table]:
    """The tables of a full report, without those that this run has no data for."""
    yield figure_table(results)
    if results.differences:
        yield _differences(results)
    if results.directory.sampling.repetitions > 1:
        yield _pass_hat(results)
    if any(result.kinds for result in results.arms.values()):
        yield _failures(results)
    yield from change_tables(results)
    yield _latency(results)
    if len(set(results.categories)) > 1:
        yield _categories(results)
    yield _published(results)


def figure_table(results: Results, *, is_short: bool = False) -> Table:
    """Every figure of every arm, with its interval and (unless ``is_short``) its denominator."""
    counts = {arm: totals(results.rows(arm)) for arm in results.arms}

    def cell(arm: str, number: int, figure: Figure) -> str:
        interval = results.intervals[arm][number]
        if interval.value is None:
            return "–"
        of = "" if is_short else f" of {value(figure, counts[arm])[1]:,}"
        return f"{percent(interval.value)} [{interval.low * 100:.1f}, {interval.high * 100:.1f}]{of}"

    repetitions = results.directory.sampling.repetitions
    times = f", {repetitions} times each" if repetitions > 1 else ""
    note = (
        f"{int(results.paired.sum())} of {len(results.categories)} samples: those that every arm answered{times}. "
        f"In brackets the 95 % interval{'' if is_short else ', then the denominator'}."
    )
    if any(found["empty_calls"] for found in counts.values()):
        note += (
            " In schema_accuracy, K2VV counts every answer that calls a function without parameters as wrong;"
            ' "arguments valid" does not.'
        )
    return Table("Figures", tuple(results.arms), _figure_rows(results.arms, cell), note)


def _figure_rows(arms: Iterable[str], cell: Callable[[str, int, Figure], str]) -> tuple[Row, ...]:
    rows = ((figure.title, *(cell(arm, number, figure) for arm in arms)) for number, figure in enumerate(FIGURES))
    return tuple(row for row in rows if set(row[1:]) != {"–"})


def _differences(results: Results) -> Table:
    def cell(arm: str, number: int, figure: Figure) -> str:
        found = results.differences[arm][number]
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


def _published(results: Results) -> Table:
    figures = {figure.name: figure for figure in FIGURES}
    rows: list[Row] = []
    for arm, result in results.arms.items():
        counts = totals(result.table)
        successful, finished, accuracy = value(figures["schema_accuracy"], counts)
        f1 = percent(value(figures["tool_call_f1"], counts)[2])
        rows.append((f"{arm} (this run)", f1, f"{finished:,}", f"{successful:,}", percent(accuracy)))
    for row in PUBLISHED:
        counted = (f"{row.finish_tool_calls:,}", f"{row.successful:,}", f"{row.successful / row.finish_tool_calls:.2%}")
        rows.append((f"{row.model}, {row.provider}", row.tool_call_f1, *counted))
    columns = ("tool_call_f1", "count_finish_reason_tool_calls", "count_successful_tool_call", "schema_accuracy")
    note = (
        "K2 Vendor Verifier's tables of 15 November 2025: other requests, to the real models. They show the range of "
        "providers; they are not comparable with this run."
    )
    return Table("As K2 Vendor Verifier counts", columns, tuple(rows), note, is_long=True)
