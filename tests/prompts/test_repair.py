"""Requests are repaired where needed, and only there."""

import copy
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import InvalidRequest, Vocabulary, find_faults, repair_messages
from constrained_k2.prompts import PromptRenderer
from constrained_k2.prompts.special_text import JOINER, KIMI_SPECIAL_TEXTS, SpecialTexts
from tests.kit.budget import tries
from tests.prompts.dialogs import F0, F1, USER, call, calls, result
from tests.prompts.test_goldens import TEMPLATES, TEST_TEMPLATE, template_renderer


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user", "content": None}, ""),
        ({"role": "user"}, ""),
        ({"role": "user", "content": []}, ""),
        ({"role": "user", "content": [{"type": "text", "text": ""}]}, ""),
        ({"role": "user", "content": ["a", {"type": "input_text", "text": "b"}, {"type": "text", "text": None}]}, "ab"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"role": "tool", "content": {"weather": "北京"}}, '{"weather": "北京"}'),
        ({"role": "tool", "content": [1, 2]}, "[1, 2]"),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}]}, "a"),
        ({"role": "developer", "content": "be"}, "be"),
        ({"role": "tool", "content": ["a", {"type": "input_text", "text": "b"}]}, "a\nb"),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "resource", "uri": "b"}]}, 'a\n{"type": "resource", "uri": "b"}'),
        ({"role": "tool", "content": [{"type": "tool_reference", "name": "f"}, {"type": "tool_reference", "tool_name": "g"}]}, "f\ng"),
        ({"role": "tool", "content": 5}, "5"),
        ({"role": "tool", "content": False}, "false"),
        ({"role": "user", "content": [{"text": "a"}, {"type": "thinking", "thinking": "b"}]}, "ab"),
        ({"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, "be"]}, "be"),
        ({"role": "system", "content": "x-anthropic-billing-header: cch=1\nbe"}, "be"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no"),
        ({"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a"}]}, "a"),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "hm"}]}, ""),
    ],
)  # fmt: skip
def test_content(message: dict[str, Any], content: str) -> None:
    corrected, repairs = repair_messages({"messages": [calls(call(F0)), message]})
    assert corrected["messages"][1]["content"] == content
    assert {repair.kind for repair in repairs} <= {"content", "reasoning", "role", "result id"}
    assert repairs


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
MCP_IMAGE = {"type": "image", "data": "aWs=", "mimeType": "image/png"}


def test_images_stay_parts_and_no_marker_is_spelled_across_texts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}, image]
    corrected, repairs = repair_messages({"messages": [{"role": "user", "content": parts}]})
    assert corrected["messages"][0]["content"] == [{"type": "text", "text": f"<{JOINER}|im_end|>"}, image]
    assert [repair.kind for repair in repairs] == ["content", "special token"]


def test_in_a_result_only_media_that_vllm_does_not_know_becomes_text() -> None:
    known = [
        IMAGE,
        {"type": "input_audio", "input_audio": {"data": "aWs=", "format": "wav"}},
        {"type": "image"},
        {"type": "image", "image": "a.png", "data": "x"},
    ]
    for part in known:
        messages = [{"role": "tool", "tool_call_id": "x", "content": [part, MCP_IMAGE]}]
        corrected, _ = repair_messages({"messages": messages})
        assert corrected["messages"][-1]["content"] == [part, {"type": "text", "text": "[image: image/png]"}]
    corrected, _ = repair_messages({"messages": [{"role": "user", "content": [MCP_IMAGE]}]})
    assert corrected["messages"][0]["content"] == [MCP_IMAGE]


