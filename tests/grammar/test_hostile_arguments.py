"""Hostile schemas of Kimi K3's arguments: each is enforced, bounded, or refused cleanly."""

import json
import random
from contextlib import suppress
from itertools import product
from time import thread_time
from typing import Any

import llguidance
import pytest

from benchmarks.host.timing import collected_before
from constrained_k2 import Compiler, ConstrainedK2Error, SchemaTooCostly, ToolCallSpec, UnsupportedSchema
from constrained_k2.compiler.coverage import byte_compiler, schema_coverage
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.llguidance import prototype
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.parsing.parser import parse_completion
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.request.spec import ToolCall
from tests.grammar.test_arguments import BYTES, ENGINE, accepts, accepts_all_orders, compiled
from tests.kit.compilers import narrowed
from tests.kit.grammars import request_of
from tests.kit.tools import tool
from tests.kit.xtml import CLOSE, OPEN, SEPARATOR, block, encode, pieces

XTML = GrammarOptions(encoding="xtml", undeclared_keys="allow")
KEYS = [
    "", " ", 'a"b', "a&b", "&quot;", "&amp;quot;", "a\nb\0", OPEN, f"{CLOSE}argument{SEPARATOR}", 'a" type="string',
    "北京 \U0010ffff", "k" * 4_000,
]  # fmt: skip
ANY_KIND = ["string", "number", "boolean", "null", "object", "array"]


def of(properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **keywords}


def refusal(schema: dict[str, Any]) -> ConstrainedK2Error:
    with pytest.raises((SchemaTooCostly, UnsupportedSchema)) as caught:
        byte_compiler(wire_format=KIMI_K3).grammar(json.dumps(schema), "tools[0]", options=XTML)
    assert caught.value.location.startswith("tools[0]") and caught.value.problem and caught.value.remedy
    return caught.value


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key[:20]))
def test_keys_of_any_text(key: str) -> None:
    schema = of({key: {"type": "integer"}}, required=[key], additionalProperties=False)
    grammar = compiled(json.dumps(schema))
    assert accepts(grammar, pieces({key: 1})) and not accepts(grammar, [])
    other = {key[1:]: 1} if key else {"x": 1}
    for wrong in ({key: "1"}, {key: 1.5}, {f"{key}x": 1}, {key: 1, f"{key}x": 1}, other):
        assert not accepts(grammar, pieces(wrong)), wrong
    assert not accepts(grammar, pieces({key: 1}) + pieces({key: 1}))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key[:20]))
def test_calls_with_keys_of_any_text_are_read_back(key: str) -> None:
    compiler = byte_compiler(wire_format=KIMI_K3)
    spec = ToolCallSpec.from_openai({"tools": [tool("f", of({key: {}}, required=[key]))], "tool_choice": "required"})
    for value in (key, {key: key}, [key], 1):
        text = json.dumps({key: value}, ensure_ascii=False)
        ids = render_turn([ToolCall("f", 1, text)], compiler.vocabulary)
        matcher = compiler.compile(spec).matcher()
        assert all(matcher.accept_tokens((token,)) for token in ids) and matcher.is_terminated()
        (call,) = parse_completion(ids, compiler.vocabulary).tool_calls
        assert json.loads(call.arguments) == {key: value} and not call.recoveries


@pytest.mark.parametrize(
    ("schema", "error", "problem"),
    [
        (of({"k" * 10_000: {}}), SchemaTooCostly, "a property name's length"),
        (of({"a\ud800": {}}), UnsupportedSchema, "lone surrogate"),
        (of({}, required=["\udfff"]), UnsupportedSchema, "lone surrogate"),
        (of({"a": {"enum": ["\ud800"]}}), UnsupportedSchema, "lone surrogate"),
        (of({}, required=["b"], additionalProperties=False), UnsupportedSchema, "no value satisfies"),
        (of({"a": {"$ref": "#"}}, required=["a"]), UnsupportedSchema, "no value satisfies"),
        (of({f"k{number}": {"type": "string"} for number in range(9_000)}), SchemaTooCostly, "unfolds into more than"),
        (of({f"p{number}": {"enum": list(range(1_000))} for number in range(60)}), SchemaTooCostly,
         "more than 50000 alternatives"),
    ],
    ids=range(8),
)  # fmt: skip
def test_refusals_name_the_place_and_a_remedy(schema: Any, error: type[Exception], problem: str) -> None:
    found = refusal(schema)
    assert isinstance(found, error) and problem in found.problem


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "#"}, "#/$ref"),
        ({"type": "object", "anyOf": [{"$ref": "#"}, of({})]}, "#/anyOf/0/$ref"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
         "#/$defs/b/$ref"),
    ],
    ids=range(3),
)  # fmt: skip
def test_a_reference_to_itself_is_relaxed_and_refused_if_strict(schema: dict[str, Any], pointer: str) -> None:
    assert_relaxed(schema, pointer)
    assert accepts(compiled(json.dumps(schema)), pieces({"a": "x"}))


