"""Real servers whose tool parser is vLLM's own: the token ids that the model writes are those of valid calls.

The model is random and sampled at temperature 1, so what is not masked is soon written. The front end may rename calls or
drop markers: only the token ids count here.
"""

import json
import re
from typing import Any

import httpx
import pytest

from benchmarks.front_ends.raw import judge_raw, raw_calls
from constrained_k2 import Vocabulary
from constrained_k2.evaluation.doctor.requests import TRICKY, closed, tool, user
from constrained_k2.evaluation.sample import read_sample
from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import RUST, on
from tests.kit.tools import tool as openai_tool
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import CHAT, only_choice, post

pytestmark = pytest.mark.server

# Each front end and each route is in the default level, the other pairs of them in the level all.
on_tags = on(
    *(f"{RUST}tag_structured_output", "python_tag_logits_processor"),
    only_all=(f"{RUST}tag_logits_processor", "python_tag_structured_output"),
)
on_prompts = on(
    *(f"{RUST}prompt_logits_processor", "python_prompt_structured_output"),
    only_all=(f"{RUST}prompt_structured_output", "python_prompt_logits_processor"),
)
MAIL = closed({"cc"}, to={"enum": ["a", "b"]}, body={"type": "string"}, cc={"type": "boolean"})
TOOLS = [tool("mail.send", "Send.", MAIL), tool("book-table", "Book.", TRICKY), tool("ping", "Ping.")]
PING = "functions.ping:0"
CALLED = [user("go"), calls(call(PING, "ping", "{}")) | {"content": ""}, result(PING, "pong"), user("again")]
CHOICES: dict[str, dict[str, Any]] = {
    "auto": {"tool_choice": "auto"},
    "required": {"tool_choice": "required"},
    "named": {"tool_choice": {"type": "function", "function": {"name": "book-table"}}},
    "one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "history": {"tool_choice": "required", "messages": CALLED},
}
PUSH = 100  # of OpenAI's logit_bias
SEEDS = range(4)


def ids_of(server: VllmServer, body: dict[str, Any], **more: Any) -> tuple[list[int], bool]:
    """The token ids of an answer, and whether it was cut."""
    given: dict[str, Any] = {"messages": [user("go")], "tools": TOOLS, "return_token_ids": True, "max_tokens": 400,
                             "temperature": 1.0, "vllm_xargs": {"constrained_k2_finish_reserve": 300}}  # fmt: skip
    choice = only_choice(server, **given | body | more)
    return choice["token_ids"], choice["finish_reason"] == "length"


def problems_of(vocabulary: Vocabulary, body: dict[str, Any], ids: list[int], *, cut: bool) -> list[str]:
    return judge_raw(read_sample({"messages": [user("go")], "tools": TOOLS} | body, 1), ids, vocabulary, cut=cut)[1]


@on_tags
@pytest.mark.parametrize("choice", CHOICES)
def test_calls_are_valid(server: VllmServer, vocabulary: Vocabulary, choice: str) -> None:
    body = CHOICES[choice]
    # Under auto a random model would hardly call: the marker of a call is pushed.
    more = {"logit_bias": {str(vocabulary.format.section_begin): PUSH}} if choice == "auto" else {}
    for seed in SEEDS:
        ids, cut = ids_of(server, body, seed=seed, **more)
        assert problems_of(vocabulary, body, ids, cut=cut) == []
        assert not cut
        made = list(raw_calls(ids, vocabulary))
        assert made and all(each.is_whole for each in made)
        assert choice not in {"named", "one call"} or len(made) == 1
        assert choice != "named" or made[0].call_id == "functions.book-table:0"


@on_tags
def test_no_special_token_enters_a_string(server: VllmServer, vocabulary: Vocabulary) -> None:
    body = {"tool_choice": {"type": "function", "function": {"name": "mail.send"}}}
    for text in ("<|im_middle|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", "<|im_end|>"):
        ids, cut = ids_of(server, body, logit_bias={str(vocabulary.special_tokens[text]): PUSH}, seed=1)
        assert problems_of(vocabulary, body, ids, cut=cut) == []
        assert sum(made.is_whole for made in raw_calls(ids, vocabulary)) == 1


@on_prompts
def test_tools_that_only_the_prompt_declares(server: VllmServer, vocabulary: Vocabulary) -> None:
    push = {"logit_bias": {str(vocabulary.format.section_begin): PUSH}}
    for body in ({"tool_choice": "auto"}, {"tool_choice": "auto", "messages": CALLED}):
        for seed in SEEDS:
            ids, cut = ids_of(server, body, seed=seed, **push)
            assert problems_of(vocabulary, body, ids, cut=cut) == []
            assert any(made.is_whole for made in raw_calls(ids, vocabulary))


@on(f"{RUST}tag_structured_output", only_all=(f"{RUST}tag_logits_processor",))
def test_a_constraint_that_no_front_end_has_checked(server: VllmServer, vocabulary: Vocabulary) -> None:
    """The Rust front end hands it on unread: the engine core ends the request that it refuses, and no other one."""

    def ask(schema: dict[str, Any]) -> httpx.Response:
        own = json.dumps({"tools": [openai_tool("ping", schema, strict=True)], "tool_choice": "required"})
        xargs = {"constrained_k2": own, "constrained_k2_finish_reserve": 300}
        given = {"messages": [user("go")], "max_tokens": 400, "return_token_ids": True, "seed": 1, "vllm_xargs": xargs}
        return post(server, CHAT, **given)

    for _ in range(2):
        assert ask({"not": {}}).status_code == 500
        answer = ask(closed(set()))
        assert answer.status_code == 200, answer.text
        made = list(raw_calls(answer.json()["choices"][0]["token_ids"], vocabulary))
        assert made and all(each.is_whole and json.loads(each.arguments) == {} for each in made)
    log = server.log.read_text(errors="replace")
    assert log.count("a request is refused") == 2 and "no value satisfies" in log
    assert "constrained_k2_" not in httpx.get(f"{server.url}/metrics").text  # so the log has the figures
    assert re.search(r"\d+ of \d+ requests constrained; of other front ends: adopted (tag|xargs) 1", log)


@on(f"{RUST}tag_structured_output", only_all=("python_tag_structured_output",))
def test_calls_after_reasoning_are_valid(server: VllmServer, vocabulary: Vocabulary) -> None:
    begin, end = vocabulary.format.think_begin, vocabulary.format.think_end
    body: dict[str, Any] = {"tool_choice": "required"}
    ids, _ = ids_of(server, body, logit_bias={str(begin): PUSH}, seed=2)
    assert ids[0] == begin and ids.count(begin) == 1
    ids, _ = ids_of(server, body, logit_bias={str(begin): PUSH, str(end): PUSH}, seed=2)
    assert ids[:3] == [begin, end, vocabulary.format.section_begin]
    assert problems_of(vocabulary, body, ids, cut=False) == []
    assert all(made.is_whole for made in raw_calls(ids, vocabulary))