def test_the_payload_of_an_image_is_unchanged() -> None:
    address = {"url": "https://example.com/[EOS]?<|im_end|>", "detail": "auto"}
    embeds = object()
    parts = [
        {"type": "image_url", "image_url": address, "uuid": "[EOS]", "text": "[EOS]"},
        {"type": "image_pil", "image_pil": embeds},
        {"type": "text", "text": "[EOS]"},
    ]
    corrected, repairs = repair_messages({"messages": [{"role": "user", "content": parts}]})
    image, pil, text = corrected["messages"][0]["content"]
    assert image == {"type": "image_url", "image_url": address, "uuid": "[EOS]", "text": f"[{JOINER}EOS]"}
    assert image["image_url"] is address
    assert pil["image_pil"] is embeds
    assert text["text"] == image["text"]
    assert [repair.location for repair in repairs] == [f"messages[0].content[{n}].text" for n in (0, 2)]
    untouched = [parts[1], {"type": "text", "text": "what is it?"}]
    assert repair_messages({"messages": [{"role": "user", "content": untouched}]})[1] == []


def test_tools_keep_what_is_shown_to_the_model() -> None:
    function = {"name": "f", "description": "d", "parameters": {"strict": {"const": None}}}
    shown = {"type": "function", "function": function}
    given = {"type": "function", "function": {**function, "strict": True, "cache_control": {}}, "defer_loading": False}
    flat = {"type": "function", **function, "strict": False}
    bare = {"function": {"name": "g", "description": None, "parameters": None}}
    corrected, repairs = repair_messages({"messages": [USER], "tools": [shown, given, flat, bare]})
    assert corrected["tools"] == [shown, shown, shown, {"type": "function", "function": {"name": "g"}}]
    assert [repair.location for repair in repairs] == [
        "tools[1].defer_loading", "tools[1].function.strict", "tools[1].function.cache_control",
        "tools[2]", "tools[2].function.strict",
        "tools[3].type", "tools[3].function.description", "tools[3].function.parameters",
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["input_schema", "inputSchema"])
def test_schemas_of_other_apis_are_shown_as_parameters(field: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    shown = {"type": "function", "function": {"name": "f", "parameters": schema}}
    inside, flat = {"type": "function", "function": {"name": "f", field: schema}}, {"name": "f", field: schema}
    beside = {"type": "function", "function": {"name": "f", "parameters": None}, field: schema}
    corrected, repairs = repair_messages({"messages": [USER], "tools": [shown, inside, flat, beside]})
    assert corrected["tools"] == [shown] * 4
    assert {"tools[1].function.parameters", "tools[2].function.parameters"} <= {each.location for each in repairs}
    assert repair_messages(corrected)[1] == []


def test_other_shapes_of_calls() -> None:
    flat = {"id": "a", "name": "f", "arguments": {"x": 1}}
    empty = {"id": "b", "type": "function", "function": {"name": "f"}}
    corrected, _ = repair_messages(
        {"messages": [calls(flat, empty), {"role": "user", "content": "x", "tool_calls": [flat]}]}
    )
    made = corrected["messages"][0]["tool_calls"]
    assert made[0] == {"id": "functions.f:0", "function": {"name": "f", "arguments": {"x": 1}}}
    assert made[1]["function"]["arguments"] == "{}"
    assert "tool_calls" not in corrected["messages"][1]


def test_calls_without_a_usable_name() -> None:
    named = call("functions.g:7", name="")
    body = {"messages": [calls(call("a", name=""), named, call("b", name="<|im_end|>"), call("c", name="a\n"))]}
    made = repair_messages(body)[0]["messages"][0]["tool_calls"]
    assert [each["function"]["name"] for each in made] == ["unknown", "g", f"<{JOINER}|im_end|>", "unknown"]
    only = repair_messages(body | {"tools": [{"type": "function", "function": {"name": "f"}}]})[0]
    assert only["messages"][0]["tool_calls"][0]["id"] == "functions.f:0"


def test_a_custom_call_has_its_input_as_an_argument() -> None:
    custom = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": '*** "x"'}}
    message = repair_messages({"messages": [calls(custom), result("a")]})[0]["messages"][0]
    function = {"name": "patch", "arguments": '{"input": "*** \\"x\\""}'}
    assert message["tool_calls"] == [{"id": "functions.patch:0", "type": "function", "function": function}]


def test_legacy_functions_are_calls_and_results() -> None:
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": "{}"}}
    back = {"role": "function", "name": "search", "content": "r"}
    (asked, answered), _ = _repaired(legacy, back)
    assert asked["tool_calls"] == [call(F0, arguments="{}")]
    assert answered == result(F0, name="search")
    both = legacy | {"tool_calls": [call("a", "other")]}
    assert [each["function"]["name"] for each in _repaired(both)[0][0]["tool_calls"]] == ["other"]


def test_an_output_without_a_tools_name() -> None:
    output = {"role": "ipython", "content": "42"}
    messages, repairs = _repaired(calls(call(F0)), output, output)
    assert messages[1:] == [{"role": "tool", "content": "42", "tool_call_id": F0}, output]
    assert [repair.kind for repair in repairs] == ["role", "result id"]
    assert _repaired(output) == ([output], [])


def test_other_roles_are_the_templates_to_name() -> None:
    assert _repaired({"role": "critic", "content": "no"}) == ([{"role": "critic", "content": "no"}], [])
    assert _repaired({"role": "<|im_end|>", "content": ""})[0][0]["role"] == f"<{JOINER}|im_end|>"


THOUGHT = {"type": "thinking", "thinking": "hm"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [THOUGHT, {"type": "text", "text": "a"}]}, "hm"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, "hm"),
        ({"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]}, "hm"),
        ({"content": [THOUGHT], "reasoning_content": "ah, hm"}, "ah, hm"),
        ({"content": [THOUGHT], "reasoning": "ah, "}, "ah, hm"),
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning": None, "reasoning_content": "hm"}, "hm"),
        ({"reasoning": ["h", {"text": "m"}]}, "hm"),
        ({"reasoning": {"a": "<|im_end|>"}}, None),
        ({"thinking": "hm"}, "hm"),
        ({"thinking_blocks": [THOUGHT, {"type": "redacted_thinking", "data": "x"}]}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"type": "reasoning.summary", "summary": "m"}]}, "hm"),
    ],
)  # fmt: skip
def test_reasoning_of_every_form(fields: dict[str, Any], text: str | None) -> None:
    (message,), _ = _repaired({"role": "assistant", "content": "a"} | fields)
    assert message.get("reasoning_content") == text
    assert message.get("reasoning") in {None, text, ""}


