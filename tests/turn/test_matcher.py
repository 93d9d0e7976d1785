"""The automaton of a turn in each format: what may come where, and which whole turns a request allows."""

from typing import Any

import numpy as np
import pytest

from constrained_k2 import CompiledToolCalls, Compiler, InvalidRequest, ToolCallSpec, UnsupportedSchema, Vocabulary
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.kit.tools import tool
from tests.kit.turns import call, call_start, ids_of, is_k3, opening, section_end, turn_end
from tests.kit.walks import ids_of as allowed_in

WEATHER = tool("get_weather", {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"],
    "additionalProperties": False,
})  # fmt: skip
TABS = {"type": "function", "function": {"name": "list-tabs"}}
BODY = {"tools": [WEATHER, TABS]}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "list-tabs"}}}
ANSWER = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, 23]}}}}


def compiled(compiler: Compiler, body: dict[str, Any] = BODY, **more: Any) -> CompiledToolCalls:
    return compiler.compile(ToolCallSpec.from_openai({**body, **more}))


def feed(matcher: ToolCallMatcher, *parts: str) -> None:
    for part in parts:
        assert matcher.accept_tokens(ids_of(matcher.vocabulary, part)), part


SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END = (
    f"<|tool_{name}|>" for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")
)  # fmt: skip
OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
STOP = {"<|im_end|>", "[EOS]"}
SOME, EVERY = "some ordinary tokens", "every ordinary token"
FREE = {SECTION, EVERY, *STOP}
CALLED = ("section_begin", "call_begin", "functions.list-tabs:0", "argument_begin", "{}", "call_end")


def allowed(matcher: ToolCallMatcher) -> set[str]:
    """The special tokens in a mask, and whether it has ordinary ones. It is written to its row alone."""
    vocabulary = matcher.vocabulary
    bitmask = allocate_bitmask(2, vocabulary.size)
    matcher.fill_bitmask(bitmask, 1)
    assert not bitmask[0].any(), "another row was written"
    texts = [vocabulary.special_text(token) for token in allowed_in(matcher)]
    ordinary = vocabulary.size - len(vocabulary.unordinary_ids)
    count = texts.count(None)
    return {text for text in texts if text} | ({EVERY if count == ordinary else SOME} if count else set())


