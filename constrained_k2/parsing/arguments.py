"""Arguments as they stream, and their smallest safe repair.

What is no JSON is repaired at the end of a whole call or not at all. So that nothing shown is ever taken back, the text
from the first place that a repair could change is held back until then; JSON holds back a comma for the next character
and nothing else.
"""

import json
import re
from typing import NoReturn

from constrained_k2.parsing.leniencies import (
    CONTROL_CHARACTERS,
    MISSING_BRACES,
    NO_ARGUMENTS,
    PYTHON_LITERALS,
    SINGLE_QUOTES,
    TRAILING_COMMA,
)

_BLANKS = " \t\n\r"  # JSON's
_CLOSERS = {"{": "}", "[": "]"}
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_PLAIN = re.compile(r"[^\"\\\x00-\x1f]+")
_BLANK_RUN = re.compile(f"[{_BLANKS}]+")
_CONTROL = re.compile(r"[\x00-\x1f]")
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]++|\\.)*+")|(?P<single>'[^'"\\\x00-\x1f]*+')|(?P<word>\w+)|(?P<blanks>[ \t\n\r]+)|.""",
    re.DOTALL,
)


class ArgumentsText:
    """The arguments of one call."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0  # of what was written, in characters
        self._tail: list[str] = []  # what is held back behind a comma, joined only when some of it can be shown
        self._shown = 0
        self._hold: int | None = None  # where a comma stands behind which a value may be missing, or the first oddity
        self._odd = False  # only a repair can make JSON of it
        self._depth = 0
        self._escaped = False
        self.in_string = False
        """Whether the next character stands inside a JSON string."""

    def feed(self, text: str) -> str:
        """Take more of what the model writes.

        Returns:
            What can be shown now, of it and of what was held back.
        """
        was_odd = self._odd
        start, self._length = self._length, self._length + len(text)
        self._parts.append(text)
        place = 0
        while place < len(text):
            place = self._step_in_string(text, place, start) if self.in_string else self._step(text, place, start)
        if was_odd:
            return ""
        self._tail.append(text)
        known = (self._length if self._hold is None else self._hold) - self._shown
        if not known:
            return ""
        tail = "".join(self._tail)
        self._shown += known
        self._tail = [tail[known:]]
        return tail[:known]

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """Take the end of the call.

        Returns:
            What is still to be shown, and the leniencies used on the arguments; none if they were not repaired.
        """
        written = self.written
        if self._odd or self._hold is not None or self._depth > 0 or not written.strip(_BLANKS):
            repaired, leniencies = repair(written)
            if leniencies and repaired.startswith(written[: self._shown]):
                return repaired[self._shown :], leniencies
        return written[self._shown :], ()

    @property
    def written(self) -> str:
        """What the model wrote so far."""
        return "".join(self._parts)

    @property
    def unshown(self) -> str:
        """What of it is held back."""
        return self.written[self._shown :]

    def _step(self, text: str, place: int, start: int) -> int:
        """Read one character outside strings, or many blanks."""
        if blanks := _BLANK_RUN.match(text, place):
            return blanks.end()
        character = text[place]
        if not self._odd:
            if self._hold is not None and character in "}]":
                self._odd = True
            else:
                self._hold = start + place if character in ",'TFN" else None
                self._odd = character in "'TFN"
        if character == '"':
            self.in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return place + 1

    def _step_in_string(self, text: str, place: int, start: int) -> int:
        """Read one character of a string, or many."""
        if self._escaped:
            self._escaped = False
            return place + 1
        if plain := _PLAIN.match(text, place):
            return plain.end()
        if text[place] == "\\":
            self._escaped = True
        elif text[place] == '"':
            self.in_string = False
        elif not self._odd:
            self._odd, self._hold = True, start + place
        return place + 1


def repair(written: str) -> tuple[str, tuple[str, ...]]:
    """Make a JSON object of arguments that are none.

    Args:
        written: The arguments of a whole call.

    Returns:
        The repaired arguments and the leniencies used, in the order of their first use; the arguments as they are and
        none, if they are JSON already or no repair is known to be safe.
    """
    if not written.strip(_BLANKS):
        return f"{written}{{}}", (NO_ARGUMENTS,)
    if _is_json(written):
        return written, ()
    repaired = _Repair()
    if not all(map(repaired.take, _TOKEN.finditer(written))):
        return written, ()
    text, leniencies = repaired.finish()
    return (text, leniencies) if _is_json(text, kind=dict) else (written, ())


class _Repair:
    """Writes arguments anew, token by token; they change only where a leniency is used."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._due: list[str] = []  # what closes the objects and arrays that are open
        self._last = -1  # the last part of out that is not blank
        self._used: dict[str, None] = {}  # an ordered set

    def take(self, token: re.Match[str]) -> bool:
        """Take a token; False if no repair is safe any more."""
        part = token[0]
        match token.lastgroup:
            case "string":
                part = _CONTROL.sub(_escape, part)
                self._use(CONTROL_CHARACTERS, part != token[0])
            case "single":
                part = f'"{part[1:-1]}"'
                self._use(SINGLE_QUOTES)
            case "word":
                part = _PYTHON_LITERALS.get(part, part)
                self._use(PYTHON_LITERALS, part != token[0])
            case None if part in "'\"\\":  # a string that does not end, or holds what makes its quotes doubtful
                return False
            case None if part in _CLOSERS:
                self._due.append(_CLOSERS[part])
            case None if part in "}]":
                if not self._due or self._due.pop() != part:
                    return False
                self._drop_comma()
        if token.lastgroup != "blanks":
            self._last = len(self._out)
        self._out.append(part)
        return True

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """The text, closed, and the leniencies used."""
        if self._due:
            self._drop_comma()
            self._out.extend(reversed(self._due))
            self._use(MISSING_BRACES)
        return "".join(self._out), tuple(self._used)

    def _drop_comma(self) -> None:
        if self._last >= 0 and self._out[self._last] == ",":
            self._out[self._last] = ""
            self._use(TRAILING_COMMA)

    def _use(self, leniency: str, used: bool = True) -> None:  # noqa: FBT001, FBT002 - reads as a sentence
        if used:
            self._used[leniency] = None


def _escape(control: re.Match[str]) -> str:
    return json.dumps(control[0])[1:-1]


def _is_json(text: str, kind: type = object) -> bool:
    try:
        value = json.loads(text, parse_int=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, kind)


def _refuse(constant: str) -> NoReturn:
    """Python reads NaN and Infinity, which are no JSON."""
    raise ValueError(constant)
