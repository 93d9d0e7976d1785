"""The law of explanations: without the named keywords the schema allows the token, and other causes hold for any schema.

Over the bytes, and the markers that end a value in Kimi K3's arguments.
"""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import KIMI_K2, Compiler, ConstrainedK2Error, ToolCallSpec, Vocabulary
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.explain.keywords import OPENS_OBJECTS, OTHER_CAUSES, Cause
from constrained_k2.explain.overrides import find_places
from constrained_k2.explain.subject import ExplainLimits
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.schema.budget import objects_in
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from tests.explain.turns import CALL, K3_CALL, byte_compiler, ids_of, tool, vocabulary_with
from tests.kit.xtml import encode, pieces

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


@dataclass
class Side:
    """A format: the vocabulary of its turns, the beginning of a call, and how its arguments are written."""

    wire_format: WireFormat
    vocabulary: Vocabulary
    call: str
    any_schema: dict[str, Any]

    @property
    def compiler(self) -> Compiler:
        return byte_compiler(self.wire_format)

    def written(self, value: dict[str, Any]) -> list[int]:
        if self.wire_format is KIMI_K3:
            return encode(self.vocabulary, pieces(value, (",", ":")))
        return list(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())

    def allows(self, schema: Any, symbols: list[int], symbol: int, policy: UndeclaredKeys) -> bool:
        try:
            options = GrammarOptions(undeclared_keys=policy, encoding=self.wire_format.argument_encoding)
            matcher = self.compiler.grammar(json.dumps(schema), "", options=options).matcher("")
            is_text = all(map(matcher.accept, symbols))
            markers = self.vocabulary.format
            ends = (
                self.wire_format is KIMI_K3
                and symbol == markers.call_end
                and symbols[-1:] in ([], [markers.argument_begin])
            )
            return is_text and (matcher.accept(symbol) or (ends and matcher.is_complete()))
        except ConstrainedK2Error:
            return False

    def is_freed(self, schema: Any, symbols: list[int], symbol: int, keywords: tuple[str, ...]) -> bool:
        """True if the symbol is allowed without these keywords: everywhere, or in one of the objects that have them."""
        some = [None, *(pointer for pointer, each in objects_in(schema) if set(keywords) & each.keys())]
        following = [symbol]
        if self.wire_format is KIMI_K2 and bytes(symbols[-1:]).isalnum() and symbol in b",]} ":
            following = [*b",]} "]  # a keyword of the value is to blame, whatever comes next
        policy: UndeclaredKeys = "allow" if OPENS_OBJECTS & set(keywords) else "forbid"
        return any(
            self.allows(without(schema, keywords, only), symbols, each, policy) for only in some for each in following
        )


K2_SIDE = Side(KIMI_K2, vocabulary_with(KIMI_K2), CALL, {})
K3_SIDE = Side(KIMI_K3, byte_compiler(KIMI_K3).vocabulary, K3_CALL, {"type": "object"})


def without(schema: Any, keywords: tuple[str, ...], only: str | None) -> Any:
    """A copy without these keywords: everywhere, or at one pointer only."""
    other = json.loads(json.dumps(schema))
    for pointer, each in list(objects_in(other)):
        is_schema = not pointer.endswith("/properties") and not any(part in pointer for part in IN_DATA)
        if is_schema and only in {None, pointer}:
            for keyword in keywords:
                each.pop(keyword, None)
    return other


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_without_its_keywords_a_schema_allows_the_byte(path: Path) -> None:
    rng, tried = random.Random(path.stem), 0
    cases = cases_in(path)
    for _ in range(400):
        case = rng.choice(cases)
        schema: dict[str, Any] = {"type": "object", "properties": {"v": case["schema"]}}
        schema |= {"$defs": case["schema"]["$defs"]} if "$defs" in case["schema"] else {}
        if case["accepted"]:
            tried += check(K2_SIDE, schema, {"v": rng.choice(case["accepted"])}, rng)
        if tried == TIMES:
            return
    assert tried >= 2  # most bytes are forbidden by JSON itself


def check(side: Side, schema: dict[str, Any], value: dict[str, Any], rng: random.Random) -> bool:
    """Explain a forbidden token after a beginning of a value, if one is found; True if keywords forbid it."""
    text, close = side.written(value), side.vocabulary.format.call_end
    begin = 5 if side is K2_SIDE else 2
    cut, symbol = (
        rng.randrange(begin, len(text)),
        rng.choice(BYTES if side is K2_SIDE else [*BYTES, close, close, close]),
    )
    symbols = text[:cut]
    try:
        compiled = side.compiler.compile(ToolCallSpec.from_openai({"tools": [tool(schema)]}))
    except ConstrainedK2Error:
        return False
    if side is K2_SIDE and any(use.reason.startswith("negated") for use in compiled.coverage("act").narrowed):
        return False  # the grammar forbids more than the schema
    if not side.allows(schema, symbols[:-1], symbols[-1], "forbid") or side.allows(schema, symbols, symbol, "forbid"):
        return False
    ids = [*ids_of(side.call, side.vocabulary), *symbols]
    limits = ExplainLimits(seconds=60.0, compile_seconds=60.0, trials=256)
    (place,) = find_places(compiled, side.vocabulary, [*ids, 0], {len(ids): symbol}, limits=limits).values()
    keywords, what = place.keywords, (schema, symbols, symbol, place)
    assert keywords, what
    if keywords == (Cause.UNKNOWN_KEY,):
        assert side.allows(schema, symbols, symbol, "allow"), what
    elif keywords[0] in OTHER_CAUSES:
        assert side is K3_SIDE or keywords in {(Cause.SYNTAX,), (Cause.BLANKS,), (Cause.REPEATED_KEY,)}, what
        assert keywords == (Cause.REPEATED_KEY,) or not side.allows(side.any_schema, symbols, symbol, "allow"), what
    else:
        assert set(keywords) <= KEYWORDS.keys(), what
        assert side.is_freed(schema, symbols, symbol, keywords), what
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


@pytest.mark.parametrize(
    ("side", "seed"),
    [*(pytest.param(K2_SIDE, seed, id=f"Kimi K2, {seed}") for seed in range(4)),
     *(pytest.param(K3_SIDE, seed, id=f"Kimi K3, {seed}", marks=pytest.mark.slow) for seed in range(3))],
)  # fmt: skip
def test_random_compositions(side: Side, seed: int) -> None:
    rng, tried = random.Random(seed), 0
    for _ in range(200 if side is K2_SIDE else 400):
        schema, instance = composed(rng)
        tried += check(side, schema, instance, rng)
        if tried == 4:
            return
    raise AssertionError(f"{tried} tokens are forbidden by keywords")
