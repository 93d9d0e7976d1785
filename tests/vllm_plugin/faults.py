"""Faults in one request's matcher: each step that the structured-output route takes can be made to raise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from constrained_k2 import SchemaTooCostly, ToolCallMatcher
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.xgrammar.engine import XGrammarMatcher
from constrained_k2.turn import pipeline
from constrained_k2.turn.call_id import CallIdMatcher
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.finish_budget import _FinishFilter
from constrained_k2.turn.thinking_budget import _ThinkingFilter
from constrained_k2.turn.token_restriction import TokenRestriction


class Panic(BaseException):
    """Stands for PyO3's exception of Rust's panics, which derives from ``BaseException``."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "announced": lambda: SchemaTooCostly("the engine gives up", "", "", budget="engine"),
    "bug": lambda: RuntimeError("a bug"),
    "panic": lambda: Panic("a panic"),
}

Owns = Callable[[ToolCallMatcher, Any], bool]
"""True if a step's first argument belongs to this matcher's request."""


def _of_engine(victim: ToolCallMatcher, engine: Any) -> bool:
    return victim.arguments is engine


STEPS: dict[str, tuple[tuple[tuple[Any, str], ...], Owns]] = {
    f"turn {name}": (((ToolCallMatcher, name),), lambda victim, turn: turn is victim)
    for name in ("accept_tokens", "rollback", "fill_bitmask", "token_set", "is_terminated", "forced_tokens",
                 "token_ids")
} | {
    f"pipeline {name}": (((pipeline, name),), lambda victim, turn: turn is victim)
    for name in ("token_set", "_fill_known", "_narrow")
} | {
    f"engine {name}": (((LLGuidanceMatcher, name), (XGrammarMatcher, name)), _of_engine)
    for name in ("fill", "mask_without_engine", "forced_tokens", "accept", "rollback", "is_complete")
} | {
    "engine fill_batch": (
        ((LLGuidanceMatcher, "fill_batch"), (XGrammarMatcher, "fill_batch")),
        lambda victim, batch: any(matcher is victim.arguments for matcher, _ in batch),
    ),
    "call id allowed": (((CallIdMatcher, "allowed"),), lambda _, call_ids: "victim" in call_ids._trie.names.values()),
    "call id step": (((CallIdMatcher, "step"),), lambda _, call_ids: "victim" in call_ids._trie.names.values()),
    "call id name_of": (((CallIdMatcher, "name_of"),), lambda _, call_ids: "victim" in call_ids._trie.names.values()),
    "draft": (((Drafter, "draft"),), lambda victim, drafter: drafter._matcher is victim),
    "finish budget narrow_set": (((_FinishFilter, "narrow_set"),), lambda victim, each: each in victim.budgets),
    "finish budget narrow_row": (((_FinishFilter, "narrow_row"),), lambda victim, each: each in victim.budgets),
    "finish budget truncate": (((_FinishFilter, "truncate"),), lambda victim, each: each in victim.budgets),
    "thinking budget narrow_set": (((_ThinkingFilter, "narrow_set"),), lambda victim, each: each in victim.budgets),
    "limits apply": (((TokenRestriction, "apply"),), lambda victim, each: each is victim.limits),
}  # fmt: skip


@dataclass
class Fault:
    """A step that raises, from some call of it on; ``raised`` counts how often it has."""

    step: str
    error: str
    start: int  # calls of the step that go well before
    lasting: bool = True  # or once
    is_paused: bool = False
    calls: int = 0
    raised: int = 0

    def _is_due(self) -> bool:
        self.calls += 1
        due = self.calls > self.start and (self.lasting or not self.raised)
        self.raised += due
        return due

    @contextmanager
    def in_request(self, victim: Callable[[], ToolCallMatcher | None]) -> Iterator["Fault"]:
        """Let the step raise wherever it is taken for the victim's matcher."""
        places, owns = STEPS[self.step]
        originals = [(owner, name, owner.__dict__[name]) for owner, name in places]

        def wrapped(original: Any) -> Any:
            call = original.__func__ if isinstance(original, staticmethod) else original

            def step(first: Any, *args: Any, **kwargs: Any) -> Any:
                matcher, error = victim(), ERRORS[self.error]()
                if not self.is_paused and matcher is not None and owns(matcher, first) and self._is_due():
                    raise error
                return call(first, *args, **kwargs)

            return staticmethod(step) if isinstance(original, staticmethod) else step

        try:
            for owner, name, original in originals:
                setattr(owner, name, wrapped(original))
            yield self
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)