Steps = list[tuple[str, set[str]]]
K2_TURNS: dict[str, tuple[dict[str, Any], Steps]] = {  # name -> request, and what is allowed behind each part
    "a turn": ({}, [
        ("", FREE), ("Hello <~|tool_calls_section_begin|>functions.get_weather:0", FREE), ("Let me see.", FREE), ("section_begin", {CALL}),
        ("call_begin", {SOME}), ("functions.get_weather:0", {ARGUMENTS}), ("argument_begin", {SOME}), ('{"city": "Bei', {SOME}),
        ('jing"}', {CALL_END}), ("call_end", {CALL, SECTION_END}), ("call_begin", {SOME}), ("functions.list-tabs:1", {ARGUMENTS}),
        ("argument_begin", {SOME}), ("{}", {CALL_END}), ("call_end", {CALL, SECTION_END}), ("section_end", STOP), ("turn_end", STOP),
    ]),
    "required": ({"tool_choice": "required"}, [("", {SECTION})]),
    "named": (NAMED, [("", {SECTION}), ("section_begin", {CALL}), ("call_begin", {SOME}),
                      ("functions.list-tabs:0", {ARGUMENTS}), ("argument_begin", {SOME}), ("{}", {CALL_END}), ("call_end", {SECTION_END})]),
    "no call": ({"tool_choice": "none"}, [("", {EVERY, *STOP}), ("text", {EVERY, *STOP})]),
    "no tools": ({"tools": None}, [("", {EVERY, *STOP}), ("text", {EVERY, *STOP})]),
    "an empty list of tools": ({"tools": []}, [("", {EVERY, *STOP}), ("text", {EVERY, *STOP})]),
    "reasoning": ({"thinking": True}, [
        ("", {"<think>", *FREE}), ("think_begin", {"</think>", SECTION, EVERY}), ("Hm.", {"</think>", SECTION, EVERY}),
        ("think_end", FREE), ("turn_end", STOP),
    ]),
    "reasoning left out": ({"thinking": True}, [("x", FREE)]),
    "a section out of reasoning": ({"thinking": True}, [("think_begin", {"</think>", SECTION, EVERY}), ("Hm.", {"</think>", SECTION, EVERY}),
                                                        ("section_begin", {CALL}), ("call_begin", {SOME})]),
    "reasoning that the prompt opened": ({"tool_choice": "required", "in_reasoning": True}, [
        ("", {"</think>", SECTION, EVERY}), ("Hm.", {"</think>", SECTION, EVERY}), ("think_end", {SECTION}),
    ]),
    "required after reasoning": ({"tool_choice": "required", "thinking": True}, [("", {SECTION, "<think>"})]),
    "one call": ({"parallel_tool_calls": False}, [("", FREE), ("section_begin", {CALL}), ("call_begin", {SOME}),
                  ("functions.list-tabs:0", {ARGUMENTS}), ("argument_begin", {SOME}), ("{}", {CALL_END}), ("call_end", {SECTION_END})]),
}  # fmt: skip
K3_TURNS: dict[str, tuple[dict[str, Any], Steps]] = {
    "a turn": ({"in_reasoning": True}, [
        ("", {CLOSE, EVERY}), ("why", {CLOSE, EVERY}), (CLOSE, {SOME}), ("think", {SEP}), (SEP, {OPEN}), (OPEN, {SOME}), ("response", {SEP}),
        (SEP, {CLOSE, EVERY}), ("text", {CLOSE, EVERY}), (CLOSE, {SOME}), ("response", {SEP}), (SEP, {OPEN, CLOSE}), (OPEN, {SOME}),
        ("tools", {SEP}), (SEP, {OPEN}), (OPEN, {SOME}), ('call tool="list-tabs" index="1"', {SEP}), (SEP, {OPEN, CLOSE}), (CLOSE, {SOME}),
        ("call", {SEP}), (SEP, {OPEN, CLOSE}), (CLOSE, {SOME}), ("tools", {SEP}), (SEP, {CLOSE}), (CLOSE, {SOME}), ("message", {SEP}),
        (SEP, {END}), (END, {END}),
    ]),
    "a call instead of an answer": (ANSWER, [("", {CLOSE, SOME}), (f"{CLOSE}response{SEP}", {OPEN})]),
    "an answer": (ANSWER, [("2", {SOME}), ("3", {CLOSE}), (f"{CLOSE}response{SEP}", {CLOSE})]),
    "an answer alone": (ANSWER | {"tools": None}, [("", {SOME})]),
    "no answer, or a call": ({"structured_outputs": {"regex": "x*"}}, [("", {CLOSE, SOME}), (f"{CLOSE}response{SEP}", {OPEN, CLOSE})]),
}  # fmt: skip
EACH_TURN = [
    pytest.param(which, turns[name], id=f"{which} {name}", marks=[pytest.mark.slow] if which.startswith("real") else [])
    for which, turns in (("small", K2_TURNS), ("real", K2_TURNS), ("k3_small", K3_TURNS)) for name in turns
]  # fmt: skip


@pytest.mark.parametrize(("which", "turn"), EACH_TURN)
def test_a_turn_step_by_step(which: str, turn: tuple[dict[str, Any], Steps], request: pytest.FixtureRequest) -> None:
    """After a reset all is as at first."""
    fields = dict(turn[0])
    in_reasoning = fields.pop("in_reasoning", False)
    matcher = compiled(request.getfixturevalue(f"{which}_compiler"), **fields).matcher(in_reasoning=in_reasoning)
    for _ in range(2):
        for part, expected in turn[1]:
            assert not matcher.is_terminated()
            feed(matcher, *([part] if part else []))
            assert allowed(matcher) == expected, part
        ended = turn[1][-1][0] in {"turn_end", END}
        assert matcher.is_terminated() == ended
        assert not ended or not matcher.accept_tokens([matcher.vocabulary.format.turn_end])
        matcher.reset()


CHOICES: dict[str, dict[str, Any]] = {
    "auto": {}, "required": {"tool_choice": "required"}, "one": {"parallel_tool_calls": False},
    "named": {"tool_choice": {"type": "function", "function": {"name": "b"}}}, "none": {"tool_choice": "none"},
    "answer": ANSWER, "answer alone": ANSWER | {"tools": None}, "empty": {"structured_outputs": {"regex": "x*"}},
}  # fmt: skip
END_OF_THOUGHT = {"small": "why?</think>", "k3_small": f"why?{CLOSE}think{SEP}{OPEN}response{SEP}"}


def whole(vocabulary: Vocabulary, *calls: tuple[str, int], text: str = "") -> list[int]:
    """The tokens of a turn with calls without arguments."""
    section = opening(vocabulary) + [token for name, index in calls for token in call(vocabulary, {}, name, index)]
    if not calls:
        section = ids_of(vocabulary, f"{CLOSE}response{SEP}" if is_k3(vocabulary) else "")
    return vocabulary.encode(text) + section + (section_end(vocabulary) if calls else []) + turn_end(vocabulary)


