"""A schema that is slow to compile holds up only itself, not the 31 requests that are being answered."""

import asyncio
from collections import Counter
from typing import Any

import openai
import pytest

from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import on
from tests.kit.tools import tool

pytestmark = [pytest.mark.server, on("structured_output", only_all=("many_logits_processor",))]

OTHERS = 31
TOKENS = 800
EASY = {"type": "object", "properties": {"city": {"type": "string", "minLength": 3000}}, "required": ["city"]}


class Load:
    """The others, one request behind the other each, and how many tokens each has been sent; every second in calls."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self.client = client
        self.sent: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.moved = asyncio.Event()
        self.is_over = False

    async def others(self, number: int) -> None:
        """Send requests until it is over; the last one is answered whole too."""
        while not self.is_over:
            self.reasons[await self.one(number)] += 1

    async def one(self, number: int) -> str:
        constrained: Any = {"tools": [tool("f", EASY)], "tool_choice": "required"} if number % 2 else {}
        stream: Any = await self.client.chat.completions.create(
            model="kimi-k2", messages=[{"role": "user", "content": "Go on."}], max_tokens=TOKENS, seed=number, stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True}, **constrained,
        )  # fmt: skip
        reason = ""
        async for chunk in stream:
            for choice in chunk.choices:
                self.sent[number] += len(getattr(choice, "token_ids", None) or ())
                reason = choice.finish_reason or reason
            self.moved.set()
        return reason

    async def until_all_moved(self, since: Counter[int]) -> None:
        """Until every request has been sent more than it had been."""
        while not all(self.sent[number] > since[number] for number in range(OTHERS)):
            self.moved.clear()
            await self.moved.wait()


async def slow_one(client: openai.AsyncOpenAI, schema: Any, *, strict: bool) -> str:
    """Until the slow request's first token, or its refusal."""
    tools: Any = [tool("f", schema, strict=strict)]
    try:
        await client.chat.completions.create(
            model="kimi-k2", messages=[{"role": "user", "content": "Go on."}], tools=tools,
            tool_choice="required", max_tokens=1,
        )  # fmt: skip
    except openai.BadRequestError as error:
        return error.message
    return "served"


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [(400, "too long to compile"), (10, "served")],
    ids=["refused when its time is up", "served after a slow compilation"],
)
def test_others_go_on(server: VllmServer, parts: int, outcome: str) -> None:
    patterns = [{f"^{number}a": {"type": "string"}, f"b{number}$": {"type": "string"}} for number in range(parts)]
    schema = {"properties": {f"p{number}": {"patternProperties": part} for number, part in enumerate(patterns)}}

    async def run() -> tuple[str, Load]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=300, max_retries=0
        ) as client:
            load = Load(client)
            async with asyncio.TaskGroup() as group:
                for number in range(OTHERS):
                    group.create_task(load.others(number))
                await load.until_all_moved(Counter())
                slow = asyncio.create_task(slow_one(client, schema, strict=outcome != "served"))
                await load.until_all_moved(load.sent.copy())
                if outcome != "served":
                    assert not slow.done(), "the second of its compilation passed before each other had more tokens"
                answer = await slow
                load.is_over = True
            return answer, load

    answer, load = asyncio.run(run())
    assert outcome in answer
    assert set(load.reasons) == {"length"}
    assert sum(load.sent.values()) == load.reasons.total() * TOKENS
