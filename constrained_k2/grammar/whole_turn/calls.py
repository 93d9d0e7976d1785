"""Writes the Lark rules of a turn's tool calls, including the expected index of each call.

The expected index is passed from call to call as the 64-bit parameter of the rules, each decimal digit in four bits:

call::_:  "functions." tool::_                                              the parameter is the expected index
tool::_:  "NAME:" index::_ ARGUMENT_BEGIN arguments_0 CALL_END next::_ | …  one line per tool
next::_:  "" | CALL_BEGIN call::incr([0:4]) %if lt([0:4], 9) | …            the end, or a call with the next index
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import pairwise

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.phases import Phase
from constrained_k2.grammar.lark.terminals import literal
from constrained_k2.request.spec import ToolCallSpec

# The grammar bounds the digits of an index so that a turn has room for at least this many calls. LLGuidance's default
# limits end a turn earlier, at 666 calls.
_MIN_CALLS = 1000
_BITS = 64
_DIGIT = 4  # bits


def transition(wire_format: WireFormat, phase: Phase, to: Phase) -> str:
    """Return a format's first transition from one phase to another: markers as special tokens, text as Lark strings."""
    pieces = next(one.pieces for one in wire_format.transitions[phase] if one.to is to)
    texts = wire_format.marker_texts
    return " ".join(literal(piece.decode()) if isinstance(piece, bytes) else texts[piece] for piece in pieces)


def section_rules(spec: ToolCallSpec, wire_format: WireFormat) -> Iterable[str]:
    """Yield the rule ``section`` and the rules below it; ``arguments_N`` are the arguments of the N-th tool."""
    first = wire_format.call_index(spec.first_index, 0)
    write = _one_call if spec.max_calls == 1 else _calls
    return write(spec, wire_format, first)


def _one_call(spec: ToolCallSpec, wire_format: WireFormat, index: int) -> Iterable[str]:
    """Yield the rules of a section with exactly one call: the index is part of the header's text."""
    begin, end = _section(wire_format)
    call = f"{transition(wire_format, Phase.SECTION, Phase.CALL_ID)} {literal(wire_format.header_begin)}"
    yield f"section: {begin} {call} tool {transition(wire_format, Phase.ARGUMENTS, Phase.BETWEEN)} {end}"
    names = _prefix_free([f"{stem}{index}{wire_format.header_end}" for stem in _stems(spec, wire_format)])
    argument_begin = transition(wire_format, Phase.CALL_ID, Phase.ARGUMENTS)
    tools = [f"{name} {argument_begin} arguments_{number}" for number, name in enumerate(names)]
    yield _alternatives("tool", tools)


def _calls(spec: ToolCallSpec, wire_format: WireFormat, index: int) -> Iterable[str]:
    """Yield the rules of a section with up to ``max_calls`` calls, or any number of them.

    ``max_calls`` bounds the index after which another call may follow. Parameters compare as their decimal digits do.

    The rules avoid two forms on which LLGuidance 1.7.6 panics (in its optimizer): a rule with one unconditional
    alternative whose only user gives it a parameter, and an alternative that is only a rule with a parameter.
    """
    begin, end = _section(wire_format)
    call_begin = transition(wire_format, Phase.SECTION, Phase.CALL_ID)
    header = literal(wire_format.header_begin)
    calls = _MIN_CALLS if spec.max_calls is None else spec.max_calls
    digits = len(str(index + min(calls, _MIN_CALLS) - 1))
    first = f"0x{index}"  # a decimal digit in four bits reads the same in hexadecimal
    yield f"section: {begin} {call_begin} call::{first} {end}"
    yield f"call::_: {header} tool::_ %if lt(_, {_one(digits)})"
    names = _prefix_free(_stems(spec, wire_format))
    header_end = f"{literal(wire_format.header_end)} " if wire_format.header_end else ""
    over = f"index::_ {header_end}{transition(wire_format, Phase.CALL_ID, Phase.ARGUMENTS)}"
    after = f"{transition(wire_format, Phase.ARGUMENTS, Phase.BETWEEN)} next::_"
    tools = [f"{name} {over} arguments_{number} {after}" for number, name in enumerate(names)]
    yield _alternatives("tool::_", tools)
    last = None if spec.max_calls is None else index + spec.max_calls - 1
    yield _alternatives("next::_", ['""', *(f"{call_begin} {_next_call(nines, last)}" for nines in range(digits))])
    for nines in range(1, digits):
        digit = _bits(nines, nines + 1)
        yield f"carry_{nines}::_: {header} tool::incr({digit}) %if lt({digit}, 9)"
    lengths = ["lt(_, 0x10)", *(f"and(ge(_, {_one(last)}), lt(_, {_one(last + 1)}))" for last in range(1, digits))]
    yield _alternatives("index::_", [f"digit_{last}::_ %if {length}" for last, length in enumerate(lengths)])
    for place in reversed(range(digits)):
        rest = f" digit_{place - 1}::_" if place else ""
        alternatives = [f'"{digit}"{rest} %if eq({_bits(place, place + 1)}, {digit})' for digit in range(10)]
        yield _alternatives(f"digit_{place}::_", alternatives)


def _section(wire_format: WireFormat) -> tuple[str, str]:
    """Return the transitions that open and close the section of calls."""
    before = Phase.RESPONDED if Phase.RESPONDED in wire_format.transitions else Phase.TEXT
    return transition(wire_format, before, Phase.SECTION), transition(wire_format, Phase.BETWEEN, Phase.CLOSED)


def _stems(spec: ToolCallSpec, wire_format: WireFormat) -> list[str]:
    """Return the call headers of the tools up to the index, without their common prefix."""
    return [wire_format.header_stem(tool.name).removeprefix(wire_format.header_begin) for tool in spec.tools]


def _next_call(nines: int, last: int | None) -> str:
    """Return a call with the next index, for an index that ends in exactly ``nines`` nines; a carry adds a rule.

    No call follows the index ``last``.
    """
    low, digit = _bits(0, nines), _bits(nines, nines + 1)
    conditions = [f"lt({digit}, 9)"] + ([f"eq({low}, 0x{'9' * nines})"] if nines else [])
    conditions += [] if last is None else [f"lt(_, 0x{last})"]
    condition = reduce(lambda both, one: f"and({one}, {both})", conditions)
    if not nines:
        return f"call::incr({digit}) %if {condition}"
    upper = (1 << _BITS) - (1 << _DIGIT * nines)
    return f"carry_{nines}::bit_and(0x{upper:x}) %if {condition}"


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
