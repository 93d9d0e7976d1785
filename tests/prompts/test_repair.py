"""Requests are repaired where needed, and only there."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import InvalidRequest, Vocabulary, find_faults, repair_messages
from constrained_k2.prompts import PromptRenderer
from constrained_k2.prompts.special_text import JOINER, KIMI_SPECIAL_TEXTS, SpecialTexts
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
    ],
)
def test_content(message: dict[str, Any], content: str) -> None:
    corrected, repairs = repair_messages({"messages": [calls(call(F0)), message]})
    assert corrected["messages"][1]["content"] == content
    assert {repair.kind for repair in repairs} <= {"content", "role", "result id"}
    assert repairs


def test_images_stay_parts_and_no_marker_is_spelled_across_texts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}, image]
    corrected, repairs = repair_messages({"messages": [{"role": "user", "content": parts}]})
    assert corrected["messages"][0]["content"] == [{"type": "text", "text": f"<{JOINER}|im_end|>"}, image]
    assert [repair.kind for repair in repairs] == ["content", "special token"]


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


@pytest.mark.parametrize(
    ("body", "location"),
    [
        (None, "body"),
        ([], "body"),
        ({}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [USER, "hi"]}, "messages[1]"),
        ({"messages": [USER, {"role": "oracle", "content": ""}]}, "messages[1].role"),
        ({"messages": [USER, {"content": ""}]}, "messages[1].role"),
        ({"messages": [USER, {"role": ["user"], "content": ""}]}, "messages[1].role"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [USER, {"role": "user", "content": {"type": "text"}}]}, "messages[1].content"),
        ({"messages": [USER, {"role": "user", "content": ["a", 5]}]}, "messages[1].content[1]"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "smell"}]}]}, "messages[1].content[0].type"),
        ({"messages": [USER, {"role": "user", "content": [{"type": ["text"]}]}]}, "messages[1].content[0].type"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[1].content[0].text"),
        ({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": {}}]}, "messages[1].tool_calls"),
        ({"messages": [USER, calls("x")]}, "messages[1].tool_calls[0]"),
        ({"messages": [USER, calls({"id": "a"})]}, "messages[1].tool_calls[0].function"),
        ({"messages": [USER, calls(call("a", name=None))]}, "messages[1].tool_calls[0].function.name"),
        ({"messages": [USER, calls(call("a", name=5))]}, "messages[1].tool_calls[0].function.name"),
        ({"messages": [USER, calls(call("a", name="<|im_end|>"))]}, "messages[1].tool_calls[0].function.name"),
        ({"messages": [USER, calls(call("a", arguments=[1]))]}, "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [USER, {**USER, "name": ["<|im_end|>"]}]}, "messages[1].name"),
        ({"messages": [USER, {**calls(), "reasoning": {"a": "<|im_end|>"}}]}, "messages[1].reasoning"),
        ({"messages": [USER], "tools": {}}, "tools"),
        ({"messages": [USER], "tools": ["f"]}, "tools[0]"),
        ({"messages": [USER], "tools": [{"type": "function", "function": 5}]}, "tools[0].function"),
    ],
)  # fmt: skip
def test_requests_without_a_clear_meaning(body: Any, location: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        repair_messages(body)
    assert refused.value.location == location


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
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(messages_of, max_size=8), st.sampled_from([None, [{"name": "f", "strict": True}]]))
def test_repairing_twice_changes_nothing_more(messages: list[dict[str, Any]], tools: Any) -> None:
    body = {"messages": messages, "tools": tools}
    before = copy.deepcopy(body)
    corrected, _ = repair_messages(body)
    assert body == before
    assert repair_messages(corrected) == (corrected, [])
    assert len([m for m in corrected["messages"] if m["role"] == "tool"]) == len(
        [m for m in messages if m["role"] == "tool"]
    )


@settings(max_examples=200)
@given(st.lists(messages_of, max_size=8))
def test_a_repaired_request_has_no_fault(small_vocabulary: Vocabulary, messages: list[dict[str, Any]]) -> None:
    renderer = PromptRenderer.from_template(TEST_TEMPLATE.read_text(), small_vocabulary)
    rendered = renderer.render({"messages": [USER, *messages]})
    assert not find_faults(rendered.text, rendered.body)
    assert not find_faults(rendered.ids, rendered.body, vocabulary=small_vocabulary)
    again = renderer.render(rendered.body)
    assert (again.text, again.ids, again.repairs) == (rendered.text, rendered.ids, ())
