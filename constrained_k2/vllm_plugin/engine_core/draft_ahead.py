"""Grammar drafts for vLLM's V2 model runner, which keeps drafts on the device and does not read those of the schedule.

Under asynchronous scheduling a request's next step is scheduled, and its forward pass begins, while the step before it
is in flight. So drafts are made for guessed outcomes of that step (:mod:`constrained_k2.turn.drafts.lookahead`) and
sent with the schedule; the workers choose by the outcome. When it has come back, vLLM makes the masks; there the engine
core chooses the same way, and vLLM checks what was chosen against the grammar. So a guess that fails costs draft
positions, never a token. Under synchronous scheduling the outcome is known, and there is one guess.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.v1.outputs import DraftTokenIds
from vllm.v1.structured_output.utils import strip_speculative_padding

from constrained_k2.turn.drafts.lookahead import Guess
from constrained_k2.vllm_plugin.draft_table import DraftTable, attach, tables_of
from constrained_k2.vllm_plugin.engine_core.draft_scores import DraftScores
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.speculation import GrammarDrafting

GrammarOf = Callable[[Any], ToolCallGrammar | None]
"""A request's grammar; None if it is not ours."""

MAX_GUESSES = 32
"""The most guesses a step, over all requests."""

_PER_REQUEST = 4


class DraftSender:
    """Sends grammar drafts with the schedules of one scheduler."""

    def __init__(self, grammar_of: GrammarOf, drafting: GrammarDrafting, scores: DraftScores) -> None:
        self._grammar_of = grammar_of
        self._drafting = drafting
        self._scores = scores
        self._in_flight: Any = None  # the SchedulerOutput of the last step
        self._next = 0  # where the guesses of a step run out, the next step begins with the request behind

    def before_schedule(self, running: Sequence[Any]) -> dict[str, DraftTable]:
        """Guess for requests that may be scheduled. Where nothing else drafts, set their numbers of draft positions."""
        tables: dict[str, DraftTable] = {}
        if not self._drafting.ahead:
            return tables
        start, left = self._next % max(1, len(running)), MAX_GUESSES
        most = min(_PER_REQUEST, max(1, MAX_GUESSES // max(1, len(running))))
        for number, request in enumerate((*running[start:], *running[:start])):
            positions = len(request.spec_token_ids)  # vLLM's placeholders
            grammar = self._grammar_of(request) if positions else None
            table = None
            if grammar is not None and left:
                table = self._guesses(request, grammar, positions, min(left, most))
                left -= 1 if table is None else len(table.guesses)
                if not left:
                    self._next = start + number + 1
            if table is not None:
                tables[request.request_id] = table
            if self._drafting.alone:
                request.spec_token_ids = [] if table is None else [-1] * table.width
        return tables

    def after_schedule(self, scheduled: Any, tables: dict[str, DraftTable], requests: Mapping[str, Any]) -> None:
        """Send the tables of the requests that were scheduled with draft positions."""
        drafts = scheduled.scheduled_spec_decode_tokens
        if not self._drafting.ahead:
            known = {request_id: self._certain(requests[request_id], ids) for request_id, ids in drafts.items()}
            tables = {request_id: table for request_id, table in known.items() if table is not None}
        if sent := {request_id: table for request_id, table in tables.items() if request_id in drafts}:
            attach(scheduled, sent)
        if scheduled.total_num_scheduled_tokens:
            self._in_flight = scheduled

    def choose(self, proposed: DraftTokenIds, scheduled: Any, requests: Mapping[str, Any]) -> DraftTokenIds:
        """The drafts that the workers chose, of vLLM's proposed ones and those that were sent with a schedule."""
        tables, chosen = tables_of(scheduled), []
        for request_id, drafts in zip(proposed.req_ids, proposed.draft_token_ids, strict=True):
            found = [] if self._drafting.alone else drafts
            request, table = requests.get(request_id), tables.get(request_id)
            if request is not None and table is not None:
                if found:
                    self._compare(request, table, found)
                found = list(table.chosen(request.num_tokens, request.all_token_ids[-1], found))
            chosen.append(found)
        return DraftTokenIds(proposed.req_ids, chosen)

    def _guesses(self, request: Any, grammar: ToolCallGrammar, positions: int, most: int) -> DraftTable | None:
        step = self._in_flight
        if step is None or request.is_prefill_chunk or request.request_id not in step.num_scheduled_tokens:
            return None
        drafted = step.scheduled_spec_decode_tokens.get(request.request_id, [])
        if request.num_output_placeholders != 1 + len(drafted):  # preempted since, or more than one step is in flight
            return None
        guesses = grammar.look_ahead(strip_speculative_padding(drafted), positions, most)
        if self._scores.prefers_grammar:
            guesses = [guess._replace(forced=len(guess.drafts)) for guess in guesses]
        return DraftTable(request.num_tokens, tuple(guesses)) if guesses else None

    def _compare(self, request: Any, table: DraftTable, proposed: Sequence[int]) -> None:
        """Compare the grammar's drafts with the proposed ones."""
        grammar = self._grammar_of(request)
        guess = table.came_true(request.num_tokens, request.all_token_ids[-1])
        if grammar is not None and guess is not None:
            self._scores.compare(grammar, request.all_token_ids, proposed, guess.drafts)

    def _certain(self, request: Any, drafts: Sequence[int]) -> DraftTable | None:
        if self._grammar_of(request) is None or not drafts or min(drafts) < 0:
            return None
        return DraftTable(request.num_tokens, (Guess(0, request.all_token_ids[-1], tuple(drafts), len(drafts)),))
