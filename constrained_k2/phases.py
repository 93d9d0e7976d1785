"""The phases of a turn, the tokens that each allows, and where its special tokens lead. All constant."""

from enum import IntEnum
from functools import cache

from constrained_k2.bitmask import TokenSet
from constrained_k2.format import ABSENT, ToolCallFormat
from constrained_k2.tools import ToolCallSpec
from constrained_k2.vocabulary import Vocabulary


class Phase(IntEnum):
    """Where in a turn the next token stands."""

    OPEN = 0
    """Before the first token: reasoning may begin here, and only here."""
    REASONING = 1
    """Between ``<think>`` and ``</think>``."""
    TEXT = 2
    """In the answer's text."""
    SECTION = 3
    """Behind ``<|tool_calls_section_begin|>``."""
    HEADER = 4
    """In ``functions.NAME:INDEX``."""
    ARGUMENTS = 5
    """In the arguments' JSON."""
    BETWEEN = 6
    """Behind ``<|tool_call_end|>``."""
    CLOSED = 7
    """Behind ``<|tool_calls_section_end|>``."""
    DONE = 8
    """Behind a stop."""


def phase_sets(spec: ToolCallSpec, vocabulary: Vocabulary) -> dict[Phase, TokenSet]:
    """The tokens that each phase outside a call allows, for one kind of request.

    Args:
        spec: Read for its choice, ``max_calls`` and ``thinking`` only.
        vocabulary: The vocabulary.
    """
    markers = vocabulary.format
    stops = markers.stop_ids

    def only(*ids: int) -> TokenSet:
        return TokenSet((token for token in ids if token != ABSENT), vocabulary.size)

    def text_and(*ids: int) -> TokenSet:
        return TokenSet(set(vocabulary.unordinary_ids).difference(ids), vocabulary.size, complement=True)

    section = () if spec.max_calls == 0 else (markers.section_begin,)
    think = (markers.think_begin,) if spec.thinking else ()
    text, opening = text_and(*section, *stops), text_and(*section, *stops, *think)
    if spec.choice == "required":
        text, opening = only(*section), only(*section, *think)
    return {
        Phase.OPEN: opening,
        Phase.REASONING: text_and(*section, markers.think_end),
        Phase.TEXT: text,
        Phase.SECTION: only(markers.call_begin),
        Phase.BETWEEN: only(markers.section_end, *(() if spec.max_calls == 1 else (markers.call_begin,))),
        Phase.CLOSED: only(*stops),
        Phase.DONE: only(*stops),
    }


@cache
def constant_moves(markers: ToolCallFormat) -> dict[tuple[Phase, int], Phase]:
    """Where the special tokens of a constant phase lead. Whether one is allowed there is the phase's set's matter."""
    moves = {
        (Phase.OPEN, markers.think_begin): Phase.REASONING,
        (Phase.REASONING, markers.think_end): Phase.TEXT,
        (Phase.BETWEEN, markers.section_end): Phase.CLOSED,
    }
    for phase in (Phase.OPEN, Phase.REASONING, Phase.TEXT):
        moves[phase, markers.section_begin] = Phase.SECTION
    for phase in (Phase.OPEN, Phase.TEXT, Phase.CLOSED):
        for stop in markers.stop_ids:
            moves[phase, stop] = Phase.DONE
    return moves
