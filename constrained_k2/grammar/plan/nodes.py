"""The values of a plan. They hold no functions, and equal plans print equal texts.

{"type": "string", "pattern": "^a"}     StringPlan(String(patterns={"^a"}), '/"a(?:CHARACTER)*"/', is_joined=True)
{"type": "string", "pattern": "("}      Wider(String(), ("pattern",), "this package has no grammar of the pattern …")
"""

from typing import NamedTuple

from msgspec import Struct

from constrained_k2.schema.notes import NoteStatus
from constrained_k2.schema.shapes import Number, Shape, String


class KeywordNote(NamedTuple):
    """Keywords of a node that its plan does not enforce exactly."""

    keywords: tuple[str, ...]
    status: NoteStatus
    reason: str


class StringPlan(Struct, frozen=True):
    """Strings of one shape.

    Attributes:
        shape: The shape that is written, after what is narrowed for cost.
        expression: The expression of a terminal; empty for any string, and for lengths that take several terminals.
        is_joined: True if the strings become one terminal with others of their node.
        notes: The keywords that are not enforced exactly.
    """

    shape: String
    expression: str = ""
    is_joined: bool = False
    notes: tuple[KeywordNote, ...] = ()


class NumberPlan(Struct, frozen=True):
    """Numbers of one shape.

    Attributes:
        shape: The shape, whose ``multiple`` the engine's builtin writes.
        expression: The expression of a terminal; empty for any number, and for multiples.
        notes: The keywords that are not enforced exactly.
    """

    shape: Number
    expression: str = ""
    notes: tuple[KeywordNote, ...] = ()


class Wider(Struct, frozen=True):
    """A shape has no exact grammar: ``shape``, which includes it, is planned instead, and the keywords are relaxed."""

    shape: Shape
    keywords: tuple[str, ...]
    reason: str
