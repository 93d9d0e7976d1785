"""Streams the arguments of a call, and recovers a JSON object from arguments that are not JSON.

Invalid arguments are changed only at the end of a complete call. Until then, the text is buffered from the first
character that a recovery could change. For valid JSON only a comma is buffered, until the next character.

{'a': 1,}     becomes {"a": 1} at the call's end, with the recoveries single_quotes and trailing_comma
"""

import json
import re
from typing import NoReturn

_BLANKS = " \t\n\r"  # RFC 8259, section 2
_CLOSERS = {"{": "}", "[": "]"}
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_PLAIN = re.compile(r"[^\"\\\x00-\x1f]+")
_BLANK_RUN = re.compile(f"[{_BLANKS}]+")
_CONTROL = re.compile(r"[\x00-\x1f]")
# A group is named after the recovery that may change its match.
_TOKEN = re.compile(
    r"""(?P<control_characters>"(?:[^"\\]++|\\.)*+")|(?P<single_quotes>'[^'"\\\x00-\x1f]*+')"""
    r"""|(?P<python_literals>\w+)|(?P<blanks>[ \t\n\r]+)|.""",
    re.DOTALL,
)


class ArgumentsText:
    """The arguments of one call. Emits the part of the text that no recovery can change any more."""

    def __init__(self) -> None:
        self.in_string = False  # the next character is inside a JSON string
        self._parts: list[str] = []
        self._length = 0  # characters of all parts
        self._tail: list[str] = []  # text buffered after a comma; joined only when some of it can be emitted
        self._emitted = 0
        self._hold: int | None = None  # position of a comma that may be a trailing one, or of the first invalid text
        self._invalid = False  # only a recovery can make this JSON
        self._depth = 0
        self._escaped = False

    def feed(self, text: str) -> str:
        """Add what the model writes, and return the text that can be emitted now."""
        was_invalid = self._invalid
        start, self._length = self._length, self._length + len(text)
        self._parts.append(text)
        index = 0
        while index < len(text):
            index = self._step_in_string(text, index, start) if self.in_string else self._step(text, index, start)
        if not was_invalid:
            self._tail.append(text)
        count = (self._length if self._hold is None else self._hold) - self._emitted
        if was_invalid or not count:
            return ""
        tail = "".join(self._tail)
        self._emitted += count
        self._tail = [tail[count:]]
        return tail[:count]

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """End the call: return the text still to be emitted, and the recoveries used on the arguments."""
        written = self.written
        if self._invalid or self._hold is not None or self._depth > 0 or not written.strip(_BLANKS):
            recovered, recoveries = recover(written)
            if recoveries and recovered.startswith(written[: self._emitted]):
                return recovered[self._emitted :], recoveries
        return written[self._emitted :], ()

    @property
    def is_object(self) -> bool:
        """True if the text so far is a whole JSON object, so that only blanks may follow."""
        return not (self._invalid or self._depth or self.in_string) and _is_json(self.written, kind=dict)

    @property
    def is_recoverable(self) -> bool:
        """True if the text so far is JSON, or an object can be recovered from it."""
        return _is_json(recover(self.written)[0])

    @property
    def written(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    @property
    def buffered(self) -> str:
        """The part of the text that was not emitted."""
        return self.written[self._emitted :]

    def _step(self, text: str, index: int, start: int) -> int:
        """Read one character outside strings, or a run of blanks."""
        if blanks := _BLANK_RUN.match(text, index):
            return blanks.end()
        character = text[index]
        if not self._invalid:
            if self._hold is not None and character in "}]":
                self._invalid = True
            else:
                self._hold = start + index if character in ",'TFN" else None
                self._invalid = character in "'TFN"
        if character == '"':
            self.in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return index + 1

    def _step_in_string(self, text: str, index: int, start: int) -> int:
        """Read one character of a string, or a run of plain ones."""
        if self._escaped:
            self._escaped = False
            return index + 1
        if plain := _PLAIN.match(text, index):
            return plain.end()
        if text[index] == "\\":
            self._escaped = True
        elif text[index] == '"':
            self.in_string = False
        elif not self._invalid:
            self._invalid, self._hold = True, start + index
        return index + 1


def recover(written: str) -> tuple[str, tuple[str, ...]]:
    """Return the JSON object recovered from complete arguments, and the recoveries used, in order of first use.

    Arguments that are valid JSON, or for which no safe recovery is known, are returned unchanged.
    """
    if not written.strip(_BLANKS):
        return f"{written}{{}}", ("no_arguments",)
    if not _is_json(written) and (rewritten := rewrite(written)) and _is_json(rewritten[0], kind=dict):
        return rewritten
    return written, ()


def rewrite(written: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the arguments rewritten token by token, and the recoveries used; None if no recovery is safe."""
    out: list[str] = []
    closers: list[str] = []  # closing brackets of the open objects and arrays
    used: dict[str, None] = {}  # an ordered set
    last = -1  # index in out of the last part that is not blank

    def drop_comma() -> None:
        if last >= 0 and out[last] == ",":
            out[last] = ""
            used["trailing_comma"] = None

    for token in _TOKEN.finditer(written):
        part, kind = token[0], str(token.lastgroup)
        if kind == "control_characters":
            part = _CONTROL.sub(lambda control: json.dumps(control[0])[1:-1], part)
        elif kind == "single_quotes":
            part = f'"{part[1:-1]}"'
        elif kind == "python_literals":
            part = _LITERALS.get(part, part)
        elif part in _CLOSERS:
            closers.append(_CLOSERS[part])
        elif part in "}]":
            if not closers or closers.pop() != part:
                return None
            drop_comma()
        elif part in "'\"\\":  # an unterminated string, or one whose quotes are ambiguous
            return None
        if part != token[0]:
            used[kind] = None
        if kind != "blanks":
            last = len(out)
        out.append(part)
    if closers:
        drop_comma()
        used["missing_braces"] = None
    return "".join([*out, *reversed(closers)]), tuple(used)


def _is_json(text: str, kind: type = object) -> bool:
    try:
        value = json.loads(text, parse_int=str, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, kind)


def refuse_constant(constant: str) -> NoReturn:
    """Reject NaN and Infinity, which Python reads though they are not JSON."""
    raise ValueError(f"{constant} is not JSON")
