"""Runs requests through their calls, and counts what their masks copy to a device."""

from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.host.workload import Turn, Workload
from constrained_k2 import CompiledToolCalls, Compiler, ToolCallMatcher, ToolCallSpec
from constrained_k2.kernels import Workspace
from constrained_k2.turn.phases import Phase
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from constrained_k2.vllm_plugin.worker.known_masks import Ids, Row
from constrained_k2.vocabulary.bitmask import words_per_row

_PLAN_BYTES = 12
"""The size of a row in a plan that names its row of the logits, its mask and whether it is guarded."""


@dataclass(slots=True)
class Steps:
    """The bytes that some steps copy.

    Attributes:
        sizes: The bytes of each.
        whole: The bytes of each, if every mask that an engine computed and every call id's mask were copied.
        kinds: Rows whose tokens are listed, rows whose mask is on the device, rows whose mask is copied.
    """

    sizes: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=lambda: [0, 0, 0])

    @property
    def median(self) -> float:
        """The median step, in bytes."""
        return float(np.median(self.sizes))

    def row(self) -> str:
        """The cells of a table."""
        most = float(np.percentile(self.sizes, 99))
        shares = " | ".join(f"{kind / max(1, sum(self.kinds)):.1%}" for kind in self.kinds)
        return f"{len(self.sizes)} | {self.median:,.0f} | {most:,.0f} | {np.median(self.whole):,.0f} | {shares}"


class _CountedMasks(DeviceMasks):
    """Counts rows by how their masks reach the device, in ``counts`` as in :attr:`Steps.kinds`."""

    counts: list[int]

    def _launch(self, logits: torch.Tensor, plan: torch.Tensor, ids: torch.Tensor, workspace: Workspace | None) -> None:
        """Mask nothing: the tokens are known."""

    def _take_ids(self, row: int, ids: Ids, *, guarded: bool) -> None:
        super()._take_ids(row, ids, guarded=guarded)
        self.counts[0] += 1

    def _take_shared(self, row: int, mask: Row, *, guarded: bool) -> None:
        written = self._written
        super()._take_shared(row, mask, guarded=guarded)
        self.counts[1 if self._written == written else 2] += 1

    def _take_written(self, row: int, *, guarded: bool) -> None:
        super()._take_written(row, guarded=guarded)
        self.counts[2] += 1


@dataclass(slots=True)
class _Request:
    """A request that writes a call, and then the same one again."""

    compiled: CompiledToolCalls
    turn: Turn
    matcher: ToolCallMatcher = field(init=False)
    step: int = 0
    turns: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin the turn after its text."""
        self.matcher = self.compiled.matcher()
        self.step = self.turn.phases.index("marker")
        if not self.matcher.accept_tokens(self.turn.ids[: self.step]):
            raise RuntimeError("a turn begins with a token that is not allowed")

    def advance(self) -> None:
        """Take the next token, and begin again after the last one."""
        if not self.matcher.accept_tokens(self.turn.ids[self.step : self.step + 1]):
            raise RuntimeError(f"token {self.step} of a turn is not allowed")
        self.step += 1
        if self.step == len(self.turn.ids):
            self.turns += 1
            self.begin()


def count(workload: Workload, *, rows: int, tools: int, steps: int = 100) -> dict[str, Steps]:
    """Count the bytes of steps in which every request is in a call, each at a place of its own.

    Args:
        workload: The vocabulary, and the tools.
        rows: The number of requests.
        tools: The number of tools of each.
        steps: The number of steps that are counted after every request has written its call twice.

    Returns:
        The steps in which some request writes its call for the first time, and those after the second time.
    """
    size = workload.vocabulary.size
    given = workload.first(tools)
    compiled = Compiler(workload.vocabulary).compile(ToolCallSpec.from_openai({"tools": given}))
    requests = [_Request(compiled, workload.turn(given, number, calls=1)) for number in range(rows)]
    masks = _CountedMasks(size, rows, torch.device("cpu"), 0, pin=False)
    logits = torch.zeros((rows, 1))  # what is copied does not depend on their width
    found = {"new": Steps(), "seen before": Steps()}
    for request, number in zip(requests, range(rows), strict=True):
        for _ in range(number % 7):  # requests do not move in step
            request.advance()
    while len(found["seen before"].sizes) < steps:
        turns = min(request.turns for request in requests)
        _step(requests, masks, logits, found["new" if turns == 0 else "seen before"] if turns != 1 else Steps())
    return found


def _step(requests: list[_Request], masks: _CountedMasks, logits: torch.Tensor, into: Steps) -> None:
    before, whole, row_bytes = masks.uploaded_bytes, 0, 4 * words_per_row(requests[0].matcher.vocabulary.size)
    masks.counts = into.kinds
    masks.begin()
    masks.begin_rows()
    for row, request in enumerate(requests):
        masks.add(row, request.matcher)
        whole += request.matcher.phase is Phase.CALL_ID or request.matcher.arguments is not None
    masks.apply(logits)
    into.sizes.append(masks.uploaded_bytes - before)
    into.whole.append(_PLAN_BYTES * len(requests) + row_bytes * whole)
    for request in requests:
        request.advance()
