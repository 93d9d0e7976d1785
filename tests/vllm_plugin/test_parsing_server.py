"""Unconstrained transcripts through real vLLM servers: streams and whole answers hold the same, also with speculation."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, ToolCallParser, Vocabulary, render_tool_calls
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.parsing import Completion
from constrained_k2.parsing.events import CallCut, CallFinished, Event, HeaderCut
from constrained_k2.request.spec import Tool
from tests.budget import tries
from tests.parsing.transcripts import ids_of_text, made_up, table
from tests.servers import on
from tests.vllm_plugin.asking import MESSAGES, WEATHER

pytestmark = pytest.mark.server

OFF = UNCONSTRAINED["vllm_xargs"]
CALL = ToolCall("get_weather", 0, '{"city": "北京 🌦️", "days": 3}')


@dataclass(frozen=True)
class Answer:
    """One choice as a client sees it."""

    finish_reason: str
    reasoning: str
    content: str
    calls: tuple[tuple[str, str, str], ...]
    ids: tuple[int, ...] = ()
    longest_delta: int = 0

    @property
    def seen(self) -> tuple[Any, ...]:
        return self.finish_reason, self.reasoning, self.content, self.calls


def transcripts(count: int, vocabulary: Vocabulary) -> list[list[int]]:
    """The table's and made-up ones, each up to the stop that ends it."""
    by_hand = [ids_of_text(row["text"], vocabulary) for row in table() if not row.get("in_reasoning")]
    found = []
    for ids in [*by_hand, *made_up(2 * count, vocabulary, seed=5)]:
        ends = [location for location, token_id in enumerate(ids) if token_id in vocabulary.format.stop_ids]
        kept = [token_id for token_id in ids[: ends[0] if ends else None] if vocabulary.token_bytes(token_id)]
        if kept:
            found.append(kept)
    return found[:count]


def expected(ids: Sequence[int], vocabulary: Vocabulary, *, length: bool, stream: bool) -> tuple[Any, ...]:
    """Return what a client should see of these tokens and the stop behind them."""
    ids = ids if length else [*ids, vocabulary.format.turn_end]
    parser = ToolCallParser(vocabulary, level="tolerant", tools=[Tool("get_weather")])
    events = [*parser.feed(ids), *parser.finish()]
    cut = length or any(isinstance(event, CallCut | HeaderCut) for event in events)
    completion = Completion.from_events(events)
    calls = Completion.from_events(_as_shown(events)).tool_calls if stream else completion.tool_calls
    reason = "length" if cut else "tool_calls" if completion.tool_calls else "stop"
    return reason, completion.reasoning, completion.content, tuple((c.id, c.name, c.arguments) for c in calls)


def _as_shown(events: list[Event]) -> list[Event]:
    """A stream shows what there is of a call that is cut off later."""
    return [CallFinished(event.position) if isinstance(event, CallCut) else event for event in events]


