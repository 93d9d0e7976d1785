"""The answers that a run dictates to the model, so that an agent meets the same turns on every machine."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from constrained_k2 import ToolCall, Vocabulary
from constrained_k2.prompts import render_tool_calls
from scripts.agents.observation import tool_names


@dataclass(frozen=True)
class Call:
    """A tool call; the tool is the first declared one whose name ends so: clients put a server's name in front."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Sampled:
    """A turn whose calls the model samples itself: only the marker that opens the tool-calls section is dictated."""


@dataclass(frozen=True)
class Turn:
    """A dictated turn: reasoning, then text, then calls; each may be missing."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()


Answer: TypeAlias = Turn | Sampled
# Random arguments may go on for long: a sampled answer ends by itself within this many tokens, the second in reserve.
_SAMPLED_TOKENS, _FINISH_RESERVE = 1200, 500
# With reasoning: vLLM's parser, which reads answers without tools, takes a text that has no `</think>` for reasoning.
LAST = Turn(reasoning="That was it.", text="All of it is done.")
_TITLE = Turn(reasoning="A short one.", text="A title")


class Dictation:
    """Answers a run's requests in order: those with tools by ``turns``, then by ``last``; those without, by a title.

    The requests with tools are the agent's turns; those without are its side questions, such as one for a title.
    """

    def __init__(
        self, vocabulary: Vocabulary, turns: Sequence[Answer], last: Turn = LAST, *, without_tools: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._turns = list(turns)
        self._last = last
        self._without_tools = without_tools  # True for an agent that sends no tools: its turns are the requests
        self._lock = threading.Lock()
        self.taken = 0
        self.undeclared: set[str] = set()  # tools that a turn should call and the request did not have

    def __call__(self, body: Mapping[str, Any], first_index: int) -> dict[str, Any]:
        """Return the fields to add to a request: its answer's first token ids, and a sampled one's limits."""
        names = tool_names(body)
        if not names and not self._without_tools:
            return _script(self._encode(_TITLE, names, first_index))
        with self._lock:
            turn = self._turns[self.taken] if self.taken < len(self._turns) else self._last
            self.taken += 1
        if isinstance(turn, Sampled):
            limit = "max_output_tokens" if "input" in body else "max_tokens"
            ending = {"constrained_k2_finish_reserve": _FINISH_RESERVE}
            fields = _script([self._vocabulary.format.section_begin], **ending) | {limit: _SAMPLED_TOKENS}
            if "budget_tokens" in (body.get("thinking") or {}):  # it must be below the limit
                fields["thinking"] = body["thinking"] | {"budget_tokens": 1024}
            return fields
        return _script(self._encode(turn, names, first_index))

    @property
    def is_done(self) -> bool:
        """True if every turn was asked for."""
        return self.taken >= len(self._turns)

    def _encode(self, turn: Turn, names: Sequence[str], first_index: int) -> list[int]:
        markers = self._vocabulary.format
        ids: list[int] = []
        if turn.reasoning:
            ids += [markers.think_begin, *self._vocabulary.encode(turn.reasoning), markers.think_end]
        ids += self._vocabulary.encode(turn.text)
        calls = []
        for index, call in enumerate(turn.calls if names else (), first_index):
            name = next((name for name in names if name.endswith(call.tool)), None)
            if name is None:
                self.undeclared.add(call.tool)
                continue
            calls.append(ToolCall(name, index, json.dumps(dict(call.arguments))))
        return [*ids, *render_tool_calls(calls, self._vocabulary), markers.turn_end]


def _script(ids: list[int], **more: int) -> dict[str, Any]:
    return {"vllm_xargs": {"script": ids, **more}}
