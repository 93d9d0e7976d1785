"""The state of one request in the process that admits it: what was read, and how its answer ended."""

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
        """Say of a choice that a call was declined, with the beginning of the name that was written.

        Add to the last piece of a choice, where the client asked for it, how the schemas of its calls are enforced.

        Asked for by ``"vllm_xargs": {"constrained_k2_diagnostics": "on"}``. On vLLM 0.33 only whole answers have them:
        there a stream's choices pass no function that knows the request.
        """
        if declined is not None:
            choice.constrained_k2 = {"declined_call": declined}
        if self.diagnosed_engine is None or self.compiled is None:
            return
        called = self._called.setdefault(choice.index, {})
        shown = choice.message if hasattr(choice, "message") else choice.delta
        names = (call.function.name for call in shown.tool_calls or () if call.function is not None)
        called |= dict.fromkeys(filter(None, names))
        if choice.finish_reason is not None:
            declared = {tool.name for tool in self.compiled.spec.tools}
            choice.constrained_k2 = ({} if declined is None else choice.constrained_k2) | {
                "grammar_engine": self.diagnosed_engine,
                "tool_choice": self.compiled.spec.choice,
                "tools_called": {
                    name: _diagnostics(
                        coverage_of_tool(self.compiled, name),
                        self.compiled.coverage(name),
                        self.compiled.compile_seconds.get(name),
                    )
                    for name in called
                    if name in declared
                },
            }
            answer = self.compiled.answer_grammar
            if answer is not None and not called:
                choice.constrained_k2["answer"] = _diagnostics(
                    covered(answer.coverage), answer.coverage, self.compiled.compile_seconds.get(ANSWER)
                )


def calls_before(request: Any) -> int:
    """The number of calls in the history of a request of vLLM's."""
    state = RequestState.attached_to(request)
    known = None if state is None else state.history_calls
    return count_history_tool_calls(request) if known is None else known


def _diagnostics(level: Covered, coverage: Coverage, seconds: float | None) -> dict[str, Any]:
    relaxed = coverage.relaxed
    return {
        "coverage": level,
        "relaxed": [{"pointer": use.pointer, "reason": use.reason} for use in relaxed[:32]],
        "relaxed_count": len(relaxed),
        "cached": seconds is None,
        "compile_ms": 0.0 if seconds is None else round(seconds * 1000, 3),
    }
