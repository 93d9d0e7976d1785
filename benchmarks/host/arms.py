"""The arms of the benchmark: our split matcher and the engines' builtin whole-format grammars, with one interface."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.baselines.whole_turn import LLGuidanceWhole, XGrammarTag
from constrained_k2.compiler.compiler import CompiledToolCalls, Compiler
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.batch import fill_bitmasks
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.vocabulary.bitmask import bitmask_rows
from constrained_k2.vocabulary.vocabulary import Vocabulary

Bits = npt.NDArray[np.int32]
Tools = list[dict[str, Any]]


class Arm(Protocol):
    """One way to constrain. Measurements treat compiled requests and matchers as opaque."""

    name: str

    def forget(self) -> None:
        """Clear the cache of compiled grammars."""

    def takes(self, tool: dict[str, Any]) -> bool:
        """True if the arm can compile a tool."""

    def request(self, tools: Tools) -> Any:
        """Return what the engine's process receives with a request; not timed."""

    def compile(self, request: Any) -> Any:
        """Compile a request: everything before its first mask except creating the matcher."""

    def matcher(self, compiled: Any) -> Any:
        """Return a matcher at the start of the turn that can roll back some tokens."""

    def fill(self, matcher: Any, bitmask: Bits, row: int) -> None:
        """Fill one row."""

    def fill_batch(self, matchers: Sequence[Any], bitmask: Bits) -> None:
        """Fill row ``i`` for the ``i``-th matcher, in the arm's fastest way."""

    def accept(self, matcher: Any, token_id: int) -> bool:
        """Accept a token; False if it is not allowed."""

    def rollback(self, matcher: Any, count: int) -> None:
        """Roll back tokens."""

    def fork(self, matcher: Any) -> Any:
        """Return an independent copy."""


class Ours:
    """The split matcher, as a logits processor uses it: it reads the spec's JSON and compiles schemas on first call."""

    name = "ours"

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None) -> None:
        self.compiler = Compiler(vocabulary, undeclared_keys="allow", threads=threads)

    def forget(self) -> None:
        """See :class:`Arm`."""
        self.compiler.forget()

    def takes(self, tool: dict[str, Any]) -> bool:
        """See :class:`Arm`."""
        try:
            self.compiler.compile(ToolCallSpec.from_openai({"tools": [tool]}))
        except ConstrainedK2Error:
            return False
        return True

    def request(self, tools: Tools) -> str:
        """See :class:`Arm`."""
        return ToolCallSpec.from_openai({"tools": tools}).to_json()

    def compile(self, request: str) -> CompiledToolCalls:
        """See :class:`Arm`."""
        return self.compiler.compile(ToolCallSpec.from_json(request), check=False)

    def matcher(self, compiled: CompiledToolCalls) -> ToolCallMatcher:
        """See :class:`Arm`."""
        return compiled.matcher()

    def fill(self, matcher: ToolCallMatcher, bitmask: Bits, row: int) -> None:
        """See :class:`Arm`."""
        matcher.fill_bitmask(bitmask, row)

    def fill_batch(self, matchers: Sequence[ToolCallMatcher], bitmask: Bits) -> None:
        """See :class:`Arm`."""
        failed = fill_bitmasks(matchers, bitmask, range(len(matchers)))
        assert not failed

    def accept(self, matcher: ToolCallMatcher, token_id: int) -> bool:
        """See :class:`Arm`."""
        return matcher.accept_tokens((token_id,))

    def rollback(self, matcher: ToolCallMatcher, count: int) -> None:
        """See :class:`Arm`."""
        matcher.rollback(count)

    def fork(self, matcher: ToolCallMatcher) -> ToolCallMatcher:
        """See :class:`Arm`."""
        return matcher.fork()


