"""One request, compiled: what its matchers share."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from constrained_k2.engines.protocol import ArgumentGrammar, ArgumentMatcher
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.header import Headers, HeaderStems
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.policy import Level
from constrained_k2.schema.coverage import Coverage
from constrained_k2.tools import ANY_OBJECT, Tool, ToolCallSpec

if TYPE_CHECKING:
    from constrained_k2.compiler import Compiler


class CompiledToolCalls:
    """One request, compiled; shared by its matchers (several where a request asks for several completions).

    Attributes:
        spec: The request.
        vocabulary: The vocabulary it is compiled for.
        phase_sets: The constant masks.
        compile_seconds: What the grammar of each function took that was needed so far; None where it was remembered.
    """

    def __init__(self, compiler: "Compiler", spec: ToolCallSpec) -> None:
        self.spec = spec
        self.vocabulary = compiler.vocabulary
        self.phase_sets = compiler.phase_sets(spec)
        self._compiler = compiler
        self._headers: tuple[int, Headers] | None = None  # of the call last asked for
        self.compile_seconds: dict[str, float | None] = {}
        self._grammars: dict[str, ArgumentGrammar] = {}
        self._stems: HeaderStems | None = None
        self._prepared: str | None = None  # the function last prepared
        self._names = tuple(tool.name for tool in spec.tools)
        self._tools = {tool.name: tool for tool in spec.tools}

    def matcher(self, *, in_reasoning: bool = False) -> ToolCallMatcher:
        """A matcher at the start of the turn.

        Args:
            in_reasoning: Whether the prompt ends in ``<think>``, as K2.5's does.
        """
        return ToolCallMatcher(self, in_reasoning=in_reasoning)

    def headers(self, call: int) -> Headers:
        """The headers that the turn's ``call``-th call (from 0) may have."""
        found = self._headers
        if found is None or found[0] != call:
            if self._stems is None:
                self._stems = self._compiler.stems(self._names)
            found = self._headers = (call, self._stems.due(self.spec.first_index + call))
        return found[1]

    def prepare(self, name: str) -> None:
        """Begin to compile a function's schema, if that is not done yet and was not begun by this request before."""
        if name != self._prepared:
            self._prepared = name
            self._compiler.prepare(self._schema(name), self.spec.engine)

    def is_prepared(self, name: str) -> bool:
        """Whether :meth:`arguments` has nothing to compile."""
        return name in self._grammars or self._compiler.compile_time(self._schema(name), self.spec.engine) is not None

    def arguments(self, name: str) -> ArgumentMatcher:
        """A matcher at the start of a function's arguments.

        Raises:
            UnsupportedSchema: Its schema has no grammar.
        """
        return self.grammar(name).matcher(place_of_schema(name))

    def coverage(self, name: str) -> Coverage:
        """What becomes of each keyword of a function's schema.

        Raises:
            UnsupportedSchema: It has no grammar.
            SchemaTooCostly: It is over a budget.
        """
        return self.grammar(name).coverage

    def slow_tools(self, seconds: float) -> list[int]:
        """Which tools' schemas took so long to compile, or are not remembered, by their places in the spec.

        Args:
            seconds: How long, or longer, by the engine's clock: beside others each would take long by any other.
        """
        if self.spec.max_calls == 0:
            return []
        took = [self._compiler.compile_time(self._schema(name), self.spec.engine) for name in self._names]
        return [place for place, taken in enumerate(took) if taken is None or taken >= seconds]

    def check_all(self, places: Sequence[int] | None = None) -> None:
        """Compile tools' schemas now, where there may be calls.

        Args:
            places: Which tools', by their places in the spec; None for all.

        Raises:
            UnsupportedSchema: As :meth:`check`.
            SchemaTooCostly: As :meth:`check`, or all of them together are over a budget.
        """
        if self.spec.max_calls == 0:
            return
        start = time.monotonic()
        tools = self.spec.tools
        for tool in tools if places is None else [tools[place] for place in places]:
            self._check_time(time.monotonic() - start, tool.name)
            self.check(tool)

    def check(self, tool: Tool) -> None:
        """Refuse a tool whose schema has no grammar, or is strict and would not be kept whole.

        Raises:
            UnsupportedSchema: The tool is refused.
            SchemaTooCostly: Its schema is over a budget.
        """
        coverage = self.coverage(tool.name)
        if coverage.relaxed and self.level(tool.name) == "strict":
            use = coverage.relaxed[0]
            raise UnsupportedSchema(
                f"the tool is strict, and {use.keyword!r} cannot be kept: {use.reason}",
                place_of_schema(tool.name) + use.pointer,
                "Rewrite it, or leave strict out to have the rest kept",
                use.keyword,
                coverage.engine,
            )

    def level(self, name: str) -> Level:
        """How strictly a function's schema is kept."""
        return self._compiler.policy.level(self._tools[name].strict)

    def grammar(self, name: str) -> ArgumentGrammar:
        """The grammar of a function's arguments.

        Raises:
            UnsupportedSchema: Its schema has none.
            SchemaTooCostly: It is over a budget.
        """
        if name not in self._grammars:

            def note(seconds: float | None) -> None:
                self.compile_seconds[name] = seconds

            self._grammars[name] = self._compiler.grammar(
                self._schema(name), place_of_schema(name), self.spec.engine, note
            )
        return self._grammars[name]

    def _schema(self, name: str) -> str:
        return ANY_OBJECT if self.level(name) == "object" else self._tools[name].schema

    def _check_time(self, spent: float, name: str) -> None:
        """Refuse to begin with a function's schema where those before it took too long, in seconds.

        Raises:
            SchemaTooCostly: They did.
        """
        allowed = self._compiler.request_seconds
        if allowed is not None and spent > allowed:
            limit, actual = round(allowed * 1000), round(spent * 1000)
            raise SchemaTooCostly(
                f"the schemas before this one took {actual} ms to compile, over the {limit} of one request",
                place_of_schema(name),
                "Send it again: what has been compiled is remembered; or send fewer tools, or simpler ones",
                budget="request_ms",
                limit=limit,
                actual=actual,
            )


def place_of_schema(name: str) -> str:
    """Where a tool's schema stands. By name: a named or allowed tool's number is not its number in the request."""
    return f"tools[name={name!r}].function.parameters"
