"""The phases of a turn, and the transitions between them: marker sequences and their conditions."""

from dataclasses import dataclass
from enum import IntEnum, IntFlag


class Phase(IntEnum):
    """The part of a turn that the next token belongs to."""

    START = 0  # before the first token, if the prompt has not begun reasoning
    REASONING = 1  # in the reasoning
    TEXT = 2  # in the answer's text
    SECTION = 3  # after the opening of the tool-calls section
    CALL_ID = 4  # in a call header, which names the function and the index
    ARGUMENTS = 5  # in a call's arguments
    BETWEEN = 6  # after a call
    CLOSED = 7  # after the section of tool calls
    DONE = 8  # after a stop
    ANSWER = 9  # in an answer with a response format
    RESPONDED = 10  # after the end of the answer's text, in formats that mark it
    TRANSITION = 11  # within a transition of several tokens, between two phases
    REPEATED = 12  # after the arguments of a call that repeats an earlier one, and is therefore not made


class Need(IntFlag):
    """The conditions on a request for a transition to be allowed."""

    NOTHING = 0
    REASONING = 1  # the model may reason
    CALL = 2  # a call is allowed
    SEVERAL_CALLS = 4  # more than one call is allowed
    PLAIN = 8  # there is no response format
    FORM = 16  # there is a response format
    FREE = 32  # there is no response format, and no call is required: any text may end the turn
    DECLINING = 64  # a call may be declined within its header


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition from a phase: its marker sequence (``pieces``), and the phase after it.

    The sequence consists of markers, by their fields of :class:`constrained_k2.formats.base.WireFormat` (``str``), and
    of literal text in ordinary tokens (``bytes``). It begins with a marker. Of the sequences that one
    request allows in a phase, none is a prefix of another. A sequence with a marker that the vocabulary lacks cannot be
    written.
    """

    pieces: tuple[str | bytes, ...]
    to: Phase
    needs: Need = Need.NOTHING