class XGrammarArm:
    """xgrammar's ``kimi`` structural tag, as vLLM uses it."""

    name = "xgrammar's tag"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tag = XGrammarTag(vocabulary)

    def forget(self) -> None:
        """See :class:`Arm`."""
        self._tag.forget()

    def takes(self, tool: dict[str, Any]) -> bool:
        """See :class:`Arm`."""
        return self._tag.takes(tool)

    def request(self, tools: Tools) -> Tools:
        """See :class:`Arm`."""
        return tools

    def compile(self, request: Tools) -> Any:
        """See :class:`Arm`."""
        return self._tag.compile(request)

    def matcher(self, compiled: Any) -> Any:
        """See :class:`Arm`."""
        return self._tag.matcher(compiled, drafts=8)

    def fill(self, matcher: Any, bitmask: Bits, row: int) -> None:
        """See :class:`Arm`."""
        matcher.fill_next_token_bitmask(bitmask, row)

    def fill_batch(self, matchers: Sequence[Any], bitmask: Bits) -> None:
        """See :class:`Arm`."""
        self._tag.fill_batch([(matcher, row) for row, matcher in enumerate(matchers)], bitmask)

    def accept(self, matcher: Any, token_id: int) -> bool:
        """See :class:`Arm`."""
        return bool(matcher.accept_token(token_id))

    def rollback(self, matcher: Any, count: int) -> None:
        """See :class:`Arm`."""
        matcher.rollback(count)

    def fork(self, matcher: Any) -> Any:
        """See :class:`Arm`."""
        return matcher.fork()


class LLGuidanceArm:
    """One Lark grammar of the whole turn, with arguments by LLGuidance's builtin converter."""

    name = "LLGuidance's grammar"

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None) -> None:
        self._whole = LLGuidanceWhole(vocabulary, threads)
        self._compiled: dict[str, Any] = {}  # LLGuidance has no cache; a server would cache recent grammars
        self._size = vocabulary.size

    def forget(self) -> None:
        """See :class:`Arm`."""
        self._compiled.clear()

    def takes(self, tool: dict[str, Any]) -> bool:
        """See :class:`Arm`."""
        try:
            self._whole.compile([tool])
        except ValueError:
            return False
        return True

    def request(self, tools: Tools) -> Tools:
        """See :class:`Arm`."""
        return tools

    def compile(self, request: Tools) -> Any:
        """See :class:`Arm`."""
        key = json.dumps(request)
        if key not in self._compiled:
            self._compiled[key] = self._whole.compile(request)
        return self._compiled[key]

    def matcher(self, compiled: Any) -> Any:
        """See :class:`Arm`."""
        return compiled.deep_copy()

    def fill(self, matcher: Any, bitmask: Bits, row: int) -> None:
        """See :class:`Arm`."""
        rows = bitmask_rows(bitmask, self._size)
        matcher.unsafe_compute_mask_ptr(rows.address + row * rows.row_bytes, rows.row_bytes)

    def fill_batch(self, matchers: Sequence[Any], bitmask: Bits) -> None:
        """See :class:`Arm`."""
        batch = [(matcher, row) for row, matcher in enumerate(matchers)]
        self._whole.fill_batch(batch, bitmask_rows(bitmask, self._size))

    def accept(self, matcher: Any, token_id: int) -> bool:
        """See :class:`Arm`."""
        return bool(matcher.try_consume_tokens([token_id]))

    def rollback(self, matcher: Any, count: int) -> None:
        """See :class:`Arm`."""
        matcher.rollback(count)

    def fork(self, matcher: Any) -> Any:
        """See :class:`Arm`."""
        return matcher.deep_copy()


@contextmanager
def counted_engine_calls() -> Iterator[Callable[[], int]]:
    """Count calls into our matchers' engine inside the block; yields a function that returns the count."""
    count = 0
    names = ("fill", "fill_batch", "accept", "rollback", "is_complete", "fork", "forced_tokens")
    originals = {name: LLGuidanceMatcher.__dict__[name] for name in names}

    def counting(original: Any) -> Any:
        function = original.__func__ if isinstance(original, staticmethod) else original

        def counted(*args: Any) -> Any:
            nonlocal count
            count += 1
            return function(*args)

        return staticmethod(counted) if isinstance(original, staticmethod) else counted

    for name, original in originals.items():
        setattr(LLGuidanceMatcher, name, counting(original))
    try:
        yield lambda: count
    finally:
        for name, original in originals.items():
            setattr(LLGuidanceMatcher, name, original)
