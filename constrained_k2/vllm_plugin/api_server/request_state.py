"""One request's state in the API server: its compiled constraint, and how its answer ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from vllm.parser.utils import count_history_tool_calls

from constrained_k2.compiler.compiled import ANSWER, CompiledToolCalls
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vllm_plugin.api_server.metrics import Covered, coverage_of_tool, covered

_ATTRIBUTE = "_constrained_k2"

_current: ContextVar["RequestState | None"] = ContextVar("constrained_k2_request", default=None)
"""The request of this task: for the two functions of vLLM that are not handed the request itself."""


class Ending(NamedTuple):
    """The end of a parsed choice: was a call cut off, and the beginning of the name of one that was declined."""

    is_cut: bool = False
    declined: str | None = None


@dataclass(kw_only=True, eq=False)
class RequestState:
    """Attached to vLLM's request object, which vLLM hands to most of our replacements."""

    history_calls: int | None = None  # in the repaired messages: the index of the next call; None if not counted
    exact_arguments: bool = False  # whether the template is to get the arguments of earlier calls as text
    compiled: CompiledToolCalls | None = None  # over the vocabulary of bytes, once that has been tried and worked
    error: ConstrainedK2Error | None = None  # why it cannot be compiled, if it cannot
    text: str | None = None  # the constraint as JSON, once it is compiled
    diagnosed_engine: str | None = None  # the engine of the arguments, where the client asked for diagnostics
    hides_special_tokens: bool | None = None  # the client did not ask to see them; None before the request is adjusted
    endings: list[Ending] = field(default_factory=list)  # of each parsed choice of a whole answer
    _called: dict[int, dict[str, None]] = field(default_factory=dict)  # the functions each choice has called, in order

    @property
    def has_form(self) -> bool:
        """True if the constraint has a response format."""
        return self.compiled is not None and self.compiled.spec.answer is not None

    @classmethod
    def of(cls, request: Any) -> Self:
        """The state attached to a request of vLLM's; a new one if there is none."""
        found = cls.attached_to(request)
        if found is None:
            found = cls()
            found.attach(request)
        return found

    @classmethod
    def attached_to(cls, request: Any) -> Self | None:
        """The state attached to a request of vLLM's, if there is one."""
        found = getattr(request, _ATTRIBUTE, None)
        return found if isinstance(found, cls) else None  # a client may send a field of this name

    @staticmethod
    def current() -> "RequestState | None":
        """The state of the request that this task serves."""
        return _current.get()

    def attach(self, request: Any) -> None:
        """Keep the state with a request of vLLM's, out of what pydantic serializes."""
        object.__setattr__(request, _ATTRIBUTE, self)

    def enter(self) -> None:
        """Make this the request that this task serves, until it is admitted, or another one is served.

        A task that begins in a copy of this context takes nothing from it: rendering ends ``exact_arguments``, and
        ``compiled`` is used for the very same text only.
        """
        _current.set(self)

    @contextmanager
    def rendering(self, request: Any) -> Iterator[None]:
        """Attach the state, and make it the current one, while vLLM renders the prompt."""
        self.attach(request)
        self.enter()
        try:
            yield
        finally:
            self.exact_arguments = False

    def add_diagnostics(self, choice: Any, declined: str | None = None) -> None:
        """Set ``constrained_k2`` of a choice: the declined call, and diagnostics if the client asked for them.

        Args:
            choice: vLLM's, of a whole answer, or the next piece of one in a stream.
            declined: The beginning of the name that was written; None if no call was declined.
        """
        found: dict[str, Any] = {} if declined is None else {"declined_call": declined}
        if self.diagnosed_engine is not None and self.compiled is not None:
            found |= self._diagnostics(choice, self.diagnosed_engine, self.compiled)
        if found:
            choice.constrained_k2 = found

    def _diagnostics(self, choice: Any, grammar_engine: str, compiled: CompiledToolCalls) -> dict[str, Any]:
        """The enforcement of the schemas of a choice's calls; empty but for the last piece of a stream.

        On vLLM 0.33 only whole answers have it: there a stream's choices pass no function that knows the request.
        """
        called = self._called.setdefault(choice.index, {})
        shown = choice.message if hasattr(choice, "message") else choice.delta
        names = (call.function.name for call in shown.tool_calls or () if call.function is not None)
        called |= dict.fromkeys(filter(None, names))
        if choice.finish_reason is None:
            return {}
        seconds, declared = compiled.compile_seconds, {tool.name for tool in compiled.spec.tools}
        tools = {
            name: _enforcement(coverage_of_tool(compiled, name), compiled.coverage(name), seconds.get(name))
            for name in called
            if name in declared
        }
        found = {"grammar_engine": grammar_engine, "tool_choice": compiled.spec.choice, "tools_called": tools}
        answer = compiled.answer_grammar
        if answer is not None and not called:
            found["answer"] = _enforcement(covered(answer.coverage), answer.coverage, seconds.get(ANSWER))
        return found


def calls_before(request: Any) -> int:
    """The number of calls in the history of a request of vLLM's."""
    state = RequestState.attached_to(request)
    known = None if state is None else state.history_calls
    return count_history_tool_calls(request) if known is None else known


def _enforcement(level: Covered, coverage: Coverage, seconds: float | None) -> dict[str, Any]:
    relaxed = coverage.relaxed
    return {
        "coverage": level,
        "relaxed": [{"pointer": use.pointer, "reason": use.reason} for use in relaxed[:32]],
        "relaxed_count": len(relaxed),
        "cached": seconds is None,
        "compile_ms": 0.0 if seconds is None else round(seconds * 1000, 3),
    }
