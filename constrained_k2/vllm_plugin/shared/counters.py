"""Counters of a process that computes masks: masks and their time, grammars, adopted requests, calls."""

import os
import secrets
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np

from constrained_k2.compiler.cache import CompileCounts
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.pipeline import MaskCount
from constrained_k2.vocabulary.bitmask import bitmask_rows

Adopted = Literal["tag", "prompt", "xargs"]
"""The source of an adopted request's tools."""

Left = Literal["format", "tools", "option", "error"]
"""The reason why a request that was to be adopted is left to vLLM: the tag or the declarations cannot be read, the
tools cannot be constrained, the request's options rule it out, or this package failed."""


@dataclass(slots=True, eq=False)
class EngineCounters:
    """Totals of one process that computes masks. One thread adds to each; other threads only read.

    ``constant`` rows are outside call ids and arguments, ``header`` rows inside ``functions.NAME:INDEX``. The mask
    forbade the unmasked argmax of ``changed_rows`` of the ``examined_rows``.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    constant: MaskCount = field(default_factory=MaskCount)
    header: MaskCount = field(default_factory=MaskCount)
    arguments: MaskCount = field(default_factory=MaskCount)
    masked_steps: int = 0
    ended_early: int = 0  # requests, by an error in the engine
    ignored_limits: int = 0  # rows in which a request's allowed_token_ids or bad_words left no legal token
    adopted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(Adopted), 0))  # requests
    left: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(Left), 0))  # requests
    unconstrained_calls: int = 0  # calls begun in answers that this package did not constrain
    declined_calls: int = 0
    unmeant_calls: int = 0  # calls that were required though the model did not mean them
    grammars: CompileCounts = field(default_factory=CompileCounts)
    examined_rows: int = 0
    changed_rows: int = 0

    @property
    def source(self) -> str:
        """The process: a worker that was forked from the engine core has another one than the core."""
        return f"{self.id}-{os.getpid()}"

    def snapshot(self) -> dict[str, Any]:
        """The totals as plain values for any serializer, by the metric's name and, behind a space, its label."""
        grammars = self.grammars.snapshot()
        totals: dict[str, float] = {metric: getattr(self, name) for name, metric in _METRICS.items()}
        totals |= {name: grammars[name] for name in ("empty_masks", "late_refusals")}
        totals |= {"grammar_lookups hit": grammars["hits"], COMPILED: grammars["compiled"]}
        totals |= {f"adopted_requests {source}": count for source, count in self.adopted.items()}
        totals |= {f"left_requests {reason}": count for reason, count in self.left.items()}
        for phase, masks in (("constant", self.constant), ("header", self.header), ("arguments", self.arguments)):
            totals |= {f"masked_rows {phase}": masks.rows, f"mask_seconds {phase}": masks.seconds}
        return {"source": self.source, "totals": totals, "recent": grammars["recent"]}

    def count_ignored_limit(self) -> None:
        """Count a row in which a request's limits on tokens are ignored."""
        self.ignored_limits += 1


_METRICS = {each.name: each.name for each in fields(EngineCounters) if each.type is int} | {
    "ended_early": "ended_early_requests",
    "ignored_limits": "ignored_limit_rows",
    "examined_rows": "examined_tokens",
    "changed_rows": "masked_argmax_tokens",
}
"""The metrics of plain counts."""

COMPILED = "grammar_lookups miss"
"""The total of compilations, whose times are in a snapshot too."""

engine_counters = EngineCounters()
"""This process's counters; global, since the publisher holds no reference to the processor or backend that masks."""


MASK_COUNTS = dict.fromkeys(Phase, engine_counters.constant) | {
    Phase.CALL_ID: engine_counters.header,
    Phase.ARGUMENTS: engine_counters.arguments,
    Phase.ANSWER: engine_counters.arguments,
}


def fill(matcher: ToolCallMatcher, bitmask: Any, row: int) -> int:
    """Fill a row as :meth:`ToolCallMatcher.fill_bitmask` does, and count it; return how many of its words are not 0.

    Raises:
        ConstrainedK2Error: As there; or the row allows no token, so that nothing could be sampled.
    """
    count = MASK_COUNTS[matcher.phase]
    start = perf_counter()
    matcher.fill_bitmask(bitmask, row)
    words = int(np.count_nonzero(bitmask_rows(bitmask, matcher.vocabulary.size)[row]))
    if not words:
        problem = f"no token may follow the first {matcher.num_tokens} of this turn ({matcher.phase.name})"
        raise ConstrainedK2Error(problem, "mask", "Report it with the request's tools")
    count.seconds += perf_counter() - start
    count.rows += 1
    return words
