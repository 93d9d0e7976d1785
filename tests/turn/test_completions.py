"""The lengths of the shortest values, and the texts that end arguments soonest."""

import json
import time
from typing import Any

import pytest

from constrained_k2.engines.llguidance.grammar_text import Patterns, schema_grammar
from constrained_k2.grammar.plan.nodes import CountedItems, Plan
from constrained_k2.turn.completions.json_completions import json_completions
from constrained_k2.turn.completions.plan_values import PlanValues
from constrained_k2.turn.cursors.json_cursor import JsonCursor

LIST = {"type": "object", "properties": {"v": {"type": "number"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["v", "next"]}  # fmt: skip
KINDS = {"type": "object", "oneOf": [
    {"properties": {"kind": {"const": "long"}, "a": {"type": "string"}, "b": {"$ref": "#"}}, "required": ["kind", "a", "b"]},
    {"properties": {"kind": {"const": "short"}, "c": {"type": "string"}}, "required": ["kind", "c"]},
]}  # fmt: skip


def plan_of(schema: Any) -> Plan:
    """The plan of a schema's grammar."""
    plan = schema_grammar(schema, Patterns()).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("schema", "text", "best"),
    [
        (LIST, '{"v":1,"next":', "null}"),
        (LIST, '{"v":1', ',"next":null}'),
        (LIST, '{"v":1,"next":{"v":2,"next":null', "}}"),
        (KINDS, "", '{"kind":"short","c":""}'),
        (KINDS, '{"kind":', '"short","c":""}'),
        (KINDS, '{"kind":"', 'short","c":""}'),
        (KINDS, '{"kind":"long","a":"x"', ',"b":{"kind":"short","c"'),
        (KINDS, '{"kind":"short"', ',"c":""}'),
        ({"type": "object", "additionalProperties": {"type": "array"}}, '{"x":', "[]}"),
        ({"type": "object", "properties": {"x": {"type": ["array", "string"], "minItems": 1}}}, '{"x":', '""}'),
        ({"type": "object", "properties": {"x": {"enum": ["ab", "cd"]}}}, '{"x":"a', 'b"}'),
        ({"type": "object", "properties": {"x": {"enum": ["ab", "cd"]}}}, '{"x":"', None),
        ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, '{"x":', None),
        ({"type": "integer", "multipleOf": 7, "minimum": 20}, "", "21"),
        ({"type": "number"}, "", None), ({"type": "number", "minimum": 3}, "", None), ({"type": "number", "multipleOf": 3}, "", "0"),
        ({"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 1}, "", "1.25"), ({"type": "number", "multipleOf": 10, "maximum": -5}, "", "-10"),
        ({"type": "number", "multipleOf": 5, "minimum": 5, "exclusiveMinimum": True}, "", "10"),
        ({"type": "number", "multipleOf": 2, "exclusiveMaximum": -4}, "", "-6"), ({"type": "number", "multipleOf": 0}, "", None),
        ({"type": "number", "multipleOf": 1e-300, "minimum": 1e300}, "", None), ({"type": "number", "multipleOf": "1"}, "", None),
        ({"type": "number", "multipleOf": 1, "minimum": 10**4000}, "", None),
        ({"type": "array", "contains": {"type": "array", "contains": {"const": "x"}}}, "", '[["x"]]'),
        ({"not": {"items": {"not": {"const": "x"}}}}, "[1,", '"x"]'),
        ({"not": {"items": {"not": {"const": "x"}}}}, "[1,2,3,4,", None),
        ({"contains": {"enum": [2, "low"]}}, '["x",', "2]"),
        ({"items": {"type": "string"}, "contains": {"enum": [2, "low"]}}, '["x",', '"low"]'),
        ({"contains": {"type": "number", "minimum": 5}}, "[1,", "5]"),
        ({"type": "object", "not": {"properties": {"c": {"not": {"const": "x"}}}}}, "{", '"c":"x"}'),
        ({"allOf": [{"properties": {"a": {"required": ["x"]}}}, {"properties": {"a": {"required": ["y"], "type": "object"}}}]},
         '{"a":{"x":1', ',"y":'),
        ({"type": "object", "required": ["a", "b"]}, '{"ab":1', ',"b":'),
        ({"not": {"propertyNames": {"not": {"const": "a4"}}}, "additionalProperties": {"type": "null"}}, "{", '"a4":null}'),
        ({"type": "string", "pattern": "^[ab]+-end$"}, '"ab', '-end"'),
        ({"type": "string", "pattern": '^"+$'}, '"', '\\""'),
        ({"type": "string", "minLength": 5}, '"abc', '--"'),
        ({"type": "string", "format": "email"}, '"abc', '@a"'),
        ({"type": "string", "format": "no-such"}, '"abc', '"'),
        ({"patternProperties": {"^x": {"type": "null"}, "y$": {"type": "array"}}}, '{"ay":', "[]}"),
        ({"required": ["a"], "dependentRequired": {"a": ["b"]}, "dependencies": {"b": {"required": ["c"]}}}, '{"a":1,"b":2', ',"c":'),
    ],
)  # fmt: skip
def test_the_best_ending(schema: Any, text: str, best: str | None) -> None:
    cursor = JsonCursor(schema)
    cursor.feed(text)
    tried = list(json_completions(cursor, plan_of(schema)))  # an end is tried before a key
    assert (best[:24] in tried[:2]) if best else not tried


@pytest.mark.parametrize(
    ("schema", "length"),
    [
        ({"type": "string"}, 2), ({"type": "string", "minLength": 5}, 7), ({"type": ["null", "integer"]}, 1),
        ({"enum": ["abc", 12]}, 2), ({"type": "array"}, 2), ({"type": "array", "items": {"type": "null"}, "minItems": 2}, 12),
        (LIST, 20), (True, 1), ({}, 1), ({"type": "object", "required": ["a"]}, 8),
        ({"contains": {"enum": ["abc", 12]}, "type": "array", "minContains": 2}, 8),
        ({"type": "array", "items": {"enum": ["abc", 12, 1]}, "uniqueItems": True, "minItems": 2}, 7),
        ({"type": "array", "items": {"type": "null"}, "minItems": 10**30}, 2 + 5 * 10**9),
        ({"$ref": "#"}, 1), ({"anyOf": 3, "type": 5, "properties": []}, 1),
        ({"if": {}, "then": {"type": "string"}, "else": {"type": "null"}}, 2),
    ],
)  # fmt: skip
def test_the_shortest_value(schema: Any, length: float) -> None:
    values = PlanValues(plan_of(schema))
    assert min(map(values.cost, values.roots())) == length


def test_keys_that_match_a_pattern() -> None:
    schema = {"propertyNames": {"pattern": "^[0-9]+b$"}}
    cursor, plan = JsonCursor(schema), plan_of(schema)
    cursor.feed('{"')
    assert list(json_completions(cursor, plan)) == ['0b":', '":']
    cursor.feed('0b":1,"')
    assert '0b":' not in list(json_completions(cursor, plan))[:2]


def test_a_pattern_without_states_gives_no_rest() -> None:
    for pattern in ("(a)\\1", "(?:a{500}){500}", "["):
        schema = {"type": "string", "pattern": pattern}
        cursor = JsonCursor(schema)
        cursor.feed('"a')
        assert list(json_completions(cursor, plan_of(schema))) == ['"']


def test_lengths_do_not_depend_on_the_order_of_questions() -> None:
    """All ranks filter alike, whatever they answered before."""
    for first in ("a", "b", "c"):
        document: Any = {"$defs": {
            "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}}, "required": ["x"]},
            "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "object", "properties": {"y": {"$ref": "#/$defs/a"}}, "required": ["y"]}]},
            "c": {"anyOf": [{"type": "object", "properties": {"z": {"$ref": "#/$defs/a"}}, "required": ["z"]}, {"type": "null"}]},
        }}  # fmt: skip
        document |= {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in "abc"}}
        values = PlanValues(plan_of(document))
        (one,) = values.roots()
        values.cost_of_member(one, first)
        assert [values.cost_of_member(one, name) for name in "abc"] == [11, 4, 4]


@pytest.mark.parametrize("more", [{}, {"maxItems": 9}, {"maxContains": 4}, {"allOf": [{"contains": {"const": "x"}}]}])
def test_no_state_of_contains_is_followed_by_an_earlier_one(more: Any) -> None:
    """The costs of arrays are computed in one pass, from the last state to the first."""
    schema = {"type": "array", "contains": {"type": "integer"}, "minContains": 3, **more}
    found = [one for node in plan_of(schema).nodes for one in node.alternatives if isinstance(one, CountedItems)]
    assert found and all(
        after >= number for one in found for number, state in enumerate(one.states) for after, _ in state.following
    )


def test_large_plans_cost_little() -> None:
    """References that fan out, chains, and depth."""
    fan: Any = {f"d{n}": {"type": ["object", "null"], "properties": {f"k{m}": {"$ref": f"#/$defs/d{(n + m) % 20}"} for m in range(20)},
                          "required": [f"k{m}" for m in range(20)]} for n in range(20)}  # fmt: skip
    chain: Any = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}}],
                            "minItems": 1} for n in range(40)} | {"d40": {"type": "null"}}  # fmt: skip
    deep: Any = {"d0": json.loads('{"items":' * 400 + "{}" + "}" * 400)}
    for definitions in (fan, chain, deep):
        schema = {
            "$defs": definitions,
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/d0"}},
            "required": ["x"],
        }
        cursor, plan = JsonCursor(schema), plan_of(schema)
        started = time.process_time()
        for text in ("{", '"x":', "{", '"k0":'):
            cursor.feed(text)
            list(json_completions(cursor, plan))
        assert time.process_time() - started < 3
