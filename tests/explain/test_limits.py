"""The cost of explanations has bounds, whatever the schema and the text; the places remain."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from constrained_k2 import KIMI_K2, Compiler, ConstrainedK2Error, SchemaTooCostly, ToolCallSpec
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.explain.overrides import find_places
from constrained_k2.explain.subject import Budget, ExplainLimits, Subject
from constrained_k2.explain.view import Site
from tests.explain.turns import CALL, END, UNITS, byte_compiler, ids_of, obj, place_of, tool, vocabulary_with

BODY = {"tools": [tool(obj(u=UNITS, more={}))]}


def many(schema: dict[str, Any], text: str, limits: ExplainLimits, count: int = 300) -> dict[int, Site]:
    """Explain a forbidden byte at each place of a text's end."""
    vocabulary = vocabulary_with(KIMI_K2)
    compiled = byte_compiler().compile(ToolCallSpec.from_openai({"tools": [tool(schema)]}))
    ids = ids_of(CALL + text, vocabulary)
    wanted = {len(ids) - number: 255 for number in range(1, count + 1)}
    return find_places(compiled, vocabulary, ids, wanted, limits=limits)


NO_TIME: dict[str, Any] = {"limits": ExplainLimits(seconds=0.0, trials=0)}
LEGAL: dict[str, Any] = {"is_legal": True}
IN_UNITS = f'{CALL}{{"u":"'


@pytest.mark.parametrize(
    ("written", "wanted", "how", "site"),
    [
        # Beyond a limit the pointer remains.
        (IN_UNITS, "K", {"limits": ExplainLimits(trials=0)}, Site("arguments", "act", "/u", ())),
        (IN_UNITS, "K", {"limits": ExplainLimits(seconds=0.0)}, Site("arguments", "act", "/u", ())),
        (IN_UNITS, "K", {"limits": ExplainLimits(text_bytes=5)}, Site("arguments", "act", "/u", ())),
        # Plain causes need no time.
        (f'{CALL}{{"more":"x', END, NO_TIME, Site("arguments", "act", "/more", ("marker in a string",))),
        (f'{CALL}{{"more":1', END, NO_TIME, Site("arguments", "act", "", ("end of the call",))),
        (f'{CALL}{{"more":', "x", NO_TIME, Site("arguments", "act", "/more", ("syntax",))),
        (CALL, "[", NO_TIME, Site("arguments", "act", "", ("type",))),
        # The token's text is allowed.
        (f"{IN_UNITS}c", "el", LEGAL, Site("arguments", "act", "/u", ("split into tokens",))),
        ("Hm", "more", LEGAL | {"in_reasoning": True}, Site("reasoning", "", None, ("thinking budget",))),
        (f'{CALL}{{"more":"x', "yz", LEGAL, Site("arguments", "act", "/more", ("token limits",))),
    ],
)
def test_what_is_known_without_a_search(written: str, wanted: str, how: dict[str, Any], site: Site) -> None:
    assert place_of(BODY | {"thinking": "in_reasoning" in how}, written, wanted, **how) == site


def test_the_number_of_overrides_is_bounded() -> None:
    found = many(obj(a={}), '{"a":"' + "x" * 400, ExplainLimits(overrides=7))
    assert list(found) == sorted(found)
    assert len(found) == 7


HOSTILE = {
    "deep": (obj(a={}), '{"a":' + "[" * 50_000),
    "many keys": ({"type": "object"}, "{" + "".join(f'"k{number}":1,' for number in range(20_000)) + '"'),
    "long": (obj(a={"type": "string", "pattern": "^(a|aa)+$"}), '{"a":"' + "a" * 200_000),
    "recursive": (
        obj(a={"$ref": "#/$defs/a"}) | {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * 20}, "b": {
            "anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}}},
        '{"a":' + "[" * 300,
    ),
    "wide": (obj(a={"anyOf": [obj([f"k{number}"], **{f"k{number}": UNITS}) for number in range(200)]}), '{"a":{"k1":"' + "f"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_and_texts_stop_at_the_limit(name: str) -> None:
    schema, text = HOSTILE[name]
    limits = ExplainLimits(seconds=0.2)
    begun = time.thread_time()
    places = many(schema, text, limits, min(200, len(text)))
    # Beyond the limit there are the replay of the text, and a last trial; without limits it takes minutes.
    assert time.thread_time() - begun < 3.0
    assert places


def test_a_schema_that_is_over_a_budget_without_a_keyword_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(self: Any, schema: str, *rest: Any, **how: Any) -> Any:
        asked.append(schema)
        if "title" in schema and "enum" not in schema:
            raise ConstrainedK2Error("too costly", "")
        return grammar(self, schema, *rest, **how)

    grammar = Compiler.grammar
    monkeypatch.setattr(Compiler, "grammar", refuse)
    found = place_of({"tools": [tool(obj(over=UNITS | {"title": "x"}))]}, f'{CALL}{{"over":"', "K")
    assert found == Site("arguments", "act", "/over", ())
    assert any("enum" not in each for each in asked)


def test_a_schema_that_took_too_long_to_compile_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, schema: str, *rest: Any, **how: Any) -> Any:
        if "enum" not in schema:
            raise SchemaTooCostly("the schema took too long to compile", "", "", "compile_ms", 250, 250)
        return grammar(self, schema, *rest, **how)

    grammar = Compiler.grammar
    body, written = {"tools": [tool(obj(slow=UNITS))]}, f'{CALL}{{"slow":"'
    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "grammar", refuse)
        assert place_of(body, written, "K") == Site("arguments", "act", "/slow", ())
    assert place_of(body, written, "K") == Site("arguments", "act", "/slow", ("enum",))


def test_places_beside_each_other_and_after_the_turn_left_the_grammar() -> None:
    vocabulary = vocabulary_with(KIMI_K2)
    compiled = byte_compiler().compile(ToolCallSpec.from_openai(BODY))
    ids = [*ids_of(CALL, vocabulary), *b'{"u":"celsius"}', *ids_of(END, vocabulary)]
    at = len(ids_of(CALL, vocabulary)) + 6
    found = find_places(compiled, vocabulary, ids, {at + 1: ord("Y"), at: ord("K")})
    assert found == dict.fromkeys((at, at + 1), Site("arguments", "act", "/u", ("enum",)))
    ids = [*ids_of("<|tool_calls_section_begin|>", vocabulary), *b"oops"]
    assert find_places(compiled, vocabulary, ids, {3: 1})[3] == Site("section", "", None, ())


def test_threads_explain_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: place_of(BODY, f'{CALL}{{"u":"', "K"), range(4)))
    assert results == [Site("arguments", "act", "/u", ("enum",))] * 4


def test_parts_of_schemas_stand_alone_unless_they_are_named() -> None:
    def has_parts(schema: dict[str, Any]) -> bool:
        budget = Budget(ExplainLimits())
        return Subject(json.dumps(schema), GrammarOptions(), KIMI_K2, budget).has_parts

    assert has_parts(obj(id={"type": "string"}, a={"$ref": "#/$defs/a"}) | {"$defs": {"a": UNITS}})
    assert not has_parts(obj(a={"$ref": "#"}))
    assert not has_parts(obj(a={"$id": "http://localhost/a"}))
