"""Sending samples to a server with OpenAI's own client."""

import asyncio
from collections.abc import Sequence
from typing import Any

import openai

from constrained_k2.evaluation.answer import ChatAnswer, Record
from constrained_k2.evaluation.judge import Counts, judge
from constrained_k2.evaluation.sample import Sample


async def ask(client: openai.AsyncOpenAI, sample: Sample, **parameters: Any) -> Record:
    """Send one sample.

    Args:
        client: The server's client.
        sample: The request.
        **parameters: Of ``chat.completions.create``, beside the sample's body.
    """
    try:
        answer: Any = await client.chat.completions.create(**sample.body, **parameters, stream=sample.stream)
        if sample.stream:
            return await _collect(answer)
    except openai.APIError as error:
        return Record("", 0, "failed", "refused", str(error))
    choice = answer.choices[0]
    calls = tuple((c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ())
    return Record.of(ChatAnswer(choice.finish_reason, choice.message.content or "", calls=calls))


async def _collect(chunks: Any) -> Record:
    """Put a stream together as a client does."""
    finish_reason, content = "", ""
    calls: dict[int, list[str]] = {}
    async for chunk in chunks:
        if not chunk.choices:
            continue
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        finish_reason = choice.finish_reason or finish_reason
        for delta in choice.delta.tool_calls or ():
            call = calls.setdefault(delta.index, ["", "", ""])
            call[0] += delta.id or ""
            call[1] += delta.function.name or ""
            call[2] += delta.function.arguments or ""
    whole = tuple((call[0], call[1], call[2]) for call in calls.values())
    return Record.of(ChatAnswer(finish_reason, content, calls=whole))


async def ask_all(url: str, samples: Sequence[Sample], **parameters: Any) -> list[Record]:
    """Send all samples, several at a time; the answers come in the samples' order.

    Args:
        url: The server's address, without ``/v1``.
        samples: The requests.
        **parameters: Of ``chat.completions.create``; the sample's number is its ``seed``.
    """
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
