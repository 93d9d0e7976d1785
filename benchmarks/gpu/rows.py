"""Rows of a batch that write calls, turn after turn, one token per step."""

from pathlib import Path
from typing import Any

from benchmarks.host.workload import Turn, Workload, load
from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec
from constrained_k2.compiler.compiler import CompiledToolCalls

_CALLS = 2  # of a turn


class Calls:
    """Turns that call tools: one grammar of all tools, and the place in each turn from which on it calls.

    Args:
        shared: Folder with the real vocabulary and public tools.
        scratch: Folder for the small tokenizer's files, if they are missing there.
        tools: Number of tools.

    Attributes:
        directory: Folder of the tokenizer.
    """

    def __init__(self, shared: Path, scratch: Path, tools: int) -> None:
        self.workload: Workload = load(shared, scratch)
        real = shared / "kimi_k2" / "tokenizer"
        self.directory = real if real.is_dir() else scratch
        self._compiler = Compiler(self.workload.vocabulary, undeclared_keys="allow")
        self.tools = self._usable(tools)
        self.body: dict[str, Any] = {"tools": self.tools}
        self.compiled: CompiledToolCalls = self._compiler.compile(ToolCallSpec.from_openai(self.body), check=False)

    def turn(self, number: int) -> tuple[Turn, int]:
        """Return a turn, and the number of its tokens before the calls."""
        turn = self.workload.turn(self.tools, number, calls=_CALLS)
        return turn, turn.phases.index("marker")

    def _usable(self, count: int) -> list[dict[str, Any]]:
        """Return tools whose sample calls the grammar accepts."""
        found: list[dict[str, Any]] = []
        for tool in self.workload.tools:
            spec = ToolCallSpec.from_openai({"tools": [tool]})
            turns = (self.workload.turn([tool], seed, calls=1).ids for seed in range(2))
            if all(self._compiler.compile(spec, check=False).matcher().accept_tokens(ids) for ids in turns):
                found.append(tool)
            if len(found) == count:
                break
        return found


class Row:
    """One row: a matcher that follows turn after turn, from the first token of the calls."""

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self._number = number
        self._begin()
        turn_left = len(self._turn.ids) - 1 - self._step
        for _ in range(number % turn_left):  # so that the rows of a batch are at different places
            self.advance()

    @property
    def matcher(self) -> ToolCallMatcher:
        """The matcher before the next token."""
        return self._matcher

    def advance(self) -> None:
        """Take the next token; after a turn's last one, begin another turn with other tools."""
        if self._step == len(self._turn.ids) - 1:  # the stop
            self._number += 1
            self._begin()
            return
        if not self._matcher.accept_tokens((self._turn.ids[self._step],)):
            raise RuntimeError(f"token {self._step} of turn {self._number} is rejected")
        self._step += 1

    def _begin(self) -> None:
        self._turn, self._step = self._calls.turn(self._number)
        self._matcher = self._calls.compiled.matcher()
        self._matcher.accept_tokens(self._turn.ids[: self._step])
