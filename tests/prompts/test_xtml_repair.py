"""Histories that Kimi K3's encoder would render wrongly, repaired; and requests that its public API refuses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2.prompts.xtml import XtmlRenderer, check_contract, repair_history
from tests.prompts.dialogs import USER, call, calls, result
from tests.prompts.kimi_k3 import BYTES

RENDERER = XtmlRenderer(BYTES)


def results_in(messages: list[Any], **fields: Any) -> list[str]:
    """The results in the prompt of a repaired dialog, as ``name index content``."""
    text = RENDERER.render({"messages": messages} | fields, contract=False).text
    found = text.split('<|open|>message role="tool" tool="')[1:]
    return [part.replace('" index="', " ").replace('"<|sep|>', " ").split("<|close|>")[0] for part in found]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([calls(call("a", "f"), call("b", "g")), result("b", "2"), result("a", "1")], ["f 1 1", "g 2 2"]),
        ([calls(call("a", "f"), call("a", "g")), result("a", "1"), result("a", "2")], ["f 1 1", "g 2 2"]),
        ([calls(call(None, "f"), call("", "g")), result(None, "1"), result(None, "2")], ["f 1 1", "g 2 2"]),
        ([calls(call("a", "f"), call("b", "g")), result("x", "1", name="g"), result("y", "2")], ["f 1 2", "g 2 1"]),
        ([calls(call("a", "f"), call("b", "g")), result("b", "2")], ["g 1 2"]),
        ([calls(call("a", "f")), {"role": "assistant", "content": "wait"}, result("a", "1")], ["f 1 1"]),
        ([calls(call("a", "f")), USER, result("a", "1"), result("a", "2")], ["f 1 1", "f 2 2"]),
        ([calls(call("a", "f")), calls(call("b", "g")), result("b", "2"), result("a", "1")], ["g 1 2", "f 2 1"]),
        ([result("search:0", "1")], ["search 1 1"]),
        ([result("x", "1", name="f")], ["f 1 1"]),
        ([result("x", "1")], ["unknown 1 1"]),
        ([calls(call("a", "f")), result("a", "1"), result("b", "2", tool="g")], ["f 1 1", "g 2 2"]),
        ([calls(call("a", "f")), result("a", "1", tool="stale"), result("b", "2", name="g")], ["f 1 1", "g 2 2"]),
        ([calls(call("a", "f")), {"role": "function", "name": "f", "content": "1"}], ["f 1 1"]),
        ([calls(call("a", "f")), {"role": "ipython", "content": "1"}], ["f 1 1"]),
        ([calls(call("f:1", "f"), call(None, "f")), result("f:1", "1"), result(None, "2")], ["f 1 1", "f 2 2"]),
        ([calls(call("f.a:0", "f"), call("f.b:1", "g")), result("f_b_1", "2"), result(" f.a:0", "1")], ["f 1 1", "g 2 2"]),
        ([calls(call("a", "f"), call("b", "g")), result("a", "1"), result("a", "2"), result("b", "3")], ["f 1 1", "f 2 2", "g 3 3"]),
        ([calls(call("a", "f")), result("a", "1"), {"role": "assistant", "content": "x"}, result("a", "2")], ["f 1 1", "f 1 2"]),
        ([calls(call("a", "f")), result("a", {"temperature": 21})], ['f 1 {"temperature": 21}']),
    ],
)  # fmt: skip
def test_results_are_rendered_under_their_functions(messages: list[Any], expected: list[str]) -> None:
    assert results_in(messages) == expected


def test_the_only_tool_names_a_result() -> None:
    assert results_in([result("x", "1")], tools=[{"function": {"name": "search"}}]) == ["search 1 1"]


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
    rendered = RENDERER.render({"messages": [message]}, contract=False)
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
    RENDERER.render(repaired, repair=False, contract=False)


@pytest.mark.slow
def test_many_calls_without_ids_take_linear_time() -> None:
    made = [call(f"f:{number}", "f") for number in range(10_000, 20_000)] + [call(None, "f") for _ in range(10_000)]
    repaired, _ = repair_history({"messages": [calls(*made)]})
    assert len({made["id"] for made in repaired["messages"][0]["tool_calls"]}) == 20_000


def tool(name: Any = "search") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER], "tools": [tool()], "tool_choice": "required"},
        {"messages": [USER], "tool_choice": "none"},
        {"messages": [USER], "tools": [], "tool_choice": "auto"},
        {"messages": [{"role": "system", "tools": [tool()]}, USER], "tool_choice": "required"},
        {"messages": [{"role": "developer", "content": "", "tools": [tool()]}, USER], "tools": [tool("other")]},
        {"messages": [calls(call("a")), result("a")], "tools": [tool("_a-B9"), tool("x" * 256)]},
        {"messages": [USER], "tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]},
    ],
)
def test_requests_in_the_contract(body: dict[str, Any]) -> None:
    check_contract(body)
