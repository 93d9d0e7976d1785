"""The phases of a turn, and the exits by which a format leads from one to the next."""

from dataclasses import dataclass
from enum import IntEnum, IntFlag


class Phase(IntEnum):
    """The part of a turn that the next token belongs to."""

    START = 0  # before the first token, where the prompt has not begun reasoning
    REASONING = 1  # in the reasoning
    TEXT = 2  # in the answer's text
    SECTION = 3  # after the opening of the tool-calls section
    CALL_ID = 4  # in a call's header, which names the function and the index
    ARGUMENTS = 5  # in a call's arguments
    BETWEEN = 6  # after a call
    CLOSED = 7  # after the section of tool calls
    DONE = 8  # after a stop
    ANSWER = 9  # in an answer of a form that the request asks for
    RESPONDED = 10  # after the end of the answer's text, in formats that mark it
    JOINT = 11  # within a joint of several tokens, which leads from one phase to the next
    REPEATED = 12  # after the arguments of a call that repeats an earlier one, and is therefore not made


class Need(IntFlag):
    """The conditions under which a request leaves an exit open."""

    NOTHING = 0
    REASONING = 1  # the model may reason
    CALL = 2  # a call is allowed
    SEVERAL_CALLS = 4  # more than one call is allowed
    PLAIN = 8  # the answer has no form
    FORM = 16  # the answer has a form
    FREE = 32  # the answer has no form, and no call is required: any text may end the turn
    DECLINING = 64  # a call that is begun may be declined


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of a phase: the joint that is written, and the phase after it.

    A joint is a sequence of markers, by their fields of :class:`constrained_k2.formats.base.WireFormat` (``str``), and
    of literal text in ordinary tokens (``bytes``). It begins with a marker. No joint of a phase begins with all of
    another one. A joint with a marker that the vocabulary lacks cannot be written.
    """

    joint: tuple[str | bytes, ...]
    to: Phase
    needs: Need = Need.NOTHING
