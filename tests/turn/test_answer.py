"""Turns whose answer has a form: a call or an answer of that form, nothing else."""

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from constrained_k2 import Compiler, ToolCallMatcher, UnsupportedSchema, parse_completion
from constrained_k2.parsing import Completion
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from tests.kit import turns
from tests.kit.tools import tool
from tests.kit.walks import ids_of, walk

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = tool("get_weather", WEATHER)
REPORT = {
    "type": "object",
    "properties": {
        "summary": {"type": "string", "maxLength": 12},
        "sources": {"type": "array", "items": {"enum": ["radio", "paper"]}, "maxItems": 2},
        "certain": {"type": "boolean"},
    },
    "required": ["summary", "certain"],
    "additionalProperties": False,
}
SCHEMAS: list[Any] = [
    REPORT,
    {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    {"type": ["number", "null"]},
    {},
]
TEXTS = [
    ({"regex": "[a-c]{2,4}"}, "[a-c]{2,4}"),
    ({"choice": ["yes", "no", "yes!"]}, "yes|no|yes!"),
    ({"grammar": 'start: "x"+'}, "x+"),
    ({"grammar": 'root ::= item+\nitem ::= "a" [0-3]'}, "(a[0-3])+"),
    ({"regex": "[ab]*"}, "[ab]*"),
]


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | more}}


def matcher_of(compiler: Compiler, *, in_reasoning: bool = False, **fields: Any) -> ToolCallMatcher:
    return turns.matcher_of(compiler, {"tools": [TOOL]}, in_reasoning=in_reasoning, **fields)


def mask(matcher: ToolCallMatcher) -> set[int]:
    return set(ids_of(matcher))


def walked(compiler: Compiler, seed: int, **fields: Any) -> Completion:
    """A turn of a random model."""
    chance = random.Random(seed)
    matcher = matcher_of(compiler, **fields)
    ids = turns.steps(matcher, chance, prefer=turns.towards_the_end(compiler.vocabulary, chance, 0.7))
    return parse_completion(ids, compiler.vocabulary)


FORMS = [(schema_format(schema), schema) for schema in SCHEMAS] + [
    ({"structured_outputs": form}, pattern) for form, pattern in TEXTS
]


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize(
    ("fields", "form"), FORMS,
    ids=["object", "array", "number or null", "anything", "regex", "choice", "Lark", "EBNF", "regex of nothing"],
)  # fmt: skip
def test_a_random_model_calls_or_answers_in_the_form(
    each_compiler: Compiler, fields: dict[str, Any], form: Any, choice: str
) -> None:
    """The form is a schema, or a pattern that the whole answer matches."""
    seen = set[str]()
    for seed in range(40 if "response_format" in fields else 20):
        completion = walked(each_compiler, seed, tool_choice=choice, **fields)
        assert not (completion.cut_calls or completion.malformed or completion.reasoning)
        if completion.tool_calls:
            assert choice == "auto" and not completion.content
            for call in completion.tool_calls:
                jsonschema.validate(json.loads(call.arguments), WEATHER)
        elif isinstance(form, str):
            assert re.fullmatch(form, completion.content), completion.content
        else:
            jsonschema.validate(json.loads(completion.content), form)
        seen.add("call" if completion.tool_calls else "answer")
    assert "answer" in seen


def test_the_first_token_is_a_call_reasoning_or_the_answer(small_compiler: Compiler) -> None:
    vocabulary = small_compiler.vocabulary
    markers = vocabulary.format
    auto = mask(matcher_of(small_compiler, **schema_format(REPORT)))
    braces = {token for token in range(vocabulary.size) if vocabulary.ordinary_bytes(token).startswith(b"{")}
    assert markers.section_begin in auto and auto - {markers.section_begin} <= braces
    thinking = mask(matcher_of(small_compiler, thinking=True, **schema_format(REPORT)))
    assert thinking == auto | {markers.think_begin}
    assert mask(matcher_of(small_compiler, tool_choice="none", **schema_format(REPORT))) == auto - {
        markers.section_begin
    }


def test_after_reasoning_comes_the_answer(small_compiler: Compiler) -> None:
    vocabulary = small_compiler.vocabulary
    markers = vocabulary.format
    matcher = matcher_of(small_compiler, in_reasoning=True, thinking=True, **schema_format(REPORT))
    assert matcher.phase is Phase.REASONING
    assert matcher.accept_tokens([*vocabulary.encode("any text {"), markers.think_end])
    assert not matcher.accept_tokens(vocabulary.encode("text"))
    assert matcher.accept_tokens(vocabulary.encode('{"certain": true, "summary": "ok"}'))
    assert mask(matcher) == set(markers.stop_ids)
    assert matcher.accept_tokens([markers.turn_end]) and matcher.is_terminated()


