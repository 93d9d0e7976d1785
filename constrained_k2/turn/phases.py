"""Builds tables of a turn's phases: tokens allowed apart from the grammar engine's, and next phases.

They are built from the format's transitions (:class:`~constrained_k2.formats.phases.Transition`).
BETWEEN of Kimi K2 allows two tokens: <|tool_call_begin|> leads to CALL_ID, <|tool_calls_section_end|> to CLOSED.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from constrained_k2.formats.phases import Need, Phase, Transition
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.transitions import Transitions, TransitionSuffix, TransitionTokens
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary

__all__ = ["Phase", "TurnTable", "first_markers", "turn_table"]

Moves = Mapping[tuple[Phase, int], TransitionTokens | Phase]


@dataclass(frozen=True, slots=True, eq=False)
class TurnTable:
    """The constant tables of the automaton, for one kind of request and one vocabulary.

    Attributes:
        sets: Phase -> its allowed tokens. In phases of an answer with a response format, the set has only the tokens
            that the engine's mask lacks: those that begin a call or reasoning instead, or the end of the answer.
        moves: Phase and first token of a transition -> the state within the transition, or the phase after it.
        answered: As ``moves``, for when an answer with a response format is complete and may end.
        closing: The token that declines a call within its header; None if no call may be declined.
        last: The table to use after the last call that the request allows; None to keep this table.
    """

    sets: Mapping[Phase, TokenSet]
    moves: Moves
    answered: Moves
    closing: int | None
    last: "TurnTable | None"


def turn_table(spec: ToolCallSpec, transitions: Transitions, *, declines: bool = False) -> TurnTable:
    """The tables for a request.

    They depend only on the tool choice, on thinking, on whether there is a response format, and on whether 0, 1 or more
    calls are allowed.

    Args:
        spec: The request.
        transitions: The transitions of the vocabulary's format.
        declines: True if a call may be declined within its header.
    """
    vocabulary = transitions.vocabulary
    given = _given(spec) | (Need.DECLINING if declines else Need.NOTHING)
    by_phase = vocabulary.format.transitions.items()
    allowed = {phase: list(_allowed(each, given, vocabulary)) for phase, each in by_phase}
    found = {phase: transitions.moves(each) for phase, each in allowed.items()}
    ends = allowed[Phase.ANSWER]
    after_answer = {phase: transitions.moves([*allowed[phase], *ends]) for phase in (Phase.START, Phase.TEXT)}
    after_answer[Phase.ANSWER] = found.pop(Phase.ANSWER)
    sets = {phase: TokenSet(each, vocabulary.size) for phase, each in found.items()}
    sets[Phase.ANSWER] = TokenSet(after_answer[Phase.ANSWER], vocabulary.size)
    for phase in (Phase.START, Phase.REASONING, Phase.TEXT):
        if phase is Phase.REASONING or Need.FREE in given:
            forbidden = set(vocabulary.unordinary_ids).difference(found[phase])
            sets[phase] = TokenSet(forbidden, vocabulary.size, complement=True)
    stops = {one.pieces[-1] for each in allowed.values() for one in each if one.to is Phase.DONE}
    sets[Phase.DONE] = TokenSet((stop for stop in stops if isinstance(stop, int)), vocabulary.size)
    closing = first_markers(vocabulary, Phase.CALL_ID, Phase.CLOSED)[0] if declines else None
    has_several = Need.SEVERAL_CALLS in given and Need.CALL in given
    last = turn_table(replace(spec, parallel=False), transitions, declines=declines) if has_several else None
    return TurnTable(sets, _by_phase(found), _by_phase(after_answer), closing, last)


def first_markers(vocabulary: Vocabulary, phase: Phase, *to: Phase) -> tuple[int, ...]:
    """The markers that begin a transition from ``phase`` to one of the phases ``to``, in the format's order.

    They do not depend on the request: a phase's token set contains them only if the request allows the transition.
    """
    found = _allowed(vocabulary.format.transitions[phase], ~Need.NOTHING, vocabulary)
    return tuple(dict.fromkeys(one.pieces[0] for one in found if one.to in to and isinstance(one.pieces[0], int)))


def _given(spec: ToolCallSpec) -> Need:
    """The conditions for transitions (:class:`Need`) that a request satisfies."""
    given = Need.PLAIN if spec.answer is None else Need.FORM
    if spec.answer is None and spec.choice != "required":
        given |= Need.FREE
    if spec.thinking:
        given |= Need.REASONING
    if spec.max_calls != 0:
        given |= Need.CALL
    return given if spec.max_calls == 1 else given | Need.SEVERAL_CALLS


def _allowed(transitions: Iterable[Transition], given: Need, vocabulary: Vocabulary) -> Iterable[TransitionSuffix]:
    for each in transitions:
        pieces = vocabulary.format.located(each.pieces)
        if pieces is not None and each.needs in given:
            yield TransitionSuffix(pieces, each.to)


def _by_phase(found: Mapping[Phase, Mapping[int, TransitionTokens | Phase]]) -> Moves:
    return {(phase, token_id): after for phase, each in found.items() for token_id, after in each.items()}
