"""The law of explanations: without the named keywords the schema allows the byte, and other causes hold for any schema."""

import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import KIMI_K2, ConstrainedK2Error, ToolCallSpec
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.explain import ExaminedRow, ExplainLimits, explain_rows
from constrained_k2.explain.keywords import BLANKS, OPENS_OBJECTS, OTHER_CAUSES, REPEATED_KEY, SYNTAX, UNKNOWN_KEY
from constrained_k2.schema.budget import objects_in
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from tests.explain.test_places import CALL
from tests.explain.turns import byte_compiler, ids_of, tool, vocabulary_with

CASES = sorted((Path(__file__).parents[1] / "schema" / "cases").glob("*.json"))
BYTES = b'"""{}}[]],,:tfn0123456789-.ea bxyz\\'
TIMES = 12  # bytes tried for each file
IN_DATA = ("/enum", "/const", "/default", "/examples")


def allows(schema: Any, text: bytes, byte: int, policy: UndeclaredKeys) -> bool:
    try:
        grammar = byte_compiler().grammar(json.dumps(schema), "", options=GrammarOptions(undeclared_keys=policy))
        matcher = grammar.matcher("")
        return all(map(matcher.accept, text)) and matcher.accept(byte)
    except ConstrainedK2Error:
        return False


def without(schema: Any, keywords: tuple[str, ...], only: tuple[str, ...] | None = None) -> Any:
    """A copy without these keywords: everywhere, or at these pointers only."""
    other = json.loads(json.dumps(schema))
    for pointer, each in list(objects_in(other)):
        is_schema = not pointer.endswith("/properties") and not any(part in pointer for part in IN_DATA)
        if is_schema and (only is None or pointer in only):
            for keyword in keywords:
                each.pop(keyword, None)
    return other


def is_freed(schema: Any, text: bytes, byte: int, keywords: tuple[str, ...]) -> bool:
    policy: UndeclaredKeys = "allow" if OPENS_OBJECTS & set(keywords) else "forbid"
    holders = [pointer for pointer, each in objects_in(schema) if set(keywords) & each.keys()]
    some = chain([None], ((pointer,) for pointer in holders))
    ends_value = text[-1:].isalnum() and byte in b",]} "  # then a keyword of the value is to blame, whatever comes next
    following = b",]} " if ends_value else bytes((byte,))
    return any(allows(without(schema, keywords, only), text, each, policy) for only in some for each in following)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_without_its_keywords_a_schema_allows_the_byte(path: Path) -> None:
    rng, vocabulary, tried = random.Random(path.stem), vocabulary_with(KIMI_K2), 0
    cases = [case for case in json.loads(path.read_text(encoding="utf-8")) if isinstance(case["schema"], dict)]
    if path.stem == "additionalProperties":  # grammars narrow the negations of those
        cases = [case for case in cases if "not" not in case["schema"]]
    for _ in range(400):
        case = rng.choice(cases)
        schema: dict[str, Any] = {"type": "object", "properties": {"v": case["schema"]}}
        schema |= {"$defs": case["schema"]["$defs"]} if "$defs" in case["schema"] else {}
        if not case["accepted"] or not (found := forbidden(schema, rng.choice(case["accepted"]), rng)):
            continue
        text, byte = found
        compiled = byte_compiler().compile(ToolCallSpec.from_openai({"tools": [tool(schema)]}))
        ids = [*ids_of(CALL, vocabulary), *text]
        row = ExaminedRow(len(ids), (), byte, True, 0.5, 0.5, 1)
        limits = ExplainLimits(seconds=60.0, trials=256)
        (override,) = explain_rows(compiled, vocabulary, [*ids, 0], [row], limits=limits)
        keywords, what = override.place.keywords, (schema, text, chr(byte), override.place)
        assert keywords, what
        if keywords == (UNKNOWN_KEY,):
            assert allows(schema, text, byte, "allow"), what
        elif keywords[0] in OTHER_CAUSES:
            assert keywords in {(SYNTAX,), (BLANKS,), (REPEATED_KEY,)}, what
            assert keywords == (REPEATED_KEY,) or not allows({}, text, byte, "allow"), what
        else:
            assert set(keywords) <= KEYWORDS.keys(), what
            assert is_freed(schema, text, byte, keywords), what
            tried += 1
            if tried == TIMES:
                return
    assert tried >= 2  # most bytes are forbidden by JSON itself


def forbidden(schema: Any, instance: Any, rng: random.Random) -> tuple[bytes, int] | None:
    """A beginning of an instance's JSON, and a byte that may not follow it; None for bad luck."""
    text = json.dumps({"v": instance}, ensure_ascii=False, separators=(",", ":")).encode()
    cut, byte = rng.randrange(5, len(text)), rng.choice(BYTES)
    try:
        compiled = byte_compiler().compile(ToolCallSpec.from_openai({"tools": [tool(schema)]}))
    except ConstrainedK2Error:
        return None
    if any(use.reason.startswith("negated") for use in compiled.coverage("act").narrowed):
        return None  # the grammar forbids more than the schema
    is_text = allows(schema, text[: cut - 1], text[cut - 1], "forbid")
    return (text[:cut], byte) if is_text and not allows(schema, text[:cut], byte, "forbid") else None
