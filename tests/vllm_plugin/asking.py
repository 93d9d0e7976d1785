"""Requests to a test's server, and what a client sees of their answers, whole or as a stream."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from constrained_k2 import ToolCallParser, Vocabulary
from constrained_k2.evaluation.answer import ChatAnswer, Record
from constrained_k2.evaluation.judge import Counts, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.parsing import Completion
from constrained_k2.parsing.events import CallCut, CallFinished, Event, HeaderCut
from constrained_k2.request.spec import Tool
from scripts.bundled_samples.ordinary import TOOLS, ordinary_samples
from tests.kit.answers import Call, Seen, streamed, whole

MESSAGES = [{"role": "user", "content": "What's the weather like?"}]
WEATHER = TOOLS[0]
CHAT = "/v1/chat/completions"


def create(client: openai.OpenAI, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": "kimi-k2",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "max_tokens": 1000,
        "temperature": 1.0,
    }
    return client.chat.completions.create(**(defaults | fields))


def post(server: VllmServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"model": "kimi-k2"} | body, timeout=300, trust_env=False)


def answered(server: VllmServer, path: str, **body: Any) -> Any:
    """The JSON of a successful answer."""
    answer = post(server, path, **body)
    assert answer.is_success, answer.text
    return answer.json()


def only_choice(server: VllmServer, path: str = CHAT, **body: Any) -> Any:
    """The only choice of a successful answer."""
    (choice,) = answered(server, path, **body)["choices"]
    return choice


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream."""
    assert answer.is_success, answer.text
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def chat(server: VllmServer, *, stream: bool = False, **body: Any) -> Seen:
    """The only choice of a chat."""
    (choice,) = chat_choices(server, stream=stream, **body)
    return choice


def chat_choices(server: VllmServer, *, stream: bool = False, **body: Any) -> list[Seen]:
    """The choices of a chat, in order."""
    body = {"messages": MESSAGES} | body
    if stream:
        return streamed("chat", events(post(server, CHAT, stream=True, **body)))
    return whole("chat", answered(server, CHAT, **body))


def expected(
    ids: Sequence[int], vocabulary: Vocabulary, *, length: bool, stream: bool, tools: Sequence[str] = ("get_weather",)
) -> tuple[Any, ...]:
    """Return the choice that a client should see if the model writes these tokens and then, unless cut, ends its turn."""
    ids = ids if length else [*ids, vocabulary.format.turn_end]
    parser = ToolCallParser(vocabulary, level="tolerant", tools=[*map(Tool, tools)])
    events = [*parser.feed(ids), *parser.finish()]
    cut = length or any(isinstance(event, CallCut | HeaderCut) for event in events)
    completion = Completion.from_events(events)
    calls = Completion.from_events(_as_shown(events)).tool_calls if stream else completion.tool_calls
    reason = "length" if cut else "tool_calls" if completion.tool_calls else "stop"
    return reason, completion.reasoning, completion.content, [(c.id, c.name, c.arguments) for c in calls]


def _as_shown(events: list[Event]) -> list[Event]:
    """A stream shows what there is of a call that is cut off later."""
    return [CallFinished(event.position) if isinstance(event, CallCut) else event for event in events]


def respond(server: VllmServer, *, stream: bool = False, **body: Any) -> dict[str, Any]:
    """The completed response of OpenAI's endpoint; a stream's pieces of arguments are those of its items."""
    if not stream:
        return dict(answered(server, "/v1/responses", **body))
    seen = events(post(server, "/v1/responses", stream=True, **body))
    assert seen[-1]["type"] == f"response.{seen[-1]['response']['status']}", seen[-1]
    items = [event["item"] for event in seen if event["type"] == "response.output_item.done"]
    assert seen[-1]["response"]["output"] == items
    written: dict[str, str] = {}
    for event in seen:
        if event["type"] == "response.function_call_arguments.delta":
            written[event["item_id"]] = written.get(event["item_id"], "") + event["delta"]
    functions = [item for item in items if item["type"] == "function_call"]
    assert [written[item["id"]] for item in functions] == [item["arguments"] for item in functions]
    return dict(seen[-1]["response"])


