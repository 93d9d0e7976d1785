"""Where in a JSON text its end stands: inside which object, behind which keys, within which string.

The text is legal so far (a grammar saw to it), so the cursor only follows. It is fed piece by piece, each character
once, and copied for trying a guess out.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from constrained_k2.drafting.views import View

_MAX_TOKEN = 256  # characters of a key or string that are remembered; longer ones are never guessed from


class Place(IntEnum):
    """What stands next."""

    VALUE = 0
    """A value."""
    FIRST_KEY = 1
    """The first key of an object, or its end."""
    KEY = 2
    """A key."""
    IN_KEY = 3
    """The rest of a key."""
    COLON = 4
    """A colon."""
    IN_STRING = 5
    """The rest of a string."""
    IN_SCALAR = 6
    """The rest of a number or literal, or what stands behind it."""
    AFTER = 7
    """A comma, or the end of what is open."""
    FIRST_ITEM = 8
    """The first item of an array, or its end."""


@dataclass(slots=True)
class Frame:
    """An open object or array.

    Attributes:
        view: What its schema says.
        is_object: Which of the two.
        keys: An object's keys so far.
    """

    view: View
    is_object: bool
    keys: list[str] = field(default_factory=list)

    def copy(self) -> "Frame":
        """A copy whose keys are its own."""
        return Frame(self.view, self.is_object, self.keys.copy())


class Cursor:
    """Follows one JSON value.

    Args:
        schema: The value's schema, decoded; also the document that its references point into.

    Attributes:
        place: What stands next.
        frames: What is open, outermost first.
        value: What the schema says of the value that stands next, or is being written.
        token: The characters of the key, string or scalar being written.
        colon: What was written behind the last colon before its value; None before the first.
        comma: The same of commas.
        is_done: Whether the value is complete.
    """

    __slots__ = ("_blanks", "_escaped", "colon", "comma", "frames", "is_done", "place", "token", "value")

    def __init__(self, schema: Any) -> None:
        self.place = Place.VALUE
        self.frames: list[Frame] = []
        self.value = View.of(schema, schema)
        self.token = ""
        self.colon: str | None = None
        self.comma: str | None = None
        self.is_done = False
        self._escaped = False
        self._blanks: str | None = None

    def copy(self) -> "Cursor":
        """An independent copy."""
        other = Cursor.__new__(Cursor)
        for name in Cursor.__slots__:
            setattr(other, name, getattr(self, name))
        other.frames = [frame.copy() for frame in self.frames]
        return other

    def feed(self, text: str) -> None:
        """Follow the next characters."""
        for character in text:
            if not self.is_done:
                self._step(character)

    def blanks_due(self, default: str) -> str:
        """The blanks that this text's style puts here, where it ends right behind a colon or comma.

        Args:
            default: What stands behind colons and commas where neither has been seen; else they are taken to be alike.
        """
        if self._blanks != "":
            return ""
        seen = (self.colon, self.comma) if self._is_behind_colon() else (self.comma, self.colon)
        return next((blanks for blanks in seen if blanks is not None), default)

    def _is_behind_colon(self) -> bool:
        return self.place is Place.VALUE and bool(self.frames) and self.frames[-1].is_object

    def _step(self, character: str) -> None:
        if self.place in {Place.IN_KEY, Place.IN_STRING}:
            self._in_string(character)
        elif character in " \t\r\n":
            if self._blanks is not None and len(self._blanks) < _MAX_TOKEN:
                self._blanks += character
            if self.place is Place.IN_SCALAR:
                self._end_value()
        elif self.place is Place.IN_SCALAR and character not in ",}]":
            self.token = (self.token + character)[:_MAX_TOKEN]
        else:
            if self.place is Place.IN_SCALAR:
                self._end_value()
            self._joint(character)

    def _in_string(self, character: str) -> None:
        if character == '"' and not self._escaped:
            if self.place is Place.IN_KEY:
                self.frames[-1].keys.append(self.token)
                self.value = self.frames[-1].view.value_of(self.token)
                self.place = Place.COLON
            else:
                self._end_value()
            return
        self._escaped = character == "\\" and not self._escaped
        self.token = (self.token + character)[:_MAX_TOKEN]

    def _joint(self, character: str) -> None:
        """A character of the structure, or the first one of a value."""
        if character == ":":
            self.place, self._blanks = Place.VALUE, ""
            return
        if character == ",":
            self._blanks = ""
            frame = self.frames[-1]
            self.place = Place.KEY if frame.is_object else Place.VALUE
            self.value = frame.view if frame.is_object else frame.view.item
            return
        if character in "}]":
            frame = self.frames.pop()
            self.value = frame.view
            self._end_value()
            return
        self._note_style()
        self.token, self._escaped = "", False
        if character == '"':
            is_key = self.place in {Place.KEY, Place.FIRST_KEY}
            self.place = Place.IN_KEY if is_key else Place.IN_STRING
        elif character in "{[":
            self.frames.append(Frame(self.value, character == "{"))
            self.place = Place.FIRST_KEY if character == "{" else Place.FIRST_ITEM
            self.value = self.value if character == "{" else self.value.item
        else:
            self.place, self.token = Place.IN_SCALAR, character

    def _note_style(self) -> None:
        if self._blanks is not None:
            if self._is_behind_colon():
                self.colon = self._blanks
            else:
                self.comma = self._blanks
            self._blanks = None

    def _end_value(self) -> None:
        self.token = ""
        self.place = Place.AFTER
        self._blanks = None
        if not self.frames:
            self.is_done = True
