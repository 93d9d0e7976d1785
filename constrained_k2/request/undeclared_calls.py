"""Reads ``undeclared_calls``: drop a call of an undeclared function, or force a declared name."""

from typing import Literal, get_args

from constrained_k2.request.values import choice_at

UndeclaredCalls = Literal["decline", "nearest"]
UNDECLARED_CALLS: tuple[UndeclaredCalls, ...] = get_args(UndeclaredCalls)
CALL_THRESHOLD = 0.35
"""The default of the setting ``call_threshold``, chosen on the demo's answers: see docs/meant.md."""
EXPECTED = " or ".join(map(repr, UNDECLARED_CALLS))


def read_undeclared_calls(value: object, location: str = "undeclared_calls") -> UndeclaredCalls | None:
    """The request's choice; None if it has none. Raises InvalidRequest for any other value."""
    return choice_at(location, value, UNDECLARED_CALLS)