def called(response: dict[str, Any]) -> list[Call]:
    """The calls of a response."""
    items = (item for item in response["output"] if item["type"] == "function_call")
    return [(item["call_id"], item["name"], item["arguments"]) for item in items]


def claude(server: VllmServer, *, stream: bool = False, **body: Any) -> Seen:
    """The message of Anthropic's endpoint."""
    path, body = "/v1/messages", {"messages": MESSAGES} | body
    if stream:
        (seen,) = streamed("messages", events(post(server, path, stream=True, **body)))
    else:
        (seen,) = whole("messages", answered(server, path, **body))
    return seen


def said(response: dict[str, Any]) -> str:
    """The text of a response's messages."""
    return whole("responses", response)[0].content


class Metrics:
    """A server's metrics at one moment, less those of an earlier one."""

    def __init__(self, server: VllmServer, before: "Metrics | None" = None) -> None:
        text = httpx.get(f"{server.url}/metrics", timeout=60).raise_for_status().text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self._before = before

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels; ``name`` is without its prefix, if that is ours."""
        name = name if name.startswith("vllm:") else f"constrained_k2_{name}"
        wanted = (labels | {"model_name": "kimi-k2"}).items()
        found = sum(each.value for each in self._samples if each.name == name and each.labels.items() >= wanted)
        return found - (self._before(name.removeprefix("constrained_k2_"), **labels) if self._before else 0)


def settled(server: VllmServer, before: Metrics | None = None) -> Metrics:
    """The metrics once they stand still: the last step's statistics come behind its answer."""
    seen = Metrics(server, before)
    while True:
        time.sleep(1)
        earlier, seen = seen, Metrics(server, before)
        if seen("masked_steps_total") == earlier("masked_steps_total"):
            return seen


async def ask(client: openai.AsyncOpenAI, sample: Sample, **parameters: Any) -> Record:
    """Send one sample with OpenAI's own client; ``parameters`` are those of ``chat.completions.create``."""
    try:
        answer: Any = await client.chat.completions.create(**sample.body, **parameters, stream=sample.stream)
        if sample.stream:
            (seen,) = streamed("chat", [chunk.model_dump() async for chunk in answer])
        else:
            (seen,) = whole("chat", answer.model_dump())
    except openai.APIError as error:
        return Record("", 0, "failed", "refused", str(error))
    return Record.of(ChatAnswer(seen.reason, seen.content, calls=tuple(seen.calls)))


async def ask_all(url: str, samples: Sequence[Sample], **parameters: Any) -> list[Record]:
    """Send all samples, several at a time, each with its number as seed; the answers come in the samples' order."""
    places = asyncio.Semaphore(8)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:

        async def one(sample: Sample) -> Record:
            async with places:
                return await ask(client, sample, seed=sample.number, **parameters)

        return await asyncio.gather(*map(one, samples))


def judged(samples: Sequence[Sample], answers: Sequence[Record]) -> tuple[Counts, list[str]]:
    """The counts of all answers, and the problems of those that ``max_tokens`` did not cut off."""
    judgements = [judge(sample, answer) for sample, answer in zip(samples, answers, strict=True)]
    problems = [problem for one in judgements if one.kind != "truncated" for problem in one.problems]
    return Counts(*map(sum, zip(*(one.counts for one in judgements), strict=True))), problems


def check_random(server: VllmServer, count: int, *, whole: float, due: float) -> None:
    """Require declared, valid and numbered calls in a random model's answers to so many samples.

    At least the share ``whole`` of the answers is not cut off by ``max_tokens``; at least the share ``due`` needs a call.
    """
    samples = list(ordinary_samples(count, seed=1))
    answers = asyncio.run(ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=2048))
    result, problems = judged(samples, answers)
    assert not problems
    assert result.success - result.truncated >= whole * count
    assert result.served == result.due >= due * count
    assert result.calls == result.declared == result.valid == result.numbered > 0.6 * count
