"""Endings, guesses and drafts in Kimi K3's arguments."""

from collections.abc import Sequence
from typing import Any

import pytest

from constrained_k2 import Compiler
from constrained_k2.engines.llguidance.grammar_text import Patterns, schema_grammar
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.turn.completions.xtml_completions import xtml_completions
from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor, XtmlPart
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.drafts.xtml_guesses import likely_tokens
from tests.drafts.test_drafter import spec
from tests.kit.k3_turns import CLOSE, OPEN, SEP
from tests.kit.turns import ids_of

MARKERS = {OPEN: KIMI_K3.call_begin, CLOSE: KIMI_K3.call_end, SEP: KIMI_K3.argument_begin}
NAMES = {token_id: text for text, token_id in MARKERS.items()}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "when": {"type": "string", "format": "date-time"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "node": {"anyOf": [{"type": "object", "properties": {"next": {"type": "array"}}, "required": ["next"]}, {"type": "null"}]},
        'q"&': {"const": 5},
        "tags": {"type": "array", "items": {"type": "object", "properties": {"x": {"const": "y"}}, "required": ["x"]}},
    },
    "required": ["unit", 'q"&'],
}  # fmt: skip


def at(*pieces: str, schema: Any = None) -> XtmlCursor:
    cursor = XtmlCursor(SCHEMA if schema is None else schema, KIMI_K3)
    for piece in pieces:
        cursor.feed(MARKERS.get(piece, piece))
    return cursor


def plan_of(schema: Any = None) -> Plan:
    """The plan of a schema's grammar, in XTML."""
    plan = schema_grammar(SCHEMA if schema is None else schema, Patterns(), encoding="xtml").plan
    assert plan is not None
    return plan


def tag(key: str, kind: str) -> tuple[str, ...]:
    return (OPEN, f'argument key="{key}" type="{kind}"', SEP)


def block(key: str, kind: str, value: str) -> tuple[str, ...]:
    return (*tag(key, kind), value, CLOSE, "argument", SEP)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ((), OPEN),
        ((OPEN,), "argument"),
        ((OPEN, "argum"), "ent"),
        ((OPEN, "argument"), " key"),
        ((OPEN, "argument ke"), "y"),
        ((OPEN, 'argument key="'), "unit"),  # the first required one
        ((*block("unit", "string", "celsius"), OPEN, 'argument key="'), "q&quot;&amp;"),
        ((*block("unit", "string", "celsius"), *block("q&quot;&amp;", "number", "5"), OPEN, 'argument key="'), "city"),
        ((OPEN, 'argument key="no'), "de"),
        ((OPEN, 'argument key="other'), '"'),
        ((OPEN, 'argument key="node"'), " type"),
        ((OPEN, 'argument key="node" type="'), "null"),
        ((OPEN, 'argument key="node" type="o'), "bject"),
        ((OPEN, 'argument key="city" type="string'), '"'),
        ((OPEN, 'argument key="other" type="'), "string"),
        ((OPEN, 'argument key="city" type="string"'), SEP),
        ((*tag("city", "string"),), CLOSE),
        ((*tag("city", "string"), 'a "quoted" word'), CLOSE),
        ((*tag("unit", "string"), "cel"), "sius"),
        ((*tag("unit", "string"), "celsius"), CLOSE),
        ((*tag("node", "null"),), "null"),
        ((*tag("node", "object"),), '{"next":[]}'),
        ((*tag("node", "object"), '{"next":['), "]}"),
        ((*tag("node", "object"), '{"next":[]}'), CLOSE),
        ((*tag("q&quot;&amp;", "number"),), "5"),
        ((*tag("q&quot;&amp;", "number"), "5"), CLOSE),
        ((*tag("tags", "array"), '[{"x'), '":"y"}]'),
        ((*tag("city", "string"), "x", CLOSE), "argument"),
        ((*tag("city", "string"), "x", CLOSE, "argument"), SEP),
    ],
)
def test_the_first_ending(written: Sequence[str], expected: str) -> None:
    cursor, plan = at(*written), plan_of()
    first = next(iter(xtml_completions(cursor, plan)))
    assert (NAMES[first] if isinstance(first, int) else first) == expected
    assert next(iter(xtml_completions(cursor, plan))) == first, "the cursor has changed"


