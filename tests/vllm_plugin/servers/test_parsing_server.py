"""Unconstrained transcripts through real vLLM servers: streams and whole answers hold the same, also with speculation."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.evaluation.server import VllmServer
from tests.kit.answers import Seen
from tests.kit.budget import tries
from tests.kit.servers import on
from tests.parsing.transcripts import encoded, ids_of_text, made_up, table
from tests.vllm_plugin.asking import WEATHER, called, chat_choices, expected, respond, said

pytestmark = pytest.mark.server

OFF = UNCONSTRAINED["vllm_xargs"]
CALL = ToolCall("get_weather", 0, '{"city": "北京 🌦️", "days": 3}')


def transcripts(count: int, vocabulary: Vocabulary) -> list[list[int]]:
    """Some calls, the table's and made-up ones, each up to the stop that ends it."""
    two = render_tool_calls([CALL, ToolCall("get_weather", 1, '{\n  "days": 1,\n  "city": "\\"x\\""\n}')], vocabulary)
    other_index = render_tool_calls([ToolCall("get_weather", 7, '{"days": "many"}')], vocabulary)
    by_hand = [two, [*two, *vocabulary.encode("and some text behind")], other_index]
    by_hand += [ids_of_text(row["text"], vocabulary) for row in table() if not row.get("in_reasoning")]
    found = []
    random_ones = [encoded(pieces, vocabulary) for pieces, _ in made_up(2 * count, vocabulary, seed=5)]
    for ids in [*by_hand, *random_ones]:
        ends = [location for location, token_id in enumerate(ids) if token_id in vocabulary.format.stop_ids]
        kept = [token_id for token_id in ids[: ends[0] if ends else None] if vocabulary.token_bytes(token_id)]
        if kept:
            found.append(kept)
    return found[:count]


def ask_both(server: VllmServer, requests: Sequence[dict[str, Any]]) -> list[tuple[list[Seen], list[Seen]]]:
    """Every request, whole and as a stream: the choices of the answers."""
    common: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 600, "return_token_ids": True}

    def one(request: dict[str, Any]) -> tuple[list[Seen], list[Seen]]:
        whole, stream = (chat_choices(server, stream=stream, **(common | request)) for stream in (False, True))
        return whole, stream

    with ThreadPoolExecutor(12) as threads:
        return list(threads.map(one, requests))


def scripted_request(ids: Sequence[int], vocabulary: Vocabulary, **fields: Any) -> dict[str, Any]:
    return {"vllm_xargs": OFF | {"script": [*ids, vocabulary.format.turn_end]}} | fields


@on("logits_processor", "structured_output")  # the second one has no reasoning parser
def test_scripted_transcripts(server: VllmServer, vocabulary: Vocabulary) -> None:
    count = tries(80, everything=200)
    scripts = transcripts(count, vocabulary)
    assert len(scripts) == count
    limits = [len(ids) if number % 4 == 3 else 600 for number, ids in enumerate(scripts)]  # some are cut by the limit
    requests = [scripted_request(ids, vocabulary, max_tokens=limit) for ids, limit in zip(scripts, limits, strict=True)]
    calls = 0
    for ids, limit, (whole, stream) in zip(scripts, limits, ask_both(server, requests), strict=True):
        length = limit == len(ids)
        assert whole[0].ids[: len(ids)] == stream[0].ids[: len(ids)] == list(ids)
        assert whole[0].shown == expected(ids, vocabulary, length=length, stream=False), vocabulary.decode(ids)
        assert stream[0].shown == expected(ids, vocabulary, length=length, stream=True), vocabulary.decode(ids)
        calls += len(whole[0].calls)
    assert calls > count / 2


