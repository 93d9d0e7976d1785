"""Calls are numbered through a dialog, and results get the ids of their calls."""

from typing import Any

import pytest

from constrained_k2 import Repair, repair_messages
from tests.prompts.dialogs import F0, F1, F2, USER, call, calls, result


def dialog(*messages: dict[str, Any]) -> list[str]:
    """Return the ids of the repaired dialog's calls, and for each result ``<id`` with its content."""
    ids = []
    corrected, _ = repair_messages({"messages": [USER, *messages]})
    for message in corrected["messages"]:
        ids += [each["id"] for each in message.get("tool_calls") or ()]
        if message["role"] == "tool":
            ids.append(f"<{message['tool_call_id']} {message['content']}")
    return ids


ORIGINS = {
    "canonical": "functions.search:0",
    "openai": "call_x",
    "short": "search:2",
    "underscores": "functions_Read_0",
    "vllm": "chatcmpl-tool-5f3a0c7d6e",
    "uuid": "0b7e6f1a-6d0c-4f3e-9c1e-1d2f3a4b5c6d",
    "anthropic": "toolu_01A09q90qw90lq917835lq9",
    "empty": "",
    "none": None,
    "number": 7,
}


@pytest.mark.parametrize("origin", ORIGINS.values(), ids=ORIGINS)
def test_ids_of_any_origin(origin: Any) -> None:
    assert dialog(calls(call(origin)), result(origin)) == ["functions.search:0", "<functions.search:0 r"]


def test_a_long_dialog_of_every_kind_is_numbered_through() -> None:
    messages, expected = [], []
    for number, origin in enumerate(ORIGINS.values()):
        messages += [
            calls(call(origin, f"f{number}")),
            result(origin, str(number)),
            {"role": "assistant", "content": "ok"},
        ]
        expected += [f"functions.f{number}:{number}", f"<functions.f{number}:{number} {number}"]
    assert dialog(*messages) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([calls(call("a"), call("b")), result("b", "B"), result("a", "A")], [F0, F1, f"<{F1} B", f"<{F0} A"]),
        ([calls(call("a"), call("a")), result("a", "1"), result("a", "2")], [F0, F1, f"<{F0} 1", f"<{F1} 2"]),
        ([calls(call("a")), result("a", "1"), calls(call("a")), result("a", "2")], [F0, f"<{F0} 1", F1, f"<{F1} 2"]),
        ([calls(call("a")), calls(call("a")), result("a", "2")], [F0, F1, f"<{F1} 2"]),
        ([calls(call("a")), calls(call("b")), result("b", "2"), result("a", "1")], [F0, F1, f"<{F1} 2", f"<{F0} 1"]),
        ([calls(call(F1), call(F0)), result(F1, "x"), result(F0, "y")], [F0, F1, f"<{F0} x", f"<{F1} y"]),
        ([calls(call("a"), call("b")), result("?", "x"), result("a", "A")], [F0, F1, f"<{F1} x", f"<{F0} A"]),
        ([calls(call(None), call(None)), result(None, "1"), result(None, "2")], [F0, F1, f"<{F0} 1", f"<{F1} 2"]),
        ([calls(call("a")), result("a", "1"), result("a", "again")], [F0, f"<{F0} 1", f"<{F0} again"]),
        ([calls(call("a")), USER, result("a", "late")], [F0, f"<{F0} late"]),
        ([calls(call("a")), result("a"), USER, result("a", "1"), USER, result("a", "2")], [F0, f"<{F0} r", f"<{F0} 1", f"<{F0} 2"]),
        ([calls(call("a"), call("b")), result("a", "A"), USER], [F0, F1, f"<{F0} A"]),
        ([result("functions.search:4", "A"), calls(call("functions.search:5")), result("functions.search:5", "B")], [F0, f"<{F0} A", F1, f"<{F1} B"]),
        ([result("x", "A", name="search"), result("search:9", "B"), calls(call("c"))], [F0, f"<{F0} A", F1, f"<{F1} B", F2]),
        ([result("x", "A")], ["functions.unknown:0", "<functions.unknown:0 A"]),
        ([calls(call("a", "f"), call("b", "g")), result("?", "G", name="g"), result("!", "F")],
         ["functions.f:0", "functions.g:1", "<functions.g:1 G", "<functions.f:0 F"]),
        ([calls(call("functions.a:b.c:7", ""))], ["functions.a:b.c:0"]),
    ],
    ids=["order", "twins", "restart", "unanswered", "two-turns", "swapped", "unknown", "without", "twice", "late", "thrice",
         "one-missing", "truncated", "named", "nameless", "by-name", "name-in-id"],
)  # fmt: skip
def test_pairs(messages: list[dict[str, Any]], expected: list[str]) -> None:
    assert dialog(*messages) == expected


def test_a_result_without_a_call_takes_the_only_tool_for_its_own() -> None:
    body = {"messages": [USER, result("x")], "tools": [{"type": "function", "function": {"name": "only"}}]}
    corrected, repairs = repair_messages(body)
    inserted = {"id": "functions.only:0", "type": "function", "function": {"name": "only", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "", "tool_calls": [inserted]}
    assert corrected["messages"] == [USER, turn, result("functions.only:0")]
    assert repairs == [
        Repair("messages[1]", "call inserted", None, turn),
        Repair("messages[1].tool_call_id", "result id", "x", "functions.only:0"),
    ]
