"""What a client can learn of its own request: how the calls that came were kept, beside each choice of a chat answer.

Asked for by ``"vllm_xargs": {"constrained_k2_diagnostics": "on"}``. What only the engine knows is not here: it is
in the metrics, of all requests together.
"""

from functools import wraps
from typing import Any

from constrained_k2.compiler import CompiledToolCalls
from constrained_k2.vllm_plugin.metrics import coverage_of_tool
from constrained_k2.vllm_plugin.settings import OFF, read_switch

DIAGNOSTICS_KEY = "constrained_k2_diagnostics"
"""The key in ``vllm_xargs`` that asks for them."""

_FIELD = "constrained_k2"
"""The field of a choice that holds them."""

_OURS = "_constrained_k2_diagnostics"  # marks what is wrapped already
_RELAXED_SHOWN = 32


class Diagnostics:
    """Of one request; carried by vLLM's request object as the extra field :data:`DIAGNOSTICS_KEY`.

    Args:
        compiled: The request, admitted.
        grammar_engine: The engine that matches its arguments.
    """

    def __init__(self, compiled: CompiledToolCalls, grammar_engine: str) -> None:
        self._compiled = compiled
        self._grammar_engine = grammar_engine
        self._called: dict[int, dict[str, None]] = {}  # the functions that each choice has called so far, in order

    def note(self, choice: Any) -> None:
        """Take notice of the calls in a choice, or in the next piece of one, and add the report if it is the last."""
        called = self._called.setdefault(choice.index, {})
        shown = choice.message if hasattr(choice, "message") else choice.delta
        for call in shown.tool_calls or ():
            if call.function is not None and call.function.name:
                called[call.function.name] = None
        if choice.finish_reason is not None:
            setattr(choice, _FIELD, self.report(list(called)))

    def report(self, called: list[str]) -> dict[str, Any]:
        """What is told about a choice.

        Args:
            called: The functions that it called.
        """
        declared = {tool.name for tool in self._compiled.spec.tools}
        return {
            "grammar_engine": self._grammar_engine,
            "tool_choice": self._compiled.spec.choice,
            "tools_called": {name: self._of_tool(name) for name in called if name in declared},
        }

    def _of_tool(self, name: str) -> dict[str, Any]:
        relaxed = self._compiled.coverage(name).relaxed
        seconds = self._compiled.compile_seconds.get(name)
        return {
            "coverage": coverage_of_tool(self._compiled, name),
            "relaxed": [{"pointer": use.pointer, "reason": use.reason} for use in relaxed[:_RELAXED_SHOWN]],
            "relaxed_count": len(relaxed),
            "cached": seconds is None,
            "compile_ms": 0.0 if seconds is None else round(seconds * 1000, 3),
        }


def take_switch(extra: dict[str, Any]) -> bool:
    """Whether ``vllm_xargs`` ask for diagnostics; the key is taken out, since the engine has no use for it.

    Raises:
        InvalidRequest: The value is neither 'on' nor 'off'.
    """
    return read_switch(extra.pop(DIAGNOSTICS_KEY, OFF), DIAGNOSTICS_KEY)


def attach(request: Any, compiled: CompiledToolCalls, grammar_engine: str) -> None:
    """Have the answer to a chat request carry diagnostics.

    Args:
        request: vLLM's request object.
        compiled: The request, admitted.
        grammar_engine: The engine that matches its arguments.
    """
    _report_in_answers()
    setattr(request, DIAGNOSTICS_KEY, Diagnostics(compiled, grammar_engine))


def _report_in_answers() -> None:
    """Have vLLM's chat answers carry the diagnostics of the requests that have some, streaming and not.

    In vLLM 0.33 a stream's choices pass no function that knows the request; there only whole answers carry them.
    """
    from vllm.entrypoints.openai.chat_completion import serving

    if not hasattr(serving, "maybe_filter_parallel_tool_calls"):
        _report_in_whole_answers(serving.OpenAIServingChat)
        return
    finish = serving.maybe_filter_parallel_tool_calls  # the last that vLLM does to each choice, or piece of one
    if hasattr(finish, _OURS):
        return

    @wraps(finish)
    def with_diagnostics(choice: Any, request: Any) -> Any:
        choice = finish(choice, request)
        found = getattr(request, DIAGNOSTICS_KEY, None)
        if isinstance(found, Diagnostics):  # a client may send a field of this name
            found.note(choice)
        return choice

    setattr(with_diagnostics, _OURS, True)
    serving.maybe_filter_parallel_tool_calls = with_diagnostics


def _report_in_whole_answers(serving_chat: Any) -> None:
    answer_whole = serving_chat.chat_completion_full_generator
    if hasattr(answer_whole, _OURS):
        return

    @wraps(answer_whole)
    async def with_diagnostics(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await answer_whole(self, request, *args, **kwargs)
        found = getattr(request, DIAGNOSTICS_KEY, None)
        if isinstance(found, Diagnostics):
            for choice in getattr(answer, "choices", ()):
                found.note(choice)
        return answer

    setattr(with_diagnostics, _OURS, True)
    serving_chat.chat_completion_full_generator = with_diagnostics