ALLOWED: list[tuple[tuple[tuple[str, int], ...], str, set[str]]] = [  # calls, the text, the requests that allow both
    ((), "", {"auto", "one", "none", "empty"}),
    ((), "Hi", {"auto", "one", "none"}),
    ((), "23", {"auto", "one", "none", "answer", "answer alone"}),
    ((), "2", {"auto", "one", "none"}),
    ((), "xx", {"auto", "one", "none", "empty"}),
    ((("a", 0),), "", {"auto", "required", "one", "answer", "empty"}),
    ((("b", 0),), "", {"auto", "required", "one", "named", "answer", "empty"}),
    ((("b", 0),), "Hi", {"auto", "one"}),
    ((("b", 0),), "1", {"auto", "one"}),
    ((("b", 0),), "x", {"auto", "one"}),
    ((("a", 0), ("b", 1)), "", {"auto", "required", "answer", "empty"}),
    ((("a", -1),), "", set()),
    ((("a", 1),), "", set()),
    ((("a", 0), ("b", 0)), "", set()),
    ((("c", 0),), "", set()),
]


@pytest.mark.parametrize(("calls", "text", "allowing"), ALLOWED)
def test_the_turns_that_each_request_allows(
    each_compiler: Compiler, calls: tuple[tuple[str, int], ...], text: str, allowing: set[str]
) -> None:
    vocabulary = each_compiler.vocabulary
    ids = whole(vocabulary, *calls, text=text)
    thought = ids_of(vocabulary, END_OF_THOUGHT["k3_small" if is_k3(vocabulary) else "small"]) + ids
    for name, fields in CHOICES.items():
        grammar = compiled(each_compiler, {"tools": [tool("a"), tool("b")]}, **fields)
        for written, in_reasoning, expected in (
            (ids, False, name in allowing), (thought, True, name in allowing), (thought, False, False),
        ):  # fmt: skip
            matcher = grammar.matcher(in_reasoning=in_reasoning)
            assert (matcher.accept_tokens(written) and matcher.is_terminated()) == expected, (name, in_reasoning)


OVER, CALLS_END = f"{CLOSE}response{SEP}", f"{CLOSE}tools{SEP}{CLOSE}message{SEP}{END}"


