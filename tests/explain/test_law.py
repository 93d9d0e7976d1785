"""The law of explanations: without the named keywords the schema allows the byte, and other causes hold for any schema."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import KIMI_K2, ConstrainedK2Error, ToolCallSpec, Vocabulary
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.explain.keywords import BLANKS, OPENS_OBJECTS, OTHER_CAUSES, REPEATED_KEY, SYNTAX, UNKNOWN_KEY
from constrained_k2.explain.limits import ExplainLimits
from constrained_k2.explain.overrides import find_places
from constrained_k2.schema.budget import objects_in
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from tests.explain.test_places import CALL
from tests.explain.turns import byte_compiler, ids_of, tool, vocabulary_with

CASES = sorted((Path(__file__).parents[1] / "schema" / "cases").glob("*.json"))
BYTES = b'"""{}}[]],,:tfn0123456789-.ea bxyz\\'
NESTING = re.compile(r'"\$')  # references, and names that they lead to
TIMES = 12  # bytes tried for each file
IN_DATA = ("/enum", "/const", "/default", "/examples")


def cases_in(path: Path) -> list[dict[str, Any]]:
    found = [case for case in json.loads(path.read_text(encoding="utf-8")) if isinstance(case["schema"], dict)]
    if path.stem == "additionalProperties":  # grammars narrow the negations of those
        return [case for case in found if "not" not in case["schema"]]
    return found


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


def policy_without(keywords: tuple[str, ...]) -> UndeclaredKeys:
    """The treatment of undeclared keys under which taking these keywords away is tried."""
    return "allow" if OPENS_OBJECTS & set(keywords) else "forbid"


def holders_of(schema: Any, keywords: tuple[str, ...]) -> list[str]:
    """The pointers of the objects that hold one of these keywords."""
    return [pointer for pointer, each in objects_in(schema) if set(keywords) & each.keys()]


def is_freed(schema: Any, text: bytes, byte: int, keywords: tuple[str, ...]) -> bool:
    policy = policy_without(keywords)
    some = [None, *((pointer,) for pointer in holders_of(schema, keywords))]
    ends_value = text[-1:].isalnum() and byte in b",]} "  # then a keyword of the value is to blame, whatever comes next
    following = b",]} " if ends_value else bytes((byte,))
    return any(allows(without(schema, keywords, only), text, each, policy) for only in some for each in following)


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_without_its_keywords_a_schema_allows_the_byte(path: Path) -> None:
    rng, vocabulary, tried = random.Random(path.stem), vocabulary_with(KIMI_K2), 0
    cases = cases_in(path)
    for _ in range(400):
        case = rng.choice(cases)
        schema: dict[str, Any] = {"type": "object", "properties": {"v": case["schema"]}}
        schema |= {"$defs": case["schema"]["$defs"]} if "$defs" in case["schema"] else {}
        if case["accepted"]:
            text = json.dumps({"v": rng.choice(case["accepted"])}, ensure_ascii=False, separators=(",", ":")).encode()
            tried += check(schema, text, vocabulary, rng)
        if tried == TIMES:
            return
    assert tried >= 2  # most bytes are forbidden by JSON itself


def check(schema: dict[str, Any], text: bytes, vocabulary: Vocabulary, rng: random.Random) -> bool:
    """Explain a forbidden byte after a beginning of a text, if one is found; True if keywords forbid it."""
    cut, byte = rng.randrange(5, len(text)), rng.choice(BYTES)
    text = text[:cut]
    try:
        compiled = byte_compiler().compile(ToolCallSpec.from_openai({"tools": [tool(schema)]}))
    except ConstrainedK2Error:
        return False
    if any(use.reason.startswith("negated") for use in compiled.coverage("act").narrowed):
        return False  # the grammar forbids more than the schema
    if not allows(schema, text[:-1], text[-1], "forbid") or allows(schema, text, byte, "forbid"):
        return False
    ids = [*ids_of(CALL, vocabulary), *text]
    limits = ExplainLimits(seconds=60.0, trials=256)
    (place,) = find_places(compiled, vocabulary, [*ids, 0], {len(ids): byte}, limits=limits).values()
    keywords, what = place.keywords, (schema, text, chr(byte), place)
    assert keywords, what
    if keywords == (UNKNOWN_KEY,):
        assert allows(schema, text, byte, "allow"), what
    elif keywords[0] in OTHER_CAUSES:
        assert keywords in {(SYNTAX,), (BLANKS,), (REPEATED_KEY,)}, what
        assert keywords == (REPEATED_KEY,) or not allows({}, text, byte, "allow"), what
    else:
        assert set(keywords) <= KEYWORDS.keys(), what
        assert is_freed(schema, text, byte, keywords), what
        return True
    return False


def composed(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema of several cases, side by side, in arrays and as alternatives; and an instance."""
    parts: list[tuple[dict[str, Any], Any]] = []
    while len(parts) < 4:
        case = rng.choice(cases_in(rng.choice(CASES)))
        if case["accepted"] and not NESTING.search(json.dumps(case["schema"])):
            parts.append((case["schema"], rng.choice(case["accepted"])))
    (first, one), (second, two), (third, three), (fourth, four) = parts
    array = {"type": "array", "items": {"type": "array", "items": second}, "maxItems": 2}
    either = {
        rng.choice(["anyOf", "oneOf"]): [third, {"type": "object", "properties": {"w": fourth}, "required": ["w"]}]
    }
    schema = {
        "type": "object",
        "properties": {"a": first, "b": array, "c": {"allOf": [{"$ref": "#/$defs/c"}]}, "d": {"maxLength": 3}},
        "required": ["c", "a"],
        "$defs": {"c": either},
    }
    members = [("a", one), ("b", [[two, two], [two]]), ("c", rng.choice([three, {"w": four}])), ("d", "xyz")]
    rng.shuffle(members)
    return schema, dict(members)


@pytest.mark.parametrize("seed", range(4))
def test_random_compositions(seed: int) -> None:
    rng, vocabulary, tried = random.Random(seed), vocabulary_with(KIMI_K2), 0
    for _ in range(200):
        schema, instance = composed(rng)
        text = json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode()
        tried += check(schema, text, vocabulary, rng)
        if tried == 4:
            return
    raise AssertionError(f"{tried} bytes are forbidden by keywords")
