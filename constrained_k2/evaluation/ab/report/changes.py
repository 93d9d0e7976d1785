"""Reports what the constraint changed: tables for the report, and a few lines for the terminal."""

from collections.abc import Iterator

from constrained_k2.evaluation.ab.effects import Effects, Group, SiteStats
from constrained_k2.evaluation.ab.report.table import DASH, Row, Table, percent
from constrained_k2.evaluation.ab.results import Results
from constrained_k2.evaluation.ab.thresholds import Curve, Outcome
from constrained_k2.explain.advice import advice
from constrained_k2.explain.view import MAX_SHOWN, printable

PLACES, CALIBRATION, DISTORTION = "What the constraint changed", "Forbidden probability", "Does constraining distort?"
THRESHOLDS = "Which calls a threshold declines"
"""The titles of the tables."""

_TOP = 15  # places


def change_tables(results: Results) -> Iterator[Table]:
    """The tables, without those that the run has no data for."""
    for effects in results.effects:
        tables = [_places(effects)]
        if effects.answers:
            tables.append(_calibration(effects))
            if effects.groups[0].written is not None:
                tables.append(_distortion(effects))
        if effects.curve is not None:
            tables.append(_thresholds(effects.curve))
        for table in tables:
            yield table._replace(title=title_of(table.title, effects, results))


def title_of(title: str, effects: Effects, results: Results) -> str:
    """The title of a table: with the arm's name, if several arms have one."""
    return title if len(results.effects) == 1 else f"{title}: {effects.arm}"


def _places(effects: Effects) -> Table:
    rows = tuple(
        (
            where(place),
            ", ".join(place.keywords),
            _change(place),
            f"{place.answers:,}",
            f"{place.right:,}",
            f"{place.repaired:,}",
            f"{place.harmed:,}",
            advice(place.keywords),
        )
        for place in effects.places[:_TOP]
    )
    note = (
        f"{effects.arm}, asked again at temperature 0: {effects.answers:,} answers, {effects.examined:,} tokens "
        f"examined, of these {effects.overrides:,} overridden. A row is a place and the keyword that forbids the "
        "likeliest token there; its change is the most frequent one, of whole values where both answers hold them, "
        "with its count. Right: overridden answers with nothing wrong; repaired: of these, the ones that are wrong "
        "without the constraint; harmed: wrong ones that are right without it."
    )
    if len(effects.places) > _TOP:
        note += f" {len(effects.places) - _TOP:,} further places are in scores.json."
    if effects.left_out:
        note += f" {effects.left_out:,} samples are left out, the first one because: {effects.error[:200]}"
    columns = ("forbidden by", "wanted → written", "answers", "right", "repaired", "harmed", "what to do")
    return Table(PLACES, columns, rows, note, holds_text=True)


def _calibration(effects: Effects) -> Table:
    rows: list[Row] = []
    for each in effects.calibration.bins:
        low, high = each.interval
        share = f"{percent(each.wrong / each.answers)} [{low * 100:.1f}, {high * 100:.1f}]" if each.answers else DASH
        rows.append((bin_title(each.low, each.high), f"{each.answers:,}", f"{each.wrong:,}", share))
    note = (
        "Answers by the most probability that the mask forbade at one of their overridden tokens, and the share of "
        "wrong ones with its 95 % interval."
    )
    if effects.calibration.separation is not None:
        note += (
            f" A wrong answer had more forbidden than a right one in {percent(effects.calibration.separation)} of all "
            f"pairs (half of ties; Mann-Whitney, p = {effects.calibration.p:.2g}): "
            "50 % would say that an override tells nothing about an answer."
        )
    return Table(CALIBRATION, ("answers", "wrong", "share wrong"), tuple(rows), note)


def bin_title(low: float, high: float) -> str:
    """A bin of forbidden probability in words."""
    if not high:
        return "no override"
    return f"up to {high:.0%}" if not low else f"{low:.0%} to {high:.0%}"


def _distortion(effects: Effects) -> Table:
    def row(group: Group) -> Row:
        written, plain = (None if each is None else f"{each:.3f}" for each in (group.written, group.unconstrained))
        cost = DASH if group.cost is None else f"{group.cost:.1f}"
        right = f"{group.right:,} / {group.unconstrained_right:,}"
        return (group.title, f"{group.answers:,}", right, written or DASH, plain or DASH, cost)

    note = (
        "Greedy answers, scored by the unconstrained model: the probability per token (geometric mean over an answer, "
        "then the median over answers) of what was written with the constraint, and of what the model writes without "
        "it. Cost: how many bits less probable the whole constrained answer is, the median. Right: with the "
        "constraint / without it."
    )
    columns = ("answers", "right", "probability per token", "unconstrained", "cost, bits")
    return Table(DISTORTION, columns, tuple(row(group) for group in effects.groups if group.answers), note)


def _thresholds(curve: Curve) -> Table:
    def row(first: Outcome, second: Outcome) -> Row:
        return (
            f"{first.threshold:g}{' (chosen)' * (first.threshold == curve.chosen)}",
            f"{first.unasked:,} / {second.unasked:,}",
            f"{first.declined:,} / {second.declined:,}",
            f"{first.correct_declines:,} / {second.correct_declines:,}",
            f"{first.lost:,} / {second.lost:,}",
        )

    note = (
        "Greedy answers of this arm, which declines no call, and the calls that each threshold would have declined. "
        "Cells show one half of the samples / the other half. Rightly: no call that was asked for is lost. The chosen "
        "threshold has the smallest sum of calls not asked for and calls lost in the first half."
    )
    columns = ("calls not asked for", "declined", "rightly", "calls lost")
    return Table(THRESHOLDS, columns, tuple(map(row, curve.first, curve.second)), note)


def telling_lines(results: Results) -> Iterator[str]:
    """Lines about the places that tell most, for a terminal."""
    effects = next((each for each in results.effects if each.places), None)
    if effects is None:
        return
    yield f"{PLACES}, in {effects.answers:,} greedy answers:"
    for place in effects.most_informative():
        fate = f"{place.right:,} right, {place.repaired:,} of them wrong without it"
        yield f"  {where(place)}, {_shown(', '.join(place.keywords)) or 'unknown'}: {_change(place)}"
        yield f"    answers overridden: {place.answers:,}; {fate}, {place.harmed:,} wrong that were right"


def where(place: SiteStats) -> str:
    """A place in words."""
    if place.pointer is None:
        return _shown(" ".join(filter(None, (place.tool, place.phase.replace("_", " ")))))
    return _shown(f"{place.tool or 'answer'} {place.pointer or '(the object)'}")


def _change(place: SiteStats) -> str:
    (before, after), times = place.change
    quotes = ("", "") if place.values else ("“", "”")  # values are JSON, tokens may be blank
    before, after = (_shown(each).join(quotes) for each in (before, after))
    return f"{before} → {after} ({times:,})"


def _shown(text: str) -> str:
    return printable(text, MAX_SHOWN)
