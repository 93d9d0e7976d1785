"""Reads this package's counters from a server's ``/metrics``, and computes their growth."""

import math
from collections.abc import Mapping
from contextlib import suppress

from prometheus_client.parser import text_string_to_metric_families

from constrained_k2.evaluation.answer import NoAnswer
from constrained_k2.evaluation.client import BodyLimits, Client

PREFIX = "constrained_k2_"  # prefix of this package's metrics
_LIMITS = BodyLimits(seconds=10)
Counters = dict[str, float]  # metric with its labels, as ``name{label="value"}`` -> value


async def read_counters(url: str) -> Counters:
    """This package's counters of a server; empty if it has none."""
    with suppress(NoAnswer):
        async with Client(url, limits=_LIMITS) as client:
            return parse_counters(await client.text("/metrics"))
    return {}


def parse_counters(text: str, prefix: str = PREFIX) -> Counters:
    """Read Prometheus's text format, without malformed lines and metrics of another prefix."""
    found: Counters = {}
    for line in text.splitlines():
        if line.startswith(prefix):
            # The parser rejects the whole text for one malformed line, in places with an IndexError.
            with suppress(ValueError, IndexError):
                for family in text_string_to_metric_families(line):
                    for sample in family.samples:
                        labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                        found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> Counters:
    """The growth of each counter; one that fell was reset by a restart and counts from 0."""
    start = {name: before.get(name, 0.0) for name in after}
    return {name: value - (start[name] if value >= start[name] else 0.0) for name, value in after.items()}


def masked_argmax_share(counters: Mapping[str, float]) -> float | None:
    """The share of examined tokens at which the mask excluded the likeliest one; None if the counters make no share."""
    examined = total(counters, "constrained_k2_examined_tokens_total")
    masked = total(counters, "constrained_k2_masked_argmax_tokens_total")
    return masked / examined if examined and 0 <= masked <= examined < math.inf else None


def total(counters: Mapping[str, float], name: str) -> float:
    """A counter's sum over all its labels; 0 if it is missing."""
    return sum(value for found, value in counters.items() if found.partition("{")[0] == name)
