"""The request's bounds on the calls of a turn."""

from constrained_k2.errors import InvalidRequest, excerpt

_MOST = 10**9 - 1  # as of a call's index
MAX_CALLS = f"a whole number from 1 to {_MOST}"


def read_max_calls(value: object, location: str = "max_calls") -> int | None:
    """The most calls of a turn, None for no bound; raises InvalidRequest for any other value."""
    if value is None or (type(value) is int and 1 <= value <= _MOST):
        return value
    remedy = 'Leave it out for no bound; tool_choice "none" forbids calls'
    raise InvalidRequest(f"must be {MAX_CALLS}, not {excerpt(value)}", location, remedy)
