"""Plain schemas: their models, made without a grammar's text, mean what those of the text mean."""

import json
import lzma
import random
import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, SchemaTooCostly, Vocabulary
from constrained_k2.engines.llguidance.direct.tokens import TokenTrie
from constrained_k2.engines.llguidance.direct.values import Values
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar_text import GrammarText, our_text
from constrained_k2.engines.llguidance.plain_text import PlainLeaves, PlainText, plain_text
from constrained_k2.evaluation.bundled import HELD_OUT, bundled_bodies
from constrained_k2.grammar.lark.plain_models import is_surely_small
from constrained_k2.grammar.lark.plain_walk import plain_nodes
from constrained_k2.grammar.lark.state_model import AMBIGUOUS, StateModel
from constrained_k2.schema.budget import check_budget
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from tests.budget import tries
from tests.data import data, mcp_servers, suite
from tests.engines.test_direct_masks import PLAIN

SAMPLED = 400  # schemas of MaskBench
CLOSED = {"additionalProperties": False}
patterns = LLGuidanceEngine(Vocabulary.of_bytes())._patterns
leaves = PlainLeaves(patterns)
trie = TokenTrie(Vocabulary.of_bytes())


def meaning(model: StateModel, number: int, around: tuple[int, ...] = ()) -> Hashable:
    """A form of a node's model that is equal whatever numbers the nodes have."""
    if number == AMBIGUOUS:
        return None
    if number in around:
        return "around", around.index(number)
    node, inner = model.nodes[number], (number, *around)
    members = items = None
    if node.object is not None:
        values = tuple((key, bit, meaning(model, value, inner)) for key, (bit, value) in node.object.values.items())
        members = values, meaning(model, node.object.extra, inner), node.object.counts_extra, node.object.keys
    if node.array is not None:
        prefix = tuple(meaning(model, item, inner) for item in node.array.prefix)
        items = prefix, meaning(model, node.array.rest, inner), node.array.counted
    return members, items, node.free_strings, node.listed_strings, node.strings


def read(document: Any, undeclared_keys: Any) -> PlainText | None:
    return plain_text(document, undeclared_keys, leaves, failing)


def check(document: Any) -> int:
    """Compare both ways; the number of settings of undeclared keys in which a schema is plain."""
    found = 0
    for undeclared_keys in UNDECLARED_KEYS:
        plain = read(document, undeclared_keys)
        if plain is None:
            continue
        found += 1
        written: GrammarText = our_text(document, patterns, undeclared_keys)
        assert written.model is not None
        assert written.direct is not None
        assert meaning(plain.model, plain.model.root) == meaning(written.model, written.model.root)
        values = Values(trie)
        assert values.of(plain.direct)[plain.model.root] is values.of(written.direct)[written.model.root]
        assert plain.has_open_keys == written.has_open_keys
        assert (plain.places, plain.effort, plain.allows_any_split) == (
            written.places,
            written.effort,
            written.allows_any_split,
        )
        assert written.is_simple
        check_budget(document)
        assert written.is_well_formed
        assert not written.coverage.inexact
        nodes = plain_nodes(document, undeclared_keys)
        found_leaves = leaves.of(nodes, known_only=True)
        assert found_leaves is not None
        assert is_surely_small(nodes, found_leaves)
        rules = [leaf.rule for leaf in found_leaves.values() if leaf.rule is not None]
        patterned = sum(len(expression) for expression in {rule.string for rule in rules})
        assert len(written.text) <= nodes.size + patterned + sum(leaf.size for leaf in found_leaves.values())
    return found


def test_most_public_tools_are_plain() -> None:
    tools = [tool["function"]["parameters"] for server in mcp_servers() for tool in server]
    schemas = [{"type": "object"} | schema for schema in tools]
    found = [check(schema) for schema in schemas]
    assert sum(found) > 0.9 * len(UNDECLARED_KEYS) * len(schemas)


def test_the_tools_of_the_demo() -> None:
    tools = {tool["function"]["name"]: tool for body in bundled_bodies(HELD_OUT, 400, 7) for tool in body["tools"]}
    assert len(tools) > 10
    for tool in tools.values():
        check(tool["function"]["parameters"])


@pytest.mark.slow
def test_schemas_of_maskbench() -> None:
    with lzma.open(data("schemas/maskbench.jsonl.xz"), "rt") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    found = [check(schema) for schema in random.Random(5).sample(schemas, SAMPLED) if isinstance(schema, dict)]
    assert sum(found) > SAMPLED // 8


