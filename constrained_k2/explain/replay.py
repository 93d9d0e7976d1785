"""Replays a turn without a grammar engine, to get its states and the paths in arguments and answer."""

from array import array
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Self

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.explain.position import PathCursor
from constrained_k2.formats.base import WireFormat
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.automaton import Automaton, TurnState
from constrained_k2.turn.phases import Phase, TurnTable
from constrained_k2.vocabulary.vocabulary import Vocabulary

NO_SYMBOL = -1
"""Replaces a special token that is not a marker of the format."""


class Recorder:
    """Records the text of a call's arguments, or of an answer, in place of an engine's matcher."""

    def __init__(self, name: str, markers: WireFormat) -> None:
        self.name = name  # of the called function; empty for an answer
        self.symbols = array("l")  # bytes and ids of markers
        self.position = PathCursor(markers if name and markers.argument_encoding == "xtml" else None)

    def accept(self, token_id: int) -> bool:
        """Record a byte or a marker."""
        if token_id < 256:
            self.extend(bytes((token_id,)))
        else:
            self.symbols.append(token_id)
            self.position.feed_marker(token_id)
        return True

    def extend(self, raw: bytes) -> None:
        """Record bytes."""
        self.symbols.extend(raw)
        self.position.feed(raw)

    def is_complete(self) -> bool:
        """True if an end marker would now end the whole text, rather than only an XTML block."""
        return not self.position.is_xml or self.position.is_done

    def copy(self) -> Self:
        """An independent copy."""
        other = copy(self)
        other.symbols, other.position = self.symbols[:], self.position.copy()
        return other


class Recording:
    """A compiled request with recorders instead of matchers. Its ``spec`` and ``turn_table`` can be replaced."""

    def __init__(
        self, compiled: CompiledToolCalls, spec: ToolCallSpec | None = None, turn_table: TurnTable | None = None
    ) -> None:
        # Recorders do not know when arguments are complete, so a replay ends where a repeated call is declined.
        self.spec = replace(spec or compiled.spec, repeated_calls=None)
        self.vocabulary = compiled.vocabulary
        self.turn_table = turn_table or compiled.turn_table
        self.call_ids = compiled.call_ids
        self.call_threshold = compiled.call_threshold

    def precompile(self, name: str) -> None:
        """Do nothing: recorders need no grammar."""

    def is_compiled(self, name: str) -> bool:  # noqa: ARG002 - as CallGrammar
        """Return True: recorders need no grammar."""
        return True

    def arguments(self, name: str) -> Any:
        """Return a recorder of a call's arguments."""
        return Recorder(name, self.vocabulary.format)

    def answer(self) -> Any:
        """Return a recorder of the answer; None if the request has no response format."""
        return None if self.spec.answer is None else Recorder("", self.vocabulary.format)


class Replay:
    """The states of a turn before each of its tokens. ``compiled`` is over bytes, ``vocabulary`` is the model's."""

    def __init__(self, compiled: CompiledToolCalls, vocabulary: Vocabulary, *, in_reasoning: bool) -> None:
        self._bytes = compiled.vocabulary
        self._vocabulary = vocabulary
        self.automaton = Automaton(Recording(compiled))
        self._start = self.automaton.initial(in_reasoning=in_reasoning)

    def symbols_of(self, token_id: int) -> tuple[int, ...]:
        """The symbols of a token: its bytes, or the id of its marker in the byte vocabulary."""
        raw = self._vocabulary.ordinary_bytes(token_id)
        if raw:
            return tuple(raw)
        return (self._bytes.special_tokens.get(self._vocabulary.special_text(token_id) or "", NO_SYMBOL),)

    def states(self, token_ids: list[int]) -> Iterator[TurnState]:
        """Yield the state before each token; stops early at a token that is not allowed.

        A recorder in a state grows as the iterator advances.
        """
        state = self._start
        for token_id in token_ids:
            yield state
            recorder, raw = recorder_of(state), self._vocabulary.ordinary_bytes(token_id)
            if raw and recorder is None and state.phase in {Phase.TEXT, Phase.REASONING}:
                continue
            if raw and recorder is not None and state.phase in {Phase.ARGUMENTS, Phase.ANSWER}:
                recorder.extend(raw)
                continue
            for symbol in self.symbols_of(token_id):
                after = self.automaton.step(state, symbol)
                if after is None:
                    return
                state = after


def recorder_of(state: TurnState) -> Recorder | None:
    """The recorder of a replayed state."""
    return state.arguments if isinstance(state.arguments, Recorder) else None


def with_recorder(state: TurnState, recorder: Recorder) -> TurnState:
    """A replayed state with another recorder."""
    arguments: Any = recorder
    return state._replace(arguments=arguments)
