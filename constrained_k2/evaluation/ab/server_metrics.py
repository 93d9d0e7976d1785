"""How far masks bend a model: what the server's own ``/metrics`` say of it."""

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


def parse_counters(text: str) -> Counters:
    """Read Prometheus's text format (version 0.0.4); only metrics with our prefix."""
    found: Counters = {}
    for line in text.splitlines():
        if line.startswith(PREFIX):
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

    The counters are those whose names hold ``masked_argmax`` and ``masked_steps`` (or ``masked_tokens``), over
    all labels.
    """
    ruled_out = [value for name, value in counters.items() if "masked_argmax" in name and _is_total(name)]
    looked_at = [
        value
        for name, value in counters.items()
        if ("masked_steps" in name or "masked_tokens" in name) and _is_total(name)
    ]
    return sum(ruled_out) / sum(looked_at) if ruled_out and sum(looked_at) else None


def _is_total(name: str) -> bool:
    return not name.partition("{")[0].endswith(("_created", "_bucket"))
