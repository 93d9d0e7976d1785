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
from tests.kit.data import table
from tests.prompts.dialogs import F0, F1, USER, call, calls, result
from tests.prompts.test_goldens import TEMPLATES, TEST_TEMPLATE, template_renderer

TABLE: dict[str, Any] = table(__file__)
"""Bodies as they are repaired; messages with their text, and an assistant's fields with its reasoning, once repaired."""


@pytest.mark.parametrize("case", TABLE["bodies"].values(), ids=TABLE["bodies"])
def test_bodies(case: dict[str, Any]) -> None:
    corrected, repairs = repair_messages(case["body"])
    assert corrected == case.get("corrected", case["body"])
    assert [[repair.location, repair.kind] for repair in repairs] == case["repairs"]
    assert repair_messages(corrected) == (corrected, [])


@pytest.mark.parametrize(("message", "content"), TABLE["content"])
def test_content(message: dict[str, Any], content: str) -> None:
    corrected, repairs = repair_messages({"messages": [calls(call(F0)), message]})
    assert corrected["messages"][1]["content"] == content
    assert {repair.kind for repair in repairs} <= {"content", "reasoning", "role", "result id"}
    assert repairs


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


THOUGHT = {"type": "thinking", "thinking": "hm"}


@pytest.mark.parametrize(("fields", "text"), TABLE["reasoning"])
def test_reasoning_of_every_form(fields: dict[str, Any], text: str | None) -> None:
    corrected, _ = repair_messages({"messages": [{"role": "assistant", "content": "a"} | fields]})
    (message,) = corrected["messages"]
    assert message.get("reasoning_content") == text
    assert message.get("reasoning") in {None, text, ""}


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


def test_special_texts_of_another_vocabulary() -> None:
    odd = SpecialTexts(["<fim>", "<|im_end|>"])
    assert odd.neutralize("<fim> <think>")[0] == f"<{JOINER}fim> <think>"
    assert [*odd.split("a<fim><|im_end|>b")] == [("a", False), ("<fim>", True), ("<|im_end|>", True), ("b", False)]


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
