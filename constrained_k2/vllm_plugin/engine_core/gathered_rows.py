"""The examined rows of an engine core's requests: planned here, gathered as they come, and handed on.

Rows come from the workers with each step's output. Those of a request that asks for all of its own go to its front end
with its next output.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from constrained_k2.explain.records import ExaminedRow
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.metrics.row_plan import OUTPUT_FIELD, ROWS_KEY, PlannedRow, RowSampler, rows_of
from constrained_k2.vllm_plugin.metrics.row_probe import RequestRow

MAX_ROWS_ASKED = 4096
"""The most rows of a request that asks for its own."""

_MAX_ASKING = 1024
"""The most requests that ask for their rows at a time. The rows of the oldest are sampled beyond that."""


class GatheredRows:
    """The examined rows of one engine core. Requests may arrive in another thread than its scheduler's."""

    def __init__(self, interval: int) -> None:
        self._sampler = RowSampler(interval)
        self._asking: dict[str, str] = {}  # the requests that ask for all of their rows, each with its key
        self._counts: dict[str, int] = {}  # of requests that ask: the rows that came
        self._unsent: dict[str, list[ExaminedRow]] = {}
        self._ended: list[str] = []  # since the last step

    def add_request(self, request_id: str, extra_args: Mapping[str, Any] | None) -> None:
        """Note a constrained request that asks for its rows."""
        key = (extra_args or {}).get(ROWS_KEY)
        if isinstance(key, str):
            self._asking[request_id] = key
            while len(self._asking) > _MAX_ASKING:
                del self._asking[next(iter(self._asking))]

    def plan(
        self, requests: Mapping[str, Any], ids: Sequence[str], drafts: Mapping[str, Sequence[int]]
    ) -> list[PlannedRow]:
        """The rows to examine of a step on the structured-output route.

        Args:
            requests: vLLM's requests by id.
            ids: Those of the step, in the order of their rows.
            drafts: Their draft tokens; -1 where one is illegal: the rows after it have no mask.
        """
        sampled = self._sampler.begin_step()
        if not (sampled or self._asking):
            return []
        return self._sampler.choose(_structured_rows(requests, ids, drafts, all_of=self._asking, sampled=sampled))

    def take(self, rows: Iterable[RequestRow], requests: Mapping[str, Any]) -> None:
        """Gather the rows of requests that ask. Those of one that has ended are of a step that ran ahead of its end."""
        for request_id, row in rows:
            if request_id not in requests or request_id not in self._asking:
                continue
            count = self._counts[request_id] = self._counts.get(request_id, 0) + 1
            if count <= MAX_ROWS_ASKED:
                self._unsent.setdefault(request_id, []).append(row)

    def attach(self, outputs: Mapping[int, Any]) -> None:
        """Send rows to the front ends, with the outputs of a step, ``EngineCoreOutputs`` by client."""
        if not (self._asking or self._ended):
            return
        for output in (output for client in outputs.values() for output in client.outputs):
            key = self._asking.get(output.request_id)
            if key is not None:
                rows = [row.to_list() for row in self._unsent.pop(output.request_id, ())]
                sent = {"key": key, "rows": rows}
                output.kv_transfer_params = {**(output.kv_transfer_params or {}), OUTPUT_FIELD: sent}
        for request_id in self._ended:
            self._asking.pop(request_id, None)
            self._unsent.pop(request_id, None)
        self._ended.clear()

    def end(self, request_id: str) -> None:
        """Forget a request that has ended, once its last output has been sent."""
        if request_id in self._asking:
            self._ended.append(request_id)
            self._counts.pop(request_id, None)


def _structured_rows(
    requests: Mapping[str, Any], ids: Sequence[str], drafts: Mapping[str, Sequence[int]], *, all_of: Mapping[str, Any],
    sampled: bool,
) -> list[PlannedRow]:  # fmt: skip
    """The rows of a step that may be examined: all if it is ``sampled``, else those of the requests in ``all_of``."""
    rows: list[PlannedRow] = []
    for number, request_id in enumerate(ids):
        asked = request_id in all_of
        if not (asked or sampled):
            continue
        request = requests[request_id]
        grammar = request.structured_output_request.grammar
        if isinstance(grammar, ToolCallGrammar) and grammar.matcher is not None:
            rows += rows_of(number, request_id, request.num_output_tokens, drafts.get(request_id, ()), asked=asked)
    return rows
