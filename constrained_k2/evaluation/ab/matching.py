"""Whether the calls of an answer are the expected ones."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.evaluation.ab.sample import ExpectedCall

Arguments = Mapping[str, Any] | None
"""Decoded arguments; None where they are no JSON object."""

_IGNORED = re.compile(r"[ ,./\-_*^]")  # what the Berkeley leaderboard leaves out of strings


def matches(expected: ExpectedCall, name: str, arguments: Arguments) -> bool:
    """Whether a call is the expected one: no argument missing, none too many, each with a right value."""
    if name != expected.name or arguments is None or not arguments.keys() <= expected.arguments.keys():
        return False
    if not expected.arguments.keys() - arguments.keys() <= expected.omissible:
        return False
    return all(
        is_accepted(value, expected.arguments[key], lenient=expected.lenient) for key, value in arguments.items()
    )


def is_accepted(value: Any, accepted: Sequence[Any], *, lenient: bool) -> bool:
    """Whether a value is one of those that are right."""
    return any(_equals(value, right, lenient=lenient) for right in accepted)


def pairs(expected: Sequence[ExpectedCall], calls: Sequence[tuple[str, Arguments]]) -> list[int | None]:
    """For every expected call, the place of the call that it is paired with: as many right pairs as can be.

    A maximum matching by augmenting paths (Kuhn); turns hold few calls.

    Args:
        expected: The expected calls.
        calls: ``(name, arguments)`` of those that came.
    """
    fits = [[place for place, call in enumerate(calls) if matches(right, *call)] for right in expected]
    taken: dict[int, int] = {}

    def find(number: int, tried: set[int]) -> bool:
        for place in fits[number]:
            if place not in tried:
                tried.add(place)
                if place not in taken or find(taken[place], tried):
                    taken[place] = number
                    return True
        return False

    for number in range(len(expected)):
        find(number, set())
    found: list[int | None] = [None] * len(expected)
    for place, number in taken.items():
        found[number] = place
    return found


def optional_arguments(
    expected: Sequence[ExpectedCall], calls: Sequence[tuple[str, Arguments]], required: Mapping[str, set[str]]
) -> tuple[int, int]:
    """How many optional arguments a right answer writes, and how many of these were written.

    Counted are arguments that the schema does not require and the right answer does not leave open. An expected call is
    held against the calls of its name in their order.

    Args:
        expected: The expected calls.
        calls: ``(name, arguments)`` of those that came.
        required: Name -> the arguments that its schema requires.
    """
    due = written = 0
    left = list(calls)
    for right in expected:
        wanted = right.arguments.keys() - right.omissible - required.get(right.name, set())
        due += len(wanted)
        place = next((place for place, (name, _) in enumerate(left) if name == right.name), None)
        if place is not None:
            written += len(wanted & (left.pop(place)[1] or {}).keys())
    return due, written


def _equals(value: Any, right: Any, *, lenient: bool) -> bool:
    if isinstance(value, bool) or isinstance(right, bool):  # True is 1 to Python
        return value is right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right) if lenient else value == right
    if isinstance(value, list) and isinstance(right, list):
        same = len(value) == len(right)
        return same and all(_equals(a, b, lenient=lenient) for a, b in zip(value, right, strict=True))
    if isinstance(value, dict) and isinstance(right, dict):
        if lenient and all(isinstance(values, list) for values in right.values()):
            missing = right.keys() - value.keys()
            return (
                value.keys() <= right.keys()
                and all("" in right[key] for key in missing)
                and all(is_accepted(part, right[key], lenient=True) for key, part in value.items())
            )
        return value.keys() == right.keys() and all(_equals(value[key], right[key], lenient=lenient) for key in value)
    return type(value) in {int, float, type(None)} and type(right) in {int, float, type(None)} and value == right


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')
