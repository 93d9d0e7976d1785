"""What a server's ``/metrics`` say: counters, how they grow, and how far masks bend a model."""

from collections.abc import Mapping

import httpx

PREFIX = "constrained_k2_"
"""What this package's metrics begin with."""

_MAX_BYTES = 8 << 20

Counters = dict[str, float]
"""Metric, with labels as they stand -> value."""


async def read_counters(url: str) -> Counters:
    """This package's counters of a server; none where it has no ``/metrics`` or none of ours.

    Args:
        url: The server's address, without ``/v1``.
    """
    data = bytearray()
    try:
        async with httpx.AsyncClient(timeout=10) as client, client.stream("GET", f"{url}/metrics") as response:
            if response.status_code != 200:
                return {}
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > _MAX_BYTES:
                    return {}
    except (httpx.HTTPError, httpx.InvalidURL):
        return {}
    return parse_counters(data.decode(errors="replace"))


def parse_counters(text: str, prefix: str = PREFIX) -> Counters:
    """Read Prometheus's text format (version 0.0.4); only metrics with the prefix, ours by default."""
    found: Counters = {}
    for line in text.splitlines():
        if line.startswith(prefix):
            name, _, number = line.rpartition(" ")
            try:
                found[name] = float(number)
            except ValueError:
                continue
    return found


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> Counters:
    """How much each counter grew; one that fell was set back by a restart, and counts from 0."""
    return {
        name: value - before.get(name, 0.0) if value >= before.get(name, 0.0) else value
        for name, value in after.items()
    }


def masked_argmax_share(counters: Mapping[str, float]) -> float | None:
    """The share of masked tokens at which the mask ruled out what the model liked best; None where it is not told.

    Our server looks at one step in so many (docs/metrics.md): the share is of the tokens it looked at.
    """
    ruled_out = total(counters, "constrained_k2_masked_argmax_tokens_total")
    looked_at = total(counters, "constrained_k2_examined_tokens_total")
    return ruled_out / looked_at if looked_at else None


def total(counters: Mapping[str, float], name: str) -> float:
    """A counter's sum over all its labels; 0 where there is none of that name."""
    return sum(value for found, value in counters.items() if found.partition("{")[0] == name)
