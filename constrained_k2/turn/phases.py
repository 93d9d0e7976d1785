"""The phases of a turn, the tokens that each allows, and the transitions by special tokens. All constant."""

from enum import IntEnum
from functools import cache
from itertools import product

from constrained_k2.formats.base import ABSENT, WireFormat
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary


class Phase(IntEnum):
    """The part of a turn that the next token belongs to."""

    START = 0  # before the first token: reasoning may begin here only
    REASONING = 1  # between ``<think>`` and ``</think>``
    TEXT = 2  # in the answer's text
    SECTION = 3  # after ``<|tool_calls_section_begin|>``
    CALL_ID = 4  # in ``functions.NAME:INDEX``
    ARGUMENTS = 5  # in the arguments' JSON
    BETWEEN = 6  # after ``<|tool_call_end|>``
    CLOSED = 7  # after ``<|tool_calls_section_end|>``
    DONE = 8  # after a stop
    ANSWER = 9  # in an answer of a form that the request asks for


def phase_sets(spec: ToolCallSpec, vocabulary: Vocabulary) -> dict[Phase, TokenSet]:
    """The tokens that each phase outside a call allows.

    Where the answer has a form, these are the tokens beside the form's own: what may open instead of the answer, and
    the stops that end a complete one. Of the spec, only choice, max_calls, thinking, and whether it has an answer are
    read.
    """
    markers = vocabulary.format
    stops = markers.stop_ids

    def only(*ids: int) -> TokenSet:
        return TokenSet((token for token in ids if token != ABSENT), vocabulary.size)

    def text_and(*ids: int) -> TokenSet:
        return TokenSet(set(vocabulary.unordinary_ids).difference(ids), vocabulary.size, complement=True)

    section = () if spec.max_calls == 0 else (markers.section_begin,)
    think = (markers.think_begin,) if spec.thinking else ()
    text, start = text_and(*section, *stops), text_and(*section, *stops, *think)
    if spec.choice == "required" or spec.answer is not None:
        text, start = only(*section), only(*section, *think)
    return {
        Phase.START: start,
        Phase.REASONING: text_and(*section, markers.think_end),
        Phase.TEXT: text,
        Phase.SECTION: only(markers.call_begin),
        Phase.BETWEEN: only(markers.section_end, *(() if spec.max_calls == 1 else (markers.call_begin,))),
        Phase.CLOSED: only(*stops),
        Phase.DONE: only(*stops),
        Phase.ANSWER: only(*stops),
    }


@cache
def constant_moves(markers: WireFormat) -> dict[tuple[Phase, int], Phase]:
    """The phases after special tokens of a constant phase; the phase's token set says which of them are allowed."""
    moves = {
        (Phase.START, markers.think_begin): Phase.REASONING,
        (Phase.REASONING, markers.think_end): Phase.TEXT,
        (Phase.BETWEEN, markers.section_end): Phase.CLOSED,
    }
    moves |= {(phase, markers.section_begin): Phase.SECTION for phase in (Phase.START, Phase.REASONING, Phase.TEXT)}
    ending = product((Phase.START, Phase.TEXT, Phase.CLOSED), markers.stop_ids)
    return moves | dict.fromkeys(ending, Phase.DONE)
