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
        ([calls(call("a")), result("a", "1"), result("a", "again")], [F0, f"<{F0} 1", F1, f"<{F1} again"]),
        ([calls(call("a")), USER, result("a", "late")], [F0, f"<{F0} late"]),
        ([calls(call("a")), result("a"), USER, result("a", "1"), USER, result("a", "2")], [F0, f"<{F0} r", F1, f"<{F1} 1", F2, f"<{F2} 2"]),
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


SPELLINGS = [
    lambda call_id: call_id.replace(".", "_").replace(":", "_"),
    lambda call_id: call_id.replace(".", "-").replace(":", "-"),
    lambda call_id: f" {call_id}\n",
    lambda call_id: call_id.replace(".", " "),
    lambda call_id: call_id.removeprefix("functions."),
    lambda call_id: call_id.removeprefix("functions.").replace(":", "__"),
]
ELSEWHERE = [
    ("functions.read_file:0", "functions.grep:1"),
    ("functions.读:0", "functions.a-b.c:1"),
    ("call_1", "call_2"),
]


@pytest.mark.parametrize("given", ELSEWHERE)
@pytest.mark.parametrize("spelled", SPELLINGS)
def test_ids_that_are_spelled_otherwise(spelled: Any, given: tuple[str, str]) -> None:
    """Whichever of call and result is spelled otherwise, in whatever order, and if the first has no result."""
    for called, answered in ((spelled, str), (str, spelled)):
        first, second = ((called(call_id), answered(call_id)) for call_id in given)
        turn = calls(call(first[0], "f"), call(second[0], "g"))
        both = dialog(turn, result(second[1], "2"), result(first[1], "1"))
        assert both[2:] == ["<functions.g:1 2", "<functions.f:0 1"]
        assert dialog(turn, result(second[1], "2"))[2:] == ["<functions.g:1 2"]
        late = dialog(turn, {"role": "assistant", "content": "wait"}, calls(call("x", "h")), result(second[1], "2"))
        assert late[3:] == ["<functions.g:1 2"]


def test_the_prefixes_of_responses() -> None:
    turn = calls(call("call_1", "f"), call("call_2", "g"))
    assert dialog(turn, result("fc_2", "2"), result("fc_1", "1"))[2:] == ["<functions.g:1 2", "<functions.f:0 1"]


def test_a_folded_id_that_two_calls_share_does_not_decide() -> None:
    turn = calls(call("a.b", "f"), call("a_b", "g"))
    assert dialog(turn, result("a_b", "2"), result("a.b", "1"))[2:] == ["<functions.g:1 2", "<functions.f:0 1"]
    assert dialog(turn, result("a b", "2", name="g"), result("a-b", "1"))[2:] == [
        "<functions.g:1 2",
        "<functions.f:0 1",
    ]
    assert dialog(turn, result("a-b", "1"), result("a_b", "2"))[2:] == ["<functions.f:0 1", "<functions.g:1 2"]


def test_an_exact_id_comes_before_a_folded_one() -> None:
    turns = [calls(call("a:1", "f")), calls(call("a_1", "g"))]
    assert dialog(*turns, result("a:1", "1"), result("a_1", "2"))[2:] == ["<functions.f:0 1", "<functions.g:1 2"]


def test_a_result_names_its_function_and_its_number() -> None:
    turn = calls(call("x", "f"), call("y", "g"), call("z", "f"))
    results = [result("functions.f:2", "2"), result("functions_g_1", "1"), result("f:9", "0")]
    assert dialog(turn, *results)[3:] == ["<functions.f:2 2", "<functions.g:1 1", "<functions.f:0 0"]


def test_results_whose_calls_were_dropped() -> None:
    """The calls repeated an id: its one call keeps its own result."""
    said = {"role": "assistant", "content": "done"}
    turn = [calls(call("x", "f")), result("x", "1"), said, result("x", "2"), said, result(" x", "3")]
    expected = [
        "functions.f:0", "<functions.f:0 1", "functions.f:1", "<functions.f:1 2", "functions.f:2", "<functions.f:2 3",
    ]  # fmt: skip
    assert dialog(*turn) == expected
    parallel = calls(call("x", "f"), call("y", "g"))
    assert dialog(parallel, result("x", "1"), result("x", "again"), result("y", "2"))[2:] == [
        "<functions.f:0 1", "functions.f:2", "<functions.f:2 again", "<functions.g:1 2"
    ]  # fmt: skip


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
