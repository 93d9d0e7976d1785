"""Writes the Lark rules of ``enum`` and ``const`` values, with optional whitespace.

{"const": {"a": [true]}}     a2: "{" ws a1 ws "}"     a1: KEY_A ws ":" ws a0     a0: "[" ws "true" ws "]"

An object's properties may come in any order if there are at most four. Each array, object and member has its own rule:
LLGuidance (1.7.6) cannot read a rule that is nested deeply.
"""

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from constrained_k2.grammar.lark.terminals import key, literal

_MAX_PERMUTED = 4  # max properties of a constant object in any order: each of their 2^4 sets takes a rule


def value_text(value: Any, rule: Callable[[list[str]], str], *, signs_apart: bool) -> str:
    """Return the grammar of one value.

    ``rule`` returns the name of a rule with the given alternatives; ``signs_apart``: the sign of a number is a separate
    terminal.
    """
    text = partial(value_text, rule=rule, signs_apart=signs_apart)
    if isinstance(value, str):
        return key(value)
    if isinstance(value, list):
        return rule([_bracketed("[", map(text, value), "]")])
    if isinstance(value, dict):
        members = [rule([f'{key(name)} ws ":" ws {text(item)}']) for name, item in value.items()]
        return rule([_bracketed("{", [_any_order(members, rule)] if len(members) <= _MAX_PERMUTED else members, "}")])
    if signs_apart and type(value) in {int, float} and value < 0:
        return f'"-" {text(-value)}'
    return literal(json.dumps(value))


def _any_order(members: list[str], rule: Callable[[list[str]], str]) -> str:
    """Return the grammar of members in any order: each may be first, followed by the rule for the set of the others."""
    if len(members) < 2:
        return "".join(members)
    rests = ([other for other in members if other != one] for one in members)
    alternatives = zip(members, rests, strict=True)
    return rule([f'{one} ws "," ws {_any_order(rest, rule)}' for one, rest in alternatives])


def _bracketed(opening: str, parts: Iterable[str], closing: str) -> str:
    inner = ' ws "," ws '.join(parts)
    return " ws ".join(filter(None, (f'"{opening}"', inner, f'"{closing}"')))