def test_markers_and_stops_are_refused_within_the_answer(small_compiler: Compiler) -> None:
    vocabulary = small_compiler.vocabulary
    matcher = matcher_of(small_compiler, **schema_format(REPORT))
    assert matcher.accept_tokens(vocabulary.encode('{"summary": "'))
    for token in vocabulary.special_tokens.values():
        assert not matcher.accept_tokens([token])
    assert not mask(matcher) & set(vocabulary.special_tokens.values())


def test_a_finish_reserve_ends_the_answer(small_compiler: Compiler) -> None:
    vocabulary, budget = small_compiler.vocabulary, FinishBudget(small_compiler.vocabulary)
    fields = {"thinking": True, "tool_choice": "none", **schema_format(REPORT)}
    for seed in range(30):
        matcher = matcher_of(small_compiler, in_reasoning=True, **fields)
        budget.apply(matcher, 200, 96)
        ids = turns.steps(matcher, random.Random(seed), 200)
        assert matcher.is_terminated()
        content = vocabulary.decode(ids[ids.index(vocabulary.format.think_end) + 1 : -1])
        jsonschema.validate(json.loads(content), REPORT)


def test_forced_tokens_write_the_only_answer(small_compiler: Compiler) -> None:
    vocabulary = small_compiler.vocabulary
    only = schema_format({"const": "sunny"})
    assert matcher_of(small_compiler, **only).forced_tokens() == []  # a call is possible too
    forced = matcher_of(small_compiler, tool_choice="none", **only).forced_tokens()
    assert '"sunny"'.startswith(vocabulary.decode(forced)) and forced


UNKEPT = {"type": "object", "minProperties": 70}


def test_strict_refuses_what_cannot_be_enforced(small_compiler: Compiler) -> None:
    matcher_of(small_compiler, **schema_format(UNKEPT))
    with pytest.raises(
        UnsupportedSchema, match=r"response_format.json_schema.schema#/minProperties: the answer is strict"
    ):
        matcher_of(small_compiler, **schema_format(UNKEPT, strict=True))


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"grammar": "start: <|im_end|>"}, "refers to a token"),
        ({"grammar": 'start: "a" <[5]>'}, "refers to a token"),
        ({"grammar": 'root ::= "a" other'}, "does not accept this grammar: as EBNF: Rule 'other' not found"),
        ({"grammar": "root ::= " + "(" * 9000 + '"a"' + ")" * 9000}, "does not accept this grammar: as EBNF"),
        ({"grammar": "root ::= " + '"a" ' * 20_000}, "at most 65536 characters"),
        ({"grammar": "start: other"}, "does not accept this grammar"),
        ({"regex": "a(?!b)"}, "does not accept this regular expression"),
        ({"regex": "("}, "does not accept this regular expression"),
        ({"json": {"type": "string", "enum": [1]}}, "no value satisfies"),
    ],
)
def test_forms_without_a_grammar(small_compiler: Compiler, form: Any, problem: str) -> None:
    with pytest.raises(UnsupportedSchema, match=problem):
        matcher_of(small_compiler, structured_outputs=form)


def test_a_grammar_may_spell_markers_in_its_texts(small_compiler: Compiler) -> None:
    vocabulary = small_compiler.vocabulary
    matcher = matcher_of(small_compiler, structured_outputs={"grammar": 'start: "<|im_end|>" /<a>/ // <[1]>\n'})
    assert matcher.accept_tokens(vocabulary.encode("<|im_end|><a>"))
    assert set(vocabulary.format.stop_ids) <= mask(matcher)


@pytest.mark.slow
def test_xgrammar_compiles_schemas_only(small_compiler: Compiler) -> None:
    pytest.importorskip("xgrammar", reason="xgrammar is not installed")
    vocabulary = small_compiler.vocabulary
    matcher = matcher_of(small_compiler, engine="xgrammar", **schema_format(REPORT))
    completion = parse_completion(walk(matcher, vocabulary, 3, [REPORT, WEATHER]), vocabulary)
    assert completion.tool_calls or jsonschema.validate(json.loads(completion.content), REPORT) is None
    with pytest.raises(UnsupportedSchema, match="regular expression with LLGuidance only"):
        matcher_of(small_compiler, engine="xgrammar", structured_outputs={"regex": "a"})