def test_the_schemas_of_the_test_suite_as_properties() -> None:
    found = 0
    for path in sorted(suite().rglob("*.json")):
        for case in json.loads(path.read_text("utf-8")):
            found += check({"type": "object", "properties": {"p": case["schema"]}, "required": ["p"]})
            if isinstance(case["schema"], dict):
                check(case["schema"])
    assert found > 20


NAMES = ["a", "b", "ab", "-", "", "a b", "a.b", 'a"', "a\\", "é", "名", "a\n", "type", "properties", "$ref", "(", "))((",
         "%json", "x" * 300, "\ud800"]  # fmt: skip
VALUES: list[Any] = [*NAMES, None, True, False, 0, 1, -1, 12, 1.0, 0.5, 10**16, [], {}, "(" * 9]
SIZES = st.sampled_from([-1, 0, 1, 2, 16, 17, 40, 999, 1001, 1.0, True, None, "1"])
BOUNDS = st.sampled_from([-2, -1, 0, 1, 5, 1.5, -0.5, 10**16, 1e-12, True, None, "1", 5.0])
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "int", "any", 1, None])
ANNOTATIONS: dict[str, st.SearchStrategy[Any]] = {
    "description": st.sampled_from(["d", "\ud800", 1]),
    "default": st.sampled_from([1, "\n", "\ud800", [[]], {"a": {}}, ["\n"]]),
    "x-note": st.sampled_from([{"$id": "a"}, "\ud800", [[1]], ["a"], float("inf"), {"\ud800": 1}, "x" * 5000]),
}
SCALARS = st.fixed_dictionaries(
    {"type": TYPES | st.lists(TYPES, max_size=3)},
    optional={
        **ANNOTATIONS,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), BOUNDS),
        **dict.fromkeys(("minLength", "maxLength"), SIZES),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "pattern": st.sampled_from(["^a+$", "b", "(", "\\d{2}", "^(a|b)$", 1]),
        "format": st.sampled_from(["date", "uuid", "email", "uint32", "", 1]),
        "const": st.sampled_from(VALUES),
        "required": st.sampled_from([True, [], ["a"]]),
        "nullable": st.just(True),
    },
)
ENUMS = st.fixed_dictionaries(
    {"enum": st.lists(st.sampled_from(VALUES), max_size=4)}, optional={"type": TYPES, "minLength": SIZES}
)
CONSTANTS = st.fixed_dictionaries({"const": st.sampled_from(VALUES)}, optional={"type": TYPES, **ANNOTATIONS})
LEAVES = SCALARS | ENUMS | CONSTANTS | st.sampled_from([True, False, {}, {"not": {}}, {"$ref": "#/$defs/d"}, "string"])


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            **ANNOTATIONS,
            "properties": st.dictionaries(st.sampled_from(NAMES), values, max_size=4) | st.just([]),
            "required": st.lists(st.sampled_from(NAMES[:5]), max_size=3),
            "additionalProperties": st.booleans() | values,
            **dict.fromkeys(("minProperties", "maxProperties"), SIZES),
        },
    )
    arrays: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": values | st.just([]),
            **dict.fromkeys(("minItems", "maxItems"), SIZES),
            "uniqueItems": st.sampled_from([False, True, 0]),
            "prefixItems": st.just([{}]),
        },
    )
    either: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"anyOf": st.lists(values, max_size=3)}, optional={**ANNOTATIONS, "type": TYPES, "minLength": SIZES}
    )
    return objects | arrays | either


