"""Kimi K3's arguments: exactly the valid objects are written, each value under its own type, in any order of the keys.

Hostile schemas are enforced, bounded, or refused cleanly.
"""

import json
import random
from contextlib import suppress
from functools import cache
from itertools import chain, permutations
from time import thread_time
from typing import Any

import jsonschema
import llguidance
import pytest

from benchmarks.host.timing import collected_before
from benchmarks.schemas import corpora
from constrained_k2 import Compiler, ConstrainedK2Error, SchemaTooCostly, ToolCallSpec, UnsupportedSchema, Vocabulary
from constrained_k2.compiler.coverage import byte_compiler, schema_coverage
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.llguidance import prototype
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.protocol import ArgumentGrammar
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.parsing.parser import parse_completion
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.request.spec import ToolCall
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from tests.kit.compilers import narrowed, validator_of
from tests.kit.data import mcp_servers, suite
from tests.kit.grammars import accepts as accepts_json
from tests.kit.grammars import mask_of, request_of, takes, takes_masked
from tests.kit.tools import tool
from tests.kit.xtml import CLOSE, OPEN, SEPARATOR, SPECIAL, block, decode, encode, of_bytes, pieces, with_xtml_markers
from tests.laws.feeding import Bench
from tests.schema.test_cases import CASES
from tests.schema.test_rules import OBJECTS
from tests.schema.universe import UNIVERSE

BYTES = of_bytes()
ENGINE = Compiler(BYTES).engine("llguidance")
REFERENCES = ("$ref", "$id", "$dynamicRef", "$anchor", "$recursiveRef")


@cache
def compiled(schema: str) -> ArgumentGrammar:
    return ENGINE.compile(schema, "allow", "xtml")


def accepts(grammar: ArgumentGrammar, written: list[str]) -> bool:
    return takes(grammar.matcher("schema"), encode(BYTES, written))


def in_both(schema: str) -> tuple[ArgumentGrammar | None, ArgumentGrammar | None]:
    """Return a schema's grammars of XTML and of JSON; None for one that is refused."""
    xtml = as_json = None
    with suppress(ConstrainedK2Error):
        xtml = compiled(schema)
    with suppress(ConstrainedK2Error):
        as_json = ENGINE.compile(schema)
    return xtml, as_json


def of_member(schema: Any, **closed: Any) -> dict[str, Any] | None:
    """Return a schema of arguments whose member ``x`` has the schema; None if its references would point elsewhere."""
    if any(f'"{word}"' in json.dumps(schema) for word in REFERENCES):
        return None
    draft = {"$schema": schema["$schema"]} if isinstance(schema, dict) and "$schema" in schema else {}
    return draft | closed | {"properties": {"x": schema}, "additionalProperties": False}


def accepts_all_orders(grammar: ArgumentGrammar, value: dict[str, Any]) -> list[bool]:
    return [
        accepts(grammar, pieces(dict(members), separators))
        for members in permutations(value.items())
        for separators in ((",", ":"), (", ", ": "))
    ]


@pytest.mark.parametrize("schema", OBJECTS, ids=json.dumps)
def test_exactly_the_valid_objects_are_written(schema: dict[str, Any]) -> None:
    schema = {"type": "object"} | schema
    grammar = compiled(json.dumps(schema))
    assert not narrowed(grammar.coverage) and not grammar.coverage.relaxed, grammar.coverage
    validator = jsonschema.Draft202012Validator(schema)
    for value in UNIVERSE:
        if isinstance(value, dict):
            assert set(accepts_all_orders(grammar, value)) == {validator.is_valid(value)}, value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inside", [True, False], ids=["value", "arguments"])
def test_each_keyword_holds(case: dict[str, Any], *, inside: bool) -> None:
    # Of type object: JSON has other values, which may satisfy a negation that arguments cannot.
    schema = of_member(case["schema"], type="object", required=["x"]) if inside else case["schema"]
    groups = [
        [{"x": instance} if inside else instance for instance in case[verdict] if inside or isinstance(instance, dict)]
        for verdict in ("accepted", "rejected")
    ]
    if schema is None or not any(groups):
        return
    grammar, as_json = in_both(json.dumps(schema))
    if grammar is None or as_json is None:
        assert grammar is as_json or not groups[0]
        return
    assert grammar.coverage == as_json.coverage
    for instance in groups[0] if not narrowed(grammar.coverage) else ():
        assert all(accepts_all_orders(grammar, instance)), instance
    for instance in groups[1] if not grammar.coverage.relaxed else ():
        assert not any(accepts_all_orders(grammar, instance)), instance