def test_further_endings() -> None:
    plan = plan_of()
    assert list(xtml_completions(at(OPEN, 'argument key="'), plan)) == [
        "unit", "q&quot;&amp;", "city", "when", "node", "tags", '"',
    ]  # fmt: skip
    assert next(xtml_completions(at(*tag("when", "string")), plan)) == MARKERS[CLOSE]
    assert list(xtml_completions(at(*tag("when", "string"), "2024-02-03T04:05:06."), plan))[:2] == [
        MARKERS[CLOSE],
        "0Z",
    ]
    assert list(xtml_completions(at(OPEN, 'argument key="unit" type="'), plan))[:2] == ["string", "number"]
    assert not list(xtml_completions(at(OPEN, 'argument key="unit" type="x'), plan))


def test_a_kind_of_object_is_chosen_by_its_constant() -> None:
    kinds = [
        {"properties": {"kind": {"const": "long"}, "text": {"type": "string", "minLength": 50}}, "required": ["kind", "text"]},
        {"properties": {"kind": {"const": "short"}}, "required": ["kind"]},
    ]  # fmt: skip
    schema = {"type": "object", "anyOf": kinds}
    assert next(iter(xtml_completions(at(*tag("kind", "string"), schema=schema), plan_of(schema)))) == "short"
    after_long = at(*block("kind", "string", "long"), OPEN, 'argument key="', schema=schema)
    assert next(iter(xtml_completions(after_long, plan_of(schema)))) == "text"


def test_a_long_tag_and_a_long_string() -> None:
    cursor = at(OPEN, 'argument key="')
    for _ in range(5000):
        cursor.feed("kk")
    cursor.feed('" type="string"')
    assert len(cursor.tag) <= 4096
    cursor.feed(MARKERS[SEP])
    assert (cursor.part, cursor.kind) == (XtmlPart.VALUE, "string")
    for _ in range(5000):
        cursor.feed("vv")
    assert len(cursor.json.token) <= MAX_TOKEN


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ((), f'{OPEN}argument key="unit" type="string"{SEP}'),
        ((OPEN, "arg"), f'ument key="unit" type="string"{SEP}'),
        ((OPEN, 'argument key="q'), f'&quot;&amp;" type="number"{SEP}5{CLOSE}argument{SEP}{OPEN}argument key="unit"'),
        ((OPEN, 'argument key="node" type="'), f'object"{SEP}{{"next": ['),  # the only type besides null
        ((OPEN, 'argument key="x'), ""),
        ((*tag("unit", "string"),), ""),
        ((*tag("unit", "string"), "f"), f"ahrenheit{CLOSE}argument{SEP}"),
        ((*tag("city", "string"), "Bei"), ""),
        ((*tag("tags", "array"),), "["),
        ((*tag("tags", "array"), "[{"), '"x": "y"}'),
        ((*tag("flag", "boolean"), "fa"), f"lse{CLOSE}argument{SEP}"),
        ((*block("unit", "string", "celsius"), *block("q&quot;&amp;", "number", "5")), CLOSE),
    ],
)
def test_guesses(k3_small_compiler: Compiler, written: Sequence[str], expected: str) -> None:
    vocabulary = k3_small_compiler.vocabulary
    cursor = XtmlCursor(SCHEMA, vocabulary.format)
    for piece in written:
        cursor.feed(vocabulary.special_tokens.get(piece, piece))
    found = vocabulary.decode(likely_tokens(cursor, vocabulary, 64))
    assert found.startswith(expected) if expected else not found


def test_an_object_without_required_keys_may_end_or_go_on(k3_small_compiler: Compiler) -> None:
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"properties": {"a": {}}}, False)]
    for schema, expected in cases:
        cursor = XtmlCursor(schema, k3_small_compiler.vocabulary.format)
        found = likely_tokens(cursor, k3_small_compiler.vocabulary, 8)
        assert found == [k3_small_compiler.vocabulary.format.call_end] * expected


@pytest.mark.slow
def test_a_guess_waits_for_nothing_but_a_name(k3_real_compiler: Compiler) -> None:
    """The quote that ends an attribute's piece is certain, whatever name follows."""
    vocabulary = k3_real_compiler.vocabulary
    matcher = k3_real_compiler.compile(spec()).matcher()
    drafts = Drafter(matcher).draft(32)
    assert drafts == ids_of(vocabulary, f"{CLOSE}response{SEP}{OPEN}tools{SEP}{OPEN}call tool", '="')
