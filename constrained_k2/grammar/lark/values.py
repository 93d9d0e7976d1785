"""Listed values: whitespace between their parts is free, and up to four properties may come in any order."""

import json
from collections.abc import Iterable
from functools import partial
from itertools import permutations
from math import factorial
from typing import Any

from constrained_k2.grammar.lark.digits import MAX_DIGITS
from constrained_k2.grammar.lark.terminals import key, literal
from constrained_k2.schema.doubles import LARGEST_EXACT

_MAX_PERMUTED = 4  # properties of a constant object that may come in any order: 4! = 24 alternatives
_MAX_PERMUTED_TEXT = 8_000  # characters of all alternatives: in nested constants they multiply with every level


def value_text(value: Any, *, signs_apart: bool) -> str:
    """Return the grammar of one value; ``signs_apart``: the sign of a number is a terminal of its own."""
    text = partial(value_text, signs_apart=signs_apart)
    if isinstance(value, str):
        return key(value)
    if isinstance(value, list):
        return _bracketed("[", map(text, value), "]")
    if isinstance(value, dict):
        members = [f'{key(name)} ws ":" ws {text(item)}' for name, item in value.items()]
        is_short = sum(map(len, members)) * factorial(min(len(members), _MAX_PERMUTED)) <= _MAX_PERMUTED_TEXT
        orders = permutations(members) if len(members) <= _MAX_PERMUTED and is_short else [tuple(members)]
        return "(" + " | ".join(_bracketed("{", order, "}") for order in orders) + ")"
    if signs_apart and type(value) in {int, float} and value < 0:
        return f'"-" {text(-value)}'
    if type(value) is int:
        zeros = rf"(?:\.0{{1,{MAX_DIGITS}}})?" if abs(value) <= LARGEST_EXACT else ""  # with a point it is a double
        if value:
            return f"/{value}{zeros}/"
        return f'"-"? /0{zeros}/' if signs_apart else f"/-?0{zeros}/"
    return literal(json.dumps(value))


def depth_of(value: Any) -> int:
    """Return the number of arrays and objects in one another in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def _bracketed(opening: str, parts: Iterable[str], closing: str) -> str:
    inner = ' ws "," ws '.join(parts)
    return " ws ".join(filter(None, (f'"{opening}"', inner, f'"{closing}"')))
