"""Counts the values that the mask forced, right and wrong ones, by the keyword that forbade the model's own token."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.report import Cell, table
from constrained_k2.evaluation.ab.directory import Change
from constrained_k2.evaluation.answer import Record
from constrained_k2.evaluation.judge import decode_arguments, is_accepted, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats.base import WireFormat


class Forced(NamedTuple):
    """A value of one answer, or the keys of an object, with tokens that keywords forbade."""

    keywords: str
    key: str  # the sample's
    tool: str
    argument: str  # empty if a key, a comma or the end of the arguments was due
    is_asked_for: bool  # a right answer calls the function
    is_right: bool  # the value at the end; of all arguments, if those as a whole were due
    was_executable: bool  # without the constraint


def forced_values(
    changes: Sequence[Change], samples: Mapping[str, Sample], wire_format: WireFormat
) -> Iterator[Forced]:
    """Yield each value once for each set of keywords, from greedy answers with the constraint and without it."""
    for change in changes:
        if not change.is_whole:
            continue
        sample = samples[change.key]
        before = judge(sample, change.unconstrained, wire_format).counts
        was_executable = before.valid > 0 and before.valid == before.calls
        places = {
            (", ".join(each.keywords), each.tool, each.pointer.partition("/")[2].partition("/")[0])
            for each in change.overrides or ()
            if each.pointer is not None and each.tool
        }
        for keywords, tool, escaped in sorted(places):
            argument = escaped.replace("~1", "/").replace("~0", "~")
            asked = any(call.name == tool for call in sample.expected or ())
            right = asked and _is_right(sample, change.constrained, tool, argument)
            yield Forced(keywords or "(not found)", change.key, tool, argument, asked, right, was_executable)


def _is_right(sample: Sample, record: Record, tool: str, argument: str) -> bool:
    """True if each call of the function has an accepted value of the argument, or of every argument if it is empty."""
    expected = [call for call in sample.expected or () if call.name == tool]
    calls = [decode_arguments(text)[0] or {} for _, name, text in record.calls if name == tool]

    def is_right(arguments: Mapping[str, object], name: str) -> bool:
        return any(
            is_accepted(arguments[name], call.arguments.get(name, ()), lenient=call.lenient)
            if name in arguments
            else name in call.omissible
            for call in expected
        )

    names = (
        {argument}
        if argument
        else {name for arguments in (*calls, *(call.arguments for call in expected)) for name in arguments}
    )
    return bool(calls) and all(is_right(arguments, name) for arguments in calls for name in names)


def by_keyword(found: Sequence[Forced]) -> str:
    """Return the table of forced values by keyword."""
    groups: defaultdict[str, list[Forced]] = defaultdict(list)
    for each in found:
        groups[each.keywords].append(each)
    rows: list[list[Cell]] = []
    for keywords, values in sorted(groups.items(), key=lambda item: -len(item[1])):
        counted = Counter[str]()
        for each in values:
            counted["asked"] += each.is_asked_for
            counted["right"] += each.is_right
            counted["failed"] += each.is_asked_for and not each.was_executable
            counted["repaired"] += each.is_right and not each.was_executable
            counted["invented"] += each.is_asked_for and not each.is_right and not each.was_executable
        names = ("asked", "right", "failed", "repaired", "invented")
        rows.append([keywords, len(values), *(counted[name] for name in names)])
    columns = ["forbidden by", "values", "values of expected functions", "right now"]
    outcomes = "invalid before", "invalid before, right now", "invalid before, wrong now"
    return table([*columns, *outcomes], rows)


def changed_right_answers(
    changes: Sequence[Change], samples: Mapping[str, Sample], wire_format: WireFormat
) -> list[str]:
    """Describe each answer that is right without the constraint and that the constraint changed."""
    lines = []
    for change in changes:
        sample = samples[change.key]
        if not change.is_whole or not judge(sample, change.unconstrained, wire_format).counts.right:
            continue
        if (change.constrained.calls, change.constrained.content) == (
            change.unconstrained.calls,
            change.unconstrained.content,
        ):
            continue
        still = bool(judge(sample, change.constrained, wire_format).counts.right)
        causes = [
            f"{each.place}: {', '.join(each.keywords)}: {each.wanted!r}, not {each.written!r}"
            for each in change.overrides or ()
        ]
        verdict = "still right" if still else "wrong now"
        lines.append(
            f"{change.arm}, {sample.category}, {change.key}: {verdict}; {'; '.join(causes) or 'no token was forbidden'}"
        )
    return lines
