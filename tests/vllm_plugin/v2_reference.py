"""Requests to vLLM's V2 model runner, each followed by a matcher of its own, and what their rows are compared with."""

from typing import Any

import torch

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec
from tests.kit.tools import tool
from tests.kit.walks import ids_of
from tests.vllm_plugin.served import asking, left
from tests.vllm_plugin.v2_engine import V2Engine

PARAMETERS = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "s": {"enum": ["a", "bc", "d"]}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [tool("f", PARAMETERS), tool("go", {"type": "object", "additionalProperties": False})]
BODIES: list[dict[str, Any] | None] = [
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "go"}}, "thinking": True},
    {"tools": TOOLS, "tool_choice": "none"},
    None,
]


class Reference:
    """One request, followed by a matcher of its own."""

    def __init__(self, compiler: Compiler, body: Any, prompt: list[int], **options: Any) -> None:
        self.params = asking(body, **options)
        self.prompt = prompt
        self.output: list[int] = []
        self.matcher: ToolCallMatcher | None = None
        if body is not None:
            in_reasoning = prompt[-1] == compiler.vocabulary.format.think_begin
            self.matcher = compiler.compile(ToolCallSpec.from_openai(body)).matcher(in_reasoning=in_reasoning)

    def allowed(self, drafts: list[int]) -> set[int] | None:
        """The tokens that may follow these drafts; None if they are illegal, or anything may follow."""
        matcher = self.matcher
        if matcher is None:
            return None
        legal = matcher.validate_tokens(drafts)
        if len(legal) < len(drafts) and not self.stops(legal):
            return None
        matcher.accept_tokens(legal)
        allowed = set(ids_of(matcher))
        matcher.rollback(len(legal))
        return allowed

    def stops(self, ids: list[int]) -> bool:
        assert self.matcher is not None
        markers = self.matcher.vocabulary.format
        return self.matcher.is_terminated() or any(token in markers.stop_ids for token in ids)

    def take(self, ids: list[int]) -> None:
        self.output += ids
        if self.matcher is not None:
            for token in ids:
                assert self.matcher.is_terminated() or self.matcher.accept_tokens([token]), "outside the grammar"


def check_masks(engine: V2Engine, requests: dict[str, Reference], batch: list[str], drafts: dict[str, list[int]],
                before: torch.Tensor) -> None:  # fmt: skip
    """Compare every row of the newest step with its request's reference."""
    _, after = engine.recorder.steps[-1]
    row = 0
    for name in batch:
        for count in range(len(drafts.get(name, [])) + 1):
            expected = requests[name].allowed(drafts.get(name, [])[:count])
            kept = left(after[row])
            if expected is not None:
                assert kept == expected, (name, count)
                assert torch.equal(after[row, sorted(kept)], before[row, sorted(kept)])
            elif requests[name].matcher is None:
                assert torch.equal(after[row], before[row])
            else:
                assert len(kept) == 1  # behind an illegal draft: the stop only
            row += 1
    assert row == len(after)
