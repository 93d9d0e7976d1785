"""``finish_reason`` of chat answers: ``tool_calls`` for whole calls only, ``length`` where one is cut off.

vLLM says ``tool_calls`` of every whole answer that has calls, and of every stream that has shown a part of one and was
not ended by ``max_tokens``. What the parser knows is carried to where vLLM has decided: in a stream by the delta's
class, of a whole answer by a list that the answer's own task holds.
"""

from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage

from constrained_k2.vllm_plugin.route import parses_with_us

_OURS = "_constrained_k2"  # marks what is wrapped already

_OVERRULED = ("stop", "tool_calls")

_cuts: ContextVar[list[bool] | None] = ContextVar("cuts", default=None)


class CutDelta(DeltaMessage):
    """The last delta of a stream in which a call was begun and cut off."""


def note_whole_answer(*, cut: bool) -> None:
    """Say of an answer that was parsed whole whether a call in it is cut off. One note an answer, in their order."""
    noted = _cuts.get()
    if noted is not None:
        noted.append(cut)


def mend_finish_reasons() -> None:
    """Put the rule above behind vLLM's, on servers that parse with us."""
    from vllm.entrypoints.openai.chat_completion import serving

    answer_whole = serving.OpenAIServingChat.chat_completion_full_generator
    if hasattr(answer_whole, _OURS):
        return

    @wraps(answer_whole)
    async def mended(self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any) -> Any:
        if not parses_with_us(self.parser_cls):
            return await answer_whole(self, request, result_generator, *args, **kwargs)
        last: Any = None

        async def watched() -> AsyncIterator[Any]:
            nonlocal last
            async for last in result_generator:
                yield last

        before = _cuts.set([])
        try:
            answer = await answer_whole(self, request, watched(), *args, **kwargs)
            cuts = _cuts.get() or []
        finally:
            _cuts.reset(before)
        if last is not None and hasattr(answer, "choices"):
            for choice, output, cut in zip(answer.choices, last.outputs, cuts, strict=True):
                _mend(choice, cut=cut or output.finish_reason == "length", calls=choice.message.tool_calls)
        return answer

    setattr(mended, _OURS, True)
    serving.OpenAIServingChat.chat_completion_full_generator = mended
    if hasattr(serving, "maybe_filter_parallel_tool_calls"):
        _mend_choices(serving)
    else:
        _mend_steps()


def _mend_choices(serving: Any) -> None:
    """In vLLM 0.32 the last that is done to each choice of a stream is a call of this function."""
    filter_calls = serving.maybe_filter_parallel_tool_calls

    @wraps(filter_calls)
    def mended_stream(item: Any, request: Any) -> Any:
        item = filter_calls(item, request)
        if isinstance(getattr(item, "delta", None), CutDelta):
            _mend(item, cut=True)
        return item

    serving.maybe_filter_parallel_tool_calls = mended_stream


def _mend_steps() -> None:
    """In vLLM 0.33 a choice's reason comes with its delta."""
    from vllm.entrypoints.openai.chat_completion.stream_processor import ChatStreamProcessor

    step = ChatStreamProcessor.step

    @wraps(step)
    def mended_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = step(self, *args, **kwargs)
        if isinstance(done.delta, CutDelta) and done.finish_reason in _OVERRULED:
            return done._replace(finish_reason="length")
        return done

    ChatStreamProcessor.step = mended_step


def _mend(choice: Any, *, cut: bool, calls: Any = ()) -> None:
    """Correct one choice's reason; reasons such as ``abort`` are left alone."""
    if cut and choice.finish_reason in _OVERRULED:
        choice.finish_reason = "length"
    elif choice.finish_reason == "tool_calls" and not calls:
        choice.finish_reason = "stop"
