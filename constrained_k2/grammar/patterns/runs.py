r"""Splits a regex into Lark rules, so that a JSON escape occurs only at the start of a terminal.

LLGuidance's lexer is greedy and never backtracks. For ``/.+/ "\n"`` inside JSON, it would read the backslash of ``\n``
as part of an escaped quote, which ``.`` matches too, and the line could never end. So an escaped character only begins
a terminal: until its last byte, all terminals that begin with a backslash stay possible. The run of plain characters
after it is part of that terminal, so that no other terminal can begin there with a character that the regex accepts.

    /.+/        t: RUN t_1 | ESCAPED t_1 | ESCAPED_RUN t_1        t_1: "" | ESCAPED t_1 | ESCAPED_RUN t_1
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from constrained_k2.grammar.patterns.characters import Ranges, Untranslatable, common, complement, ranges_of, raw_class
from constrained_k2.grammar.patterns.states import PatternStates, TooManyStates
from constrained_k2.grammar.patterns.tree import Items, parts
from constrained_k2.grammar.patterns.unfolding import END, START
from constrained_k2.grammar.spelling import Spelling
from constrained_k2.threads.interruptible import check_deadline

_MAX_STATES = 1024  # max states of one regex
_MAX_TEXT = 1 << 15  # max characters of a regex's runs in the grammar
_MAX_CHUNKED_TEXT = 1 << 17  # max characters of a regex's rules with runs in chunks: LLGuidance compiles them in 0.1 s
_MAX_WORK = 1 << 22  # max characters written while one state's runs are computed: some milliseconds
_CHUNK = 16  # characters of a run that is written in chunks: few tokens are longer

_Edges = dict[int, dict[int, str]]
"""State -> next state -> a regex of the texts that lead from one to the other."""


class _Steps(NamedTuple):
    """The transitions between the states of a regex."""

    first: int
    plain: _Edges  # transitions by a character inside a run
    single: _Edges  # transitions by a character that begins a terminal
    ends: set[int]  # the states after a whole match

    @property
    def exits(self) -> set[int]:
        """The states in which a run may end."""
        return self.ends | self.single.keys()


def is_plain(items: Items, form: Spelling, alike: Ranges) -> bool:
    """Return True if no match of a regex has a character that the spelling escapes, or that is in ``alike``."""
    for item in items:
        operation, argument = item
        if operation in {sre.IN, sre.LITERAL, sre.NOT_LITERAL}:
            ranges = ranges_of(argument if operation is sre.IN else [item])
            if _escapes(ranges, form) or common(ranges, alike):
                return False
        elif not all(is_plain(part, form, alike) for part in parts(item)):
            return False
    return True


def run_rules(items: Items, form: Spelling, name: str, terminal: Callable[[str], str], alike: Ranges) -> list[str]:
    """Return the rules of a regex; the main rule is called ``name``, the other rules ``name`` with a suffix.

    If counts make whole runs too long, as in ``/.{1,200}/``, runs are written in chunks of a few characters.

    Args:
        items: The parsed regex.
        form: The spelling of its matches.
        name: The name of the main rule.
        terminal: Returns the name of the terminal with a given body: ``/regex/``, or a sequence such as ``L1 L0{3}``.
        alike: Further characters that only begin a terminal, as escaped characters do. The lexer reads bytes, so their
            first byte does not distinguish them from a character that may begin another terminal.

    Raises:
        Untranslatable: The regex has too many states, or a part that is not tracked.
    """
    try:
        steps = _steps(PatternStates([START, *items, END]), form, alike)
    except TooManyStates:
        raise Untranslatable("too many states") from None
    begins = {steps.first, *(to for alternatives in steps.single.values() for to in alternatives)}
    runs = _whole_runs(begins, steps)
    if runs is not None:
        return _lines(steps, _named(runs, terminal), name, terminal)
    steps = steps._replace(plain=_named(steps.plain, terminal))
    chunks = {}
    for state in {*begins, *steps.plain, *steps.ends}:
        check_deadline()
        chunks[state] = _chunks(state, steps)
    lines = _lines(steps, chunks, name, terminal, are_chunks=True)
    if sum(map(len, lines)) > _MAX_CHUNKED_TEXT:
        raise Untranslatable("too many states")
    return lines


def _lines(
    steps: _Steps, runs: _Edges, name: str, terminal: Callable[[str], str], *, are_chunks: bool = False
) -> list[str]:
    """Write the rules of a regex: the main rule, and one for each state in which a terminal ends before more text."""
    single, ends = _named(steps.single, terminal), steps.ends
    inner = {*single, *runs} if are_chunks else {*single}

    def named(text: str, to: int) -> str:
        return f"{terminal(text)} {name}_{to}" if to in inner else terminal(text)

    def behind(text: str, state: int) -> list[str]:
        """The alternatives for a text that leads to a state, alone or with a run after it."""
        alone = [named(text, state)] if state in ends or state in single else []
        return [*alone, *(named(f"{text} {run}".lstrip(), to) for to, run in runs.get(state, {}).items())]

    rules = {name: behind("", steps.first)}
    for state in sorted(inner):
        alternatives = [each for to, one in single.get(state, {}).items() for each in behind(one, to)]
        if are_chunks:  # after a chunk, the run may continue
            alternatives += (named(run, to) for to, run in runs.get(state, {}).items())
        rules[f"{name}_{state}"] = [*[""] * (state in ends), *alternatives]
    if not all(rules.values()):
        raise Untranslatable("an empty class")
    return [
        f"{left}: {' | '.join(each or chr(34) * 2 for each in alternatives)}" for left, alternatives in rules.items()
    ]


def _steps(states: PatternStates, form: Spelling, alike: Ranges) -> _Steps:
    (first,) = states.terms(states.start)
    plain, single = defaultdict[int, dict[int, list[str]]](dict), defaultdict[int, dict[int, list[str]]](dict)
    ends, waiting, seen = set[int](), [first], {first}
    spelled: dict[int, tuple[list[str], list[str]]] = {}  # by the identity of a class, which many steps share
    while waiting:
        state = waiting.pop()
        if states.may_end(state):
            ends.add(state)
        for ranges, to in states.moves(state):
            if id(ranges) not in spelled:
                inside, begun = (common(ranges, complement(alike)), common(ranges, alike)) if alike else (ranges, [])
                begins = [*_escapes(ranges, form), *filter(None, [raw_class(begun, form)])]
                spelled[id(ranges)] = [*filter(None, [raw_class(inside, form)])], begins
            for steps, alternatives in zip((plain, single), spelled[id(ranges)], strict=True):
                if alternatives:
                    known = steps[state].setdefault(to, [])
                    known += (each for each in alternatives if each not in known)
            if to not in seen:
                seen.add(to)
                waiting.append(to)
        if len(seen) > _MAX_STATES:
            raise TooManyStates
    return _Steps(first, _joined(plain), _joined(single), ends)


def _named(edges: _Edges, terminal: Callable[[str], str]) -> _Edges:
    """Replace regexes by the names of their terminals."""
    return {
        state: {to: terminal(f"/{text}/") for to, text in alternatives.items()} for state, alternatives in edges.items()
    }


def _joined(steps: dict[int, dict[int, list[str]]]) -> _Edges:
    return {state: {to: _either(alternatives) for to, alternatives in after.items()} for state, after in steps.items()}


def _escapes(ranges: Ranges, form: Spelling) -> list[str]:
    return [text for code, text in form.escapes.items() if any(low <= code <= high for low, high in ranges)]


def _whole_runs(begins: Iterable[int], steps: _Steps) -> _Edges | None:
    """Return the runs from each of the states ``begins``; None if the runs are too long."""
    runs: _Edges = {}
    size = 0
    for state in begins:
        found = _runs(state, steps.plain, steps.exits)
        size += 0 if found is None else sum(map(len, found.values()))
        if found is None or size > _MAX_TEXT:
            return None
        runs[state] = found
    return runs


def _chunks(first: int, steps: _Steps) -> dict[int, str]:
    """Return terminal bodies by next state: plain texts of ``_CHUNK`` characters, or shorter texts to an exit.

    Raises:
        Untranslatable: The texts are too long. If several paths lead to a state, texts grow by a factor each character.
    """
    exits = steps.exits
    found = defaultdict[int, list[str]](list)
    level = {first: [("", "", 0)]}  # state -> the texts to it: all but the last class, the last class, its count
    for size in range(1, _CHUNK + 1):
        following = defaultdict[int, list[tuple[str, str, int]]](list)
        for state, texts in level.items():
            for to, one in steps.plain.get(state, {}).items():
                following[to] += (
                    (text, last, count + 1) if one == last else (_counted(text, last, count), one, 1)
                    for text, last, count in texts
                )
        level = {}
        for to, texts in following.items():
            if sum(len(text) + len(last) for text, last, _ in texts) > _MAX_CHUNKED_TEXT:
                raise Untranslatable("too many states")
            whole = _any_body([_counted(*text) for text in texts])
            level[to] = texts if len(texts) == 1 else [("", whole, 1)]
            if size == _CHUNK or to in exits:
                found[to].append(whole)
    return {to: _any_body(alternatives) for to, alternatives in found.items()}


def _counted(text: str, last: str, count: int) -> str:
    return f"{text} {last}{f'{{{count}}}' if count > 1 else ''}".strip()


def _any_body(alternatives: list[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"


def _runs(first: int, plain: _Edges, exits: Iterable[int]) -> dict[int, str] | None:
    """Return the regexes of the plain texts, of one character or more, that lead from a state to each exit.

    The states in between are eliminated one by one, as for any automaton. None if that takes too much work.
    """
    edges: _Edges = {-1: dict(plain.get(first, ()))}  # from here only the run's first character may follow
    waiting = list(edges[-1])
    while waiting:
        state = waiting.pop()
        if state not in edges:
            edges[state] = dict(plain.get(state, ()))
            waiting += edges[state]
    sinks = {-2 - state: state for state in exits if state in edges}
    for sink, state in sinks.items():
        edges[state][sink] = ""
    before = defaultdict[int, set[int]](set)
    for state, after in edges.items():
        for to in after:
            before[to].add(state)
    work = 0
    inner = edges.keys() - {-1}
    while inner:
        state = min(inner, key=lambda each: (len(before[each]) * len(edges[each]), each))
        inner.remove(state)
        after = edges.pop(state)
        again = f"(?:{loop})*" if (loop := after.pop(state, None)) else ""
        for source in before.pop(state) - {state}:
            head = edges[source].pop(state)
            for to, tail in after.items():
                each = f"{head}{again}{tail}"
                known = edges[source].get(to)
                edges[source][to] = each if known is None or known == each else _either([known, each])
                before[to].add(source)
                work += len(edges[source][to])
                if work > _MAX_WORK or len(edges[source][to]) > _MAX_TEXT:
                    return None
        for to in after:
            before[to].discard(state)
    return {sinks[to]: run for to, run in edges[-1].items()}


def _either(alternatives: list[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else f"(?:{'|'.join(alternatives)})"
