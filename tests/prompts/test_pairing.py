"""Calls are numbered through a dialog, and results get the ids of their calls; in Kimi K3, their name and place."""

from typing import Any

import pytest

from constrained_k2 import Repair, repair_messages
from constrained_k2.prompts.xtml import XtmlRenderer
from tests.prompts.dialogs import F0, F1, F2, USER, call, calls, result
from tests.prompts.kimi_k3 import BYTES


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


F, G, SAID = "functions.f:0", "functions.g:1", {"role": "assistant", "content": "done"}


def both(one: str, other: str) -> dict[str, Any]:
    """Calls of ``f`` and ``g`` with these ids."""
    return calls(call(one, "f"), call(other, "g"))


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
        ([both("call_1", "call_2"), result("fc_2", "2"), result("fc_1", "1")], [F, G, f"<{G} 2", f"<{F} 1"]),
        ([both("a.b", "a_b"), result("a_b", "2"), result("a.b", "1")], [F, G, f"<{G} 2", f"<{F} 1"]),
        ([both("a.b", "a_b"), result("a b", "2", name="g"), result("a-b", "1")], [F, G, f"<{G} 2", f"<{F} 1"]),
        ([both("a.b", "a_b"), result("a-b", "1"), result("a_b", "2")], [F, G, f"<{F} 1", f"<{G} 2"]),
        ([calls(call("a:1", "f")), calls(call("a_1", "g")), result("a:1", "1"), result("a_1", "2")], [F, G, f"<{F} 1", f"<{G} 2"]),
        ([calls(call("x", "f"), call("y", "g"), call("z", "f")), result("functions.f:2", "2"), result("functions_g_1", "1"), result("f:9", "0")],
         [F, G, "functions.f:2", "<functions.f:2 2", f"<{G} 1", f"<{F} 0"]),
        ([calls(call("x", "f")), result("x", "1"), SAID, result("x", "2"), SAID, result(" x", "3")],
         [F, f"<{F} 1", "functions.f:1", "<functions.f:1 2", "functions.f:2", "<functions.f:2 3"]),
        ([both("x", "y"), result("x", "1"), result("x", "again"), result("y", "2")],
         [F, G, f"<{F} 1", "functions.f:2", "<functions.f:2 again", f"<{G} 2"]),
    ],
    ids=["order", "twins", "restart", "unanswered", "two-turns", "swapped", "unknown", "without", "twice", "late", "thrice",
         "one-missing", "truncated", "named", "nameless", "by-name", "name-in-id", "prefixes-of-responses",
         "folded-exact", "folded-named", "folded-order", "exact-before-folded", "function-and-number", "dropped-calls", "dropped-parallel-call"],
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
        answered_both = dialog(turn, result(second[1], "2"), result(first[1], "1"))
        assert answered_both[2:] == ["<functions.g:1 2", "<functions.f:0 1"]
        assert dialog(turn, result(second[1], "2"))[2:] == ["<functions.g:1 2"]
        late = dialog(turn, {"role": "assistant", "content": "wait"}, calls(call("x", "h")), result(second[1], "2"))
        assert late[3:] == ["<functions.g:1 2"]


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


def results_in(messages: list[Any], **fields: Any) -> list[str]:
    """The results in the prompt of a repaired dialog, as ``name index content``."""
    text = XtmlRenderer(BYTES).render({"messages": messages} | fields, contract=False).text
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