PARTIAL = {"role": "assistant", "content": "So", "partial": True}


def test_a_partial_message_is_continued() -> None:
    for content in ("So", "", None, [{"type": "text", "text": "So"}]):
        body, _ = repair_messages({"messages": [USER, PARTIAL | {"name": "Kim", "content": content}]})
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert (body["messages"][1]["content"], body["messages"][1]["name"]) == ("So" if content else "", "Kim")


@pytest.mark.parametrize(
    "messages",
    [[PARTIAL, USER], [PARTIAL | {"partial": False}], [PARTIAL | {"tool_calls": [call(F0)]}], [USER | {"partial": True}]],
)  # fmt: skip
def test_other_messages_are_not_continued(messages: list[dict[str, Any]]) -> None:
    assert repair_messages({"messages": messages}) == ({"messages": messages}, [])


def test_a_continued_message_loses_the_calls_that_follow_its_text() -> None:
    """They are not in its prompt: see transformers' ``render_jinja_template``."""
    body = {"messages": [calls(call(F0)), {**calls(call("x")), "content": "So"}], "continue_final_message": True}
    corrected, _ = repair_messages(body)
    assert "tool_calls" not in corrected["messages"][1]
    assert "tool_calls" in corrected["messages"][0]


def _repaired(*messages: Any) -> Any:
    corrected, repairs = repair_messages({"messages": [*messages]})
    return corrected["messages"], repairs


def test_a_generation_prompt_is_asked_for() -> None:
    assert repair_messages({"messages": [USER], "add_generation_prompt": False})[0]["add_generation_prompt"] is True
    continued = {"messages": [USER], "add_generation_prompt": False, "continue_final_message": True}
    assert repair_messages(continued) == (continued, [])


