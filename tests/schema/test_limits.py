"""Schemas at and beyond the 64 bits of a rule's parameter, and constants that would multiply with every level."""

from typing import Any

import pytest

from tests.kit.compilers import byte_compiler, narrowed
from tests.kit.grammars import accepts, compiled, mask_of

VALUES = list(range(64))


def closed(declared: int, **limits: int) -> dict[str, Any]:
    properties: dict[str, Any] = {f"k{number}": {"const": 1} for number in range(declared)}
    return {"type": "object", "properties": properties, "additionalProperties": False, **limits}


def members(*numbers: int) -> dict[str, int]:
    return {f"k{number}": 1 for number in numbers}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (closed(64, minProperties=64), members(*VALUES), members(*VALUES[1:])),
        (closed(64, minProperties=63), members(*VALUES[1:]), members(*VALUES[2:])),
        (closed(64, maxProperties=64), members(*VALUES), {"x": 1}),
        (closed(64, maxProperties=63), members(*VALUES[1:]), members(*VALUES)),
        (closed(63, maxProperties=64), members(*VALUES[:63]), members(63)),
        (closed(64) | {"required": [*members(*VALUES)]}, members(*reversed(VALUES)), members(*VALUES[1:])),
    ],
)
def test_up_to_64_properties_are_counted(schema: dict[str, Any], accepted: Any, rejected: Any) -> None:
    made = compiled(schema)
    assert made.coverage.is_sound and not narrowed(made.coverage)
    assert accepts(made, accepted) and not accepts(made, rejected)


@pytest.mark.parametrize(("limits", "length"), [({"minItems": 64}, 64), ({"minItems": 63}, 63), ({"maxItems": 64}, 64)])
def test_up_to_64_unique_items_are_counted(limits: dict[str, int], length: int) -> None:
    array = {"type": "array", "items": {"enum": VALUES}, "uniqueItems": True, **limits}
    made = compiled({"type": "object", "properties": {"a": array}})
    assert made.coverage.is_sound
    assert accepts(made, {"a": VALUES[:length]}) and not accepts(made, {"a": [*VALUES[: length - 1], 0]})
    assert accepts(made, {"a": VALUES[: length - 1]}) is ("maxItems" in limits)


def test_a_minimum_counts_the_first_64_of_more_properties() -> None:
    made = compiled(closed(100, minProperties=60))
    assert [use.keyword for use in narrowed(made.coverage)] == ["minProperties"]
    first = sorted(members(*range(100)))
    assert accepts(made, dict.fromkeys(first[:60], 1)) and accepts(made, dict.fromkeys(first, 1))
    assert not accepts(made, dict.fromkeys(first[:59], 1))
    assert [use.keyword for use in compiled(closed(100, minProperties=70)).coverage.relaxed] == ["minProperties"]


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_up_to_64_ranges_of_one_value_are_enforced(kind: str) -> None:
    def ranges(count: int) -> dict[str, Any]:
        return {"anyOf": [{"type": kind, "minimum": 10 * n, "maximum": 10 * n + 3} for n in range(count)]}

    enforced, relaxed = compiled(ranges(64)), compiled(ranges(70))
    assert enforced.coverage.is_sound and accepts(enforced, 633) and not accepts(enforced, 634)
    (reason,) = {use.reason for use in relaxed.coverage.relaxed}
    assert reason == "more than 64 ranges of numbers cost the engine too much"
    assert accepts(relaxed, 693) and not accepts(relaxed, "a")


def test_nested_constants_do_not_multiply() -> None:
    constant: Any = 1
    for _ in range(60):
        constant = {"a": constant, "b": 1, "c": 2, "d": 3}
    made = compiled({"type": "object", "properties": {"p": {"const": constant}}})
    assert len(made.text) < 50_000  # four members in any order at each level would be 24 ** 60 alternatives
    assert accepts(made, {"p": constant})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"contains": {"type": "string"}, "maxContains": 1, "items": {"type": "string"}}, '["a"'),
        ({"contains": {"const": 1}, "maxItems": 2, "maxContains": 1, "items": {"const": 1}}, "[1"),
        ({"contains": {"const": 1}, "prefixItems": [{"const": 1}, {"const": 1}], "maxContains": 1}, "[1"),
    ],
)
def test_no_comma_follows_where_no_item_can(schema: dict[str, Any], text: str) -> None:
    made = compiled({"type": "array"} | schema)
    assert made.coverage.is_sound
    matcher = made.matcher("")
    assert all(map(matcher.accept, text.encode()))
    assert {ord("]"), ord(",")} & {*mask_of(matcher, byte_compiler().vocabulary)} == {ord("]")}


def test_states_of_many_contains_are_bounded() -> None:
    """Six of them in a long array would take millions of rules."""
    clauses = [{"contains": {"const": number}, "minContains": 9} for number in range(6)]
    made = compiled({"type": "array", "allOf": clauses, "maxItems": 60})
    assert len(made.text) < 10_000
    assert {use.keyword for use in made.coverage.relaxed} == {"contains", "minContains"}
