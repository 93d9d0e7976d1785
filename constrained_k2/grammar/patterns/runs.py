r"""Splits a regular expression into rules. Their terminals are an escaped character, a run of plain ones, or both.

LLGuidance's lexer is greedy and never backtracks. For ``/.+/ "\n"`` inside JSON, it would read the backslash of ``\n``
as part of an escaped quote, which ``.`` matches too, and the line could never end. So an escaped character only begins
a terminal: until its last byte, all terminals that begin with a backslash stay possible. The run behind it belongs to
the same terminal, so that no other terminal can begin there with a character that this expression accepts next.

    /.+/        t: RUN t_1 | ESCAPED t_1 | ESCAPED_RUN t_1        t_1: "" | ESCAPED t_1 | ESCAPED_RUN t_1
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections import defaultdict
from collections.abc import Callable, Iterable

from constrained_k2.grammar.patterns.characters import Ranges, Untranslatable, ranges_of, raw_class
from constrained_k2.grammar.patterns.states import PatternStates, TooManyStates
from constrained_k2.grammar.patterns.tree import Items, parts
from constrained_k2.grammar.patterns.ways import END, START
from constrained_k2.grammar.spelling import Spelling

_MAX_STATES = 1024  # of one expression
_MAX_TEXT = 1 << 15  # characters of an expression's runs, in the grammar
_MAX_WORK = 1 << 22  # characters that are written on the way to one state's runs: some milliseconds

_Edges = dict[int, dict[int, str]]
"""State -> state -> a regex of the texts between them."""


def is_plain(items: Items, form: Spelling) -> bool:
    """Return True if no text of an expression has a character that the spelling escapes."""
    for item in items:
        operation, argument = item
        if operation in {sre.IN, sre.LITERAL, sre.NOT_LITERAL}:
            if _escapes(ranges_of(argument if operation is sre.IN else [item]), form):
                return False
        elif not all(is_plain(part, form) for part in parts(item)):
            return False
    return True


def run_rules(items: Items, form: Spelling, name: str, terminal: Callable[[str], str]) -> list[str]:
    """Return rules of an expression; that of the whole has this name, the others have it with a suffix.

    ``terminal`` takes a regex and returns the name of its terminal.

    Raises:
        Untranslatable: The expression has too many states, or a part that is not tracked.
    """
    try:
        states = PatternStates([START, *items, END])
        (first,) = states.terms(states.start)
        plain, escaped, ends = _steps(states, first, form)
    except TooManyStates:
        raise Untranslatable("too many states") from None
    exits = ends | escaped.keys()  # the states in which a run may end
    runs = {state: _runs(state, plain, exits) for state in {first, *(to for ways in escaped.values() for to in ways)}}

    def behind(text: str, state: int) -> list[str]:
        """The alternatives that write a text which leads to a state, alone or with a run behind it."""
        ways = [(text, state)] if state in exits else []
        ways += ((text + run, to) for to, run in runs[state].items())
        return [f"{terminal(one)} {name}_{to}" if to in escaped else terminal(one) for one, to in ways]

    rules = {name: behind("", first)}
    for state in sorted(escaped):
        ways = [way for to, one in escaped[state].items() for way in behind(one, to)]
        rules[f"{name}_{state}"] = [*[""] * (state in ends), *ways]
    lines = [f"{left}: {' | '.join(way or chr(34) * 2 for way in ways)}" for left, ways in rules.items()]
    if sum(map(len, lines)) > _MAX_TEXT:
        raise Untranslatable("too many states")
    return lines


def _steps(states: PatternStates, first: int, form: Spelling) -> tuple[_Edges, _Edges, set[int]]:
    """Return the steps between states by a plain character, and by an escaped one, and the states of whole matches."""
    plain, escaped = defaultdict[int, dict[int, list[str]]](dict), defaultdict[int, dict[int, list[str]]](dict)
    ends, waiting, seen = set[int](), [first], {first}
    while waiting:
        state = waiting.pop()
        if states.may_end(state):
            ends.add(state)
        for ranges, to in states.moves(state):
            for steps, ways in ((plain, [*filter(None, [raw_class(ranges, form)])]), (escaped, _escapes(ranges, form))):
                if ways:
                    known = steps[state].setdefault(to, [])
                    known += (way for way in ways if way not in known)
            if to not in seen:
                seen.add(to)
                waiting.append(to)
        if len(seen) > _MAX_STATES:
            raise TooManyStates
    return _joined(plain), _joined(escaped), ends


def _joined(steps: dict[int, dict[int, list[str]]]) -> _Edges:
    return {state: {to: _either(ways) for to, ways in after.items()} for state, after in steps.items()}


def _escapes(ranges: Ranges, form: Spelling) -> list[str]:
    return [text for code, text in form.escapes.items() if any(low <= code <= high for low, high in ranges)]


def _runs(first: int, plain: _Edges, exits: Iterable[int]) -> dict[int, str]:
    """Return the regexes of the plain texts, of one character or more, that lead from a state to each of others.

    The states between are taken out one by one: what led through one leads past it.
    """
    edges: _Edges = {-1: dict(plain.get(first, ()))}  # from here nothing but the run's first character
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
                way = f"{head}{again}{tail}"
                known = edges[source].get(to)
                edges[source][to] = way if known is None or known == way else _either([known, way])
                before[to].add(source)
                work += len(edges[source][to])
        for to in after:
            before[to].discard(state)
        if work > _MAX_WORK:
            raise Untranslatable("too many states")
    return {sinks[to]: run for to, run in edges[-1].items()}


def _either(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
