"""Plain schemas: whatever is admitted by its shape compiles, and is enforced wholly."""

import json
import lzma
from functools import cache
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.compiler.fast_path import FastPathAdmission
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.schema.fast_path import MAX_PARTS, fast_path_shape
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from tests.kit.budget import tries
from tests.kit.data import data, mcp_servers, suite, table

ENCODINGS: tuple[ArgumentEncoding, ...] = get_args(ArgumentEncoding)


@cache
def compiler(encoding: ArgumentEncoding) -> Compiler:
    vocabulary = Vocabulary.of_bytes(KIMI_K3 if encoding == "xtml" else KIMI_K2)
    return Compiler(vocabulary, mask_cache_bytes=0, cache_bytes=1 << 20)


def check(schema: Any, encodings: tuple[ArgumentEncoding, ...] = ENCODINGS) -> bool:
    """True for a schema on the fast path: it compiles, and nothing of it is relaxed or read as something else."""
    text = json.dumps(schema, separators=(",", ":"))
    if fast_path_shape(text) is None:
        return False
    for encoding in encodings:
        if FastPathAdmission(compiler(encoding), encoding).parts(text) is None:
            return False
        for undeclared_keys in UNDECLARED_KEYS:
            options = GrammarOptions(undeclared_keys=undeclared_keys, encoding=encoding)
            grammar: Any = compiler(encoding).grammar(text, "", options=options)
            assert not grammar.coverage.inexact, (schema, grammar.coverage.inexact)
    return True


def under(value: Any, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": value}, "required": ["p"], **root}


TABLE: dict[str, dict[str, Any]] = table(__file__)
DEEP: Any = {}
for _ in range(30):
    DEEP = {"type": "array", "items": DEEP}
PLAIN = TABLE["plain tools"] | {name: under(schema) for name, schema in TABLE["plain properties"].items()} | {
    "64 properties": {"properties": {f"p{n}": {"type": "string"} for n in range(64)}, "required": [f"p{n}" for n in range(64)]},
    "one pattern often": {"properties": {f"p{n}": {"type": "string", "pattern": "^[0-9a-f]{8}$"} for n in range(40)}},
}  # fmt: skip
NOT_PLAIN = TABLE["other tools"] | {name: under(schema) for name, schema in TABLE["other properties"].items()} | {
    "many patterns": {"properties": {f"p{n}": {"type": "string", "pattern": f"^{n}$"} for n in range(40)}},
    "hidden": under({"example": {"pattern": "a" * 9_000}}),
    "unused": {"$defs": {"x": {"pattern": "a" * 9_000}}},
    "long name": {"properties": {"a" * 5_000: {}}},
    "long name of a definition": {"$defs": {"a" * 5_000: {}}},
    "deep": under(DEEP),
    "many values": under({"enum": list(range(MAX_PARTS))}),
    "many references": under({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"properties": {f"p{n}": {"$ref": "#/$defs/b"} for n in range(60)}},
                                                                 "b": {"properties": {f"p{n}": {} for n in range(60)}}}}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "is_plain"),
    [
        pytest.param(schema, table_ is PLAIN, id=name)
        for table_ in (PLAIN, NOT_PLAIN)
        for name, schema in table_.items()
    ],
)
def test_plain_schemas_are_enforced_wholly_and_others_left_to_the_compiler(schema: Any, is_plain: bool) -> None:
    assert check(schema) == is_plain


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a":NaN}', '{"a":1e999}', '{"a":' * 10_000, f'{{"a":"{"a" * 70_000}"}}'])  # fmt: skip
def test_what_is_no_small_schema_is_not_plain(text: str) -> None:
    assert fast_path_shape(text) is None


@pytest.mark.slow
def test_tools_of_public_servers() -> None:
    schemas = [tool["function"].get("parameters", {}) for tools in mcp_servers() for tool in tools]
    plain = sum(map(check, schemas))
    assert plain >= 0.99 * len(schemas), "admission compiles the others"


@pytest.mark.slow
def test_the_test_suite() -> None:
    files = sorted(suite().rglob("*.json"))
    schemas = [case["schema"] for file in files for case in json.loads(file.read_text("utf-8")) if "schema" in case]
    assert sum(check(under(schema)) for schema in schemas) > 100


@pytest.mark.slow
def test_schemas_found_in_the_wild() -> None:
    """A tenth of MaskBench as tools, and subschemas of another one as properties."""
    chosen, plain = Random(18), 0
    with lzma.open(data("schemas/maskbench.jsonl.xz"), "rt") as lines:
        for line in lines:
            schema, alternative = json.loads(line)["schema"], chosen.random()
            if alternative < 0.1:
                plain += check(schema, (chosen.choice(ENCODINGS),))
            elif alternative < 0.2 and isinstance(schema, dict):
                definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
                found = [value for value in walked(schema) if isinstance(value, dict)]
                for part in chosen.sample(found, min(3, len(found))):
                    plain += check(under(part, **definitions), (chosen.choice(ENCODINGS),))
    assert plain > 800


def walked(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting:
        inner = waiting.pop()
        found.append(inner)
        waiting += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return found


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(sorted(KEYWORDS))
values = st.none() | st.booleans() | st.integers(-5, 5) | names
JSON = st.recursive(values | st.floats(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12)  # fmt: skip


@settings(max_examples=tries(100, everything=300), deadline=None)
@given(JSON, JSON)
def test_no_json_fails(value: Any, other: Any) -> None:
    fast_path_shape(json.dumps(value))
    check(under(value, **{"$defs": other}), ("json",))
