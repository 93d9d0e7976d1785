"""Sends rows of the table to a server, several at a time."""

import asyncio
from collections.abc import Sequence

import httpx

from tests.clients.answers import Answer, read
from tests.clients.endpoints import PATHS, body
from tests.clients.table import Row

_AT_ONCE = 16  # what the servers run in a batch


def ask(
    url: str, endpoint: str, rows: Sequence[Row], *, stream: bool, max_tokens: int, at_once: int = _AT_ONCE
) -> list[Answer]:
    """Send the rows to an endpoint; the answers come in the rows' order.

    Args:
        url: The server's address, without ``/v1``.
        endpoint: A key of :data:`tests.clients.endpoints.PATHS`.
        rows: The requests.
        stream: Whether to stream.
        max_tokens: For rows that have no other bound.
        at_once: Requests at a time.
    """

    async def every() -> list[Answer]:
        places = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=url, timeout=180) as client:

            async def one(row: Row) -> Answer:
                sent = body(endpoint, row, stream=stream, max_tokens=max_tokens)
                async with places:
                    answer = await client.post(PATHS[endpoint], json=sent)
                return read(endpoint, answer.status_code, answer.text, stream=bool(sent["stream"]))

            return await asyncio.gather(*map(one, rows))

    return asyncio.run(every())