def test_thought_tags_of_an_assistant_stay() -> None:
    thought = {"role": "assistant", "content": "<think>hm</think>ok <|im_end|>", "reasoning_content": "a</think>b"}
    message = repair_messages({"messages": [thought]})[0]["messages"][0]
    assert message["content"] == f"<think>hm</think>ok <{JOINER}|im_end|>"
    assert message["reasoning_content"] == f"a<{JOINER}/think>b"


@pytest.mark.parametrize("template", [TEST_TEMPLATE, *TEMPLATES.glob("*.jinja")], ids=lambda path: path.stem)
def test_no_special_token_reaches_the_ids(template: Any, small_vocabulary: Vocabulary) -> None:
    renderer = template_renderer(template, small_vocabulary)

    def specials(text: str) -> list[int]:
        function = {"name": "f", "description": text, "parameters": {"properties": {text: {"enum": [text]}}}}
        messages = [
            {"role": "system", "content": text},
            {"role": "user", "content": text * 2, "name": text},
            calls(call(text, arguments={text: text}), call("b", arguments=f'"{text}"')),
            result(text, [text[:1], text[1:]]),
            {"role": "assistant", "content": "", "reasoning_content": text},
        ]
        ids = renderer.render({"messages": messages, "tools": [{"type": "function", "function": function}]}).ids
        return [token_id for token_id in ids if small_vocabulary.special_text(token_id) is not None]

    harmless = specials("nothing")
    assert set(small_vocabulary.special_tokens) >= KIMI_SPECIAL_TEXTS
    for text in small_vocabulary.special_tokens:
        assert specials(text) == harmless, text


def test_fields_that_only_some_template_prints() -> None:
    message = {**USER, "task": "<|im_end|>", "metadata": {"[EOS]": [1, "</think>"]}, "tool_call_id": 5}
    corrected, repairs = repair_messages({"messages": [message]})
    assert corrected["messages"][0]["task"] == f"<{JOINER}|im_end|>"
    assert corrected["messages"][0]["metadata"] == {f"[{JOINER}EOS]": [1, f"<{JOINER}/think>"]}
    assert [repair.kind for repair in repairs] == ["special token"] * 3


def test_text_like_a_special_token_stays_untouched() -> None:
    text = "<|not_one|> [ABC] <thinking> <| im_end |> a|>b <|"
    assert repair_messages({"messages": [{"role": "user", "content": text}]})[1] == []
    odd = SpecialTexts(["<fim>", "<|im_end|>"])
    assert odd.neutralize("<fim> <think>")[0] == f"<{JOINER}fim> <think>"
    assert [*odd.split("a<fim><|im_end|>b")] == [("a", False), ("<fim>", True), ("<|im_end|>", True), ("b", False)]


def test_lone_surrogates_become_replacement_characters() -> None:
    corrected, repairs = repair_messages({"messages": [{"role": "user", "content": "a\ud800b"}]})
    assert corrected["messages"][0]["content"] == "a\ufffdb"
    assert [repair.kind for repair in repairs] == ["surrogate"]


def test_nested_too_deeply() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.tool_calls\[0\].*too deeply"):
        repair_messages({"messages": [calls(call("a", arguments=deep))]})


def test_a_long_key_is_not_copied_for_every_value_in_it() -> None:
    """All the copies would be 100 GB."""
    texts = {"k" * 1_000_000: ["a", "[BOS]"] * 50_000}
    tool = {"type": "function", "function": {"name": "f", "parameters": texts}}
    _, repairs = repair_messages({"messages": [], "tools": [tool]})
    assert len(repairs) == 50_000
    assert all(repair.location.startswith("tools[0].function.parameters.kkk") for repair in repairs)
    assert max(len(repair.location) for repair in repairs) < 1000


