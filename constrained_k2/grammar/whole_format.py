"""The whole tool-call format as one grammar in LLGuidance's Lark dialect: text, markers, names, indexes and arguments.

Markers are LLGuidance's special-token references, so they are tokens here too, never text. The index that is due is the
64-bit parameter of the rules from call to call, one decimal digit in four bits:

call::_:  "functions." tool::_                                         with the index that is due
tool::_:  "NAME:" index::_ ARGUMENT_BEGIN arguments_0 CALL_END next::_ | …  a line for each tool
next::_:  "" | CALL_BEGIN call::incr([0:4]) %if lt([0:4], 9) | …           the end, or a call with the next index
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from constrained_k2.format import MARKER_TEXTS
from constrained_k2.grammar.terminals import literal
from constrained_k2.tools import ToolCallSpec

LEAST_CALLS = 1000
"""So many calls at least has a turn room for: the number of digits of an index is bounded in the grammar.

LLGuidance's default limits are met before, at 666 calls.
"""

_SECTION_BEGIN = MARKER_TEXTS["section_begin"]
_SECTION_END = MARKER_TEXTS["section_end"]
_CALL_BEGIN = MARKER_TEXTS["call_begin"]
_ARGUMENT_BEGIN = MARKER_TEXTS["argument_begin"]
_CALL_END = MARKER_TEXTS["call_end"]
_THINK_BEGIN = MARKER_TEXTS["think_begin"]
_THINK_END = MARKER_TEXTS["think_end"]
_TURN_END = MARKER_TEXTS["turn_end"]

_BITS = 64
_DIGIT = 4  # bits


def write_lark(spec: ToolCallSpec, arguments: Mapping[str, str], *, in_reasoning: bool = False) -> str:
    """The grammar of a turn.

    Args:
        spec: The request.
        arguments: Function name -> the body of its arguments' rule (``%lark { … }`` or ``%json { … }``).
        in_reasoning: Whether the prompt ends in ``<think>``, so that the turn begins inside the reasoning.

    Returns:
        The grammar. It ends behind ``<|im_end|>``, or where that may follow: the engine's own stop ends it too.
    """
    has_calls = spec.max_calls != 0
    lines = [
        "%llguidance {}",
        f"start: turn {_TURN_END}?",
        f"turn: {' | '.join(_turns(spec, has_calls=has_calls, in_reasoning=in_reasoning))}",
        f"answer: {_answer(spec, has_calls=has_calls)}",
    ]
    if has_calls:
        lines += _one_call(spec) if spec.max_calls == 1 else _calls(spec)
        lines += [f"arguments_{number}: {arguments[tool.name]}" for number, tool in enumerate(spec.tools)]
    if any("TEXT" in line for line in lines[2:4]):
        lines.append("TEXT: /(?s:.)+/")
    return "\n".join(lines) + "\n"


def _turns(spec: ToolCallSpec, *, has_calls: bool, in_reasoning: bool) -> Iterable[str]:
    """The forms of a turn: only the answer, or reasoning before it. A call may open out of the reasoning."""
    if not in_reasoning:
        yield "answer"
        if not spec.thinking:
            return
    opening = "" if in_reasoning else f"{_THINK_BEGIN} "
    yield f"{opening}TEXT? {_THINK_END} answer"
    if has_calls:
        yield f"{opening}TEXT? section"


def _answer(spec: ToolCallSpec, *, has_calls: bool) -> str:
    if not has_calls:
        return "TEXT?"
    return "section" if spec.choice == "required" else "TEXT? section?"


def _one_call(spec: ToolCallSpec) -> Iterable[str]:
    """The rules of a section with exactly one call: the index is part of the header's text."""
    yield f'section: {_SECTION_BEGIN} {_CALL_BEGIN} "functions." tool {_CALL_END} {_SECTION_END}'
    headers = _prefix_free([f"{tool.name}:{spec.first_index}" for tool in spec.tools])
    yield _alternatives(
        "tool", [f"{header} {_ARGUMENT_BEGIN} arguments_{number}" for number, header in enumerate(headers)]
    )


def _calls(spec: ToolCallSpec) -> Iterable[str]:
    """The rules of a section with any number of calls.

    Two forms that LLGuidance 1.7.6 fails on (a panic of its optimizer) are kept out: a rule with one unconditional
    alternative whose only user gives it a parameter, and an alternative that is nothing but a rule with one.
    """
    digits = len(str(spec.first_index + LEAST_CALLS - 1))
    first = f"0x{spec.first_index}"  # a decimal digit in four bits reads the same in hexadecimal
    yield f"section: {_SECTION_BEGIN} {_CALL_BEGIN} call::{first} {_SECTION_END}"
    yield f'call::_: "functions." tool::_ %if lt(_, {_one(digits)})'
    names = _prefix_free([f"{tool.name}:" for tool in spec.tools])
    yield _alternatives(
        "tool::_",
        [
            f"{name} index::_ {_ARGUMENT_BEGIN} arguments_{number} {_CALL_END} next::_"
            for number, name in enumerate(names)
        ],
    )
    yield _alternatives("next::_", ['""', *(_next_call(nines) for nines in range(digits))])
    for nines in range(1, digits):
        digit = _bits(nines, nines + 1)
        yield f'carry_{nines}::_: "functions." tool::incr({digit}) %if lt({digit}, 9)'
    lengths = [f"digit_{length - 1}::_ %if {_has_length(length)}" for length in range(1, digits + 1)]
    yield _alternatives("index::_", lengths)
    for place in reversed(range(digits)):
        rest = f" digit_{place - 1}::_" if place else ""
        ways = [f'"{digit}"{rest} %if eq({_bits(place, place + 1)}, {digit})' for digit in range(10)]
        yield _alternatives(f"digit_{place}::_", ways)


def _next_call(nines: int) -> str:
    """A call with the next index, where the one before ends in exactly so many nines; the carry needs a second step."""
    last, digit = _bits(0, nines), _bits(nines, nines + 1)
    if not nines:
        return f"{_CALL_BEGIN} call::incr({digit}) %if lt({digit}, 9)"
    kept = (1 << _BITS) - _ones(nines)
    return f"{_CALL_BEGIN} carry_{nines}::bit_and(0x{kept:x}) %if and(eq({last}, 0x{'9' * nines}), lt({digit}, 9))"


def _has_length(length: int) -> str:
    """The condition that the index has so many digits, no leading zero among them."""
    below = f"lt(_, {_one(length)})"
    return below if length == 1 else f"and(ge(_, {_one(length - 1)}), {below})"


def _one(place: int) -> str:
    """The parameter in which only the digit of this place is 1: the least with more digits than ``place``."""
    return f"0x{_ones(place):x}"


def _ones(place: int) -> int:
    return 1 << _DIGIT * place


def _bits(low: int, high: int) -> str:
    """The bits of the digits ``low`` to ``high - 1``."""
    return f"[{_DIGIT * low}:{_DIGIT * high}]"


def _alternatives(name: str, bodies: Sequence[str]) -> str:
    return f"{name}: " + "\n  | ".join(bodies)


def _prefix_free(texts: Sequence[str]) -> list[str]:
    """Each text as Lark strings, such that LLGuidance's lexer can read them beside each other.

    The lexer always takes the longest string that may come. Where one text begins another (``a:`` and ``a:1:``, names
    may hold colons) it would never see the end of the shorter, so then every character is a string of its own.
    """
    ordered = sorted(texts)
    if any(longer.startswith(shorter) for shorter, longer in pairwise(ordered)):
        return [" ".join(map(literal, text)) for text in texts]
    return [literal(text) for text in texts]
