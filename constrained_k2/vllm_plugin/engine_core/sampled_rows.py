"""Plans which rows of a step are examined on the structured-output route: only our requests' rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.shared.row_plan import PlannedRow, RowSampler, rows_of


class SampledRows:
    """Plans the rows to examine in one engine core: at most a few rows of each sampled step."""

    def __init__(self) -> None:
        self._sampler = RowSampler()

    def plan(
        self, requests: Mapping[str, Any], ids: Sequence[str], drafts: Mapping[str, Sequence[int]]
    ) -> list[PlannedRow]:
        """The rows to examine of a step.

        Args:
            requests: vLLM's requests by id.
            ids: Those of the step, in the order of their rows.
            drafts: Their draft tokens; -1 where one is illegal: the rows after it have no mask.
        """
        if not self._sampler.begin_step():
            return []
        rows: list[PlannedRow] = []
        for number, request_id in enumerate(ids):
            grammar = requests[request_id].structured_output_request.grammar
            if isinstance(grammar, ToolCallGrammar) and grammar.matcher is not None:
                rows += rows_of(number, drafts.get(request_id, ()), request_id)
        return self._sampler.choose(rows)
