"""The overridden tokens of requests that ask for them, in their answers.

The request hook names a request by a random key, under which the engine core sends back its examined rows. They come
with the engine's outputs, and are taken out of these before anything else in the process sees them.
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.explain import ExaminedRow, ExplainLimits, Override, explain_rows
from constrained_k2.vllm_plugin.metrics.row_plan import OUTPUT_FIELD
from constrained_k2.vocabulary.vocabulary import Vocabulary

MAX_OVERRIDES = 64
"""The most overrides in a choice, and the most contested tokens: the likeliest ones."""

CONTESTED = 0.05
"""The least probability of a forbidden token that is shown where the likeliest token is allowed: sampling might have
chosen it."""

MAX_TOKENS = 2048
"""The most tokens of a choice that are shown with the number of tokens allowed in their place."""

_WHOLE = ExplainLimits(seconds=1.0)  # in a thread
_STREAMED = ExplainLimits(seconds=0.05)  # the event loop waits


@dataclass(slots=True)
class _Turn:
    """The tokens and rows of one choice, as far as they have come."""

    token_ids: list[int] = field(default_factory=list)
    rows: list[ExaminedRow] = field(default_factory=list)


class Examination:
    """The tokens and rows of a request's choices; found by its key as long as the request lives."""

    def __init__(self, compiled: CompiledToolCalls) -> None:
        self.key = secrets.token_hex(16)
        self.vocabulary: Vocabulary | None = None  # the model's
        self.in_reasoning = False
        self._compiled = compiled
        self._turns: dict[int, _Turn] = {}
        _by_key[self.key] = self

    def take(self, choice: int, token_ids: Iterable[int], rows: Iterable[list[Any]]) -> None:
        """Take what came with an output of a choice."""
        turn = self._turns.setdefault(choice, _Turn())
        turn.token_ids += token_ids
        turn.rows += map(ExaminedRow.from_list, rows)

    def report(self, choice: int, limits: ExplainLimits = _STREAMED) -> dict[str, Any]:
        """The overrides of a choice, for its diagnostics."""
        turn, vocabulary = self._turns.get(choice, _Turn()), self.vocabulary
        assert vocabulary is not None  # the parser sets it, which has admitted the request
        written = {row.position: row for row in turn.rows if row.is_written_after(turn.token_ids)}
        overrides = explain_rows(
            self._compiled,
            vocabulary,
            turn.token_ids,
            list(written.values()),
            in_reasoning=self.in_reasoning,
            contested=CONTESTED,
            limits=limits,
        )
        overridden = [each for each in overrides if each.row.is_overridden]
        return {
            "overrides": _likeliest(overridden),
            "overrides_count": len(overridden),
            "contested": _likeliest([each for each in overrides if not each.row.is_overridden]),
            "examined_rows": len(written),
            "tokens": [
                {"text": vocabulary.decode([token]), "allowed": written[at].allowed if at in written else None}
                for at, token in enumerate(turn.token_ids[:MAX_TOKENS])
            ],
        }

    async def report_whole(self, choice: int) -> dict[str, Any]:
        """The same of a whole answer, in a thread: it may take longer."""
        return await asyncio.to_thread(self.report, choice, _WHOLE)


def _likeliest(overrides: list[Override]) -> list[dict[str, Any]]:
    found = sorted(overrides, key=lambda override: -override.row.probability)[:MAX_OVERRIDES]
    return [override.to_dict() for override in sorted(found, key=lambda override: override.row.position)]


_by_key: WeakValueDictionary[str, Examination] = WeakValueDictionary()


def take_rows(outputs: Iterable[Any], states: Mapping[str, Any]) -> None:
    """Take the examined rows out of the engine's outputs.

    Args:
        outputs: vLLM's ``EngineCoreOutput`` objects.
        states: vLLM's states of its requests, by the engine's ids.
    """
    for output in outputs:
        carried = output.kv_transfer_params
        sent = None if carried is None else carried.get(OUTPUT_FIELD)
        if not isinstance(sent, dict) or not isinstance(
            sent.get("key"), str
        ):  # a connector may hand back whatever a client sent it
            continue
        output.kv_transfer_params = {key: value for key, value in carried.items() if key != OUTPUT_FIELD} or None
        examination, state = _by_key.get(sent["key"]), states.get(output.request_id)
        if examination is not None and state is not None:
            examination.take(state.request_index, output.new_token_ids, sent["rows"])
