"""Checks the types of decoded JSON from clients; errors name the location in the request."""

from collections.abc import Mapping
from typing import Any, TypeVar

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json

T = TypeVar("T", bound=str)


def object_at(location: str, value: object) -> dict[str, Any]:
    """Return a copy of a JSON object, or raise :class:`InvalidRequest`."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(value)}", location)
    return dict(value)


def array_at(location: str, value: object) -> list[Any]:
    """Return a copy of a JSON array, or raise :class:`InvalidRequest`."""
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"must be an array, not {kind_of_json(value)}", location)
    return list(value)


def boolean_at(location: str, value: object) -> bool | None:
    """Return a boolean, or None for null, or raise :class:`InvalidRequest`."""
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"must be a boolean, not {kind_of_json(value)}", location)


def choice_at(location: str, value: object, known: tuple[T, ...]) -> T | None:
    """Return one of some known strings, or None for null, or raise :class:`InvalidRequest`."""
    if value is None:
        return None
    for one in known:
        if value == one:
            return one
    raise InvalidRequest(f"must be {' or '.join(map(repr, known))}, not {excerpt(value)}", location)