async def ask(client: openai.AsyncOpenAI, *, stream: bool, extra: dict[str, Any], **fields: Any) -> list[Answer]:
    """The answers' choices, in order."""
    body: dict[str, Any] = {"model": "kimi-k2", "messages": MESSAGES, "tools": [WEATHER], "max_tokens": 600}
    answer: Any = await client.chat.completions.create(
        **body | fields, stream=stream, extra_body={"return_token_ids": True} | extra
    )
    if stream:
        return await _collected(answer)
    return [
        Answer(
            choice.finish_reason,
            getattr(choice.message, "reasoning", None) or "",
            choice.message.content or "",
            tuple((c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()),
            tuple(choice.token_ids),
        )
        for choice in sorted(answer.choices, key=lambda choice: choice.index)
    ]


async def _collected(chunks: Any) -> list[Answer]:
    texts: dict[int, dict[str, Any]] = {}
    async for chunk in chunks:
        for choice in chunk.choices:
            seen = texts.setdefault(choice.index, {"finish": "", "r": "", "c": "", "calls": {}, "ids": [], "long": 0})
            delta_ids = getattr(choice, "token_ids", None) or []
            seen["finish"] = choice.finish_reason or seen["finish"]
            seen["r"] += getattr(choice.delta, "reasoning", None) or ""
            seen["c"] += choice.delta.content or ""
            seen["ids"] += delta_ids
            seen["long"] = max(seen["long"], len(delta_ids))
            for part in choice.delta.tool_calls or ():
                call = seen["calls"].setdefault(part.index, ["", "", ""])
                call[0] += part.id or ""
                call[1] += part.function.name or ""
                call[2] += part.function.arguments or ""
    return [
        Answer(seen["finish"], seen["r"], seen["c"], tuple(map(tuple, seen["calls"].values())), tuple(seen["ids"]), seen["long"])
        for _, seen in sorted(texts.items())
    ]  # fmt: skip


def ask_both(url: str, requests: Sequence[dict[str, Any]]) -> list[tuple[list[Answer], list[Answer]]]:
    """Every request, whole and as a stream."""

    async def everything() -> list[list[Answer]]:
        places = asyncio.Semaphore(12)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:

            async def one(request: dict[str, Any], *, stream: bool) -> list[Answer]:
                async with places:
                    return await ask(client, stream=stream, **request)

            return await asyncio.gather(*(one(r, stream=stream) for r in requests for stream in (False, True)))

    answers = asyncio.run(everything())
    return list(zip(answers[::2], answers[1::2], strict=True))


def scripted_request(ids: Sequence[int], vocabulary: Vocabulary, **fields: Any) -> dict[str, Any]:
    return {"extra": {"vllm_xargs": OFF | {"script": [*ids, vocabulary.format.turn_end]}}} | fields


@on("prompts")
def test_scripted_transcripts(server: VllmServer, vocabulary: Vocabulary) -> None:
    count = tries(80, everything=200)
    scripts = transcripts(count, vocabulary)
    assert len(scripts) == count
    limits = [len(ids) if number % 4 == 3 else 600 for number, ids in enumerate(scripts)]  # some are cut by the limit
    requests = [scripted_request(ids, vocabulary, max_tokens=limit) for ids, limit in zip(scripts, limits, strict=True)]
    calls = 0
    for ids, limit, (whole, stream) in zip(scripts, limits, ask_both(server.url, requests), strict=True):
        length = limit == len(ids)
        assert whole[0].ids[: len(ids)] == stream[0].ids[: len(ids)] == tuple(ids)
        assert whole[0].seen == expected(ids, vocabulary, length=length, stream=False), vocabulary.decode(ids)
        assert stream[0].seen == expected(ids, vocabulary, length=length, stream=True), vocabulary.decode(ids)
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
    requests = [
        {
            "extra": {"vllm_xargs": OFF, "structured_outputs": {"choice": [text]}},
            "temperature": 0,
            # The prompt contains the answer, so that drafts are often right.
            "messages": [{"role": "user", "content": f"Say: {text}"}],
        }
        for text in texts
    ]
    same = longest = calls = 0
    for text, (whole, stream) in zip(texts, ask_both(server.url, requests), strict=True):
        for answer, is_stream in ((whole[0], False), (stream[0], True)):
            # Special tokens are text to xgrammar: a marker comes as the token or spelled out, as the model likes.
            assert vocabulary.decode(answer.ids).removesuffix("<|im_end|>") == text
            length = answer.ids[-1] not in vocabulary.format.stop_ids
            assert answer.seen == expected(answer.ids, vocabulary, length=length, stream=is_stream), text
        same += whole[0].ids == stream[0].ids
        longest += stream[0].longest_delta > 1
        calls += len(whole[0].calls)
    assert same > 0.75 * count  # sums of floats differ with the batch, and with them now and then a token
    assert longest > count / 2
    assert calls > count / 4


@on("prompts")
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
    ((answers, streams),) = ask_both(server.url, [request])
    assert [answer.finish_reason for answer in (*answers, *streams)] == [reason] * 4
    expected_calls = ((CALL.id, CALL.name, CALL.arguments),) if kind.startswith(("whole", "ended")) else ()
    if kind != "cut_by_the_stop":
        assert [answer.calls for answer in answers] == [expected_calls] * 2


@on("prompts")
def test_no_calls_where_none_were_wanted(server: VllmServer, vocabulary: Vocabulary) -> None:
    ids = [*vocabulary.encode("Look: "), *render_tool_calls([CALL], vocabulary)]
    ((whole, stream),) = ask_both(server.url, [scripted_request(ids, vocabulary, tool_choice="none")])
    assert whole[0].seen == stream[0].seen == ("stop", "", vocabulary.decode(ids), ())


def respond(client: openai.OpenAI, ids: Sequence[int], vocabulary: Vocabulary, limit: int, *, stream: bool) -> Any:
    """The texts and calls of a response; of a stream, as its events have them."""
    function = WEATHER["function"]
    tools: Any = [{"type": "function", "name": function["name"], "parameters": function["parameters"]}]
    answer: Any = client.responses.create(
        model="kimi-k2",
        input="What's the weather like?",
        tools=tools,
        max_output_tokens=limit,
        stream=stream,
        extra_body={"vllm_xargs": OFF | {"script": [*ids, vocabulary.format.turn_end]}},
    )
    items: list[Any] = []
    status = ""
    if stream:
        for event in answer:
            if event.type == "response.output_item.done":
                items.append(event.item)
            elif event.type in {"response.completed", "response.incomplete"}:
                status = event.response.status
                assert event.type == f"response.{status}"
                assert event.response.output == items
    else:
        items, status = answer.output, answer.status
    for item in items:
        is_cut = status == "incomplete" and item is items[-1] and item.type != "function_call"
        assert item.status == ("incomplete" if is_cut else "completed")
    text = "".join(part.text for item in items if item.type == "message" for part in item.content)
    calls = tuple((item.call_id, item.name, item.arguments) for item in items if item.type == "function_call")
    return status, text, calls


@on("prompts")
def test_responses(server: VllmServer, vocabulary: Vocabulary) -> None:
    scripts = [ids for ids in transcripts(60, vocabulary) if vocabulary.format.think_begin not in ids]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        for number, ids in enumerate(scripts):
            length = number % 3 == 2
            limit = len(ids) if length else 600
            _, _, content, calls = expected(ids, vocabulary, length=length, stream=False)
            for stream in (False, True):
                status, text, found = respond(client, ids, vocabulary, limit, stream=stream)
                assert (text, found) == (content, calls), vocabulary.decode(ids)
                assert status == ("incomplete" if length else "completed")
