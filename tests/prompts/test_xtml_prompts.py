"""Kimi K3's prompts: goldens byte for byte, options, text that spells special tokens, and histories that are repaired."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import FormatMismatch, InvalidRequest, Vocabulary, find_faults, render_prompt
from constrained_k2.formats.kimi_k3 import SPECIAL_TOKENS
from constrained_k2.prompts.xtml import XtmlRenderer, repair_history
from constrained_k2.testing import write_tokenizer
from tests.kit.data import data, kimi_k3_prompts
from tests.prompts.dialogs import USER, call, calls, result
from tests.prompts.kimi_k3 import BASE_SIZE, BYTES, COPIED, body_of, real_tokens, spelled

NAMELESS = "sglang_dynamic_tools_key_order_is_sorted"  # its tool has no name, which the public API refuses
REPAIRED = {  # what a repair changes in the request: none of it changes the prompt
    "assistant_empty_arguments": ["shape"],
    "sglang_tool_call_empty_arguments": ["shape"],
    "sglang_tool_run_with_no_preceding_assistant": ["result id"],
    "sglang_unresolvable_tool_run_is_left_alone": ["result id"],
}


@pytest.fixture(scope="module")
def real() -> XtmlRenderer:
    return XtmlRenderer(real_tokens())


@pytest.fixture(scope="module")
def renderer() -> XtmlRenderer:
    return XtmlRenderer(BYTES)


def text_of(renderer: XtmlRenderer, *messages: Any, contract: bool = False, **fields: Any) -> str:
    """The prompt of a request without the message on effort."""
    body = {"chat_template_kwargs": {"thinking_effort": None}, "messages": list(messages), **fields}
    return renderer.render(body, contract=contract).text


def test_goldens(real: XtmlRenderer) -> None:
    goldens = kimi_k3_prompts()
    assert len(goldens) == 27
    for golden in goldens:
        for repair in (False, True):
            rendered = real.render(body_of(golden), repair=repair, contract=golden["name"] != NAMELESS)
            assert rendered.text == golden["text"], golden["name"]
            assert list(rendered.ids) == golden["ids"], golden["name"]
            assert [list(span) for span in rendered.plain_spans] == golden.get("plain_spans", []), golden["name"]
            kinds = [change.kind for change in rendered.repairs]
            assert kinds == (REPAIRED.get(golden["name"], []) if repair else []), golden["name"]
        assert not find_faults(golden["ids"], body_of(golden), vocabulary=real.vocabulary), golden["name"]
        without = golden["request"]["options"].get("add_generation_prompt") is False
        found = [fault.kind for fault in find_faults(golden["ids"], vocabulary=real.vocabulary)]
        assert found == ["generation prompt"] * without


@pytest.mark.parametrize("golden", COPIED, ids=lambda golden: golden["name"])
def test_copied_goldens(golden: dict[str, Any], renderer: XtmlRenderer) -> None:
    rendered = renderer.render(body_of(golden), contract=golden["name"] != NAMELESS)
    assert rendered.text == golden["text"]
    assert [list(span) for span in rendered.plain_spans] == golden.get("plain_spans", [])
    ids = renderer.render(body_of(golden), contract=False).ids
    assert not find_faults(ids, vocabulary=BYTES) and not find_faults(ids, body_of(golden), vocabulary=BYTES)


def test_special_tokens_are_those_of_the_fixtures() -> None:
    names = {int(at): text for at, text in json.loads(data("kimi_k3/special_tokens.json").read_text("utf-8")).items()}
    named = {at - BASE_SIZE: text for at, text in names.items() if not text.startswith("<|reserved_token_")}
    assert named == dict(SPECIAL_TOKENS)


def test_pieces_are_encoded_alone(real: XtmlRenderer) -> None:
    tokens = real.vocabulary
    rendered = real.render({"messages": [USER, calls(call("a", "search", {"_id": 1}))]}, contract=False)
    alone = [*tokens.encode(" key"), *tokens.encode('="'), *tokens.encode("_id"), *tokens.encode('"')]
    joined = tokens.encode(' key="_id"')
    assert alone != joined
    ids = list(rendered.ids)
    assert any(ids[at : at + len(alone)] == alone for at in range(len(ids)))


MARKERS = [text for text in SPECIAL_TOKENS.values() if text.startswith("<|")]


@pytest.mark.parametrize("seed", range(30))
def test_text_of_clients_never_becomes_a_special_token(seed: int, renderer: XtmlRenderer) -> None:
    """The special tokens of a prompt are those of the same request with other letters in place of them."""
    chance = Random(seed)

    def request(markers: list[str]) -> dict[str, Any]:
        draw = Random(seed)

        def text() -> str:
            return "".join(draw.choice([*markers, "a", " ", '"', "&quot;"]) for _ in range(draw.randrange(1, 5)))

        return {
            "tools": [{"type": "function", "function": {"name": text(), "description": text(), text(): text()}}],
            "messages": [
                {"role": "system", "content": text(), "name": text()},
                {"role": "user", "content": [{"type": "text", "text": text()}, {"type": "text", "text": text()}]},
                {
                    "role": "assistant",
                    "content": text(),
                    "reasoning_content": text(),
                    "tool_calls": [
                        call("a", "f" + text(), json.dumps({text(): text(), "k" + text(): [text()]})),
                        call("b", "f", text()),
                    ],
                },
                result("b", text()),
                {"role": "tool", "tool_call_id": "a", "content": text()},
                {"role": "system", "tools": [{"function": {"name": text()}}]},
            ],
            "response_format": {"type": "json_schema", "json_schema": {"schema": {text(): text()}}},
        }

    chosen = chance.sample(MARKERS, 4)
    hostile, harmless = request(chosen), request(["x" * len(text) for text in chosen])
    special = {256 + offset for offset in SPECIAL_TOKENS}
    for repair in (False, True):
        ids, plain = (renderer.render(body, repair=repair, contract=False).ids for body in (hostile, harmless))
        assert [token for token in ids if token in special] == [token for token in plain if token in special]


HI = '<|open|>message role="user"<|sep|>go<|close|>message<|sep|><|end_of_msg|>'
OPENED = '<|open|>message role="assistant"<|sep|><|open|>{}<|sep|>'


@pytest.mark.parametrize(
    ("fields", "level", "channel"),
    [
        ({}, "max", "think"),
        ({"thinking": {"type": "disabled"}}, None, "response"),
        ({"thinking": {"type": "enabled", "effort": "low"}}, "low", "think"),
        ({"thinking": {"type": "enabled", "effort": "low"}, "reasoning_effort": "high"}, "high", "think"),
        ({"thinking": False, "reasoning_effort": "high"}, None, "response"),
        ({"reasoning_effort": "none"}, None, "response"),
        ({"reasoning_effort": "none", "thinking": True}, "max", "think"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, None, "response"),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, "max", "think"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "low", "think"),
        ({"chat_template_kwargs": {"thinking_effort": "high"}, "reasoning_effort": "low"}, "high", "think"),
        ({"chat_template_kwargs": {"thinking_effort": None}}, None, "think"),
    ],
)
def test_thinking_and_effort(fields: dict[str, Any], level: str | None, channel: str, renderer: XtmlRenderer) -> None:
    text = renderer.render({"messages": [USER], **fields}).text
    assert text.endswith(HI + OPENED.format(channel))
    before = text.removesuffix(HI + OPENED.format(channel))
    if level is None:
        assert not before
    else:
        assert before.startswith('<|open|>message role="system" type="thinking-effort"<|sep|>')
        assert f"invoked with `thinking_effort={level}`.<|close|>" in before


TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "search"}}


def test_order_of_the_messages(renderer: XtmlRenderer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "$id": "b"}}}
    text = renderer.render({"messages": [USER], "tools": [TOOL], "tool_choice": "none", "response_format": form}).text
    kinds = [part.split('"')[0] for part in text.split(' type="')[1:] if part.split('"')[0].count("-") == 1]
    assert kinds == ["tool-declare", "thinking-effort", "tool-choice", "response-format"]
    assert "`tool_choice=none`.\nYou MUST NOT call any tools in the next message.<|close|>" in text
    assert 'match the following schema:\n```json\n{"$id":"b","type":"object"}\n```<|close|>' in text
    assert text.index(HI) < text.index("tool-choice")


def test_images(renderer: XtmlRenderer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]}
    assert "<|sep|>a<|kimi_image_placeholder|>b<|close|>" in text_of(renderer, message)
    body = {"messages": [message]}
    rendered = renderer.render(body, image_sizes=[(640, 480)])
    block = "<|media_begin|>image 640x480<|media_content|><|media_pad|><|media_end|>"
    assert f"<|sep|>a{block}b<|close|>" in rendered.text
    ids = "⟦<|media_begin|>⟧image 640x480⟦<|media_content|>⟧⟦<|media_pad|>⟧⟦<|media_end|>⟧b"
    assert ids in spelled(rendered.ids)
    for sizes, location in ([], "messages[0].content[1]"), ([(1, 1), (2, 2)], "messages"):
        with pytest.raises(InvalidRequest) as caught:
            renderer.render(body, image_sizes=sizes)
        assert caught.value.location == location


def test_a_spelled_placeholder_takes_no_image(renderer: XtmlRenderer) -> None:
    image = {"type": "image_url", "image_url": {"url": "<|kimi_image_placeholder|>"}}
    spelled = {"type": "text", "text": "<|kimi_image_placeholder|>"}
    rendered = renderer.render({"messages": [{"role": "user", "content": [spelled, image]}]})
    assert rendered.text.count("<|kimi_image_placeholder|>") == 1
    assert "special token" in {repair.kind for repair in rendered.repairs}
    alone = renderer.render({"messages": [{"role": "user", "content": [spelled]}]})
    assert not alone.repairs
    assert "<|kimi_image_placeholder|>" in alone.text


TURN = [calls(call("a"), call("b")), result("a"), result("b")]
SPOKEN = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "fields", "parts"),
    [
        ([SPOKEN | {"reasoning": " \n"}], {}, {"<|open|>think<|sep|> \n<|close|>think<|sep|>": 1}),
        ([SPOKEN | {"reasoning_content": "y"}], {"thinking": False},
         {'<|open|>message role="assistant"<|sep|><|open|>response<|sep|>x<|close|>': 1, "think": 0}),
        ([USER, *TURN, USER, *TURN], {},
         {'<|open|>call tool="search" index="1"': 2, '<|open|>message role="tool" tool="search" index="2"': 2, 'index="3"': 0}),
        ([calls(call("a", "f"), call("b", "g")), result("a"), USER, result("b")], {},
         {'tool="f" index="1"<|sep|>r': 1, 'tool="g" index="2"<|sep|>r': 1}),
        *(([USER], {"response_format": {"type": "json_schema", "json_schema": form}}, {'```json\n{"a":2,"b":1}\n```': 1})
          for form in ({"schema": {"b": 1, "a": 2}}, {"json_schema": {"b": 1, "a": 2}}, {"b": 1, "a": 2})),
        *(([USER], {"tools": [TOOL], "tool_choice": choice}, {"tool-choice": 0}) for choice in ("auto", None, NAMED)),
    ],
    ids=["blank reasoning", "thinking off", "indexes restart", "results behind a user's message", "schema", "json_schema", "bare schema",
         "auto", "no choice", "named"],
)  # fmt: skip
def test_parts_of_prompts(messages: Any, fields: dict[str, Any], parts: dict[str, int], renderer: XtmlRenderer) -> None:
    text = text_of(renderer, *messages, **fields)
    assert {part: text.count(part) for part in parts} == parts


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER], "tools": [{"function": {"name": "f", "parameters": nested(100_000)}}]},
        {"messages": [calls(call("a", "f", {"a": nested(100_000)}))]},
        {"messages": [calls(call("a", "f", '{"a": ' + "[" * 100_000))]},
        {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": {"schema": nested(100_000)}}},
    ],
    ids=["tools", "arguments", "arguments as text", "schema"],
)
def test_deep_values_are_refused(body: Any, repair: bool, renderer: XtmlRenderer) -> None:
    with pytest.raises(InvalidRequest):
        renderer.render(body, repair=repair, contract=False)


def test_a_vocabulary_of_another_model_is_refused() -> None:
    with pytest.raises(FormatMismatch, match=r"<\|open\|>"):
        XtmlRenderer(Vocabulary.of_bytes()).render({"messages": [USER]})


def test_a_directory_tells_how_its_prompts_are_rendered(tmp_path: Any) -> None:
    write_tokenizer(tmp_path, wire_format="kimi_k3")
    vocabulary = Vocabulary.from_pretrained(tmp_path)
    assert vocabulary.format.name == "Kimi K3"
    body = {"messages": [USER, calls(call(None, "f")), result("x")]}
    for trust in (False, True):
        rendered = render_prompt(body, tmp_path, trust=trust)
        assert rendered == XtmlRenderer(vocabulary).render(body)
        assert rendered.repairs
    bare = {"messages": [USER, result(None, name="f")]}
    assert not render_prompt(bare, tmp_path, repair=False).repairs
    with pytest.raises(InvalidRequest, match="tool_call_id"):
        render_prompt(bare, tmp_path)
    with pytest.raises(FormatMismatch, match="template"):
        render_prompt(body, tmp_path, template="{{ messages }}")


def test_a_right_history_is_left_alone() -> None:
    turn = [calls(call("a", "f", '{"x": 1}'), call("b", "g", {"y": "<|open|>"})), result("b"), result("a", "<|sep|>")]
    body = {"messages": [USER, *turn, {"role": "user", "content": [{"type": "text", "text": "x"}]}, *turn]}
    repaired, repairs = repair_history(body)
    assert not repairs
    assert repaired == body


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({"role": "developer", "content": "x"}, ['role="system"', "x"]),
        ({"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}, ["<|sep|>ab<|close|>"]),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "x"}]}, ["why<|close|>think", "<|sep|>x<|close|>response"]),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}, ['call tool="f" index="1"', 'key="a" type="number"<|sep|>1']),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": " \n"}}]}, ['index="1"<|sep|><|close|>call']),
        ({"role": "user", "content": "a\ud800b"}, ["a\ufffdb"]),
        ({"role": "system", "content": "x", "tools": [{"function": {"name": "f"}}]}, ['role="system"<|sep|>x<|close|>', "## New Tools Available"]),
        ({"role": "user", "content": "x", "tools": [{"function": {"name": "f"}}]}, ['role="user"<|sep|>x<|close|>']),
    ],
)  # fmt: skip
def test_messages_of_other_forms(message: dict[str, Any], texts: list[str]) -> None:
    rendered = XtmlRenderer(BYTES).render({"messages": [message]}, contract=False)
    assert rendered.repairs
    for text in texts:
        assert text in rendered.text


def test_tools_of_other_messages_are_left_out() -> None:
    message = {"role": "user", "content": "x", "tools": [{"function": {"name": "f"}}]}
    repaired, repairs = repair_history({"messages": [message]})
    assert repaired == {"messages": [{"role": "user", "content": "x"}]}
    assert [(repair.location, repair.kind) for repair in repairs] == [("messages[0].tools", "tool")]


IDS = st.sampled_from([None, "", "a", "b", "f:0", "f:1"])
MESSAGES = st.one_of(
    st.just(USER),
    st.just({"role": "assistant", "content": "x"}),
    st.lists(st.tuples(IDS, st.sampled_from("fg")), min_size=1, max_size=3).map(
        lambda pairs: calls(*(call(given_id, name) for given_id, name in pairs))
    ),
    st.tuples(IDS, st.sampled_from([{}, {"name": "f"}, {"tool": "g"}])).map(lambda pair: result(pair[0], **pair[1])),
)


@given(st.lists(MESSAGES, max_size=8))
def test_repaired_histories_render_and_stay_as_they_are(messages: list[Any]) -> None:
    body = {"messages": messages}
    repaired, _ = repair_history(body)
    again, repairs = repair_history(repaired)
    assert not repairs
    assert again == repaired
    for message in repaired["messages"]:
        made = [made["id"] for made in message.get("tool_calls") or ()]
        assert all(made) and len(set(made)) == len(made)
    XtmlRenderer(BYTES).render(repaired, repair=False, contract=False)


@pytest.mark.slow
def test_many_calls_without_ids_take_linear_time() -> None:
    made = [call(f"f:{number}", "f") for number in range(10_000, 20_000)] + [call(None, "f") for _ in range(10_000)]
    repaired, _ = repair_history({"messages": [calls(*made)]})
    assert len({made["id"] for made in repaired["messages"][0]["tool_calls"]}) == 20_000
