"""Reads ``max_calls`` and ``repeated_calls``: how many calls a turn may have, and if they may repeat."""

from typing import Literal, get_args

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.request.values import choice_at

_MOST = 10**9 - 1  # the limit of a call's index too
MAX_CALLS = f"a whole number from 1 to {_MOST}"

RepeatedCalls = Literal["allow", "forbid"]
REPEATED_CALLS: tuple[RepeatedCalls, ...] = get_args(RepeatedCalls)
REPEATS = " or ".join(map(repr, REPEATED_CALLS))


def read_max_calls(value: object, location: str = "max_calls") -> int | None:
    """The most calls of a turn, None for no bound; raises InvalidRequest for any other value."""
    if value is None or (type(value) is int and 1 <= value <= _MOST):
        return value
    remedy = 'Leave it out for no bound; tool_choice "none" forbids calls'
    raise InvalidRequest(f"must be {MAX_CALLS}, not {excerpt(value)}", location, remedy)


def read_repeated_calls(value: object, location: str = "repeated_calls") -> RepeatedCalls | None:
    """The request's rule for calls that repeat an earlier one, None if it has none; raises InvalidRequest otherwise."""
    return choice_at(location, value, REPEATED_CALLS)
