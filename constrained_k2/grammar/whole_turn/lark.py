"""Writes the grammar of a whole turn in LLGuidance's Lark dialect.

Markers are LLGuidance's special-token references: tokens, never text. The rules of the calls come from
:mod:`~constrained_k2.grammar.whole_turn.calls`.
"""

from collections.abc import Iterable, Mapping

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.phases import Phase
from constrained_k2.grammar.lark.terminals import NO_FORCING
from constrained_k2.grammar.whole_turn.calls import section_rules, transition
from constrained_k2.request.spec import ToolCallSpec


def write_lark(
    spec: ToolCallSpec,
    arguments: Mapping[str, str],
    form: str | None = None,
    *,
    wire_format: WireFormat = KIMI_K2,
    in_reasoning: bool = False,
) -> str:
    """Write the grammar of a turn.

    ``arguments`` has the body of the arguments' rule (``%lark { … }`` or ``%json { … }``) for each function name,
    ``form`` the body of the response format's rule, None for any text.
    ``in_reasoning``: the prompt opens the reasoning, so that the turn begins inside it. In formats that mark the
    response, such as Kimi K3's, the prompts of requests with thinking always do.
    """
    has_calls = spec.max_calls != 0
    marks_response = Phase.RESPONDED in wire_format.transitions
    write = _marked_response if marks_response else _plain_response
    lines = list(write(spec, wire_format, has_form=form is not None, in_reasoning=in_reasoning))
    has_text = any("TEXT" in line for line in lines)
    if form is not None:
        lines.append(f"form: {form}")
    if has_calls:
        lines += section_rules(spec, wire_format)
        lines += [f"arguments_{number}: {arguments[tool.name]}" for number, tool in enumerate(spec.tools)]
    if has_text:
        lines.append("TEXT: /(?s:.)+/")
    options = NO_FORCING if wire_format.argument_encoding == "xtml" else "%llguidance {}"
    return "\n".join([options, *lines]) + "\n"


def _plain_response(
    spec: ToolCallSpec, wire_format: WireFormat, *, has_form: bool, in_reasoning: bool
) -> Iterable[str]:
    """Yield the rules of turns in which text is the response until a marker follows.

    ``<|im_end|>`` is optional: the engine's stop token ends the turn too.
    """
    has_calls = spec.max_calls != 0
    if has_form:
        answer = "form | section" if has_calls else "form"
    elif has_calls:
        answer = "section" if spec.choice == "required" else "TEXT? section?"
    else:
        answer = "TEXT?"
    turns = [] if in_reasoning else ["answer"]
    if in_reasoning or spec.thinking:
        opening = "" if in_reasoning else f"{transition(wire_format, Phase.START, Phase.REASONING)} "
        turns.append(f"{opening}TEXT? {transition(wire_format, Phase.REASONING, Phase.TEXT)} answer")
        if has_calls:
            turns.append(f"{opening}TEXT? section")  # a call may begin inside the reasoning
    yield f"start: turn {transition(wire_format, Phase.CLOSED, Phase.DONE)}?"
    yield f"turn: {' | '.join(turns)}"
    yield f"answer: {answer}"


def _marked_response(
    spec: ToolCallSpec, wire_format: WireFormat, *, has_form: bool, in_reasoning: bool
) -> Iterable[str]:
    """Yield the rules of turns with a marked response, which precedes calls even if it is empty."""
    has_calls = spec.max_calls != 0
    if has_form:
        turn = "form responded end | responded section end" if has_calls else "form responded end"
    elif not has_calls:
        turn = "TEXT? responded end"
    else:
        turn = "responded section end" if spec.choice == "required" else "TEXT? responded section? end"
    begins_inside = in_reasoning or spec.thinking
    reasoning = f"TEXT? {transition(wire_format, Phase.REASONING, Phase.TEXT)} " if begins_inside else ""
    yield f"start: {reasoning}turn"
    yield f"turn: {turn}"
    yield f"responded: {transition(wire_format, Phase.TEXT, Phase.RESPONDED)}"
    yield f"end: {transition(wire_format, Phase.CLOSED, Phase.DONE)}"