@pytest.mark.parametrize(
    "written",
    [
        block("n", "number", " 1"),
        block("n", "number", "1 "),
        block("n", "integer", "1"),
        block("n", "string", "1"),
        block("l", "array", "[1] "),
        block("n", "number", "1") + block("n", "number", "2"),
        block("n", "number", "1")[:2] + block("l", "array", "[]")[2:],
        ["", "argument", "", "", "", "", ""],
    ],
    ids=" ".join,
)
def test_what_is_not_written(written: list[str]) -> None:
    schema = {"properties": {"n": {"type": "integer"}, "l": {"items": {"type": "integer"}, "type": "array"}}}
    grammar = ENGINE.compile(json.dumps({"type": "object"} | schema), "forbid", "xtml")
    assert accepts(grammar, block("n", "number", "1") + block("l", "array", "[ 1 , 2 ]"))
    assert accepts(grammar, [])
    ids = [[BYTES.special_tokens[piece]] if piece in SPECIAL else BYTES.encode(piece) for piece in written]
    assert not takes(grammar.matcher("schema"), chain.from_iterable(ids))


def test_any_split_of_a_tag_is_allowed(small_vocabulary: Vocabulary) -> None:
    """Checkpoints write names in pieces: masks force no other split of the only possible text."""
    vocabulary = with_xtml_markers(small_vocabulary)
    schema = '{"type": "object", "properties": {"_id": {"type": "string"}}, "required": ["_id"]}'
    grammar = LLGuidanceEngine(vocabulary).compile(schema, "forbid", "xtml")
    (begin, head, *_) = pieces({"_id": ""})
    whole = vocabulary.encode(head)
    for ids in (whole, list(chain.from_iterable(map(vocabulary.encode, head)))):
        matcher = grammar.matcher("schema")
        forced = matcher.forced_tokens()
        assert vocabulary.decode(forced) == begin + head + SEPARATOR
        assert all(map(matcher.fork().accept, forced))
        assert matcher.accept(vocabulary.special_tokens[begin])
        for token in ids:
            assert matcher.forced_tokens()
            assert token in mask_of(matcher, vocabulary)
            assert matcher.accept(token)


@pytest.mark.slow
def test_the_other_engine_refuses() -> None:
    with pytest.raises(UnsupportedSchema, match="LLGuidance only"):
        Compiler(Vocabulary.of_bytes()).engine("xgrammar").compile('{"type": "object"}', "allow", "xtml")


@pytest.mark.slow
def test_the_suite_is_read_as_in_json() -> None:
    """The public JSON-Schema-Test-Suite: each instance is an argument, and each object arguments, as in JSON."""
    compared = 0
    for case in corpora.suite(suite()):
        document = json.loads(case.schema)
        for inside, schema in ((True, of_member(document)), (False, document)):
            values = [json.loads(instance.text) for instance in case.instances]
            values = [{"x": value} if inside else value for value in values if inside or isinstance(value, dict)]
            grammar, as_json = (None, None) if schema is None else in_both(json.dumps(schema))
            if grammar is None or as_json is None:
                continue
            assert not inside or grammar.coverage == as_json.coverage, case.name
            for value in values:
                expected = accepts_json(as_json, value, (", ", ": "))
                assert accepts(grammar, pieces(value)) == expected, (case.name, value)
                compared += 1
    assert compared > 2_000


@pytest.mark.slow
def test_random_arguments_are_valid_and_allowed_in_any_order(k3_real_compiler: Compiler) -> None:
    bench, shuffled = Bench(k3_real_compiler), 0
    vocabulary = bench.vocabulary
    for number, public in enumerate(each for server in mcp_servers() for each in server):
        schema = public["function"].get("parameters") or {"type": "object"}
        grammar = bench.engine.compile(json.dumps(schema | {"type": "object"}), "forbid", "xtml")
        matcher = grammar.matcher("schema")
        ids = bench.walk(matcher, random.Random(number), 20_000)
        assert matcher.is_complete(), vocabulary.decode(ids[-100:])
        arguments = decode(vocabulary, ids)
        if grammar.coverage.is_sound:
            validator_of(schema).validate(arguments)
        assert arguments.keys() >= set(schema.get("required", ())), arguments
        order = random.Random(number).sample(list(arguments), len(arguments))
        again = encode(vocabulary, pieces({key: arguments[key] for key in order}))
        assert takes_masked(grammar.matcher("schema"), vocabulary, again), arguments
        shuffled += len(order) > 1
    assert shuffled > 100


XTML = GrammarOptions(encoding="xtml", undeclared_keys="allow")
KEYS = [
    "", " ", 'a"b', "a&b", "&quot;", "&amp;quot;", "a\nb\0", OPEN, f"{CLOSE}argument{SEPARATOR}", 'a" type="string',
    "北京 \U0010ffff", "k" * 4_000,
]  # fmt: skip
ANY_KIND = ["string", "number", "boolean", "null", "object", "array"]