def test_a_long_enum_of_objects() -> None:
    grammar = compiled(json.dumps({"type": "object", "enum": [{"a": number} for number in range(300)]}))
    assert not grammar.coverage.relaxed and not narrowed(grammar.coverage)
    assert accepts(grammar, pieces({"a": 299}))
    assert not accepts(grammar, pieces({"a": 300})) and not accepts(grammar, [])


def test_required_keys_that_are_not_declared_take_any_value() -> None:
    for undeclared_keys in ("allow", "forbid"):
        schema = json.dumps(of({"a": {"type": "string"}}, required=["b"]))
        grammar = ENGINE.compile(schema, undeclared_keys, "xtml")
        for value in ("x", 1, None, [1], {"c": 2}):
            assert all(accepts_all_orders(grammar, {"a": "x", "b": value}))
        assert not accepts(grammar, pieces({"a": "x"}))


def test_a_schema_that_contains_itself() -> None:
    grammar = compiled(json.dumps(of({"child": {"$ref": "#"}, "v": {"type": "integer"}}, required=["v"])))
    assert all(accepts_all_orders(grammar, {"v": 1, "child": {"child": {"v": 3}, "v": 2}}))
    assert not accepts(grammar, pieces({"v": 1, "child": {"child": {"v": 3}}}))


@pytest.mark.parametrize("count", [2, 60, 250, 300])
def test_many_branches_with_a_discriminator(count: int) -> None:
    string = {"type": "string"}
    branches = [of({"kind": {"const": f"k{n}"}, f"v{n}": string}, required=["kind", f"v{n}"]) for n in range(count)]
    grammar = ENGINE.compile(json.dumps({"type": "object", "anyOf": branches}), "forbid", "xtml")
    assert not grammar.coverage.relaxed
    last = count - 1
    assert all(accepts_all_orders(grammar, {"kind": f"k{last}", f"v{last}": "x"}))
    assert not accepts(grammar, pieces({"kind": f"k{last}", "v0": "x"}))
    assert not accepts(grammar, pieces({"kind": f"k{last}"}))


def test_more_branches_than_are_written_are_relaxed_and_refused_if_strict() -> None:
    """Each branch of one list may hold beside each of the others: they meet too often."""
    groups = [{"anyOf": [of({f"{name}{n}": {}}, required=[f"{name}{n}"]) for n in range(60)]} for name in "abcd"]
    assert_relaxed({"type": "object", "allOf": groups}, "#/allOf")


