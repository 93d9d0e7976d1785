"""Finds why a token outside arguments and answers is forbidden: a request option, or the format."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.explain.keywords import Cause
from constrained_k2.explain.replay import Recording
from constrained_k2.request.spec import ANY_OBJECT, Tool, ToolCallSpec
from constrained_k2.turn.automaton import Automaton, TurnState
from constrained_k2.turn.phases import Phase, turn_table
from constrained_k2.turn.transitions import Transitions

_ANY_TOOL = Tool("any", ANY_OBJECT)


class Causes:
    """Finds the causes that forbid tokens in turns of one request."""

    def __init__(self, compiled: CompiledToolCalls) -> None:
        self._compiled = compiled
        self._format = compiled.vocabulary.format

    def cause(self, state: TurnState, symbol: int) -> tuple[str, str]:
        """The cause that forbids a byte or a marker's id in a state, and the called function if its name is complete.

        A condition of the request is the cause if the symbol is legal without it; otherwise it is the format.
        """
        found = next((cause for cause, other in self._variants if other.step(state, symbol) is not None), None)
        if found is not None:
            return found, ""
        if state.phase is Phase.CALL_ID:
            return self._in_header(state.call_id, symbol)
        if symbol in self._format.stop_ids:
            return Cause.END_OF_TURN, ""
        return (Cause.TEXT_BETWEEN_MARKERS if 0 <= symbol < 256 else Cause.MARKER), ""

    @cached_property
    def _variants(self) -> list[tuple[str, Automaton]]:
        """Each condition of the request, with the automaton of the same request without it."""
        transitions = Transitions(self._compiled.vocabulary)
        found = []
        for cause, spec in _without_conditions(self._compiled.spec):
            found.append((cause, Automaton(Recording(self._compiled, spec, turn_table(spec, transitions)))))
        return found

    def _in_header(self, written: bytes, symbol: int) -> tuple[str, str]:
        """The cause that forbids a symbol after the prefix of a call header."""
        begin = self._format.header_begin
        names = {
            tool.name: f"{begin}{self._format.escape_name(tool.name)}".encode() for tool in self._compiled.spec.tools
        }
        after_name = self._format.header_index.encode()
        whole = [name for name, stem in names.items() if written.startswith(stem + after_name)]
        if whole:
            return Cause.INDEX, max(whole, key=len)
        if not written.startswith(begin.encode()):
            return Cause.CALL_HEADER, ""
        if not 0 <= symbol < 256 and written in names.values():
            return Cause.INDEX, next(name for name, stem in names.items() if stem == written)
        has_name = any(written.startswith(stem) and (stem + after_name).startswith(written) for stem in names.values())
        if has_name and written not in names.values():
            return Cause.CALL_HEADER, ""
        return Cause.UNDECLARED_NAME, ""


def _without_conditions(spec: ToolCallSpec) -> Iterator[tuple[str, ToolCallSpec]]:
    if spec.choice == "required":
        yield Cause.CALL_REQUIRED, replace(spec, choice="auto")
    if spec.choice == "none" or not spec.tools:
        yield Cause.NO_CALLS, replace(spec, choice="auto", tools=spec.tools or (_ANY_TOOL,))
    if spec.max_calls is not None:
        yield Cause.NO_MORE_CALLS, replace(spec, parallel=True, call_limit=None)
    if not spec.thinking:
        yield Cause.NO_REASONING, replace(spec, thinking=True)
    if spec.answer is not None:
        yield Cause.ANSWER_FORMAT, replace(spec, answer=None)
