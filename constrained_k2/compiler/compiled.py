"""One compiled request: its grammars, call headers and strictness levels, shared by its matchers."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from constrained_k2.compiler.fast_path import SECONDS_PER_PART, FastPathAdmission
from constrained_k2.compiler.shared import GrammarOptions, SharedGrammars
from constrained_k2.engines.protocol import ArgumentGrammar, ArgumentMatcher
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.request.answer_format import AnswerKind
from constrained_k2.request.spec import ANY_OBJECT, Tool, ToolCallSpec
from constrained_k2.request.strictness import Level
from constrained_k2.request.tools import TextFormat
from constrained_k2.schema.coverage import Coverage, KeywordUse
from constrained_k2.threads.interruptible import yield_gil
from constrained_k2.turn.call_id import CallIdMatcher, CallIdTrie
from constrained_k2.turn.matcher import ToolCallMatcher

ANSWER = ""
"""The answer's key in :attr:`CompiledToolCalls.compile_seconds`; no function has this name."""
_logger = logging.getLogger(__name__)
_WHOLE = Coverage("llguidance")


class CompiledToolCalls:
    """One compiled request, made by :meth:`constrained_k2.Compiler.compile` and shared by its matchers.

    Attributes:
        compile_seconds: Function name, or :data:`ANSWER` -> seconds that its schema took to compile, None for a cache
            hit. Only grammars that have been used have an entry.
        options: The options that the grammars of arguments are compiled with.
        without_grammar: Function name -> keyword and reason, for functions whose schema has no grammar. They accept any
            JSON object.
        call_threshold: A call is declined if the probability of a declared name is below this; 0 declines none.
    """

    def __init__(self, shared: SharedGrammars, spec: ToolCallSpec) -> None:
        self.spec = spec
        self.vocabulary = shared.vocabulary
        does_decline = (spec.undeclared_calls or shared.undeclared_calls) == "decline"
        self.call_threshold = shared.call_threshold if does_decline else 0.0
        may_decline = self.call_threshold > 0 and spec.choice == "auto" and spec.answer is None
        self.turn_table = shared.turn_table(spec, declines=may_decline)
        self.compile_seconds: dict[str, float | None] = {}
        self._shared = shared
        self._trie: CallIdTrie | None = None
        self._call_ids: tuple[int, CallIdMatcher] | None = None  # the latest call's number, and its call ids
        self._grammars: dict[str, ArgumentGrammar] = {}
        self._precompiled: str | None = None  # the function that was precompiled last
        self._tools = {tool.name: tool for tool in spec.tools}
        encoding = shared.vocabulary.format.argument_encoding
        self.options = GrammarOptions(undeclared_keys=spec.undeclared_keys or shared.undeclared_keys, encoding=encoding)
        self.without_grammar: dict[str, KeywordUse] = {}
        self._levels: dict[bool | None, Level] = {}  # by the tools' ``strict``
        self._fast_path: dict[str, int] = {}  # functions admitted by the fast path -> the parts of their schema

    def matcher(self, *, in_reasoning: bool = False) -> ToolCallMatcher:
        """A matcher at the start of a turn; ``in_reasoning``: the prompt opened the reasoning, e.g. by ``<think>``."""
        return ToolCallMatcher(self, in_reasoning=in_reasoning)

    def call_ids(self, call: int) -> CallIdMatcher:
        """The call ids that the turn's ``call``-th call (from 0) may have."""
        found = self._call_ids
        if found is None or found[0] != call:
            if self._trie is None:
                self._trie = self._shared.call_id_trie(tuple(self._tools))
            index = self._shared.call_index(self.spec.first_index, call)
            found = self._call_ids = (call, self._trie.with_index(index))
        return found[1]

    def answer(self) -> ArgumentMatcher | None:
        """A matcher at the start of the answer; None if the request has no response format."""
        form, grammar = self.spec.answer, self.answer_grammar
        if form is None or grammar is None:
            return None
        return grammar.matcher(form.location, may_relax=self._answer_level != "strict")

    @cached_property
    def answer_grammar(self) -> ArgumentGrammar | None:
        """The grammar of the answer; None if the request has no response format. Raises as :meth:`grammar`."""
        form = self.spec.answer
        if form is None:
            return None
        note = partial(self.compile_seconds.__setitem__, ANSWER)
        options = self.answer_options(form.kind)
        return self._shared.grammar(form.text, form.location, self.spec.engine, note, options)

    def answer_options(self, kind: AnswerKind) -> GrammarOptions:
        """The options that the grammar of an answer is compiled with."""
        return replace(self.options, root="any", kind=kind, encoding="json")

    def precompile(self, name: str) -> None:
        """Start compiling a function's schema in the background, once per request."""
        if name != self._precompiled:
            self._precompiled = name
            text, options = self._source(name)
            self._shared.precompile(text, self.spec.engine, options)

    def is_compiled(self, name: str) -> bool:
        """False if :meth:`arguments` would block on compiling the function's schema."""
        return name in self._grammars or self._compile_time(name) is not None

    def arguments(self, name: str) -> ArgumentMatcher:
        """A matcher at the start of a function's arguments.

        A schema admitted by the fast path may turn out to have no grammar only now, when the call has begun. This is
        logged and counted.

        Raises:
            UnsupportedSchema: As :meth:`grammar`.
            SchemaTooCostly: As :meth:`grammar`.
        """
        is_known = name in self._grammars
        grammar = self.grammar(name)
        if not is_known and (reason := self.without_grammar.get(name)) is not None:
            self._shared.counts.add_late_refusal()
            said = ascii(f"{reason.pointer} ({reason.reason})")
            _logger.warning("%s: admitted without compiling it: %s", schema_location(name), said)
        return grammar.matcher(self._location(name), may_relax=self.level(name) != "strict")

    def grammar(self, name: str) -> ArgumentGrammar:
        """The grammar of a function's arguments; any JSON object if the schema has no grammar and is not strict.

        Raises:
            UnsupportedSchema: A strict schema has no grammar, or the grammar of a custom tool cannot be built.
            SchemaTooCostly: Such a schema or grammar is over a budget.
        """
        if name not in self._grammars:
            note = partial(self.compile_seconds.__setitem__, name)
            (text, options), location = self._source(name), self._location(name)
            try:
                self._grammars[name] = self._shared.grammar(text, location, self.spec.engine, note, options)
            except (UnsupportedSchema, SchemaTooCostly) as error:
                self._take_any_object(name, error)
        return self._grammars[name]

    def coverage(self, name: str) -> Coverage:
        """The enforcement of each keyword of a function's schema; raises as :meth:`grammar`."""
        coverage = self.grammar(name).coverage
        reason = self.without_grammar.get(name)
        return coverage if reason is None else Coverage(coverage.engine, relaxed=(reason,))

    def admission_coverage(self, name: str) -> Coverage:
        """:meth:`coverage`; empty (nothing relaxed) for fast-path schemas, which are not compiled."""
        return _WHOLE if name in self._fast_path else self.coverage(name)

    @property
    def compiled_tools(self) -> list[Tool]:
        """The tools that may be called and were not admitted by the fast path."""
        return (
            [] if self.spec.max_calls == 0 else [tool for tool in self.spec.tools if tool.name not in self._fast_path]
        )

    @property
    def fast_path_count(self) -> int:
        """The number of functions that the fast path admitted."""
        return len(self._fast_path)

    @property
    def resolved_spec(self) -> ToolCallSpec:
        """The spec with any JSON object for schemas that failed to compile, so that no other process retries them."""
        if not self.without_grammar:
            return self.spec
        tools = (
            replace(tool, schema=ANY_OBJECT) if tool.name in self.without_grammar else tool for tool in self.spec.tools
        )
        return replace(self.spec, tools=tuple(tools))

    def slow_tools(self, seconds: float) -> list[int]:
        """The indexes of tools whose schemas took ``seconds`` or more to compile (engine's clock), or are not cached.

        The time of a schema that the fast path admitted is estimated.
        """
        if self.spec.max_calls == 0:
            return []
        times = map(self._estimated_time, self._tools)
        return [index for index, taken in enumerate(times) if taken is None or taken >= seconds]

    def admit(self) -> None:
        """As :meth:`check_all`, but schemas that the fast path shows to be fully enforced are not compiled."""
        by_shape = FastPathAdmission(self._shared, self.options.encoding)
        if (self.spec.engine or self._shared.default_engine) == "llguidance" and self.spec.max_calls != 0:
            for name in self._tools:
                yield_gil()
                parts = None if self.text_format(name) else by_shape.parts(self.schema(name))
                if parts is not None:
                    self._fast_path[name] = parts
        self.check_all([index for index, name in enumerate(self._tools) if name not in self._fast_path], by_shape.spent)

    def check_all(self, indexes: Sequence[int] | None = None, spent: float = 0.0) -> None:
        """Compile and check the response format and the schemas of tools, by their indexes in the spec.

        The schemas are left out if the request allows no calls. ``spent``: seconds that the request has taken already.

        Raises:
            UnsupportedSchema: A strict schema has no grammar or cannot be fully enforced, or a custom tool's grammar
                cannot be built.
            SchemaTooCostly: Such a schema, or all of them together, are over a budget.
        """
        self._check_answer()
        if self.spec.max_calls == 0:
            return
        tools = self.spec.tools
        for tool in tools if indexes is None else [tools[index] for index in indexes]:
            yield_gil()
            try:
                self._check_time(spent, tool.name)
            except SchemaTooCostly as error:
                self._take_any_object(tool.name, error)
            self._check(tool)
            spent += self._spent(tool.name)

    def _spent(self, name: str) -> float:
        """Seconds that a function's schema just took to compile; by the engine's clock if it has a grammar."""
        waited = self.compile_seconds.get(name)
        if waited is None or name in self.without_grammar:
            return waited or 0.0
        return self._compile_time(name) or waited

    def _check(self, tool: Tool) -> None:
        coverage = self.coverage(tool.name)
        if self.level(tool.name) == "strict":
            _require_all(coverage, "the tool", schema_location(tool.name))

    def _check_answer(self) -> None:
        grammar, form = self.answer_grammar, self.spec.answer
        if grammar is not None and form is not None and self._answer_level == "strict":
            _require_all(grammar.coverage, "the answer", form.location)

    @property
    def _answer_level(self) -> Level:
        return self._shared.policy.level((self.spec.answer is not None and self.spec.answer.strict) or None)

    def level(self, name: str) -> Level:
        """The strictness of a function's schema."""
        if name in self.without_grammar:
            return "json_object"
        strict = self._tools[name].strict
        found = self._levels.get(strict)
        if found is None:
            found = self._levels[strict] = self._shared.policy.level(strict, self.spec.strict_false)
        return found

    def _take_any_object(self, name: str, error: UnsupportedSchema | SchemaTooCostly) -> None:
        """Let a function accept any JSON object after an error; raise it for a strict schema or a custom tool."""
        tool, location = self._tools[name], schema_location(name)
        if tool.format is not None or not self._shared.policy.allows_any_object(tool.strict):
            raise error
        found = self._shared.grammar(ANY_OBJECT, location, self.spec.engine, None, self.options)
        pointer = error.location.removeprefix(location) or "#"
        self.without_grammar[name] = KeywordUse(pointer, f"{error.problem}: any JSON object is allowed")
        self._grammars[name] = found
        self._fast_path.pop(name, None)

    def schema(self, name: str) -> str:
        """The schema that is enforced on a function's arguments, JSON text: its own, or :data:`ANY_OBJECT`."""
        return ANY_OBJECT if self.level(name) == "json_object" else self._tools[name].schema

    def text_format(self, name: str) -> TextFormat | None:
        """The grammar of a custom tool's text; None for a function, and if any JSON object is allowed."""
        return None if self.level(name) == "json_object" else self._tools[name].format

    def _source(self, name: str) -> tuple[str, GrammarOptions]:
        """The text of a function's grammar, and the options that it is compiled with."""
        form = self.text_format(name)
        if form is None:
            return self.schema(name), self.options
        return form.definition, replace(self.options, kind=form.syntax)

    def _location(self, name: str) -> str:
        return schema_location(name) if self.text_format(name) is None else f"tools[name={name!r}].format.definition"

    def _estimated_time(self, name: str) -> float | None:
        parts = self._fast_path.get(name)
        return self._compile_time(name) if parts is None else parts * SECONDS_PER_PART

    def _compile_time(self, name: str) -> float | None:
        text, options = self._source(name)
        return self._shared.compile_time(text, self.spec.engine, options)

    def _check_time(self, spent: float, name: str) -> None:
        """Raise if the request has no time left for a schema that is not cached."""
        allowed = self._shared.request_seconds
        if allowed is not None and spent > allowed and self._compile_time(name) is None:
            limit, actual = round(allowed * 1000), round(spent * 1000)
            problem = f"the schemas before this one took {actual} ms to compile, over the limit of {limit} ms a request"
            remedy = "Send the request again: compiled schemas are cached; or send fewer tools, or simpler ones"
            raise SchemaTooCostly(problem, schema_location(name), remedy, "request_ms", limit, actual)


def _require_all(coverage: Coverage, what: str, location: str) -> None:
    if not coverage.inexact:
        return
    use, others = coverage.inexact[0], len(coverage.inexact) - 1
    if coverage.relaxed:
        problem = f"{what} is strict, and {use.keyword!r} cannot be enforced: {use.reason}"
        remedy = "Rewrite it, or leave strict out to have the rest enforced"
    else:
        problem = f"{what} is strict, and {use.keyword!r} has no meaning in JSON Schema: {use.reason}"
        remedy = "Write what it is read as, or leave strict out"
    problem += f" (and {others} more)" if others else ""
    raise UnsupportedSchema(problem, location + use.pointer, remedy, use.keyword, coverage.engine)


def schema_location(name: str) -> str:
    """The location of a tool's schema, by name, since a spec with only the allowed tools has other indexes."""
    return f"tools[name={name!r}].function.parameters"