PATTERNS = [r"(a+)\1", r"^(?:(?=a)b\b|cc)*d", r"^[]$", r"(?m:^a)", r"(?>a|b)", r"^(?:(?<=a)b\B|a)*$"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_no_engine_knows_are_relaxed_and_refused_if_strict(pattern: str) -> None:
    string = {"type": "string", "pattern": pattern}
    assert_relaxed(of({"a": string}), "#/properties/a/pattern")
    assert_relaxed(of({"a": {"items": string, "type": "array"}}), "#/properties/a/items/pattern")
    assert accepts(compiled(json.dumps(of({"a": string}))), pieces({"a": "any text"}))


def assert_relaxed(schema: dict[str, Any], pointer: str) -> None:
    coverage = schema_coverage(schema, wire_format=KIMI_K3)
    assert pointer in [use.pointer for use in coverage.relaxed] and not coverage.refused
    vocabulary = byte_compiler(wire_format=KIMI_K3).vocabulary
    with pytest.raises(UnsupportedSchema, match="is strict, and") as caught:
        request_of(Compiler(vocabulary), schema, strict=True)
    assert caught.value.location.endswith(pointer)
    request_of(Compiler(vocabulary), schema, strict=False)


def test_a_grammar_that_fails_in_its_first_key_is_found_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLGuidance builds these keys' lexer only when a key begins. Without patterns, one fits in more of these limits."""
    schema = {"type": "object", "patternProperties": {key: {"type": ["string", "null"]} for key in "abcd"}}
    for limits in ("LIMITS", "EASED_LIMITS"):
        monkeypatch.setattr(prototype, limits, llguidance.LLParserLimits(step_lexer_fuel=20_000))
    (use,) = LLGuidanceEngine(BYTES).compile(json.dumps(schema), "allow", "xtml").coverage.relaxed
    assert use.pointer == "#/patternProperties" and "cost the engine too much" in use.reason
    for limits in ("LIMITS", "EASED_LIMITS"):
        monkeypatch.setattr(prototype, limits, llguidance.LLParserLimits(step_lexer_fuel=100))
    with pytest.raises(UnsupportedSchema, match="too many expressions"):
        LLGuidanceEngine(BYTES).compile(json.dumps(schema), "allow", "xtml")


@pytest.mark.slow
@pytest.mark.parametrize("undeclared_keys", ["allow", "forbid"])
@pytest.mark.parametrize("count", [2_000, 4_000])
def test_thousands_of_untyped_keys_share_their_rules(count: int, undeclared_keys: Any) -> None:
    schema = json.dumps(of({f"p{number}": {} if number % 2 else {"description": "d"} for number in range(count)}))
    grammar = ENGINE.compile(schema, undeclared_keys, "xtml")
    assert isinstance(grammar, LLGuidanceGrammar)
    assert not grammar.coverage.relaxed and len(grammar.text) < 60 * count
    value = dict(zip((f"p{number}" for number in random.Random(0).sample(range(count), 6)), VALUES, strict=True))
    assert accepts(grammar, pieces(value))
    assert not accepts(grammar, block("p0", "number", "1") + block("p0", "string", "1"))
    assert not accepts(grammar, block("p0", "integer", "1"))


VALUES = ("x", 1.5, True, None, {"a": [1]}, [{"b": None}])


@pytest.mark.parametrize("kinds", [*product(ANY_KIND, repeat=2)], ids=" ".join)
def test_free_kinds_beside_bounded_ones(kinds: tuple[str, str]) -> None:
    """A type whose values are all allowed shares a rule; bounds of the other types stay."""
    bounds = {"minLength": 2, "minimum": 2, "minItems": 2, "required": ["l"]}
    free, bounded = kinds
    schema = of({"a": {"anyOf": [{"type": free}, {"type": bounded, **bounds}]}}, additionalProperties=False)
    grammar = compiled(json.dumps(schema))
    samples = {"string": ("x", "xy"), "number": (1, 2), "boolean": (True, False), "null": (None, None),
               "object": ({"k": 1}, {"k": 1, "l": 2}), "array": ([1], [1, 2])}  # fmt: skip
    for kind, (small, large) in samples.items():
        assert accepts(grammar, pieces({"a": large})) == (kind in kinds)
        is_bounded = kind not in {free, "boolean", "null"}
        assert accepts(grammar, pieces({"a": small})) == (kind in kinds and not is_bounded)


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"enum": ["a", 1, None, True]},
        {"type": ANY_KIND, "minLength": 1, "minimum": 0, "minItems": 1, "minProperties": 1},
        {"type": ["string", "null"], "pattern": "^a"},
    ],
    ids=json.dumps,
)
def test_a_costly_schema_takes_no_more_than_twice_its_time_in_json(value: dict[str, Any]) -> None:
    schema = json.dumps(of({f"p{number}": value for number in range(3_000)}))
    seconds = []
    for encoding in ("json", "xtml"):
        engine = Compiler(BYTES).engine("llguidance")
        with collected_before():
            begun = thread_time()
            with suppress(SchemaTooCostly, UnsupportedSchema):
                engine.compile(schema, "allow", encoding)
            seconds.append(thread_time() - begun)
    assert seconds[1] <= 2 * seconds[0] + 0.1, seconds


def test_masks_of_a_key_hold_no_marker() -> None:
    """Within a key, and within a raw string, no special token is allowed before it may end."""
    grammar = compiled(json.dumps(of({OPEN: {"type": "string", "minLength": 2}}, additionalProperties=False)))
    matcher = grammar.matcher("schema")
    markers = {BYTES.special_tokens[text] for text in (OPEN, CLOSE, SEPARATOR)}
    ids = encode(BYTES, pieces({OPEN: "ab"}))
    for number, token in enumerate(ids):
        for marker in markers:
            assert matcher.fork().accept(marker) == (marker == token), (number, marker)
        assert matcher.accept(token)


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("^(?!.*]]).*$", ("", "a]b", '"'), ("]]", "a\nb")),
        (r"^(['\"])\w+-?\1$", ("'a'", '"a-"'), ("'a\"", "'-'")),
        (r"^(?!&)..lt;", (" ;lt;", "a&lt;"), ("&&lt;", "lt;")),
    ],
)
def test_look_ahead_and_back_references_on_raw_text(
    pattern: str, taken: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    grammar = compiled(json.dumps(of({"a": {"type": "string", "pattern": pattern}}, required=["a"])))
    assert not grammar.coverage.relaxed
    assert all(accepts(grammar, pieces({"a": text})) for text in taken)
    assert not any(accepts(grammar, pieces({"a": text})) for text in refused)
