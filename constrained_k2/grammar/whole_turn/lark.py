"""Writes the grammar of a whole turn in LLGuidance's Lark dialect.

Markers are LLGuidance's special-token references: tokens, never text. The expected index is passed from call to call as
the 64-bit parameter of the rules, each decimal digit in four bits:

call::_:  "functions." tool::_                                              the parameter is the expected index
tool::_:  "NAME:" index::_ ARGUMENT_BEGIN arguments_0 CALL_END next::_ | …  one line per tool
next::_:  "" | CALL_BEGIN call::incr([0:4]) %if lt([0:4], 9) | …            the end, or a call with the next index
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace

from constrained_k2.formats.kimi_k2 import MARKER_TEXTS
from constrained_k2.grammar.lark.terminals import literal
from constrained_k2.request.spec import ToolCallSpec

# The grammar bounds the digits of an index so that a turn has room for at least this many calls. LLGuidance's default
# limits end a turn earlier, at 666 calls.
_MIN_CALLS = 1000
_BITS = 64
_DIGIT = 4  # bits
_MARK = SimpleNamespace(**MARKER_TEXTS)


def write_lark(
    spec: ToolCallSpec, arguments: Mapping[str, str], form: str | None = None, *, in_reasoning: bool = False
) -> str:
    """Write the grammar of a turn. ``<|im_end|>`` is optional: the engine's stop token ends the turn too.

    ``arguments`` has the body of the arguments' rule (``%lark { … }`` or ``%json { … }``) for each function name,
    ``form`` that of the answer, None for any text.
    ``in_reasoning``: the prompt ends in ``<think>``, so that the turn begins inside the reasoning.
    """
    has_calls = spec.max_calls != 0
    if form is not None:
        answer = "form | section" if has_calls else "form"
    elif has_calls:
        answer = "section" if spec.choice == "required" else "TEXT? section?"
    else:
        answer = "TEXT?"
    lines = [
        "%llguidance {}",
        f"start: turn {_MARK.turn_end}?",
        f"turn: {' | '.join(_turns(spec, has_calls=has_calls, in_reasoning=in_reasoning))}",
        f"answer: {answer}",
    ]
    if form is not None:
        lines.append(f"form: {form}")
    if has_calls:
        lines += _one_call(spec) if spec.max_calls == 1 else _calls(spec)
        lines += [f"arguments_{number}: {arguments[tool.name]}" for number, tool in enumerate(spec.tools)]
    if any("TEXT" in line for line in lines[2:4]):
        lines.append("TEXT: /(?s:.)+/")
    return "\n".join(lines) + "\n"


def _turns(spec: ToolCallSpec, *, has_calls: bool, in_reasoning: bool) -> Iterable[str]:
    """Yield the forms of a turn: the answer, or reasoning and the answer. A call may begin inside the reasoning."""
    if not in_reasoning:
        yield "answer"
        if not spec.thinking:
            return
    opening = "" if in_reasoning else f"{_MARK.think_begin} "
    yield f"{opening}TEXT? {_MARK.think_end} answer"
    if has_calls:
        yield f"{opening}TEXT? section"


def _one_call(spec: ToolCallSpec) -> Iterable[str]:
    """Return the rules of a section with exactly one call: the index is part of the call id's text."""
    yield f'section: {_MARK.section_begin} {_MARK.call_begin} "functions." tool {_MARK.call_end} {_MARK.section_end}'
    names = _prefix_free([f"{tool.name}:{spec.first_index}" for tool in spec.tools])
    tools = [f"{name} {_MARK.argument_begin} arguments_{number}" for number, name in enumerate(names)]
    yield _alternatives("tool", tools)


def _calls(spec: ToolCallSpec) -> Iterable[str]:
    """Return the rules of a section with any number of calls.

    They avoid two forms on which LLGuidance 1.7.6 panics (in its optimizer): a rule with one unconditional alternative
    whose only user gives it a parameter, and an alternative that is only a rule with a parameter.
    """
    digits = len(str(spec.first_index + _MIN_CALLS - 1))
    first = f"0x{spec.first_index}"  # a decimal digit in four bits reads the same in hexadecimal
    yield f"section: {_MARK.section_begin} {_MARK.call_begin} call::{first} {_MARK.section_end}"
    yield f'call::_: "functions." tool::_ %if lt(_, {_one(digits)})'
    names = _prefix_free([f"{tool.name}:" for tool in spec.tools])
    after = f"{_MARK.call_end} next::_"
    tools = [f"{name} index::_ {_MARK.argument_begin} arguments_{number} {after}" for number, name in enumerate(names)]
    yield _alternatives("tool::_", tools)
    yield _alternatives("next::_", ['""', *(_next_call(nines) for nines in range(digits))])
    for nines in range(1, digits):
        digit = _bits(nines, nines + 1)
        yield f'carry_{nines}::_: "functions." tool::incr({digit}) %if lt({digit}, 9)'
    lengths = ["lt(_, 0x10)", *(f"and(ge(_, {_one(last)}), lt(_, {_one(last + 1)}))" for last in range(1, digits))]
    yield _alternatives("index::_", [f"digit_{last}::_ %if {length}" for last, length in enumerate(lengths)])
    for place in reversed(range(digits)):
        rest = f" digit_{place - 1}::_" if place else ""
        ways = [f'"{digit}"{rest} %if eq({_bits(place, place + 1)}, {digit})' for digit in range(10)]
        yield _alternatives(f"digit_{place}::_", ways)


def _next_call(nines: int) -> str:
    """Return a call with the next index if this index ends in exactly so many nines; a carry takes a second step."""
    last, digit = _bits(0, nines), _bits(nines, nines + 1)
    if not nines:
        return f"{_MARK.call_begin} call::incr({digit}) %if lt({digit}, 9)"
    upper = (1 << _BITS) - (1 << _DIGIT * nines)
    return (
        f"{_MARK.call_begin} carry_{nines}::bit_and(0x{upper:x}) %if and(eq({last}, 0x{'9' * nines}), lt({digit}, 9))"
    )


def _one(place: int) -> str:
    """Return the parameter with the digit 1 in this place and zeros elsewhere."""
    return f"0x{1 << _DIGIT * place:x}"


def _bits(low: int, high: int) -> str:
    return f"[{_DIGIT * low}:{_DIGIT * high}]"


def _alternatives(name: str, bodies: Sequence[str]) -> str:
    return f"{name}: " + "\n  | ".join(bodies)


def _prefix_free(texts: Sequence[str]) -> list[str]:
    """Return each text as Lark strings that LLGuidance's lexer can tell apart.

    The lexer always takes the longest possible string. If one text is a prefix of another (``a:`` and ``a:1:``: names
    may contain colons) it would never match the shorter one, so then every character is a separate string.
    """
    is_prefix_free = not any(longer.startswith(shorter) for shorter, longer in pairwise(sorted(texts)))
    return [literal(text) if is_prefix_free else " ".join(map(literal, text)) for text in texts]