@pytest.mark.parametrize(
    ("which", "text"),
    [
        *(("k3_small", text) for text in (
            f"{OVER}{OPEN}tools{SEP}x{CALLS_END}", f"{OVER}{OPEN}tools{SEP}{CALLS_END}", f"{OVER}{CLOSE}message{SEP}", f"Hi{END}",
            f"{OVER}{OVER}{CLOSE}message{SEP}{END}", f"{OVER} {CLOSE}message{SEP}{END}",
        )),
        ("small", f"{SECTION}{SECTION_END}<|im_end|>"),
    ],
)  # fmt: skip
def test_turns_that_no_request_allows(which: str, text: str, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(f"{which}_compiler")
    for fields in CHOICES.values():
        for in_reasoning in (False, True):
            matcher = compiled(compiler, {"tools": [tool("a"), tool("b")]}, **fields).matcher(in_reasoning=in_reasoning)
            ids = ids_of(compiler.vocabulary, (END_OF_THOUGHT[which] if in_reasoning else "") + text)
            assert not (matcher.accept_tokens(ids) and matcher.is_terminated())


@pytest.mark.parametrize(
    "call_id",
    [*(f"get_weather:{index}" for index in ("7", "007", "00", "1", "9" * 40, "", " 0", "0 ", "-0", "٠")),
     *(f"{name}:0" for name in ("get_weathe", "get_weather2", "Get_weather", "get_time", " get_weather", ""))],
)  # fmt: skip
def test_only_declared_names_with_the_next_index(compiler: Compiler, call_id: str) -> None:
    matcher = compiled(compiler).matcher()
    feed(matcher, "section_begin", "call_begin")
    assert not matcher.accept_tokens(ids_of(compiler.vocabulary, f"functions.{call_id}", "argument_begin"))
    feed(matcher, "functions.get_weather:0", "argument_begin")


@pytest.mark.parametrize(("which", "first"), [("small", 11), ("k3_small", 0)])
def test_indexes_go_on_from_the_history_in_kimi_k2_alone(
    which: str, first: int, request: pytest.FixtureRequest
) -> None:
    compiler: Compiler = request.getfixturevalue(f"{which}_compiler")
    made = {"function": {"name": "f", "arguments": "{}"}}
    matcher = compiled(compiler, messages=[{"role": "assistant", "tool_calls": [made] * 11}]).matcher()
    assert matcher.accept_tokens(opening(compiler.vocabulary))
    for index in (first, first + 1):
        assert matcher.accept_tokens(call(compiler.vocabulary, {}, "list-tabs", index))


@pytest.mark.parametrize("token", [-1, -(2**70), 2**70, 10**6])
def test_ids_out_of_range_are_refused_everywhere(small_compiler: Compiler, token: int) -> None:
    matcher = compiled(small_compiler).matcher()
    for part in ("x", *CALLED):
        assert not matcher.accept_tokens([token])
        feed(matcher, part)
    assert not matcher.accept_tokens([token])


@pytest.mark.parametrize(
    "parameters",
    [{"type": "object", "not": {}}, {"properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["a"]}],
)  # fmt: skip
def test_schemas_without_a_grammar(small_compiler: Compiler, parameters: Any) -> None:
    body = {"tools": [TABS, tool("f", {"type": "object"} | parameters, strict=True)]}
    with pytest.raises(UnsupportedSchema, match="no value satisfies") as refused:
        compiled(small_compiler, body)
    assert "name='f'" in refused.value.location
    lazily = small_compiler.compile(ToolCallSpec.from_openai(body), check=False).matcher()
    feed(lazily, "section_begin", "call_begin", "functions.f:0")
    with pytest.raises(UnsupportedSchema):
        lazily.accept_tokens([small_compiler.vocabulary.format.argument_begin])
    assert compiled(small_compiler)  # the others go on


def test_a_users_schema_cannot_steer_the_engine(small_compiler: Compiler) -> None:
    parameters = {"type": "object", "x-guidance": {"whitespace_pattern": "[xyz]+", "item_separator": ";"}}
    matcher = compiled(small_compiler, {"tools": [tool("f", parameters)]}).matcher()
    assert matcher.accept_tokens(call_start(small_compiler.vocabulary))
    feed(matcher, '{"a": 1, "b": 2}', "call_end")


def test_an_unknown_engine(small_compiler: Compiler) -> None:
    with pytest.raises(InvalidRequest, match="engine"):
        Compiler(small_compiler.vocabulary, engine="regex")  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", ["transposed", "int64", "narrow"])
def test_a_bitmask_of_another_layout_is_never_written(small_compiler: Compiler, broken: str) -> None:
    words = (small_compiler.vocabulary.size + 31) // 32
    bitmask = {
        "transposed": np.zeros((words, 2), dtype=np.int32).T,
        "int64": np.zeros((2, words), dtype=np.int64),
        "narrow": np.zeros((2, words - 1), dtype=np.int32),
    }[broken]
    with pytest.raises(ValueError, match="a bitmask is int32"):
        compiled(small_compiler).matcher().fill_bitmask(bitmask, 1)


def test_a_vocabulary_without_think_tokens(small_vocabulary: Vocabulary) -> None:
    special = dict(small_vocabulary.special_tokens)
    special["<|reserved_token_a|>"], special["<|reserved_token_b|>"] = special.pop("<think>"), special.pop("</think>")
    ordinary = filter(small_vocabulary.is_ordinary, range(small_vocabulary.size))
    tokens = {token: small_vocabulary.ordinary_bytes(token) for token in ordinary}
    compiler = Compiler(Vocabulary(tokens, special, small_vocabulary.size, small_vocabulary.encoder))
    assert allowed(compiled(compiler, thinking=True).matcher()) == FREE
    assert allowed(compiled(compiler, thinking=True, tool_choice="required").matcher()) == {SECTION}


def test_any_split_of_a_tag_is_allowed_and_nothing_else() -> None:
    vocabulary = Vocabulary(
        dict(enumerate([bytes((byte,)) for byte in range(256)] + [b"res", b"response", b"responses"])),
        {text: 300 + number for number, text in enumerate(dict.fromkeys(KIMI_K3.marker_texts.values()))},
        320,
        Vocabulary.of_bytes().encoder,
    )
    matcher = compiled(Compiler(vocabulary)).matcher()
    assert matcher.accept_tokens([vocabulary.format.call_end])
    assert matcher.phase is Phase.TRANSITION
    for written in range(len("response")):
        rest = b"response"[written:]
        expected = [token for token in range(260) if (raw := vocabulary.ordinary_bytes(token)) and rest.startswith(raw)]
        assert allowed_in(matcher) == expected
        assert not matcher.validate_tokens([vocabulary.format.argument_begin])
        assert matcher.accept_tokens(rest[:1])
    assert allowed(matcher) == {SEP}


def test_equal_positions_in_joints_are_one_object(k3_small_compiler: Compiler) -> None:
    """A device holds the masks of few constant sets, so requests of all kinds share them."""
    positions: set[int] = set()
    for name in ("auto", "required", "none", "one", "answer"):
        matcher = compiled(k3_small_compiler, **CHOICES[name]).matcher(in_reasoning=True)
        feed(matcher, CLOSE)
        positions.add(id(matcher.state.transition))
    assert len(positions) == 1
