"""Counts masks, and the time that they take, in the process that computes them."""

import secrets
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from constrained_k2.compiler.cache import CompileCounts
from constrained_k2.turn.batch import MaskCount
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase


@dataclass(slots=True, eq=False)
class EngineCounters:
    """Totals of one process that computes masks. Only the masking thread adds to them; other threads only read.

    ``constant`` rows are outside call ids and arguments, ``header`` rows inside ``functions.NAME:INDEX``. The mask
    forbade the unmasked argmax of ``changed_rows`` of the ``examined_rows``: int64 ``[1]`` each, to be summed; arrays,
    so that devices can copy counts into them.
    """

    source: str = field(default_factory=lambda: secrets.token_hex(8))  # a random id of this process
    constant: MaskCount = field(default_factory=MaskCount)
    header: MaskCount = field(default_factory=MaskCount)
    arguments: MaskCount = field(default_factory=MaskCount)
    masked_steps: int = 0
    ended_early: int = 0  # requests, by an error in the engine
    ignored_limits: int = 0  # rows in which a request's allowed_token_ids or bad_words left no legal token
    grammars: CompileCounts = field(default_factory=CompileCounts)
    examined_rows: int = 0
    changed_rows: list[npt.NDArray[np.int64]] = field(default_factory=list)

    @property
    def age(self) -> int:
        """A number that grows with every count; 0 before the first."""
        grammars = self.grammars
        return self.masked_steps + self.examined_rows + self.ended_early + grammars.compiled + grammars.hits

    def snapshot(self) -> dict[str, Any]:
        """The totals as plain values for any serializer."""
        grammars = self.grammars.snapshot()
        totals: dict[str, float] = {
            "masked_steps": self.masked_steps,
            "ended_early": self.ended_early,
            "ignored_limits": self.ignored_limits,
            "hits": grammars["hits"],
            "compiled": grammars["compiled"],
            "examined_rows": self.examined_rows,
            "changed_rows": sum(int(count[0]) for count in self.changed_rows),
        }
        for kind, masks in (("constant", self.constant), ("header", self.header), ("arguments", self.arguments)):
            totals |= {f"{kind}_rows": masks.rows, f"{kind}_seconds": masks.seconds}
        return {"source": self.source, "totals": totals, "recent": grammars["recent"]}

    def count_ignored_limit(self) -> None:
        """Count a row in which a request's limits on tokens are ignored."""
        self.ignored_limits += 1


engine_counters = EngineCounters()
"""This process's counters; global, since the publisher holds no reference to the processor or backend that masks."""

MASK_COUNTS = dict.fromkeys(Phase, engine_counters.constant) | {
    Phase.CALL_ID: engine_counters.header,
    Phase.ARGUMENTS: engine_counters.arguments,
    Phase.ANSWER: engine_counters.arguments,
}


def fill(matcher: ToolCallMatcher, bitmask: Any, row: int) -> None:
    """Fill a row as :meth:`ToolCallMatcher.fill_bitmask` does, and count it."""
    count = MASK_COUNTS[matcher.phase]
    start = perf_counter()
    matcher.fill_bitmask(bitmask, row)
    count.seconds += perf_counter() - start
    count.rows += 1