def of(properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **keywords}


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
def test_refusals_name_the_place_and_a_remedy(schema: Any, error: type[ConstrainedK2Error], problem: str) -> None:
    with pytest.raises(error) as caught:
        byte_compiler(wire_format=KIMI_K3).grammar(json.dumps(schema), "tools[0]", options=XTML)
    assert caught.value.location.startswith("tools[0]") and problem in caught.value.problem and caught.value.remedy


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


def branches(count: int) -> dict[str, Any]:
    string = {"type": "string"}
    each = [of({"kind": {"const": f"k{n}"}, f"v{n}": string}, required=["kind", f"v{n}"]) for n in range(count)]
    return {"type": "object", "anyOf": each}


def patterned(pattern: str) -> dict[str, Any]:
    return of({"a": {"type": "string", "pattern": pattern}}, required=["a"])


ANY_VALUES = ("x", 1, None, [1], {"c": 2})
MARKED = (*SPECIAL, "".join(block("b", "string", "x")), '"', "\\", "\0", " x ", "null", "\U0010ffff")
ENFORCED: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = {
    # name -> schema, arguments, no arguments
    "a long enum of objects": ({"type": "object", "enum": [{"a": n} for n in range(300)]}, [{"a": 299}], [{"a": 300}, {}]),
    "required and undeclared": (of({"a": {"type": "string"}}, required=["b"]), [{"a": "x", "b": one} for one in ANY_VALUES], [{"a": "x"}]),
    "contains itself": (
        of({"child": {"$ref": "#"}, "v": {"type": "integer"}}, required=["v"]),
        [{"v": 1, "child": {"child": {"v": 3}, "v": 2}}], [{"v": 1, "child": {"child": {"v": 3}}}],
    ),
    "strings that spell markers": (of({"a": {"type": "string"}}, required=["a"]), [{"a": text} for text in MARKED], [{}]),
    "escaped keys": (
        of({'a"&': {"type": "null"}}, additionalProperties={"type": "string"}),
        [{'a"&': None, "&quot;": "x", '"': "y"}, {"a": "\n"}], [{'a"&': "x"}],
    ),
    **{
        f"{count} branches": (
            branches(count), [{"kind": f"k{count - 1}", f"v{count - 1}": "x"}],
            [{"kind": f"k{count - 1}", "v0": "x"}, {"kind": f"k{count - 1}"}],
        )
        for count in (2, 60, 250, 300)
    },
    "looks ahead": (patterned("^(?!.*]]).*$"), [{"a": one} for one in ("", "a]b", '"')], [{"a": one} for one in ("]]", "a\nb")]),
    "a back-reference": (patterned(r"^(['\"])\w+-?\1$"), [{"a": one} for one in ("'a'", '"a-"')], [{"a": one} for one in ("'a\"", "'-'")]),
    "a look on raw text": (patterned(r"^(?!&)..lt;"), [{"a": one} for one in (" ;lt;", "a&lt;")], [{"a": one} for one in ("&&lt;", "lt;")]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENFORCED)
def test_schemas_that_are_wholly_enforced(name: str) -> None:
    schema, taken, refused = ENFORCED[name]
    for undeclared_keys in UNDECLARED_KEYS[: 1 if name == "escaped keys" else 2]:
        grammar = ENGINE.compile(json.dumps(schema), undeclared_keys, "xtml")
        assert not grammar.coverage.relaxed
        assert undeclared_keys == "forbid" or not narrowed(grammar.coverage), grammar.coverage
        for value in taken:
            assert all(accepts_all_orders(grammar, value)), value
        for value in refused:
            assert not any(accepts_all_orders(grammar, value)), value


@pytest.mark.parametrize("key", ['a"&', "&amp", "&lt;"])
def test_keys_that_are_not_escaped_are_refused(key: str) -> None:
    grammar = compiled(json.dumps(ENFORCED["escaped keys"][0]))
    assert not accepts(
        grammar, [OPEN, f'argument key="{key}" type="string"', SEPARATOR, "", CLOSE, "argument", SEPARATOR]
    )


@pytest.mark.parametrize("end", [4, 6])
def test_an_argument_that_does_not_end_is_incomplete(end: int) -> None:
    assert not accepts(compiled(json.dumps(of({"a": {"type": "string"}}))), pieces({"a": "x"})[:end])


@pytest.mark.parametrize("count", [64, 65, 70])
def test_many_required_keys(count: int) -> None:
    keys = [f"k{number:03}" for number in range(count)]
    grammar = compiled(json.dumps(of({key: {"type": ["number", "string"]} for key in keys}, required=keys)))
    value = {key: number if number % 2 else str(number) for number, key in enumerate(keys)}
    assert accepts(grammar, pieces(value))
    assert not accepts(grammar, pieces({key: value[key] for key in keys[:-1]}))
    assert bool(narrowed(grammar.coverage)) == (count > 64)


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
