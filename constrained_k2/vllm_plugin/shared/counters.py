"""Counts masks, and the time that they take, in the process that computes them."""

import os
import secrets
from dataclasses import dataclass, field
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


def _new_source() -> str:
    """A random id of this process."""
    return secrets.token_hex(8)


@dataclass(slots=True, eq=False)
class EngineCounters:
    """Totals of one process that computes masks. One thread adds to each; other threads only read.

    ``constant`` rows are outside call ids and arguments, ``header`` rows inside ``functions.NAME:INDEX``. The mask
    forbade the unmasked argmax of ``changed_rows`` of the ``examined_rows``.
    """

    source: str = field(default_factory=_new_source)
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
    def age(self) -> int:
        """A number that grows with every count; 0 before the first."""
        grammars = self.grammars
        requests = sum(self.adopted.values()) + sum(self.left.values()) + self.unconstrained_calls
        requests += self.declined_calls + self.unmeant_calls
        rows = self.masked_steps + self.examined_rows
        return rows + self.ended_early + grammars.compiled + grammars.hits + requests

    def snapshot(self) -> dict[str, Any]:
        """The totals as plain values for any serializer."""
        grammars = self.grammars.snapshot()
        totals: dict[str, float] = {
            "masked_steps": self.masked_steps,
            "ended_early": self.ended_early,
            "ignored_limits": self.ignored_limits,
            "hits": grammars["hits"],
            "compiled": grammars["compiled"],
            "empty_masks": grammars["empty_masks"],
            "late_refusals": grammars["late_refusals"],
            "examined_rows": self.examined_rows,
            "changed_rows": self.changed_rows,
            "declined_calls": self.declined_calls,
            "unmeant_calls": self.unmeant_calls,
        }
        totals |= {f"adopted_{source}": count for source, count in self.adopted.items()}
        totals |= {f"left_{reason}": count for reason, count in self.left.items()}
        totals["unconstrained_calls"] = self.unconstrained_calls
        for kind, masks in (("constant", self.constant), ("header", self.header), ("arguments", self.arguments)):
            totals |= {f"{kind}_rows": masks.rows, f"{kind}_seconds": masks.seconds}
        return {"source": self.source, "totals": totals, "recent": grammars["recent"]}

    def count_ignored_limit(self) -> None:
        """Count a row in which a request's limits on tokens are ignored."""
        self.ignored_limits += 1


engine_counters = EngineCounters()
"""This process's counters; global, since the publisher holds no reference to the processor or backend that masks."""


def _be_another_source() -> None:
    """In a worker that was forked from the engine core, which would take the worker's counts for its own."""
    engine_counters.source = _new_source()


os.register_at_fork(after_in_child=_be_another_source)

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