ROOTS = st.builds(
    lambda root, definition, more: {**root, "type": "object", "$defs": {"d": definition}, **more},
    containers(st.recursive(LEAVES, containers, max_leaves=6)).filter(lambda one: one.get("type") == "object"),
    st.recursive(LEAVES, containers, max_leaves=3),
    st.sampled_from([{}, {"$schema": "http://json-schema.org/draft-07/schema#"}, {"$id": "https://a.example/"}]),
)
settled = settings(max_examples=tries(50, everything=150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(ROOTS | PLAIN)
@settled
def test_any_schema_that_is_plain_has_the_models_of_its_grammar(schema: dict[str, Any]) -> None:
    check(schema)


def values(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


@pytest.mark.parametrize(
    "schema",
    [
        values(),
        values(a={"type": "string", "format": "uint32"}),
        values(a={"type": "integer", "minimum": 1, "maximum": 9}),
        values(a={"type": ["integer", "null"], "description": "d", "minimum": 0}),
        values(a={"type": "string", "format": "date-time"}, b={"type": "string", "format": "time"}),
        values(a={"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}, {"type": "number"}]}),
        values(
            a={"anyOf": [{"type": "string"}, {"enum": ["x", None]}, {"type": "array", "items": {"type": "integer"}}]}
        ),
        values(a={"enum": ["x", 1, True, "x"], "type": "string"}),
        values(a={"enum": [1, 2]}, b={"const": "(a)"}),
        values(a={"type": "object"}, b={"type": "object", "additionalProperties": {"type": "number"}}),
        values(a={}, b=True, c={"type": "array"}, d={"type": "array", "items": {}, "maxItems": 40}),
        values(a={"$ref": "#/$defs/d"}, b={"$ref": "#/$defs/d"}) | {"$defs": {"d": values(x={"type": "null"})}},
        {"type": "object", "properties": {f"key_{number}": {"type": "string"} for number in range(64)}},
        values(**{"name with spaces": {"type": "string"}, "名": {"enum": ["值", 'a"b\\']}}),
    ],
)
def test_plain_schemas(schema: Any) -> None:
    assert check(schema) == len(UNDECLARED_KEYS)
    assert check(schema | CLOSED) == len(UNDECLARED_KEYS)


OTHERS: list[Any] = [
    values(**{f"a{number}": {"type": "integer", "minimum": number + 1000} for number in range(20)}),
    values(a={"type": "string", "maxLength": 3}),
    {"properties": {"a": {"type": "string"}}},
    values(a=False),
    values(a={"type": "string"}) | {"required": ["b"]},
    values(a={"type": "integer", "minimum": 2, "maximum": 1}),
    values(a={"type": "string", "minLength": 3, "maxLength": 2}),
    values(a={"enum": ["x"], "type": "integer"}),
    values(a={"enum": []}),
    values(a={"enum": [0.5]}),
    values(a={"enum": [{}]}),
    values(a={"type": "array", "minItems": 2, "maxItems": 1}),
    values(a={"type": "array", "maxItems": 0}),
    values(a={"type": "array", "uniqueItems": True}),
    values(a={"type": "int"}),
    values(a={"properties": {"x": {}}}),
    values(a={"anyOf": [values(x={}), values(y={})]}),
    values(a={"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string"}]}),
    values(a={"anyOf": [{"type": "string"}], "type": "string"}),
    values(a={"oneOf": [{"type": "string"}]}),
    values(a={"$ref": "#"}),
    values(a={"$ref": "#/$defs/d"}) | {"$defs": {"d": {"type": "array", "items": {"$ref": "#/$defs/d"}}}},
    values(a={"$ref": "#/$defs/d", "minLength": 1}) | {"$defs": {"d": {"type": "string"}}},
    values(a={"type": "string", "$id": "x"}),
    values(a={"type": "number", "multipleOf": 2}),
    values(a={"type": "number", "exclusiveMinimum": True, "minimum": 1}),
    values() | {"minProperties": 1},
    values() | {"propertyNames": {"maxLength": 3}},
    values(**{f"key_{number}": {"type": "string"} for number in range(65)}),
    values(**{f"{'x' * 200}_{number}": {"type": "string"} for number in range(60)}),
    values(**{"(" * 20: {"type": "string"}}),
    values(a={"enum": [f"value {number}" for number in range(500)]}),
    values(a={"const": "%json {}"}),
]
deep: Any = {"type": "string"}
for _ in range(40):
    deep = {"type": "array", "items": deep}
OTHERS.append(values(a=deep))
wide: Any = {"type": "string"}
for _ in range(12):
    wide = values(a=wide, b=wide)
OTHERS.append(wide)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_schemas_are_not_plain(number: int) -> None:
    assert all(read(OTHERS[number], setting) is None for setting in UNDECLARED_KEYS)


def test_leaves_that_are_not_known_yet_are_left_to_others() -> None:
    schema, fresh = values(a={"type": "integer", "minimum": 3, "maximum": 7}), PlainLeaves(patterns)
    assert plain_text(schema, "allow", fresh, failing, known_only=True) is None
    assert plain_text(schema, "allow", fresh, failing) is not None
    assert plain_text(schema, "allow", fresh, failing, known_only=True) is not None
    fresh.clear()
    assert plain_text(schema, "allow", fresh, failing, known_only=True) is None


def failing() -> GrammarText:
    raise SchemaTooCostly("the text is not needed", "", "Leave it", "test")


TOOL = {"type": "object", "properties": {"city": {"type": "string", "description": "d"}}, "required": ["city"]}


@pytest.fixture
def engine() -> LLGuidanceEngine:
    return LLGuidanceEngine(Vocabulary.of_bytes())


def counted(engine: LLGuidanceEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The schemas whose text an engine writes."""
    found: list[str] = []
    written = engine._written
    monkeypatch.setattr(engine, "_written", lambda schema, keys: found.append(schema) or written(schema, keys))
    return found


def test_a_text_is_written_when_it_is_first_needed(engine: LLGuidanceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, schema = counted(engine, monkeypatch), json.dumps(TOOL)
    grammar = engine.compile(schema, "forbid")
    matcher = grammar.matcher("")
    for byte in b'{"city":"a b"':
        mask = matcher.cached_mask()
        assert mask is not None
        assert mask[byte >> 5] >> (byte & 31) & 1
        assert matcher.accept(byte)
    assert not texts
    expected = our_text(TOOL, patterns, "forbid")
    assert grammar.coverage == expected.coverage
    assert texts == [schema]
    assert grammar.text == expected.text
    assert matcher.engine().try_consume_tokens([ord("}")]) == 1
    assert texts == [schema]


def test_threads_write_a_text_once(engine: LLGuidanceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = counted(engine, monkeypatch)
    grammar = engine.compile(json.dumps(TOOL))
    ready = threading.Barrier(8)

    def ask(number: int) -> None:
        ready.wait()
        assert grammar.copy() if number % 2 else grammar.coverage

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert len(texts) == 1


def test_a_text_that_cannot_be_written_is_an_error_each_time(
    engine: LLGuidanceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_written", lambda *_: failing())
    grammar = engine.compile(json.dumps(TOOL))
    for _ in range(2):
        with pytest.raises(SchemaTooCostly, match="not needed"):
            grammar.copy()
        with pytest.raises(SchemaTooCostly, match="not needed"):
            assert grammar.coverage
    monkeypatch.undo()
    assert engine.compile(json.dumps(TOOL)).coverage.is_sound


def test_schemas_that_differ_in_descriptions_and_order_share_states(engine: LLGuidanceEngine) -> None:
    properties = {"b": {"type": "integer"}, "a": {"type": "string"}}
    one = engine.compile(json.dumps({"type": "object", "properties": properties, "title": "one"}))
    reordered = dict(reversed(properties.items()))
    other = engine.compile(json.dumps({"type": "object", "properties": reordered, "title": "other"}))
    third = engine.compile(json.dumps({"type": "object", "properties": properties, "required": ["a"]}))
    assert one.dfa is other.dfa
    assert third.dfa is not one.dfa
    assert other.text == one.text


@pytest.mark.parametrize("encoding", ["json", "xtml"])
def test_plain_schemas_compile_at_once(engine: LLGuidanceEngine, encoding: Any) -> None:
    assert (engine.compile_at_once(json.dumps(TOOL), "forbid", encoding) is None) == (encoding == "xtml")
    assert engine.compile_at_once('{"type": "object"', "forbid", encoding) is None
    assert engine.compile_at_once("[" * 100_000, "forbid", encoding) is None
    assert engine.compile_at_once("[]", "forbid", encoding) is None


def test_a_plain_schema_is_compiled_before_its_arguments_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(Vocabulary.of_bytes())
    monkeypatch.setattr("constrained_k2.compiler.shared.run_bounded", lambda *_: pytest.fail("another thread"))
    monkeypatch.setattr("constrained_k2.compiler.shared._thread.start_new_thread", lambda *_: pytest.fail("a thread"))
    compiler.precompile(json.dumps(TOOL))
    assert compiler.compile_time(json.dumps(TOOL)) is not None
    assert compiler.counts.snapshot()["compiled"] == 1
    assert compiler.grammar(json.dumps(TOOL), "").coverage.is_sound
    assert compiler.counts.snapshot()["compiled"] == 1
