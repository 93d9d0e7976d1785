"""Texts that match a pattern: uniform characters never spell a word that a pattern demands."""

import random
import re
from re import _constants as sre
from re import _parser as parser
from typing import Any

_LONGEST = 200
_LETTERS: dict[Any, str] = {sre.CATEGORY_DIGIT: "0", sre.CATEGORY_SPACE: " ", sre.CATEGORY_WORD: "a",
            sre.CATEGORY_NOT_DIGIT: "a", sre.CATEGORY_NOT_SPACE: "a", sre.CATEGORY_NOT_WORD: "-"}  # fmt: skip


def patterns_of(schema: Any) -> list[str]:
    """Return the values of ``pattern`` in a schema."""
    if isinstance(schema, list):
        return [pattern for item in schema for pattern in patterns_of(item)]
    if not isinstance(schema, dict):
        return []
    found = [pattern for value in schema.values() for pattern in patterns_of(value)]
    if isinstance(pattern := schema.get("pattern"), str):
        found.append(pattern)
    return list(dict.fromkeys(found))


def sample(pattern: str, chance: random.Random) -> str:
    """Return a text that matches a pattern, by one of its alternatives; empty if none is easily found."""
    try:
        text = _sequence(parser.parse(pattern), chance)
        return text if len(text) <= _LONGEST and re.search(pattern, text) else ""
    except (re.error, OverflowError, RecursionError, ValueError):
        return ""


def _sequence(items: Any, chance: random.Random) -> str:
    return "".join(_item(operation, argument, chance) for operation, argument in items)


def _item(operation: Any, argument: Any, chance: random.Random) -> str:
    if operation is sre.LITERAL:
        return chr(argument)
    if operation is sre.IN:
        kind, value = argument[0]
        if kind is sre.NEGATE:
            return next((text for text in "a0-_ " if not re.match(_class(argument[1:]), text)), "")
        return _LETTERS.get(value, "") if kind is sre.CATEGORY else chr(value if kind is sre.LITERAL else value[0])
    if operation is sre.BRANCH:
        return _sequence(chance.choice(argument[1]), chance)
    if operation is sre.SUBPATTERN:
        return _sequence(argument[3], chance)
    if operation in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
        least, _, inner = argument
        return "".join(_sequence(inner, chance) for _ in range(min(least, _LONGEST)))
    if operation is sre.NOT_LITERAL:
        return "0" if argument == ord("a") else "a"
    return "a" if operation is sre.ANY else ""


def _class(members: Any) -> str:
    """Return the class of these characters, without categories."""
    ranges = (value if kind is sre.RANGE else (value, value) for kind, value in members if kind is not sre.CATEGORY)
    return "[" + "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in ranges) + "\0]"
