"""Sends rows of the table to a server, several at a time."""

import asyncio
import json
from collections.abc import Sequence

import httpx

from tests.clients.endpoints import PATHS, body
from tests.clients.table import Row
from tests.kit.answers import Seen, is_json, streamed, whole

_AT_ONCE = 16  # what the servers run in a batch


def ask(
    url: str, endpoint: str, rows: Sequence[Row], *, stream: bool, max_tokens: int, at_once: int = _AT_ONCE
) -> list[Seen]:
    """Send the rows to an endpoint, a key of PATHS; the first choices of the answers come in the rows' order."""

    async def every() -> list[Seen]:
        places = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=url, timeout=180) as client:

            async def one(row: Row) -> Seen:
                sent = body(endpoint, row, stream=stream, max_tokens=max_tokens)
                async with places:
                    answer = await client.post(PATHS[endpoint], json=sent)
                return _read(endpoint, answer, stream=bool(sent["stream"]))

            return await asyncio.gather(*map(one, rows))

    return asyncio.run(every())


def _read(endpoint: str, answer: httpx.Response, *, stream: bool) -> Seen:
    if answer.status_code != 200:
        return Seen(status=answer.status_code, problem=answer.text[:500])
    if not stream:
        return whole(endpoint, answer.json())[0]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    for event in events:
        if event.get("error") or event.get("type") in {"error", "response.failed"}:
            return Seen(problem=json.dumps(event)[:500])
    if not events:
        return Seen(problem="an empty stream")
    seen = streamed(endpoint, events)[0]
    # A call that max_tokens cuts off is not in a whole answer; a stream has sent its beginning.
    if seen.reason in {"length", "incomplete", "max_tokens"} and seen.calls and not is_json(seen.calls[-1][2]):
        seen.calls.pop()
    return seen