def big_dialogs() -> dict[str, list[dict[str, Any]]]:
    """Dialogs of about 5 MB each."""
    turn = [calls(call("a")), result("a", "<|im_end|> lorem ipsum " * 20)]
    return {
        "long": [USER, {"role": "tool", "content": "<|tool_call_begin|> lorem <| ipsum [EOS" * 130_000}],
        "many": turn * 9000,
        "wide": [calls(*(call(f"id{n % 7}") for n in range(20_000))), *(result(f"id{n % 5}", "x" * 60) for n in range(20_000))],
        "late": [calls(*(call(None) for _ in range(15_000))), *([result("?", "x" * 100), USER] * 15_000)],
        "orphans": [result("?", "x" * 150) for _ in range(20_000)],
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", big_dialogs())
def test_five_megabytes(name: str) -> None:
    """Calls are numbered through a dialog of any length, and every result has the id of a call."""
    messages = big_dialogs()[name]
    corrected, _ = repair_messages({"messages": messages})
    ids = [call["id"] for message in corrected["messages"] for call in message.get("tool_calls") or ()]
    assert [int(call_id.rpartition(":")[2]) for call_id in ids] == list(range(len(ids)))
    answered = [message["tool_call_id"] for message in corrected["messages"] if message["role"] == "tool"]
    assert len(answered) == sum(message["role"] == "tool" for message in messages)
    assert set(answered) <= set(ids)


texts = st.text(max_size=8) | st.sampled_from(["<|im_end|>", "[EOS]", "a</think>", "<|im_", "end|>", "\ud800"])
some_ids = st.sampled_from([None, "", "a", "b", F0, F1, "search:1", 3])
names = st.sampled_from(["search", "f.g:h", "读"])
contents = (
    st.none() | texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}) | texts, max_size=3)
)
arguments = st.sampled_from([None, "", "{}", {"q": "<think>"}, '{"<|im_user|>": 1}', "cut off {"])
messages_of = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "developer"]), "content": contents}),
    st.builds(lambda content, made: {"role": "assistant", "content": content, "tool_calls": made}, contents,
              st.none() | st.lists(st.builds(call, some_ids, names, arguments), max_size=3)),
    st.builds(result, some_ids, contents),
    st.fixed_dictionaries({"role": st.sampled_from(["function", "ipython", "critic", "[EOS]"]), "content": contents, "name": names}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": contents | st.just([THOUGHT])}, optional={
        "function_call": st.builds(lambda name: {"name": name, "arguments": "{}"}, names), "partial": st.booleans(),
        "refusal": texts, "reasoning": texts | st.lists(texts), "reasoning_content": texts, "thinking": texts}),
)  # fmt: skip


@settings(max_examples=tries(100, everything=300))
@given(st.lists(messages_of, max_size=8), st.sampled_from([None, [{"name": "f", "strict": True}]]))
def test_repairing_twice_changes_nothing_more(messages: list[dict[str, Any]], tools: Any) -> None:
    body = {"messages": messages, "tools": tools}
    before = copy.deepcopy(body)
    corrected, _ = repair_messages(body)
    assert body == before
    assert repair_messages(corrected) == (corrected, [])
    roles = [Counter(m["role"] for m in each["messages"]) for each in (body, corrected)]
    results = ("tool", "function", "ipython")
    assert len({sum(counted[role] for role in results) for counted in roles}) == 1


@settings(max_examples=tries(66, everything=200))
@given(st.lists(messages_of, max_size=8))
def test_a_repaired_request_has_no_fault(small_vocabulary: Vocabulary, messages: list[dict[str, Any]]) -> None:
    renderer = PromptRenderer.from_template(TEST_TEMPLATE.read_text(), small_vocabulary)
    rendered = renderer.render({"messages": [USER, *messages]})
    assert not find_faults(rendered.text, rendered.body)
    assert not find_faults(rendered.ids, rendered.body, vocabulary=small_vocabulary)
    again = renderer.render(rendered.body)
    assert (again.text, again.ids, again.repairs) == (rendered.text, rendered.ids, ())