@on("ngram")
def test_transcripts_with_speculation(server: VllmServer, vocabulary: Vocabulary) -> None:
    """V1 refuses logits processors beside speculation, so that here a grammar of one text takes the script's place."""
    count = tries(80, everything=200)
    texts = [vocabulary.decode(ids) for ids in transcripts(2 * count, vocabulary)]
    texts = [text for text in texts if "\ufffd" not in text and "[EOS]" not in text and "<|im_end|>" not in text]
    texts = texts[:count]
    assert len(texts) == count
    greedy: dict[str, Any] = {"vllm_xargs": OFF, "temperature": 0}
    # The prompt contains the answer, so that drafts are often right.
    prompts = [[{"role": "user", "content": f"Say: {text}"}] for text in texts]
    requests = [
        greedy | {"structured_outputs": {"choice": [text]}, "messages": prompt}
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    same = longest = calls = 0
    for text, (whole, stream) in zip(texts, ask_both(server, requests), strict=True):
        for answer, is_stream in ((whole[0], False), (stream[0], True)):
            # Special tokens are text to xgrammar: a marker comes as the token or spelled out, as the model likes.
            assert vocabulary.decode(answer.ids).removesuffix("<|im_end|>") == text
            length = answer.ids[-1] not in vocabulary.format.stop_ids
            assert answer.shown == expected(answer.ids, vocabulary, length=length, stream=is_stream), text
        same += whole[0].ids == stream[0].ids
        longest += max(map(len, stream[0].deltas)) > 1
        calls += len(whole[0].calls)
    assert same > 0.75 * count  # sums of floats differ with the batch, and with them now and then a token
    assert longest > count / 2
    assert calls > count / 4


@on("logits_processor")
@pytest.mark.parametrize(
    ("kind", "tool_choice", "reason"),
    [
        ("whole", "auto", "tool_calls"),
        ("whole", "required", "tool_calls"),
        ("whole_and_cut", "auto", "length"),
        ("whole_and_cut", "required", "length"),
        ("cut", "auto", "length"),
        ("cut", "required", "length"),
        ("cut_by_the_stop", "auto", "length"),
        ("ended_by_the_stop", "auto", "tool_calls"),
        ("text", "auto", "stop"),
        ("text", "required", "stop"),
    ],
)
def test_finish_reasons(server: VllmServer, vocabulary: Vocabulary, kind: str, tool_choice: str, reason: str) -> None:
    whole = render_tool_calls([CALL], vocabulary)
    script, limit = {
        "whole": (whole, 600),
        "whole_and_cut": ([*whole[:-1], *whole[1:-2]], 2 * len(whole) - 4),
        "cut": (whole[:-2], len(whole) - 2),
        "cut_by_the_stop": ([*whole[:-1], *whole[1:-3]], 600),
        "ended_by_the_stop": (whole[:-2], 600),  # complete, and without its end alone
        "text": (vocabulary.encode("Sunny."), 600),
    }[kind]
    request = scripted_request(script, vocabulary, tool_choice=tool_choice, max_tokens=limit, n=2)
    ((answers, streams),) = ask_both(server, [request])
    assert [answer.reason for answer in (*answers, *streams)] == [reason] * 4
    expected_calls = [(CALL.id, CALL.name, CALL.arguments)] if kind.startswith(("whole", "ended")) else []
    if kind != "cut_by_the_stop":
        assert [answer.calls for answer in answers] == [expected_calls] * 2


@on("logits_processor")
def test_no_calls_where_none_were_wanted(server: VllmServer, vocabulary: Vocabulary) -> None:
    ids = [*vocabulary.encode("Look: "), *render_tool_calls([CALL], vocabulary)]
    ((whole, stream),) = ask_both(server, [scripted_request(ids, vocabulary, tool_choice="none")])
    assert whole[0].shown == stream[0].shown == ("stop", "", "Look: ", [])


@on("logits_processor")
def test_responses(server: VllmServer, vocabulary: Vocabulary) -> None:
    tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER["function"]["parameters"]}]
    scripts = [ids for ids in transcripts(60, vocabulary) if vocabulary.format.think_begin not in ids]
    for number, ids in enumerate(scripts):
        length = number % 3 == 2
        body = {"input": "What's the weather like?", "tools": tools, "max_output_tokens": len(ids) if length else 600}
        _, _, content, calls = expected(ids, vocabulary, length=length, stream=False)
        for stream in (False, True):
            response = respond(server, stream=stream, **scripted_request(ids, vocabulary, **body))
            items, status = response["output"], response["status"]
            assert (said(response), called(response)) == (content, calls), vocabulary.decode(ids)
            assert status == ("incomplete" if length else "completed")
            for item in items:
                is_cut = length and item is items[-1] and item["type"] != "function_call"
                assert item["status"] == ("incomplete" if is_cut else "completed")
